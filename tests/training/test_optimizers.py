"""Tests of --optimizer of the training script: three ways to train privately."""

import json

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from tests.training.test_mnist import run
from tfcactus.keras.compat import versions
from tfcactus.keras.tfp import stand_in
from training import datasets, mnist, networks, optimizers

THEIRS = pytest.param('tensorflow-privacy', marks=[pytest.mark.slow, pytest.mark.skipif(
    versions.KERAS_3 or not stand_in.AVAILABLE,
    reason='TensorFlow Privacy has no optimizers here')])
QUICK = ['--dataset', 'digits', '--epochs', '1', '--batch-size', '100', '--mechanism',
         'gaussian', '--verbose', '0']


@pytest.fixture(autouse=True)
def small(monkeypatch):
  """Replaces the CNN, whose Jacobian takes long, by a linear model."""
  layers = tf.keras.layers
  monkeypatch.setattr(networks, 'build', lambda *args, **kwargs: tf.keras.Sequential([
      layers.InputLayer((28, 28, 1)), layers.AveragePooling2D(7), layers.Flatten(),
      layers.Dense(10)]))


def weights(optimizer):
  """Returns weights after three steps of all examples with almost no noise."""
  args = mnist.parse([*QUICK, '--seed', '1', '--optimizer', optimizer, '--epochs', '3',
                      '--batch-size', '1500', '--noise-multiplier', '1e-6'])
  data = datasets.digits()
  plan = mnist.make_plan(args, data.train[1].size)
  tf.keras.utils.set_random_seed(1)
  way = optimizers.WAYS[optimizer](args, plan)
  model = way.compiled(mnist.build_model(args))
  batches = way.batches(*data.train)
  model.fit(way.fed(batches), epochs=3, verbose=0)
  assert way.released(model) == plan.steps == 3
  return [v.numpy() for v in model.trainable_variables]


@pytest.mark.parametrize('optimizer', ['drop-in', THEIRS])
def test_optimizers_take_the_same_steps(optimizer):
  found, want = weights(optimizer), weights('privatize')
  for one, other in zip(found, want):
    np.testing.assert_allclose(one, other, atol=2e-5)
  assert np.max(np.abs(want[1])) > 0.01  # The bias, which began at zero.


@pytest.mark.parametrize('optimizer, words, options', [
    ('drop-in', 'does not see what it trains', ()),
    *(pytest.param('tensorflow-privacy', 'Nothing watched', options, marks=THEIRS.marks)
      for options in ((), ('--seed', '1')))])
@pytest.mark.more
def test_optimizers_spend_the_same_epsilon(
    tmp_path, optimizer, words, options):
  code, found = run(tmp_path, '--mechanism', 'gaussian', '--optimizer', optimizer,
                    *options)
  assert code == 0 and found['parameters']['optimizer'] == optimizer
  code, want = run(tmp_path, '--mechanism', 'gaussian')
  assert code == 0 and want['parameters']['optimizer'] == 'privatize'
  assert found['epsilon'] == want['epsilon'] and found['steps'] == want['steps'] == 15
  assert words in found['statement'] and words not in want['statement']
  assert found['seeded'] == bool(options)


@pytest.mark.slow
@pytest.mark.parametrize('optimizer', ['drop-in', THEIRS])
def test_optimizers_take_radial_tables(tmp_path, optimizer):
  code, found = run(tmp_path, '--optimizer', optimizer)
  assert code == 0 and found['mechanism'] == 'isotropic' and found['proven']


@pytest.mark.parametrize('arguments, words', [
    (['--sampling', 'allocation'], '--sampling poisson with --optimizer'),
    (['--bands', '4'], 'poisson with --optimizer'),
    (['--bands', '4', '--sampling', 'poisson'], 'no --bands with --optimizer'),
    (['--augmentation-multiplicity', '2'], 'multiplicity 1 with --optimizer'),
    (['--run-card', 'card.json'], 'no --run-card with --optimizer'),
    (['--strategy', 'mirrored'], '--strategy none with --optimizer')])
@pytest.mark.parametrize('optimizer', ['drop-in', 'tensorflow-privacy'])
def test_options_of_privatize_alone_are_refused(capsys, optimizer, arguments, words):
  args = mnist.parse([*QUICK, '--optimizer', optimizer, *arguments])
  with pytest.raises(ValueError, match=words):
    mnist.make_plan(args, 1500)


def test_a_run_card_is_written_where_it_can_be(tmp_path, capsys):
  path = tmp_path / 'card.json'
  assert mnist.main([*QUICK, '--run-card', str(path)]) == 0
  card = json.loads(path.read_text())
  assert card['released_steps'] == 15 and card['proven'] and card['seeded'] is False
  assert f'epsilon <= {card["epsilon"]["upper"]:.3f}' in capsys.readouterr().out
  assert mnist.main([*QUICK, '--run-card', str(tmp_path)]) == 2
  assert '--run-card to be a file' in capsys.readouterr().err


def test_a_missing_tensorflow_privacy_is_reported(monkeypatch, capsys):
  monkeypatch.setattr(versions, 'KERAS_3', True)
  assert mnist.main([*QUICK, '--optimizer', 'tensorflow-privacy']) == 2
  err = capsys.readouterr().err
  assert 'tfcactus[tensorflow-privacy]' in err and len(err.splitlines()) == 1


@pytest.mark.parametrize('size', [20, 250])
def test_rows_hold_a_sample_with_overwhelming_probability(size):
  if versions.KERAS_3 or not stand_in.AVAILABLE:
    pytest.skip('TensorFlow Privacy has no optimizers here')
  args = mnist.parse([*QUICK, '--batch-size', str(size), '--optimizer',
                      'tensorflow-privacy'])
  plan = mnist.make_plan(args, 1500)
  way = optimizers.TensorFlowPrivacy(args, plan)
  chance = stats.binom.sf(way.rows, 1500, plan.sampling_prob)
  assert 1e-18 < chance <= 1e-15
  x, y = datasets.digits().train
  assert {len(way.batches(x, y)[0][2]) for _ in range(5)} == {way.rows}
  way.rows = size // 2
  with pytest.raises(RuntimeError, match='one of more'):
    for _ in range(20):
      way.batches(x, y)[0]
