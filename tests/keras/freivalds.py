"""Freivalds' check of per-example gradients: random weights over the examples.

For random s, the sum of s_i g_i over the rows is compared with the gradient of the sum
of s_i loss_i, one backward pass. If a row differs from its loss' gradient, the two
differ with probability one. A sum with equal weights would not notice rows that belong
to other examples, or rows from which the mean of all was taken.

The check sees gradients at one point only: neither what depends on other examples
without a gradient, nor a use of a weight whose gradient is zero there. The proof of the
pass has to find these (`test_planted_faults.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfcactus.keras.checks import example_losses
from tfcactus.keras.compat import models
from tfcactus.keras.gradients import batched_pass, layer_routes


def errors(model: tf.keras.Model, loss: Any, x: Any, y: Any,
           routes: layer_routes.Routes | None = None) -> dict[str, float]:
  """Returns relative errors of the rows of a batched pass.

  'rows' and 'sum' are those of the sum over examples with random and with equal
  weights; 'norms' is that of the squared norms against those of the dense rows.
  """
  routes = routes or layer_routes.routes(model)
  compute_loss = example_losses.loss_per_example(loss)
  number = len(tf.nest.flatten(y)[0])
  random = np.random.default_rng(4).normal(size=number)

  @tf.function(autograph=False)
  def run(x: Any, y: Any) -> Any:
    batch = (x, y, tf.ones([number]))
    found = batched_pass.batched(model, routes, compute_loss, batch)
    losses = batched_pass.weighted_losses(found.losses, batch[2], found.added)
    variables = [models.tf_variable(v) for v in model.trainable_variables]
    # A tape around the pass would hide its loops in functions.
    wanted = [tf.gradients(
        tf.reduce_sum(losses * tf.cast(s, losses.dtype)),
        [losses.graph.capture(v.handle) for v in variables],
        unconnected_gradients='none') for s in (random, np.ones(number))]
    wanted = [[tf.zeros(v.shape, v.dtype) if each is None or each.dtype == tf.resource
               else each for v, each in zip(variables, one)] for one in wanted]
    return ([form.dense() for form in found.gradients],
            [form.squared_norms() for form in found.gradients],
            [[tf.convert_to_tensor(each) for each in one] for one in wanted])

  rows, norms, wanted = run(*tf.nest.map_structure(tf.constant, (x, y)))
  rows = np.concatenate([np.reshape(each, [number, -1]) for each in rows],
                        1).astype(np.float64)
  made = []
  for weights, want in zip((random, np.ones(number)), wanted):
    want = np.concatenate([np.ravel(each) for each in want]).astype(np.float64)
    # Sums of rows may cancel: relative to the size of what is summed.
    size = np.sqrt(np.sum((weights[:, None] * rows)**2)) + np.linalg.norm(want)
    made.append(float(np.linalg.norm(weights @ rows - want) / size))
  squared = np.sum(rows**2, 1)
  off = np.abs(np.sum(norms, 0) - squared) / np.maximum(squared, 1e-30)
  return {'rows': made[0], 'sum': made[1], 'norms': float(np.max(off))}
