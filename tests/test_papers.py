"""PAPERS.md is what its generator writes; what it names is there."""

import ast
import importlib
import pathlib
import re

import pytest

from benchmarks import __main__ as runner
from benchmarks.papers import document, item

ROOT = pathlib.Path(__file__).parent.parent
ITEMS = [pytest.param(each, id=f'{paper.title[:3]}: {each.name}')
         for paper in document.PAPERS for each in paper.items]


def is_there(place):
  """Whether a place is a file, or can be imported: a module, and names in it."""
  if '/' in place:
    return (ROOT / place).is_file()
  parts = place.split('.')
  for cut in range(len(parts), 0, -1):
    try:
      found = importlib.import_module('.'.join(parts[:cut]))
    except ModuleNotFoundError as error:
      if error.name == 'tensorflow':
        pytest.skip('no tensorflow')
      continue
    for name in parts[cut:]:
      if not hasattr(found, name):
        return False
      found = getattr(found, name)
    return True
  return False


def has_node(node):
  """Whether a test of this name is in its file."""
  file, *names = node.split('::')
  path = ROOT / file
  body = ast.parse(path.read_text()).body if path.is_file() else []
  for name in names:
    found = [each for each in body if getattr(each, 'name', None) == name]
    if not found:
      return False
    body = found[0].body
  return bool(names)


@pytest.mark.parametrize('each', ITEMS)
def test_places_and_commands_are_there(each):
  assert each.places
  for place in each.places:
    assert is_there(place), place
  if each.command.startswith('python -m '):
    name = each.command.split()[2]
    assert name.startswith('benchmarks.')
    assert name.split('.')[1] in runner.benchmarks(), each.command
  else:
    assert has_node(each.command), each.command


@pytest.mark.parametrize('each', ITEMS)
def test_statuses_are_of_four_kinds_and_say_why(each):
  kind, _, why = each.status.partition(': ')
  assert kind in ('reproduced', 'corrected', 'in part', 'not reproducible')
  assert bool(why) == (kind != 'reproduced')


def test_nothing_drops_out_of_the_document_because_its_results_were_lost():
  assert not document.not_measured()


def test_what_is_not_there_is_seen():
  assert not is_there('tfcactus.design.Nothing') and not is_there('benchmarks/no.png')
  assert not has_node('tests/test_papers.py::test_nothing')
  assert not has_node('tests/test_papers.py') and not has_node('tests/no.py::test_x')
  with pytest.raises(ValueError, match='results/nothing.json'):
    item.of('nothing')


def numbers_and_words(text):
  return re.split(r'(-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?)', text)


def test_the_document_is_what_is_computed():
  """Word for word; numbers to a few units of their last place, on other machines."""
  kept = (ROOT / 'benchmarks' / 'PAPERS.md').read_text(encoding='utf-8')
  made = document.text()
  for mine, theirs in zip(kept.splitlines(), made.splitlines()):
    here, there = numbers_and_words(mine), numbers_and_words(theirs)
    assert here[::2] == there[::2]
    for first, second in zip(here[1::2], there[1::2]):
      assert float(first.replace(',', '')) == pytest.approx(
          float(second.replace(',', '')), rel=2e-4), (mine, theirs)
  assert len(kept.splitlines()) == len(made.splitlines())


def test_every_item_has_a_number():
  rows = [line for line in (ROOT / 'benchmarks' / 'PAPERS.md').read_text().splitlines()
          if '| `tests/' in line or '| `python -m' in line]
  assert len(rows) == len(ITEMS)
  for row in rows:
    cells = row.strip('| ').split(' | ')
    assert len(cells) == 5 and all(cells)
    assert re.search(r'\d', cells[4]), row
