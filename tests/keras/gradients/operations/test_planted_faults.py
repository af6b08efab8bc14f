"""Tests that planted faults are found: by Freivalds' check, the proof, or the cut."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import freivalds, one_by_one
from tests.keras.gradients.operations.test_rules import (
  change_products,
  crossentropy,
  data,
  made,
  Own,
)
from tests.representatives import representatives
from tfcactus.keras.gradients import engine as engine_lib, layer_routes
from tfcactus.keras.gradients.operations import uses

_SERIES = (5, 4)


def _dense(x, w):
  return tf.tensordot(x, w, 1)


def _model(function=_dense):
  return made(_SERIES, Own(function, w=(4, 4)))


def _errors(model):
  return freivalds.errors(model, crossentropy, *data(_SERIES))


def _failure(model, shape=_SERIES):
  """Returns why the engine does not run the model by operations; None if it does."""
  x, y = data(shape)
  loss = engine_lib.example_losses.loss_per_example(crossentropy)
  engine = engine_lib.Engine(model, loss, len(y), layer_routes.routes(model))
  found = []
  tf.function(lambda: found.append(engine._failure(
      (tf.constant(x), tf.constant(y), tf.ones([len(y)])))), autograph=False)()
  return found[0]


def test_a_right_pass_is_proved_and_passes_the_check():
  model = _model()
  assert _failure(model) is None
  assert max(_errors(model).values()) < 1e-5


def test_rows_grouped_as_steps_and_examples(monkeypatch):
  apart = uses.Layout.apart

  def wrong(layout, tensor, number):
    rows = apart(layout, tensor, number)
    return rows if layout.block == 1 else tf.reshape(tf.transpose(
        tf.reshape(rows, [layout.block, number, -1]), [1, 0, 2]), rows.shape)

  monkeypatch.setattr(uses.Layout, 'apart', wrong)
  found = _errors(_model())
  # Operands and gradients are mixed alike: their products only belong to others.
  assert found['sum'] < 1e-5 and found['rows'] > 0.05
  assert 'moves entries of one example' in _failure(_model())[0]


def test_rows_that_are_the_mean_of_the_batch(monkeypatch):
  change_products(monkeypatch, lambda rows: tf.zeros_like(rows) + tf.reduce_mean(
      rows, 0))
  found = _errors(_model())
  assert found['sum'] < 1e-5 and found['rows'] > 0.05
  assert _failure(_model()) is not None


def test_constants_of_the_batch_are_found_by_the_proof():
  model = made(_SERIES, Own(lambda x: x - tf.stop_gradient(tf.reduce_mean(x, 0))))
  assert 'goes over the examples' in _failure(model)[0]


def test_a_custom_gradient_of_the_whole_batch():

  @tf.custom_gradient
  def scaled(x):
    return tf.identity(x), lambda up: up / tf.norm(up)

  model = _model(lambda x, w: _dense(scaled(x), w))
  assert _errors(model)['rows'] > 1e-4
  assert 'goes over the examples' in _failure(model)[0]


def test_a_use_behind_a_gate_at_zero_is_found_by_the_cut(monkeypatch):
  model = made(_SERIES, Own(
      lambda x, w, gate: _dense(x, w) + gate * tf.square(x @ w), w=(4, 4), gate=()))
  model.layers[2].w_gate.assign(0.0)
  assert _failure(model) is None
  found = uses.found
  monkeypatch.setattr(uses, 'found', lambda *args: [
      use for use in found(*args) if use.op.type != 'BatchMatMulV2'])
  assert max(_errors(model).values()) < 1e-5  # Right now, wrong a step later.
  assert 'is used outside of its layer' in _failure(model)[0]


@representatives('left, function', [
    (False, lambda x, w: x @ w), (True, lambda x, w: tf.add_n([x @ w, x @ w])),
    (True, lambda x, w: x @ w + tf.tanh(w)[0]),
    (True, lambda x, w: tf.cast(tf.cast(9 * x @ w, tf.int32), tf.float32)),
    (True, lambda x, w: tf.cast(tf.cast(x @ w, tf.int32), tf.float32))])
def test_a_function_that_is_called_twice(left, function):
  """A function of one operation has a use per call; others are left."""
  function = tf.function(function)
  model = made((4,), Own(lambda x, w: function(tf.tanh(function(x, w)), w), w=(4, 4)))
  assert ('Call in' in (_failure(model, (4,)) or [''])[0]) == left
  x, y = data((4,))
  got = one_by_one.engine_sums(model, crossentropy, x, y)
  one_by_one.assert_same(got, one_by_one.loop_sums(model, crossentropy, x, y))


def test_norms_that_are_not_those_of_the_rows(monkeypatch):
  squared = freivalds.batched_pass.forms.Dense.squared_norms
  monkeypatch.setattr(freivalds.batched_pass.forms.Dense, 'squared_norms',
                      lambda form: 0.9 * squared(form))
  assert _errors(_model())['norms'] > 0.01


@pytest.mark.parametrize('factor', [1.0, 1.01])
def test_a_factor_of_one_row_is_found(monkeypatch, factor):
  """Shows the power of the check: one row of six is wrong by a hundredth."""
  change_products(monkeypatch, lambda rows: rows * tf.reshape(
      np.float32([1, 1, factor, 1, 1, 1]), [6, 1, 1]))
  assert (_errors(_model())['rows'] < 1e-5) == (factor == 1)
