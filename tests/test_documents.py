"""Documents: links lead somewhere, and tables have a place to be written to."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
DOCUMENTS = ['README.md', 'CHANGELOG.md', 'benchmarks/README.md',
             'benchmarks/PAPERS.md',
             *(f'docs/{path.name}' for path in sorted((ROOT / 'docs').glob('*.md')))]


def anchors(text):
  """What GitHub names the headings of a document."""
  return {re.sub(r'[^\w\- ]', '', line.lstrip('# ')).lower().replace(' ', '-')
          for line in text.splitlines() if line.startswith('#')}


@pytest.mark.parametrize('name', DOCUMENTS)
def test_links_lead_somewhere(name):
  here = ROOT / name
  links = re.findall(r'\]\(([^)]*)\)', here.read_text())
  for link in (link for link in links if '://' not in link):
    path, _, anchor = re.sub(r'\s', '', link).partition('#')
    there = (here.parent / path).resolve() if path else here
    assert there.is_file(), link
    if anchor:
      assert anchor in anchors(there.read_text()), link


def test_every_table_has_one_place():
  text = ''.join((ROOT / name).read_text() for name in DOCUMENTS)
  names = [name for script in (ROOT / 'benchmarks').glob('*.py')
           for name in re.findall(r"_results\.show\(\s*'(\w+)'",
                                  script.read_text())]
  assert len(names) > 10
  for name in names:
    assert text.count(f'<!-- {name}:begin -->') == 1, name
    assert text.count(f'<!-- {name}:end -->') == 1, name


def test_examples_of_extending_are_the_files_that_are_tested():
  text = (ROOT / 'docs' / 'extending.md').read_text()
  found = re.findall(r'<!-- (\S+) -->\n```python\n(.*?)```\n', text, re.S)
  assert len(found) == 6 == text.count('```python')
  for name, shown in found:
    assert shown == (ROOT / name).read_text(), name
