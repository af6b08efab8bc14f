"""Gradients of canaries along shadow weights, which no model has.

A canary is a row of the batch whose loss has weight zero, so that its gradient along
the model's weights is zero. Its gradient along the shadow weights is known: it is
longer than the clipping norm, and clipping has to shorten it. Shadow weights are
`LAYERS` vectors, as if they were of so many layers; a canary has one coordinate in
each.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfcactus.keras.gradients import forms

LAYERS = 2
"""Shadow vectors. Clipping each layer by itself would let a canary pass with a norm of
sqrt(2) clipping norms."""

_LENGTH = 4.0
"""Norm of a canary's gradient before clipping, in clipping norms."""


def shapes(canaries: int) -> list[list[int]]:
  """Returns the shapes of the shadow weights of so many canaries."""
  return [[canaries, 1]] * LAYERS


def gradients(numbers: tf.Tensor, canaries: int, l2_norm_clip: tf.Tensor
             ) -> list[forms.GradientForm]:
  """Returns the gradients along the shadow weights, one form for each vector.

  `numbers`, int64 of shape (batch,), has the canary of each row, counted from one, or
  zero for a row whose gradients are zero.
  """
  entry = tf.where(numbers > 0, _LENGTH / LAYERS**0.5 * tf.cast(
      l2_norm_clip, tf.float64), tf.zeros([], tf.float64))
  place = tf.cast(tf.maximum(numbers - 1, 0), tf.int32)
  return [forms.Rows(place[:, None], entry[:, None, None], canaries)
          for _ in range(LAYERS)]


def groups(found: Sequence[int]) -> list[int]:
  """Returns the indices of the layers of a model, and those of the shadow weights."""
  return [*found, *range(max(found, default=-1) + 1,
                         max(found, default=-1) + 1 + LAYERS)]
