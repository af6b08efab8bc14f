"""The runner of benchmarks, and tables of documents that show their results."""

import importlib
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from benchmarks import __main__ as runner, _results
from tests.representatives import representatives

ROOT = pathlib.Path(__file__).parent.parent

FINE = '''"""It writes a result."""
QUICK = ('--less',)
import sys
from benchmarks import _results
_results.save('fine', sys.argv[1:])
_results.show('no_such_marks', 'table')
'''
BROKEN = '"""It fails."""\nLONG = "why not"\nQUICK = ()\nraise SystemExit(3)\n'


@pytest.fixture(name='toys')
def _toys(tmp_path, monkeypatch):
  """Returns a folder of two benchmarks, one of which fails."""
  folder = tmp_path / 'benchmarks'
  folder.mkdir()
  for name in ('__init__.py', '_results.py'):
    (folder / name).write_text((ROOT / 'benchmarks' / name).read_text())
  (folder / 'fine.py').write_text(FINE)
  (folder / 'broken.py').write_text(BROKEN)
  (folder / 'README.md').write_text('<!-- no_such_marks:begin -->\nold\n'
                                    '<!-- no_such_marks:end -->\n')
  monkeypatch.setattr(runner, 'HERE', folder)
  monkeypatch.setattr(_results, 'RESULTS', folder / 'results')
  monkeypatch.setenv('PYTHONPATH', '')
  return folder


def test_benchmarks_run_by_name_and_their_times_are_recorded(toys, capfd, monkeypatch):
  # Some machines tell the times of processes in steps longer than this one runs.
  readings = iter([3.0, 5.5])
  monkeypatch.setattr(runner, '_processor', lambda: next(readings))
  assert runner.main(['fine']) == 0
  assert json.loads((toys / 'results' / 'fine.json').read_text()) == []
  took = json.loads((toys / 'results' / 'durations.json').read_text())['fine']
  assert took['seconds'] > 0 and took['cpu_seconds'] == 2.5
  assert 'table' in (toys / 'README.md').read_text()
  capfd.readouterr()
  runner.main(['list'])
  told = capfd.readouterr().out
  assert re.search(r'fine +\d+ s CPU  It writes a result\.', told)
  assert re.search(r'broken +not measured  It fails\.', told)
  assert 'Not a part of `all`: why not.' in told


def test_all_leaves_long_benchmarks_out(toys):
  assert [each.name for each in runner.chosen(['all'], False)] == ['fine']
  assert [each.name for each in runner.chosen(['all'], True)] == ['broken', 'fine']
  assert runner.main(['all']) == 0
  assert (toys / 'results' / 'fine.json').exists()


def test_failures_are_listed_at_the_end(toys, capfd):
  assert runner.main(['broken', 'fine']) == 1
  assert capfd.readouterr().out.splitlines()[-1] == (
      '1 of 2 ended well. Failed: broken.')
  assert 'broken' not in json.loads((toys / 'results' / 'durations.json').read_text())


def test_a_quick_run_writes_no_results(toys, capfd):
  assert runner.main(['fine', '--quick']) == 0
  assert not (toys / 'results').exists()
  assert 'old' in (toys / 'README.md').read_text()
  assert '== fine --less' in capfd.readouterr().out
  assert runner.main(['fine', '--quick', '--results', str(toys / 'there')]) == 0
  assert json.loads((toys / 'there' / 'fine.json').read_text()) == ['--less']
  assert not (toys / 'results').exists()


@pytest.mark.usefixtures('toys')
def test_unknown_benchmarks_are_refused(capsys):
  for argv, words in ((['nothing'], "got 'nothing'"), (['all', 'fine'], "got 'all'")):
    with pytest.raises(SystemExit):
      runner.main(argv)
    assert words in capsys.readouterr().err


def test_constants_of_another_kind_are_refused(toys):
  (toys / 'fine.py').write_text('"""It."""\nQUICK = "less"\n')
  with pytest.raises(ValueError, match='tuple QUICK'):
    runner.benchmarks()


