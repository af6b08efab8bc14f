"""What a private model settles or refuses before it trains."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from tfcactus.keras import _routes
from tfcactus.keras import _tfp
from tfcactus.keras import optimizer as optimizer_lib
from tfcactus.keras._compat import keras
from tfcactus.keras.batches import PoissonBatches

_MEMORY = 2**24
"""Numbers that a physical batch may hold: 64 MB in float32."""


def physical_rows(plan: Any, model: keras.Model,
                  routes: _routes.Routes) -> int:
  """A physical batch that holds most draws, as far as memory allows."""
  expected = plan.expected_batch_size
  usual = expected + 2 * math.sqrt(expected * (1 - plan.sampling_prob))
  fitting = _MEMORY // max(1, _routes.numbers_per_example(model, routes))
  # Whole eights: what vector units like.
  return max(1, min(-(-int(usual) // 8) * 8, fitting))


def check_batches(batches: PoissonBatches, plan: Any) -> None:
  """Refuses batches that are not drawn as the plan accounts for.

  Raises:
    ValueError: if num_examples or sampling_prob differ.
  """
  for name in ('num_examples', 'sampling_prob'):
    if getattr(batches, name) != getattr(plan, name):
      raise ValueError(
          f'Expected batches with {name}={getattr(plan, name)!r} as in the '
          f'plan, got {name}={getattr(batches, name)!r}; make both from the '
          'same numbers.')


def lengths(x: Any) -> list:
  """Lengths of the arrays `x` is made of; empty if it is anything else."""
  parts = tf.nest.flatten(x)
  if not all(isinstance(part, (np.ndarray, tf.Tensor)) and len(part.shape)
             for part in parts):
    return []
  return [int(part.shape[0]) for part in parts]


def check_optimizer(optimizer: Any) -> None:
  """Refuses an optimizer that adds noise of its own.

  Raises:
    ValueError: if it does.
  """
  if isinstance(optimizer, optimizer_lib.DPOptimizer) or (
      not isinstance(optimizer, (str, dict)) and
      _tfp.is_foreign_dp_optimizer(optimizer)):
    raise ValueError(
        f'Expected an ordinary Keras optimizer, got {type(optimizer).__name__}:'
        ' a private model adds the noise itself, and it would be added twice; '
        'use tf.keras.optimizers.SGD or Adam.')
