"""Clipped sums by the engine and by a loop over single examples."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfcactus.keras.checks import example_losses
from tfcactus.keras.compat import models
from tfcactus.keras.gradients import engine as engine_lib, layer_routes

CLIP = 0.5


class Sums(NamedTuple):
  """Clipped sums of a batch.

  Attributes:
    sums: The sums as one vector.
    routes: The engine's routes; None for the loop.
    losses: Losses of the examples.
  """

  sums: np.ndarray
  routes: layer_routes.Routes
  losses: np.ndarray


def shake(model: tf.keras.Model, seed: int = 3) -> tf.keras.Model:
  """Moves all variables off initial zeros and ones, where mistakes hide."""
  rng = np.random.default_rng(seed)
  model.set_weights([w + 0.3 * rng.normal(size=w.shape)
                     for w in model.get_weights()])
  return model


def engine_sums(model: tf.keras.Model, loss: Any, x: Any, y: Any,
                vectorize: bool = False, lean: bool = False) -> Sums:
  """Returns clipped sums by the engine; the last physical batch is padded."""
  x, y = tf.nest.map_structure(tf.constant, (x, y))
  rows = tf.nest.flatten(x)[0].shape[0]
  engine = engine_lib.Engine(
      model, example_losses.loss_per_example(loss), rows - 2,
      layer_routes.routes(model, vectorize)._replace(lean=lean))
  # Autograph would take longer than all else.
  found = tf.function(lambda x, y: engine.run(
      x, y, tf.ones([rows]), tf.constant(CLIP)), autograph=False)(x, y)
  return Sums(_flat(found.sums), engine.routes, found.losses[:rows].numpy())


def loop_sums(model: tf.keras.Model, loss: Any, x: Any, y: Any) -> Sums:
  """Returns clipped sums by a GradientTape, one example after the other.

  Args:
    model: The model.
    loss: (targets, predictions) -> the loss, as Keras computes it for a batch.
    x: Inputs.
    y: Targets.
  """
  variables = [models.tf_variable(v) for v in model.trainable_variables]

  @tf.function(autograph=False)
  def gradient(x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
      value = tf.reduce_sum(loss(y, model(x, training=True)))
    found = tape.gradient(value, variables, unconnected_gradients='zero')
    return value, [tf.convert_to_tensor(each) for each in found]

  total, losses = 0.0, []
  for i in range(len(tf.nest.flatten(y)[0])):
    one = tf.nest.map_structure(lambda part, i=i: tf.constant(part[i:i + 1]), (x, y))
    value, found = gradient(*one)
    row = _flat(found).astype(np.float64)
    total += row * min(1, CLIP * (1 - 1e-5) / np.linalg.norm(row))
    losses.append(value.numpy())
  return Sums(total, None, np.array(losses))


def assert_same(got: Sums, want: Sums, tolerance: float = 1e-5) -> None:
  """Asserts that the relative error of the sums is within the tolerance."""
  assert np.linalg.norm(got.sums - want.sums) <= (
      tolerance * np.linalg.norm(want.sums))
  # Losses have the precision of floatx.
  np.testing.assert_allclose(got.losses, want.losses, 1e-5, 1e-6)


def _flat(parts: Any) -> np.ndarray:
  return np.concatenate([np.ravel(part) for part in parts])