def test_every_benchmark_says_what_it_is_without_being_imported():
  script = ('import sys; from benchmarks import __main__ as r; print(r.listed()); '
            'print("tensorflow" in sys.modules)')
  told = subprocess.run(
      [sys.executable, '-c', script], capture_output=True, text=True, check=True,
      env={**os.environ, 'PYTHONPATH': str(ROOT)}).stdout
  assert told.splitlines()[-1] == 'False'
  for name in runner.benchmarks():
    assert f'{name} ' in told


def test_all_is_within_an_hour_of_two_cores():
  took = json.loads((ROOT / 'benchmarks' / 'results' / 'durations.json').read_text())
  asked = [each.name for each in runner.benchmarks().values() if each.long is None]
  assert sum(took[name]['cpu_seconds'] for name in asked if name in took) <= 3600


SHOWING = {'accountant_fuzz': None, 'accountant_speed': None, 'accuracy': None,
           'allocation': None, 'cactus_figures': None, 'designed_noise': None,
           'early_stopping': None,
           'floating_point': None, 'gap_max': None,
           'keras_versions_speed': None, 'large_model': None,
           'lora_speed': None, 'low_dimension': None, 'noise_ahead': None,
           'noise_speed': None,
           'phi_figures': None, 'private_search': None,
           'recipes': None, 'replicas_speed': None, 'step_memory': None,
           'streaming': None, 'tcdp_figures': None, 'tfp_own_tests': None,
           'training_speed': None,
           'truncated_cdp': None, 'truncated_noise': None, 'user_level': None,
           'where_noise_pays': None, 'whole_numbers': None,
           'model_zoo': {2: 'model_zoo_keras2', 3: 'model_zoo_keras3'}}
"""Benchmarks whose tables are made of their results alone, and what they read."""


@pytest.mark.parametrize('name', SHOWING)
def test_tables_in_documents_are_those_of_the_results(name, monkeypatch):
  try:
    module = importlib.import_module(f'benchmarks.{name}')
  except ModuleNotFoundError as error:
    pytest.skip(f'no {error.name}')
  files = SHOWING[name]
  found = (_results.load(name) if files is None else
           {key: _results.load(file) for key, file in files.items()})
  shown = []
  monkeypatch.setattr(_results, 'show', lambda marks, table: shown.append(
      (marks, table)))
  module.show(found)
  documents = ''.join(path.read_text(encoding='utf-8') for path in (
      ROOT / 'README.md', *_results.DOCUMENTS))
  assert shown
  for marks, table in shown:
    assert f'<!-- {marks}:begin -->\n{table}\n<!-- {marks}:end -->' in documents, marks


def _zoo_results():
  """Returns results of a model that runs, and of one that is refused, on two Keras."""
  number = {'slowdown': 2.0, 'first_step': 3.0, 'memory_above_plain_mb': 4.0,
            'plain_ms': 20.0}
  refused = {'topic': 'odd', 'refused': 'Expected this | word, ' + 50 * 'got that, '}
  why = 50 * 'a reason '
  return {2: {'keras': 2, 'models': {
      'Runs': {'topic': 'hub', 'route': 'batched', **number}, 'Refused': refused,
      'Whole': {'topic': 'odd', 'route': f'whole model vectorised: {why}', **number}}},
          3: {'keras': 3, 'models': {
              'Runs': {'topic': 'hub', 'route': 'vectorised: Own', **number},
              'Refused': {'topic': 'odd', 'route': 'batched', **number}}}}


def test_tables_of_models_quote_whole_words_apart_from_the_numbers():
  from benchmarks import model_zoo
  found = _zoo_results()
  table = model_zoo.models_tables(found)
  assert ('| Runs | Keras 2: batched; Keras 3: vectorised: Own | 2.00 / 2.00 | '
          '+4 / +4 |') in table
  assert '| Refused | Keras 2: refused; Keras 3: batched | – / 2.00 |' in table
  assert '| Whole | whole model vectorised | 2.00 / – |' in table
  words = ' '.join(model_zoo.reasons(found).split())
  assert f"Keras 2: {found[2]['models']['Refused']['refused'].strip()}; " in words
  assert '; Keras 3: batched' in words and (50 * 'a reason ').strip() in words
  assert '| models that are refused | 1 | 0 |' in model_zoo.summary_table(found)


