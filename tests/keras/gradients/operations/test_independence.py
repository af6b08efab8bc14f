"""Tests that one example changes no other example's gradient, through operations.

One example of a batch is replaced, and the gradients of all others are compared to the
last bits: products of other numbers may be rounded in another order, no more.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.gradients.operations import test_rules
from tests.keras.zoo import oracle, ZOO
from tests.representatives import representatives
from tfcactus.keras.checks import output_losses
from tfcactus.keras.compat import patches
from tfcactus.keras.gradients import batched_pass, layer_routes
from tfcactus.keras.gradients.operations import uses

_ROUNDING = 2.0**-18
"""Relative to the largest entry of an example's gradient."""


def _rows_of(model, loss, y, loss_weights=None):
  """Returns a function of (x, y) to gradients of each example, losses and sums."""
  routes = layer_routes.routes(model)
  losses = output_losses.OutputLosses(loss, loss_weights)
  number = len(tf.nest.flatten(y)[0])
  # Draws, as of Dropout, are equal in both passes.
  seeds = iter(range(10**6))

  @tf.function(autograph=False)
  def run(x, y):
    with patches.drawing(model, lambda: tf.constant([next(seeds), 7], tf.int64)):
      found = batched_pass.batched(model, routes, losses, (x, y, tf.ones([number])))
    return [tf.reshape(tf.cast(form.dense(), tf.float64), [number, -1])
            for form in found.gradients], found.losses

  def rows(x, y):
    gradients, values = run(*tf.nest.map_structure(tf.convert_to_tensor, (x, y)))
    return np.concatenate(gradients, 1), np.reshape(values, [number, -1])

  return rows


def _changed(values, i):
  """Returns data in which another example stands in place `i`."""
  return tf.nest.map_structure(lambda each: np.concatenate(
      [each[:i], np.roll(each, 1, 0)[i:i + 1], each[i + 1:]]), values)


def _check(model, loss, x, y, loss_weights=None, tolerance=_ROUNDING):
  x, y = tf.nest.map_structure(np.asarray, (x, y))
  run, number = _rows_of(model, loss, y, loss_weights), len(tf.nest.flatten(y)[0])
  before, values = run(x, y)
  own = 0
  for i in (0, number - 1):
    others = np.arange(number) != i
    after, changed = run(_changed(x, i), _changed(y, i))
    largest = np.max(np.abs(before), 1, keepdims=True)
    assert np.max(np.abs(after - before)[others] / np.maximum(
        largest, 1e-30)[others]) <= tolerance
    np.testing.assert_allclose(changed[others], values[others], tolerance, tolerance)
    own += np.max(np.abs(after - before)[~others])
  assert own > 0  # The example in its place has another gradient.


@representatives('name', test_rules._CASES, 4)
def test_own_layers(name):
  shape, make = test_rules._CASES[name]
  _check(test_rules.made(shape, make()), test_rules.crossentropy,
         *test_rules.data(shape))


def test_a_rule_that_mixes_examples_is_seen(monkeypatch):
  """Shows the power of the test: a thousandth of the mean is added to each row."""
  test_rules.change_products(
      monkeypatch, lambda rows: rows + 1e-3 * tf.reduce_mean(rows, 0))
  with pytest.raises(AssertionError):
    _check(test_rules.made((6,)), test_rules.crossentropy, *test_rules.data((6,)))


_PREPARED = (
    'Variational autoencoder (add_loss in a layer)', 'L2 of the weights in the loss',
    'Logits from a table in the loss', 'Multi-task: two outputs, two losses, weights',
    'Multi-task: dict of outputs')
"""Models whose losses need what `fit` prepares, or another route."""

_MODELS = [name for name, entry in ZOO.items() if not (
    entry.missing() or entry.refused[oracle.version()] or entry.policy or entry.hub or
    entry.wrong[oracle.version()] or name in _PREPARED or
    name.endswith('(Keras Applications)'))]


@representatives('name', sorted(_MODELS, key=lambda name: not ZOO[name].fast), 3)
def test_models_of_the_zoo(name):
  case = oracle.make(ZOO[name])
  parts = tf.nest.flatten((case.x, case.y))
  if not all(isinstance(each, np.ndarray) for each in parts):
    pytest.skip('its data are no arrays')
  try:
    _check(case.model, case.loss, case.x, case.y, case.loss_weights)
  except uses.NoRule:
    pytest.skip('some layer of it is vectorised')
  finally:
    oracle.restore()
