"""Gradients of canaries along shadow weights, which no model has.

A canary is a row of the batch whose loss has weight zero, so that it adds nothing along
the model's weights. Its gradient along the shadow weights is set here: it is longer
than the clipping norm, and clipping has to shorten it. Shadow weights are `LAYERS`
vectors, as if they were of so many layers; a canary has one coordinate in each.
"""

from __future__ import annotations

import tensorflow as tf

from tfcactus.keras.gradients import forms

LAYERS = 2
"""Number of shadow vectors. With two, a canary shows if each layer is clipped by itself
to the whole clipping norm: the canary's norm is then sqrt(2) clipping norms."""

GROUPS = tuple(range(LAYERS))
"""The clipping group of each shadow vector, used by 'per_layer' clipping."""

_LENGTH = 4.0
"""Norm of a canary's gradient before clipping, in clipping norms. It is more than one,
so that an audit sees whether gradients are clipped."""


def shapes(canaries: int) -> list[list[int]]:
  """Returns the shape of each shadow vector, for this number of canaries."""
  return [[canaries, 1]] * LAYERS


def gradients(numbers: tf.Tensor, canaries: int, l2_norm_clip: tf.Tensor
             ) -> list[forms.GradientForm]:
  """Returns the gradients along the shadow weights, float64, a form for each vector.

  `numbers`, int64 of shape (batch,), has the canary of each example, counted from one,
  or zero for an example that is none: its gradients are zero.
  """
  entry = tf.where(numbers > 0, _LENGTH / LAYERS**0.5 * tf.cast(
      l2_norm_clip, tf.float64), tf.zeros([], tf.float64))
  place = tf.cast(tf.maximum(numbers - 1, 0), tf.int32)
  return [forms.Rows(place[:, None], entry[:, None, None], canaries)
          for _ in range(LAYERS)]
