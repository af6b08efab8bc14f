"""Links in documents have targets, and tables of results have one place each."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent
DOCUMENTS = ['README.md', 'CHANGELOG.md', 'benchmarks/README.md',
             'benchmarks/PAPERS.md',
             *(f'docs/{path.name}' for path in sorted((ROOT / 'docs').glob('*.md')))]


def anchors(text):
  """Returns the anchors that GitHub gives to the headings of a document."""
  return {re.sub(r'[^\w\- ]', '', line.lstrip('# ')).lower().replace(' ', '-')
          for line in text.splitlines() if line.startswith('#')}


def broken_links(name):
  """Yields the links of a document to files or headings that are not there."""
  here = ROOT / name
  for link in re.findall(r'\]\(([^)]*)\)', here.read_text(encoding='utf-8')):
    if '://' in link:
      continue
    path, _, anchor = re.sub(r'\s', '', link).partition('#')
    there = (here.parent / path).resolve() if path else here
    if not there.is_file() or (
        anchor and anchor not in anchors(there.read_text(encoding='utf-8'))):
      yield link


def test_links_have_targets():
  assert len(DOCUMENTS) > 10
  assert [f'{name}: {link}' for name in DOCUMENTS for link in broken_links(name)] == []


def test_broken_links_are_found(tmp_path, monkeypatch):
  monkeypatch.setitem(globals(), 'ROOT', tmp_path)
  (tmp_path / 'page.md').write_text(
      '# One heading\n[a](#one-heading) [b](page.md) [c](no.md) [d](#no) '
      '[e](page.md#no) [f](https://example.org/no)\n', encoding='utf-8')
  assert list(broken_links('page.md')) == ['no.md', '#no', 'page.md#no']


def test_every_table_of_results_has_one_place():
  text = ''.join((ROOT / name).read_text() for name in DOCUMENTS)
  names = [name for script in (ROOT / 'benchmarks').glob('*.py')
           for name in re.findall(r"_results\.show\(\s*'(\w+)'",
                                  script.read_text())]
  assert len(names) > 10
  for name in names:
    assert text.count(f'<!-- {name}:begin -->') == 1, name
    assert text.count(f'<!-- {name}:end -->') == 1, name


def test_examples_in_extending_are_the_files_that_are_tested():
  text = (ROOT / 'docs' / 'extending.md').read_text()
  found = re.findall(r'<!-- (\S+) -->\n```python\n(.*?)```\n', text, re.S)
  assert len(found) == 6 == text.count('```python')
  for name, shown in found:
    assert shown == (ROOT / name).read_text(), name
