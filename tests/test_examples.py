"""The notebooks of docs/examples/ run on small data, and hold outputs of their code."""

import importlib.util
import os
import pathlib
import re

import pytest

pytest.importorskip('nbformat')

from docs import run_examples, website

NAMES = sorted(path.stem for path in run_examples.FOLDER.glob('*.ipynb'))
TRAINED = {'audit', 'devices', 'disk', 'isotropic', 'keras_hub_lora', 'mnist',
           'project', 'text_lora', 'users'}
"""Notebooks that import TensorFlow."""
FIRST = {'accountant', 'disk'}
"""Notebooks that `make test` runs: one that trains, and one that does not."""


def test_each_notebook_is_listed():
  assert NAMES == sorted(run_examples.SMALL)
  page = (run_examples.FOLDER / 'README.md').read_text('utf-8')
  assert sorted(re.findall(r'\((\w+)\.ipynb\)', page)) == NAMES


@pytest.mark.parametrize('name', [
    name if name in FIRST else pytest.param(name, marks=pytest.mark.more)
    for name in NAMES])
def test_it_runs_on_small_data_and_states_an_epsilon(name):
  pytest.importorskip('nbclient')
  pytest.importorskip('ipykernel')
  pytest.importorskip('matplotlib')
  if name in TRAINED:
    pytest.importorskip('tensorflow')
  if name in run_examples.KERAS_HUB:
    pytest.importorskip('keras_hub', reason='needs KerasHub, for Keras 3 alone')
  if name in ('disk', 'isotropic'):
    pytest.importorskip('sklearn')
  if name in ('mnist', 'project'):
    pytest.importorskip('tensorflow_datasets')
    data = pathlib.Path(os.environ.get('TFDS_DATA_DIR', '~/tensorflow_datasets'))
    if not [*data.expanduser().glob('mnist/*/dataset_info.json')]:
      pytest.skip('MNIST is not on disk')
  executed = run_examples.run(run_examples.read(name), run_examples.SMALL[name])
  assert 'epsilon <=' in run_examples.outputs_of(executed)


@pytest.mark.parametrize('name', NAMES)
def test_stored_outputs_are_of_a_full_run_of_this_code(name):
  notebook = run_examples.read(name)
  assert notebook.metadata.get('code_sha256') == run_examples.digest(notebook), (
      f'run make examples ARGS={name}')
  cells = [cell for cell in notebook.cells if cell.cell_type == 'code']
  assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
  assert not any(output.output_type == 'error' or output.get('name') == 'stderr'
                 for cell in cells for output in cell.outputs)
  text = run_examples.outputs_of(notebook)
  assert 'epsilon <=' in text
  assert not re.search(r'/(?:home|root|tmp|work|Users)/|site-packages| at 0x', text)
  assert run_examples.path_of(name).stat().st_size < 80_000


@pytest.mark.parametrize('name', NAMES)
def test_it_says_what_epsilon_covers_and_what_it_needs(name):
  notebook = run_examples.read(name)
  prose = [cell.source for cell in notebook.cells if cell.cell_type == 'markdown']
  assert prose[0].startswith('# ') and 'pip install' in prose[0]
  assert any('## What epsilon covers' in text for text in prose)
  places = [cell.metadata.get('tags', []) for cell in notebook.cells]
  assert places.count(['parameters']) == 1
  for link in re.findall(r'\]\((?!https:)([^)#\s]+)', '\n'.join(prose)):
    assert (run_examples.FOLDER / link).resolve().is_file(), link


def test_a_notebook_that_needs_keras_hub_is_left_out_without_it(monkeypatch, capsys):
  found = importlib.util.find_spec
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: (
      None if name == 'keras_hub' else found('json')))
  stored = []
  monkeypatch.setattr(run_examples, 'store', stored.append)
  assert run_examples.main([]) == 0
  assert stored == [name for name in NAMES if name != 'keras_hub_lora']
  assert 'keras_hub_lora: left out, needs "tfcactus[hub]"' in capsys.readouterr().out
  with pytest.raises(SystemExit):
    run_examples.main(['mnist', 'keras_hub_lora'])
  assert 'Expected KerasHub for the notebooks keras_hub_lora' in (
      capsys.readouterr().err)


def test_mnist_changes_ten_lines():
  notebook = run_examples.read('mnist')
  diff = re.search(r'```diff\n(.*?)```', notebook.cells[0].source, re.S)[1].splitlines()
  assert sum(line.startswith('+') for line in diff) == 10
  code = run_examples.code_of(notebook)
  for line in diff:
    assert line[0] == '-' or line[1:] in code, line


def test_the_accountant_and_the_releases_need_no_tensorflow():
  for name in set(NAMES) - TRAINED:
    assert 'tensorflow' not in {
        found for line in run_examples.code_of(run_examples.read(name)).splitlines()
        for found in re.findall(r'^(?:import|from) (\w+)', line)}


def test_an_output_with_a_directory_of_this_machine_is_refused():
  from nbformat import v4
  pytest.importorskip('nbclient')
  pytest.importorskip('ipykernel')
  notebook = v4.new_notebook(cells=[v4.new_code_cell('import os; print(os.getcwd())')])
  with pytest.raises(ValueError, match='without directories of this machine'):
    run_examples.run(notebook)


def test_pages_of_the_site_show_code_outputs_and_pictures(tmp_path, monkeypatch):
  monkeypatch.setattr(website, 'PAGES', tmp_path)
  monkeypatch.setattr(website, 'reference', dict)
  website.stage()
  for name in NAMES:
    text = (tmp_path / f'docs/examples/{name}.md').read_text('utf-8')
    assert '```python' in text and 'epsilon <=' in text
    assert f'href="{name}.ipynb"' in text
    for picture in re.findall(r'\]\((\w+_\w+\.png)\)', text):
      assert (tmp_path / 'docs/examples' / picture).read_bytes()[1:4] == b'PNG'
  listed = (tmp_path / 'docs/examples/README.md').read_text('utf-8')
  assert '(mnist.md)' in listed and '.ipynb)' not in listed
