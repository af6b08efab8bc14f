"""Tests that gradients of operations leave out what the tape did not record."""

import numpy as np
import pytest
import tensorflow as tf

from tests.representatives import representatives
from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.drop_in import clipped_sums, operation_gradients, state
from tfcactus.keras.gradients.operations import uses

layers = tf.keras.layers


def _made():
  tf.keras.utils.set_random_seed(2)
  inputs = keras.Input((6,))
  model = keras.Model(inputs, layers.Dense(2)(layers.Dense(5, 'tanh')(inputs)))
  x = np.random.default_rng(5).normal(size=(7, 6))
  return model, (x * np.geomspace(0.01, 3, 7)[:, None]).astype(np.float32)


def _losses(model, x):
  return tf.reduce_sum(tf.square(model(x, training=True) - 1), 1)


def _variables(model):
  return [models.tf_variable(v) for v in model.trainable_variables]


def _norms(rows):
  return np.sqrt(sum(np.sum(each**2, tuple(range(1, each.ndim))) for each in rows))


def _is_known(*args):
  try:
    operation_gradients.differentiable(*args)
  except uses.NoRule:
    return False
  return True


def _recorded(model, x):
  with tf.GradientTape() as tape:
    losses = _losses(model, x)
  return tape, losses


def _argument_of_no_gradient(model, x):
  with tf.GradientTape() as tape:
    out = model(x)
    losses = _losses(model, x) + tf.cast(tf.argmax(out, 1), tf.float32) + (
        tf.reduce_sum(tf.stop_gradient(out) * tf.sign(out), 1))
  return tape, losses


def _before(model, x):
  target = model(x + 1)
  with tf.GradientTape() as tape:
    losses = tf.reduce_sum(tf.square(model(x) - target), 1)
  return tape, losses


def _beside(model, x):
  with tf.GradientTape() as tape:
    with tape.stop_recording():
      target = model(x + 1)
    losses = tf.reduce_sum(tf.square(model(x) - target), 1)
  return tape, losses


def _between(model, x):
  with tf.GradientTape() as tape:
    out = model(x)
    with tape.stop_recording():
      losses = tf.reduce_sum(tf.square(out), 1)
    losses += tf.reduce_sum(out, 1)
  return tape, losses


def _not_watched(model, x):
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(_variables(model)[2:])
    losses = _losses(model, x)
  return tape, losses


_TAPES = {_recorded: True, _argument_of_no_gradient: True, _before: False,
          _beside: False, _between: False, _not_watched: False}


@pytest.mark.filterwarnings('ignore:Each example takes a backward pass')
@representatives('record', _TAPES)
def test_operations_that_a_tape_did_not_record_are_constant(record):
  model, x = _made()
  variables = _variables(model)
  clip = 1.0

  @tf.function(input_signature=[tf.TensorSpec([None, *x.shape[1:]])])
  def run(batch):
    tape, losses = record(model, batch)
    known = _is_known(losses, variables, tape)
    sums, _ = operation_gradients.clipped_sums(
        state.Losses(losses, losses), variables, tf.constant(clip, tf.float64),
        lambda: clipped_sums.by_tape(
            losses, variables, tape, tf.constant(clip, tf.float64)), tape)
    return known, sums

  known, sums = run(x)
  rows = []
  for row in x:
    tape, loss = record(model, row[None])
    rows.append(tape.gradient(loss, variables, unconnected_gradients='zero'))
  rows = [np.stack(each) for each in zip(*rows)]
  factors = np.minimum(1, clip / _norms(rows))
  for got, each in zip(sums, rows):
    np.testing.assert_allclose(
        got, np.tensordot(factors, each, 1), rtol=1e-5, atol=1e-5)
  assert known == _TAPES[record]


def test_operations_that_another_tape_recorded_are_left():
  model, x = _made()
  variables = _variables(model)

  @tf.function
  def run(batch):
    with tf.GradientTape():
      tape, losses = _before(model, batch)
      return _is_known(losses, variables, tape)

  assert not run(x)


def test_losses_of_an_outer_graph_are_left():
  model, x = _made()
  variables = _variables(model)

  @tf.function
  def run(batch):
    losses = _losses(model, batch)

    def found():
      return _is_known(tf.identity(losses), variables)

    return tf.cond(tf.reduce_any(losses > -1), found, found)

  assert not run(x)