@pytest.mark.parametrize('arguments, measured', [
    (['--only', 'New'], ['New']), (['--only', 'odd'], ['New', 'Old']),
    (['--resume'], ['New']), (['--only', 'odd', '--resume'], ['New']),
    (['--write'], []), ([], ['New', 'Old', 'Table'])])
def test_the_models_asked_for_are_measured_and_the_others_keep_their_results(
    arguments, measured, monkeypatch, tmp_path):
  from benchmarks import _zoo_training, model_zoo
  monkeypatch.setattr(_results, 'RESULTS', tmp_path)
  monkeypatch.setattr(model_zoo, 'show', lambda both: None)
  monkeypatch.setattr(_zoo_training, 'topics', lambda: (
      3, {'New': 'odd', 'Old': 'odd', 'Table': 'tabular'}))
  monkeypatch.setattr(model_zoo, 'measure', lambda name, rounds: {
      'keras': '3.15', 'slowdown': 1.0})
  kept = {'Old': {'topic': 'odd', 'slowdown': 5.0},
          'Table': {'topic': 'tabular', 'slowdown': 5.0}}
  _results.save('model_zoo_keras3', {'keras': 3, 'models': kept})
  monkeypatch.setattr(sys, 'argv', ['model_zoo', *arguments])
  model_zoo.main()
  models = _results.load('model_zoo_keras3')['models']
  assert {name for name in models if models[name]['slowdown'] == 1} == {*measured}
  assert {name: each['topic'] for name, each in models.items()}.items() >= {
      name: each['topic'] for name, each in kept.items()}.items()


def test_a_model_that_is_not_in_the_zoo_is_not_measured(monkeypatch, capsys):
  from benchmarks import _zoo_training, model_zoo
  monkeypatch.setattr(_zoo_training, 'topics', lambda: (3, {'New': 'odd'}))
  monkeypatch.setattr(sys, 'argv', ['model_zoo', '--only', 'Nwe'])
  with pytest.raises(SystemExit):
    model_zoo.main()
  assert "got ['Nwe']; topics are tabular, " in capsys.readouterr().err


@pytest.mark.parametrize('epsilon, law, told', [
    (1, ('LogarithmicRuns', 10), 1.917), (2, ('LogarithmicRuns', 10), 3.650),
    (1, ('GeometricRuns', 10), 2.310), (1, ('NegativeBinomialRuns', 10, -0.5), 1.674)])
def test_the_account_of_papernot_and_steinke_is_that_of_dp_accounting(
    epsilon, law, told):
  from dp_accounting import dp_event, rdp

  from benchmarks import private_search
  from tests.accounting.test_tuning import gaussian
  from tfcactus import accounting
  event, runs = gaussian(epsilon), getattr(accounting, law[0])(*law[1:])
  found = private_search.renyi_epsilon(event, runs, 1e-5)
  assert found == pytest.approx(told, abs=5e-4)
  if hasattr(dp_event, 'RepeatAndSelectDpEvent') and runs.eta >= 0:
    peer = rdp.RdpAccountant(private_search._ORDERS).compose(
        dp_event.RepeatAndSelectDpEvent(event, runs.mean, runs.eta))
    assert found == pytest.approx(peer.get_epsilon(1e-5), rel=1e-6)


@representatives('mechanism', ['cactus', 'gaussian'])
def test_figure_2d_of_paper_000_trains_with_either_noise(mechanism, monkeypatch):
  pytest.importorskip('tensorflow')
  from benchmarks import cactus_figures
  from tests.training import killed_training
  from training import datasets, networks
  monkeypatch.setattr(datasets, 'mnist', lambda folder: datasets.digits())
  monkeypatch.setattr(networks, 'build', killed_training.linear)
  monkeypatch.setattr(cactus_figures, 'EPOCHS', 1)
  accuracy, = cactus_figures.trained(mechanism, 1)
  assert 0 <= accuracy <= 1
