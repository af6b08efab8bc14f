"""Per-example clipping whose bound holds in floating point."""

from __future__ import annotations

from typing import List
from typing import Sequence
from typing import Tuple

import tensorflow as tf

from tfcactus.keras.gradients import forms

CLIP_MARGIN = 1e-5
"""Clipped norms stay this fraction below the bound. The norm is computed in
float64; scaling a float32 vector then adds two roundings of 6e-8 each."""


KINDS = ('flat', 'per_layer', 'automatic')

_NORMALIZING = 0.01
"""Added to norms before dividing by them, so that an example that is fitted
already does not weigh as much as others."""

_SMALLEST_FACTOR = 1e-37
"""Smaller factors are denormal in float32: rounded coarsely or flushed to zero.
A gradient that needs one is as good as not finite."""


def check_dtypes(parts: Sequence[tf.Tensor]) -> None:
  """Refuses dtypes whose rounding error the margin does not cover."""
  for part in parts:
    if part.dtype not in (tf.float32, tf.float64):
      raise ValueError(
          'Expected gradients in float32 or float64, got '
          f'{tf.as_dtype(part.dtype).name}: its rounding could exceed the clip '
          'norm. Keep the variables in float32 (with a mixed_bfloat16 policy '
          'they are).')


def clip_factors(squared_norms: tf.Tensor, l2_norm_clip: tf.Tensor,
                 normalize: bool = False) -> Tuple[tf.Tensor, tf.Tensor]:
  """The factor each vector is scaled by, and whether it takes part at all.

  Args:
    squared_norms: float64, any shape; not finite where any entry was not.
    l2_norm_clip: The bound on the norm.
    normalize: Whether to lengthen short vectors too.

  Returns:
    float64 factors of the same shape, and booleans, False where the vector
    must be replaced by zeros (the factor alone would not do: 0 * NaN = NaN).
  """
  bound = tf.cast(l2_norm_clip, tf.float64) * (1 - CLIP_MARGIN)
  usable = tf.math.is_finite(squared_norms)
  zero = tf.zeros_like(squared_norms)
  norm = tf.sqrt(tf.where(usable, squared_norms, zero))
  factors = bound / (norm + _NORMALIZING if normalize else
                     tf.maximum(norm, bound))
  usable = tf.logical_and(usable, factors >= _SMALLEST_FACTOR)
  return tf.where(usable, factors, zero), usable


def clipped_sums(per_example: Sequence[tf.Tensor], l2_norm_clip: tf.Tensor,
                 takes_part: tf.Tensor | None = None) -> List[tf.Tensor]:
  """Clips each example's joint gradient and sums over the examples.

  Args:
    per_example: Gradients, shape (batch, ...) for each variable.
    l2_norm_clip: The bound on the norm over all variables together.
    takes_part: Booleans, shape (batch,); False contributes exactly zero, as
      does an example with any entry that is not finite.

  Returns:
    Sums in the shape of each variable.
  """
  check_dtypes(per_example)
  rows = [tf.reshape(part, [tf.shape(part)[0], part.shape[1:].num_elements()])
          for part in per_example]
  squared = tf.add_n([
      tf.reduce_sum(tf.square(tf.cast(row, tf.float64)), axis=1)
      for row in rows])
  factors, keep = clip_factors(squared, l2_norm_clip)
  if takes_part is not None:
    keep = tf.logical_and(keep, takes_part)
  sums = []
  for part, row in zip(per_example, rows):
    sane = tf.where(keep[:, None], row, tf.zeros_like(row))
    total = tf.linalg.matvec(
        sane, tf.cast(factors, row.dtype), transpose_a=True)
    sums.append(tf.reshape(total, part.shape[1:]))
  return sums


def check_kind(clipping: str) -> str:
  """Returns `clipping` if it is a kind of clipping.

  Raises:
    ValueError: if it is not.
  """
  if clipping not in KINDS:
    raise ValueError(
        f'Expected clipping in {KINDS}, got clipping={clipping!r}.')
  return clipping


def clipped_part_sums(parts: Sequence[forms.Part], l2_norm_clip: tf.Tensor,
                      takes_part: tf.Tensor, clipping: str = 'flat',
                      groups: Sequence[int] = ()
                     ) -> Tuple[List[tf.Tensor], tf.Tensor]:
  """As `clipped_sums`, of gradients in the form that layers have them cheaply.

  Args:
    parts: One for each variable.
    l2_norm_clip: The bound on the norm over all variables together.
    takes_part: Booleans, shape (batch,).
    clipping: 'flat', 'per_layer' or 'automatic'.
    groups: For 'per_layer', the number of each variable's layer.

  Returns:
    (sums in the shape of each variable; how many of those taking part were not
    clipped less how many were, halved: an example adds 1/2 or -1/2).

  Source: 'automatic' is AUTO-S of Bu et al., "Automatic Clipping:
  Differentially Private Deep Learning Made Easier and Stronger" (2023).
  """
  if clipping != 'per_layer':
    groups = [0] * len(parts)
  numbers = sorted(set(groups))
  bound = tf.cast(l2_norm_clip, tf.float64) / len(numbers)**0.5
  found, short = {}, []
  for number in numbers:
    squared = tf.add_n([part.squared_norms() for part, group in
                        zip(parts, groups) if group == number])
    found[number] = clip_factors(squared, bound, clipping == 'automatic')
    short.append(squared <= bound**2)
  # An example broken in one layer takes no part in any.
  keep = tf.reduce_all([usable for _, usable in found.values()], 0)
  keep = tf.logical_and(keep, takes_part)
  halves = tf.cast(tf.reduce_all(short, 0), tf.float64) - 0.5
  halves = tf.where(keep, halves, tf.zeros_like(halves))
  return ([part.weighted_sum(found[group][0], keep)
           for part, group in zip(parts, groups)], tf.reduce_sum(halves))
