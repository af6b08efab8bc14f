"""PAPERS.md is what its generator writes, and the places and tests it names exist."""

import ast
import functools
import importlib
import pathlib
import re

import pytest

from benchmarks import __main__ as runner
from benchmarks.papers import document, item

ROOT = pathlib.Path(__file__).parent.parent
KEPT = (ROOT / 'benchmarks' / 'PAPERS.md').read_text(encoding='utf-8')
ITEMS = {f'{paper.title[:3]}: {each.name}': each
         for paper in document.PAPERS for each in paper.items}
# The numbers of the other two take half a minute.
QUICK_PAPERS = document.PAPERS[:3]


def is_there(place):
  """Returns whether a place is a file or can be imported, as far as can be seen.

  Modules that need TensorFlow are taken to be there where TensorFlow is not.
  """
  if '/' in place:
    return (ROOT / place).is_file()
  parts = place.split('.')
  for cut in range(len(parts), 0, -1):
    try:
      found = importlib.import_module('.'.join(parts[:cut]))
    except ModuleNotFoundError as error:
      if error.name == 'tensorflow':
        return True
      continue
    for name in parts[cut:]:
      if not hasattr(found, name):
        return False
      found = getattr(found, name)
    return True
  return False


@functools.cache
def statements(file):
  """Returns the statements of a file, none if there is no such file."""
  path = ROOT / file
  return ast.parse(path.read_text()).body if path.is_file() else []


def has_node(node):
  """Returns whether the test with this node id is in its file."""
  file, *names = node.split('::')
  body = statements(file)
  for name in names:
    found = [each for each in body if getattr(each, 'name', None) == name]
    if not found:
      return False
    body = found[0].body
  return bool(names)


def missing(each):
  """Yields the places and the command of an item that do not exist."""
  yield from (place for place in each.places if not is_there(place))
  if each.command.startswith('python -m '):
    package, _, name = each.command.split()[2].partition('.')
    if package != 'benchmarks' or name.split('.')[0] not in runner.benchmarks():
      yield each.command
  elif not has_node(each.command):
    yield each.command


@pytest.mark.more
def test_places_tests_and_benchmarks_of_items_exist():
  assert len(ITEMS) > 120
  assert [f'{name}: {wrong}' for name, each in ITEMS.items()
          for wrong in missing(each)] == []
  assert [name for name, each in ITEMS.items() if not each.places] == []


def test_statuses_are_of_four_kinds_and_give_reasons():
  for name, each in ITEMS.items():
    kind, _, why = each.status.partition(': ')
    assert kind in ('reproduced', 'corrected', 'in part', 'not reproducible'), name
    assert bool(why) == (kind != 'reproduced'), name


def test_places_tests_and_benchmarks_that_do_not_exist_are_found():
  assert not is_there('tfcactus.design.Nothing') and not is_there('benchmarks/no.png')
  assert not has_node('tests/test_papers.py::test_nothing')
  assert not has_node('tests/test_papers.py') and not has_node('tests/no.py::test_x')
  each = item.Item('', ('tfcactus.No',), '', 'python -m benchmarks.no', str)
  assert list(missing(each)) == ['tfcactus.No', 'python -m benchmarks.no']
  assert list(missing(each._replace(command='tests/no.py::test_x')))[1:]
  with pytest.raises(ValueError, match='results/nothing.json'):
    item.of('nothing')


def check_same(kept, made):
  """Checks words for equality, and numbers to a few units of their last place."""
  assert len(kept.splitlines()) == len(made.splitlines())
  for mine, theirs in zip(kept.splitlines(), made.splitlines()):
    here, there = (re.split(r'(-?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?)', line)
                   for line in (mine, theirs))
    assert here[::2] == there[::2]
    for first, second in zip(here[1::2], there[1::2]):
      assert float(first.replace(',', '')) == pytest.approx(
          float(second.replace(',', '')), rel=2e-4), (mine, theirs)


@pytest.mark.parametrize('paper', QUICK_PAPERS, ids=lambda paper: paper.title[:3])
def test_the_section_of_a_paper_is_what_is_computed(paper):
  measured, not_measured = document._numbers(paper)
  assert not not_measured
  section = document._section(paper, measured, []).rstrip()
  start = KEPT.index(section.splitlines()[0])
  check_same(KEPT[start:].split('\n\n\n')[0].rstrip(), section)


@pytest.mark.more
def test_the_document_is_what_is_computed():
  assert not document.not_measured()
  check_same(KEPT, document.text())


@pytest.mark.parametrize('kept, made', [
    ('delta 1.000', 'delta 1.001'), ('delta 1', 'beta 1'), ('1\n2', '1')])
def test_documents_that_differ_are_told_apart(kept, made):
  check_same(kept, kept)
  with pytest.raises(AssertionError):
    check_same(kept, made)


def test_every_item_has_a_number():
  rows = [line for line in KEPT.splitlines()
          if '| `tests/' in line or '| `python -m' in line]
  assert len(rows) == len(ITEMS)
  for row in rows:
    cells = row.strip('| ').split(' | ')
    assert len(cells) == 5 and all(cells)
    assert re.search(r'\d', cells[4]), row
