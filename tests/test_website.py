"""The reference lists every public name, and the site's build reports broken links."""

import ast
import importlib
import re

import pytest

from docs import public_names, website
from tests.test_documents import DOCUMENTS

ROOT = public_names.ROOT
WITHOUT_TENSORFLOW = [module for module in public_names.packages()
                      if module.split('.')[1:2] not in (['keras'], ['learned'])]


def test_exported_names_are_found_without_importing_a_package():
  assert len(WITHOUT_TENSORFLOW) > 5
  for module in WITHOUT_TENSORFLOW:
    package = importlib.import_module(module)
    assert set(public_names.exported(module)) == set(package.__all__), module
    for name in package.__all__:
      where, _, short = public_names.origin(module, name).rpartition('.')
      assert getattr(importlib.import_module(where), short) is getattr(
          package, name), (module, name)


def test_every_public_name_is_in_the_reference():
  text = ''.join(website.reference().values())
  listed = [f'{module}.{name}' for module in public_names.packages()
            for name in public_names.exported(module)]
  assert len(listed) > 100 and 'tfcactus.keras.TableNoiseQuery' in listed
  for public in listed:
    where = public_names.origin(*public.rsplit('.', 1))
    assert text.count(f'::: {where}\n') == 1 or f'][{where}]' in text, public


def test_a_page_begins_with_what_users_call_first():
  pages, rooms = website.reference(), public_names.by_room()
  assert re.search('::: (.*)', pages['keras'])[1] == 'tfcactus.keras.model.privatize'
  assert re.search('::: (.*)', pages['tfcactus'])[1] == 'tfcactus.plan.PrivacyPlan'
  assert set(website.FIRST) <= {name for names in rooms.values() for name in names}


def test_the_reference_shows_what_users_call_and_not_what_keras_calls(tmp_path):
  pytest.importorskip('mkdocs')
  from mkdocs import config
  options = config.load_config(
      str(ROOT / 'docs' / 'mkdocs.yml'), docs_dir=str(tmp_path))['plugins'][
          'mkdocstrings'].config['handlers']['python']['options']
  hidden = [each.removeprefix('!') for each in options['filters']]

  def is_shown(name):
    return not any(re.search(each, name) for each in hidden)

  assert all(map(is_shown, ('fit', 'guarantee', 'from_plan', *options[
      'inherited_members'])))
  assert not any(map(is_shown, ('_draw', 'on_epoch_end', 'train_step', 'fingerprint')))
  assert 'dataset' in options['inherited_members']
  assert 'fingerprint' not in options['inherited_members']
  source = ''.join(path.read_text() for path in (ROOT / 'tfcactus').rglob('*.py'))
  for name in options['inherited_members']:
    assert f'  def {name}(' in source, name


def test_every_public_class_and_function_has_a_docstring():
  for names in public_names.by_room().values():
    for where in names.values():
      if not public_names.file_of(where).exists():
        module, _, name = where.rpartition('.')
        node = next((node for node in ast.parse(
            public_names.file_of(module).read_text(encoding='utf-8')).body
                     if getattr(node, 'name', None) == name), None)
        assert node is None or ast.get_docstring(node), where


def missing_files(text):
  """Yields the paths in backquotes that a document names and that do not exist."""
  for path in re.findall(r'`((?:tests|docs|training|benchmarks|tfcactus|keras|'
                         r'accounting|noise|pairs)/[\w/.]+\.\w+)`', text):
    if not ((ROOT / path).exists() or (ROOT / 'tfcactus' / path).exists() or (
        'to come' in text and path not in text.split('to come')[0])):
      yield path


def test_files_that_documents_name_exist():
  assert [f'{name}: {path}' for name in DOCUMENTS for path in missing_files(
      (ROOT / name).read_text(encoding='utf-8'))] == []
  assert list(missing_files('`docs/no.md` `docs/noise.md` `noise/discrete.py`')) == [
      'docs/no.md', 'noise/discrete.py']
  assert not list(missing_files('to come: `noise/discrete.py`'))


@pytest.mark.more
def test_the_build_reports_broken_links_and_references(tmp_path, monkeypatch):
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
        '[right](models.md#nothing), `tfcactus.relations.label`\n\n'
        '| a |\n| --- |\n| `tests/a_b.py` |\n', encoding='utf-8')

  monkeypatch.setattr(website, 'stage', with_a_broken_page)
  wrong = [line for line in website.build() if not line.endswith('in the reference')]
  for words in ("link 'no.md'", "link '../no.py'", "'tfcactus.no.Such'",
                "'tfcactus.no_such'", "link '#no'", "link 'models.md#no'"):
    assert sum(words in line for line in wrong) == 1, (words, wrong)
  assert len(wrong) == 6, wrong
  built = (website.SITE / 'docs' / 'noise.html').read_text(encoding='utf-8')
  assert 'href="../reference/tfcactus.html#tfcactus.relations.label"' in built
  assert '<code>tests/<wbr />a_b.<wbr />py</code>' in built
