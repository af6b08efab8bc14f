"""Tests of the training script on the small data set."""

import json
import os

import dp_accounting
from dp_accounting import pld
import numpy as np
import pytest

from tests.training import killed_training
from training import datasets, mnist, networks

QUICK = ['--dataset', 'digits', '--epochs', '1', '--batch-size', '100',
         '--verbose', '2']


def run(tmp_path, *arguments):
  path = tmp_path / 'result.json'
  code = mnist.main([*QUICK, '--json', str(path), *arguments])
  return code, json.loads(path.read_text()) if path.exists() else None


@pytest.fixture
def small(monkeypatch):
  """Replaces the CNN by a linear model, where only the account matters."""
  monkeypatch.setattr(networks, 'build', killed_training.linear)


@pytest.fixture
def no_mnist(monkeypatch):
  import tensorflow_datasets as tfds

  def refuse(*args, **kwargs):
    raise ConnectionError('no route to host')

  monkeypatch.setattr(tfds, 'builder', refuse)


def test_default_noise_reports_everything(tmp_path, capsys):
  code, result = run(tmp_path, '--seed', '1')
  assert code == 0
  out = capsys.readouterr().out
  assert 'no accuracy is promised' in out and 'epsilon <=' in out
  assert 'epsilon_seeded:' in out  # The line Keras prints for the epoch.
  assert set(result) >= {
      'dataset', 'mechanism', 'table_digest', 'parameters', 'steps',
      'test_accuracy', 'epsilon', 'delta', 'seconds'}
  assert result['dataset'] == 'digits' and result['mechanism'] == 'isotropic'
  assert result['steps'] == 15 and result['proven']
  epsilon = result['epsilon']
  assert 0 < epsilon['lower'] <= epsilon['estimate'] <= epsilon['upper']
  # The radial table costs what the Gaussian costs.
  event = dp_accounting.PoissonSampledDpEvent(
      100 / 1500, dp_accounting.GaussianDpEvent(1.3))
  peer = pld.PLDAccountant().compose(event, 15).get_epsilon(1e-5)
  assert epsilon['upper'] == pytest.approx(peer, rel=5e-3)


@pytest.mark.more
def test_gaussian_agrees_with_the_peer_accountant(small, tmp_path):
  code, result = run(tmp_path, '--mechanism', 'gaussian')
  assert code == 0
  event = dp_accounting.PoissonSampledDpEvent(
      100 / 1500, dp_accounting.GaussianDpEvent(1.3))
  peer = pld.PLDAccountant().compose(event, 15).get_epsilon(1e-5)
  assert result['epsilon']['upper'] == pytest.approx(peer, abs=1e-3)


@pytest.mark.more
def test_target_epsilon_is_met(small, tmp_path):
  code, result = run(tmp_path, '--mechanism', 'gaussian', '--target-epsilon',
                     '2')
  assert code == 0
  assert 1.99 < result['epsilon']['upper'] <= 2


@pytest.mark.slow
def test_random_allocation_keeps_the_target_with_less_noise(small, tmp_path):
  results = {}
  for kind in ('poisson', 'allocation'):
    code, results[kind] = run(tmp_path, '--mechanism', 'gaussian', '--target-epsilon',
                              '3', '--sampling', kind)
    assert code == 0 and results[kind]['epsilon']['upper'] <= 3
  noise = {kind: result['parameters']['noise_multiplier']
           for kind, result in results.items()}
  assert noise['allocation'] < 0.97 * noise['poisson']
  assert results['allocation']['steps'] == round(
      1 / results['allocation']['parameters']['sampling_prob'])
  assert '1 epochs of' in results['allocation']['statement']


@pytest.mark.parametrize('arguments,bands,name', [
    pytest.param(('--bands', 'auto', '--batch-size', '20'), None,
                 'each example in one of', marks=pytest.mark.slow),
    (('--bands', '3', '--sampling', 'poisson'), 3, 'taken with probability')])
def test_correlated_noise_keeps_the_target(
    small, tmp_path, capsys, arguments, bands, name):
  code, result = run(tmp_path, '--mechanism', 'gaussian', '--target-epsilon', '3',
                     '--epochs', '2', *arguments)
  assert code == 0 and name in result['statement']
  found = result['parameters']['bands']
  assert found == bands if bands else found > 1
  assert 2.9 < result['epsilon']['upper'] <= 3
  assert f'Correlated over {found} steps' in capsys.readouterr().out


@pytest.mark.more
def test_seeded_runs_repeat(tmp_path):
  results = [run(tmp_path, '--mechanism', 'gaussian', '--seed', '3')[1]
             for _ in range(2)]
  assert results[0]['test_accuracy'] == results[1]['test_accuracy']


