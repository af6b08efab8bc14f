"""Tests that one more example moves the clipped sum by at most the clip norm.

The sum is computed with an example and without it, at any place among the others, on
data with heavy tails. Models and losses that would break the bound must be refused.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import constructs
from tests.keras.conftest import FakePlan
from tfcactus import noise as noise_lib
from tfcactus.keras import DPKerasSGDOptimizer, PoissonBatches, privatize
from tfcactus.keras.checks import example_losses
from tfcactus.keras.compat import models, versions
from tfcactus.keras.drop_in import clipped_sums, operation_gradients, state
from tfcactus.keras.gradients import engine as engine_lib

_CLIP = 0.7
_ROWS = 8


def _cases(table, covered, representative):
  cases = []
  for name, construct in table.items():
    marks = ([pytest.mark.slow] if construct.slow or name in covered else
             [] if name in representative else [pytest.mark.more])
    cases.append(pytest.param(construct, id=name, marks=marks))
  return cases


_PRIVATE = _cases(constructs.PRIVATE, constructs.COVERED_PRIVATE,
                  constructs.REPRESENTATIVE_PRIVATE)
_DROP_IN = _cases(constructs.DROP_IN, constructs.COVERED_DROP_IN,
                  constructs.REPRESENTATIVE_DROP_IN)


def _model(construct):
  tf.keras.utils.set_random_seed(1)
  tf.keras.mixed_precision.set_global_policy(construct.policy)
  try:
    made = construct.make()
    if isinstance(made, tf.keras.Model):
      return made
    inputs = tf.keras.Input(
        construct.shape, dtype='int32' if construct.ids else None)
    # A layer below, so that gradients flow through the construct.
    x = inputs if construct.ids else tf.keras.layers.Dense(
        construct.shape[-1])(inputs)
    for part in made:
      x = part(x)
    if len(x.shape) > 2:
      x = tf.keras.layers.Flatten()(x)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(3)(x))
  finally:
    tf.keras.mixed_precision.set_global_policy('float32')


def _data(construct, rng, rows):
  x = (rng.integers(0, 5, (rows, *construct.shape)) if construct.ids else
       rng.standard_t(2, (rows, *construct.shape)))
  weights = rng.exponential(1, rows) if construct.weights else np.ones(rows)
  return (x.astype('int32' if construct.ids else 'float32'),
          constructs.targets(construct.targets, rows, rng),
          weights.astype(np.float32))


def _open_batch(construct):
  """Returns specs of `_data` for any number of rows, for which one trace serves."""
  return [tf.TensorSpec((None, *part.shape[1:]), part.dtype) for part in
          map(tf.constant, _data(construct, np.random.default_rng(0), 1))]


def _changes(construct, sums):
  """Yields how far one example moves the sum, in clip norms."""
  for seed in range(6):
    rng = np.random.default_rng(seed)
    data = _data(construct, rng, 6)
    place = rng.integers(6)
    if not construct.ids:  # An example unlike all others.
      data[0][place] *= [1.0, 1e3, 1e-3, -2.0, -30.0, 0.0][seed]
    found = [np.concatenate([np.ravel(part) for part in sums(*parts)])
             for parts in (data, [np.delete(part, place, 0) for part in data])]
    yield np.linalg.norm(np.subtract(*np.asarray(found, np.float64))) / _CLIP


def _plan():
  return FakePlan(noise_lib.Gaussian(1e-9), _CLIP, 40, 0.25)


def _private_sums(construct):
  private = privatize(
      _model(construct), _plan(), clipping=construct.clipping,
      engine=construct.engine, physical_batch_size=_ROWS)
  private.compile('sgd', construct.loss())
  step = private._step
  engine = engine_lib.Engine(
      private.inner, private._output_losses, step.rows, step.routes(),
      construct.clipping)

  @tf.function(input_signature=_open_batch(construct))
  def sums(x, y, weights):
    y = private._output_losses.targets(y, step.outputs)
    return engine.run(x, y, weights, tf.constant(_CLIP)).sums

  return sums


@pytest.mark.parametrize('construct', _PRIVATE)
def test_one_example_moves_a_private_step_by_at_most_the_clip_norm(construct):
  if construct.outcome:
    with pytest.raises((ValueError, TypeError), match=construct.outcome):
      _private_sums(construct).get_concrete_function()
    return
  assert max(_changes(construct, _private_sums(construct))) <= 1 + 1e-5


def _epsilon(model, construct):
  """Returns the guarantee after one step, or None and the reason."""
  x, y, _ = _data(construct, np.random.default_rng(0), 40)
  training = model.optimizer.training_ledger(
      model, None, PoissonBatches(x, y, 0.25))
  return training.ledger(ahead=1).guarantee()


@pytest.mark.parametrize('construct', _DROP_IN)
def test_one_example_moves_a_drop_in_step_by_at_most_the_clip_norm(construct):
  model, loss = _model(construct), construct.loss()
  optimizer = DPKerasSGDOptimizer.from_plan(_plan())
  model.compile(optimizer, loss)
  guarantee, reason = _epsilon(model, construct)
  if construct.outcome:
    assert guarantee is None
    pytest.raises(ValueError, _raise, reason).match(construct.outcome)
    return
  assert 'does not see what it trains' in guarantee.statement

  @tf.function(input_signature=_open_batch(construct))
  def sums(x, y, weights):
    variables = [models.tf_variable(v) for v in model.trainable_variables]
    with tf.GradientTape() as tape:
      if y.shape.rank == 1:
        y = y[:, None]
      losses = example_losses.mean_per_example(
          loss(y, model(x, training=True), sample_weight=weights))
    clip = tf.constant(_CLIP)
    passes = (clipped_sums.by_graph(losses, variables, clip)
              if versions.KERAS_3 else
              clipped_sums.by_tape(losses, variables, tape, clip))
    operations = operation_gradients.clipped_sums(
        state.Losses(losses, losses), variables, clip, lambda: passes)
    return passes[0], operations[0]

  for way in range(2):
    assert max(_changes(construct, lambda *data, way=way: sums(*data)[way])) <= 1 + 1e-5


def _raise(reason):
  raise ValueError(reason)


def test_named_constructs_are_listed_and_there_are_150():
  fast = [case for case in _PRIVATE + _DROP_IN if pytest.mark.slow not in case.marks]
  assert len(fast) >= 150
  for table, covered, representative in (
      (constructs.PRIVATE, constructs.COVERED_PRIVATE,
       constructs.REPRESENTATIVE_PRIVATE),
      (constructs.DROP_IN, constructs.COVERED_DROP_IN,
       constructs.REPRESENTATIVE_DROP_IN)):
    assert covered <= set(table)
    assert representative <= {name for name, each in table.items() if not each.slow}
    assert not representative & covered
