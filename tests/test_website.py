"""The reference names all that is public, and the site's build sees what is broken."""

import ast
import importlib
import re

import pytest

from docs import public_names, website
from tests.test_documents import DOCUMENTS

ROOT = public_names.ROOT
WITHOUT_TENSORFLOW = [module for module in public_names.packages()
                      if module.split('.')[1:2] not in (['keras'], ['learned'])]


@pytest.mark.parametrize('module', WITHOUT_TENSORFLOW)
def test_what_a_package_exports_is_read_without_importing_it(module):
  package = importlib.import_module(module)
  assert set(public_names.exported(module)) == set(package.__all__)
  for name in package.__all__:
    where, _, short = public_names.origin(module, name).rpartition('.')
    assert getattr(importlib.import_module(where), short) is getattr(package, name)


def test_every_public_name_is_in_the_reference():
  text = ''.join(website.reference().values())
  listed = [f'{module}.{name}' for module in public_names.packages()
            for name in public_names.exported(module)]
  assert len(listed) > 100 and 'tfcactus.keras.TableNoiseQuery' in listed
  for public in listed:
    where = public_names.origin(*public.rsplit('.', 1))
    assert text.count(f'::: {where}\n') == 1 or f'][{where}]' in text, public


def test_every_public_class_and_function_says_what_it_is():
  for names in public_names.by_room().values():
    for where in names.values():
      if not public_names.file_of(where).exists():
        module, _, name = where.rpartition('.')
        node = next((node for node in ast.parse(
            public_names.file_of(module).read_text(encoding='utf-8')).body
                     if getattr(node, 'name', None) == name), None)
        assert node is None or ast.get_docstring(node), where


@pytest.mark.parametrize('name', DOCUMENTS)
def test_files_that_documents_name_are_there(name):
  text = (ROOT / name).read_text(encoding='utf-8')
  for path in re.findall(r'`((?:tests|docs|training|benchmarks|tfcactus|keras|'
                         r'accounting|noise|pairs)/[\w/.]+\.\w+)`', text):
    assert (ROOT / path).exists() or (ROOT / 'tfcactus' / path).exists() or (
        'to come' in text and path not in text.split('to come')[0]), path


def test_the_build_fails_by_what_leads_nowhere(tmp_path, monkeypatch):
  pytest.importorskip('mkdocstrings')
  monkeypatch.setattr(website, 'PAGES', tmp_path / 'pages')
  monkeypatch.setattr(website, 'SITE', tmp_path / 'site')
  monkeypatch.setattr(website, 'reference', lambda: {
      'tfcactus': '# tfcactus {#tfcactus}\n\n::: tfcactus.relations.label\n'})
  stage = website.stage

  def with_a_broken_page():
    stage()
    for page in website.PAGES.rglob('*.md'):
      if page.parent.name != 'reference':
        page.write_text('# Nothing\n', encoding='utf-8')
    (website.PAGES / 'docs' / 'noise.md').write_text(
        '# Noise\n\n[page](no.md), [file](../no.py), [here](#no), '
        '[there](models.md#no), `tfcactus.no.Such`, [name][tfcactus.no_such]; '
        '[right](models.md#nothing), `tfcactus.relations.label`\n', encoding='utf-8')

  monkeypatch.setattr(website, 'stage', with_a_broken_page)
  wrong = [line for line in website.build() if not line.endswith('in the reference')]
  for words in ("link 'no.md'", "link '../no.py'", "'tfcactus.no.Such'",
                "'tfcactus.no_such'", "link '#no'", "link 'models.md#no'"):
    assert sum(words in line for line in wrong) == 1, (words, wrong)
  assert len(wrong) == 6, wrong
  assert 'href="../reference/tfcactus.html#tfcactus.relations.label"' in (
      website.SITE / 'docs' / 'noise.html').read_text(encoding='utf-8')