def test_scalar_noise_is_refused_with_the_reason(tmp_path, capsys):
  code, result = run(tmp_path, '--mechanism', 'cactus', '--noise-multiplier',
                     '1')
  assert code == 2 and result is None
  err = capsys.readouterr().err
  assert 'no valid one-dimensional account' in err
  assert 'scalar-unproven' in err


def test_published_scalar_account_is_labelled_everywhere(small, tmp_path, capsys):
  with pytest.warns(UserWarning, match='NOT a privacy guarantee'):
    code, result = run(tmp_path, '--mechanism', 'cactus', '--noise-multiplier',
                       '1', '--accounting', 'scalar-unproven')
  assert code == 0
  out = capsys.readouterr().out
  assert out.count('NOT a privacy guarantee') >= 2
  assert 'epsilon <=' not in out and 'epsilon_unproven' in out
  assert result['proven'] is False
  assert 'NOT a privacy guarantee' in result['statement']


@pytest.mark.parametrize('arguments, message', [
    (['--mechanism', 'magic'], 'mechanism'),
    (['--mechanism', 'none.npz'], 'none.npz'),
    (['--noise-multiplier', '0'], 'noise_multiplier'),
    (['--noise-multiplier', 'nan'], 'noise_multiplier'),
    (['--l2-norm-clip', '-1'], 'l2_norm_clip'),
    (['--batch-size', '5000'], 'batch_size'),
    (['--bands', '4'], 'gaussian with --bands'),
    (['--bands', 'auto', '--mechanism', 'gaussian'], '--target-epsilon with --bands'),
    (['--bands', '4.5', '--mechanism', 'gaussian'], 'auto or a number'),
    (['--bands', '0', '--mechanism', 'gaussian'], 'bands >= 1'),
    (['--batch-size', '0'], 'batch-size'),
    (['--epochs', '0'], 'epochs'),
    (['--delta', '0'], 'delta'),
    (['--delta', '1'], 'delta'),
    (['--learning-rate', 'nan'], 'learning-rate'),
    (['--target-epsilon', '-1'], 'target_epsilon'),
    (['--mechanism', 'cactus', '--target-epsilon', '1'], 'target-epsilon'),
])
def test_bad_input_is_one_clear_line(tmp_path, capsys, arguments, message):
  code, result = run(tmp_path, *arguments)
  assert code == 2 and result is None
  err = capsys.readouterr().err
  assert message in err and 'Traceback' not in err


def test_both_noise_and_budget_is_a_usage_error(capsys):
  with pytest.raises(SystemExit):
    mnist.parse(['--noise-multiplier', '1', '--target-epsilon', '1'])
  assert 'exclude each other' in capsys.readouterr().err


def test_a_table_has_its_own_noise_multiplier(capsys):
  with pytest.raises(SystemExit) as stop:
    mnist.parse(['--mechanism', 'table.npz', '--noise-multiplier', '1'])
  assert stop.value.code == 2
  assert 'a table, which has its own' in capsys.readouterr().err


def test_a_result_that_cannot_be_written_stops_before_training(
    tmp_path, capsys, monkeypatch):
  monkeypatch.setattr(mnist, 'train', None)
  for path in (tmp_path / 'none' / 'x.json', tmp_path):
    assert mnist.main([*QUICK, '--json', str(path)]) == 2
    err = capsys.readouterr().err
    assert '--json' in err and len(err.splitlines()) == 1
  mnist.check_writable(str(tmp_path / 'x.json'))
  assert not (tmp_path / 'x.json').exists()


def test_missing_mnist_fails_clearly_or_falls_back(no_mnist, capsys):
  assert mnist.main(['--dataset', 'mnist']) == 2
  assert 'MNIST was not found' in capsys.readouterr().err
  data = datasets.load('auto')
  assert data.name == 'digits' and 'instead of MNIST' in data.description
  assert data.train[0].shape == (1500, 28, 28, 1)
  assert 0 <= data.train[0].min() and data.train[0].max() <= 1


@pytest.mark.more
@pytest.mark.skipif('TFDS_DATA_DIR' not in os.environ,
                    reason='MNIST is not on disk')
def test_mnist_from_disk():
  data = datasets.load('auto')
  assert data.name == 'mnist'
  assert data.train[0].shape == (60_000, 28, 28, 1)
  assert data.test[1].shape == (10_000,)
  assert data.train[0].dtype == np.float32 and data.train[0].max() == 1
  np.testing.assert_array_equal(np.unique(data.train[1]), np.arange(10))
