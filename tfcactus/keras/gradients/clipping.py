"""Per-example clipping whose bound holds in floating point."""

from __future__ import annotations

from typing import List
from typing import Sequence
from typing import Tuple
from typing import Union

import tensorflow as tf

from tfcactus.keras.gradients import forms

CLIP_MARGIN = 1e-5
"""Clipped norms stay this fraction below the bound.

It covers what rounding may make a norm too small by, `forms.NORM_ERROR`. The rest,
7.8e-6, covers the rounding of float64 sums of up to `MOST_ROUNDINGS` numbers."""

MOST_ROUNDINGS = 3.4e10
"""Examples of a batch, times the number of roundings that each goes through (rows of a
physical batch, plus physical batches, plus replicas), up to which `CLIP_MARGIN` covers
the rounding of the sum: 2.02 * MOST_ROUNDINGS * 2^-53 < 7.8e-6 (docs/soundness.md)."""

KINDS = ('flat', 'per_layer', 'automatic')

_NORMALIZING = 0.01
"""Added to norms before dividing by them, so that an example that is fitted
already does not weigh as much as others."""

_SMALLEST_FACTOR = 1e-37
"""Smaller factors are denormal where they are float32 (in drop-in optimizers): rounded
coarsely or flushed to zero. A gradient that needs one is as good as not finite."""


def float64_margin(entries: int, float32_roundings: int) -> float:
  """How far clipped norms must stay below the bound if norms are taken in float64.

  Entries are squared (one rounding each) and summed, in parts and over them (fewer
  than two for each), and the root halves what that errs by. Bound, factor and the
  product with an entry round five times more. 1.01 is for terms of second order.

  Args:
    entries: Of a vector.
    float32_roundings: Of each entry of what is scaled, in float32.
  """
  return 1.01 * (float32_roundings * 2.0**-24 + (1.5 * entries + 6) * 2.0**-53)


def check_dtypes(gradients: Sequence[Union[tf.Tensor, tf.Variable]]) -> None:
  """Refuses dtypes whose rounding error the margin does not cover.

  Raises:
    ValueError: naming the dtype.
  """
  for each in gradients:
    if each.dtype not in (tf.float32, tf.float64):
      raise ValueError(
          'Expected gradients in float32 or float64, got '
          f'{tf.as_dtype(each.dtype).name}: its rounding could exceed the clip '
          'norm. Keep the variables in float32 (with a mixed_bfloat16 policy '
          'they are).')


def clip_factors(squared_norms: tf.Tensor, l2_norm_clip: tf.Tensor,
                 normalize: bool = False, margin: float = CLIP_MARGIN
                ) -> Tuple[tf.Tensor, tf.Tensor]:
  """The factor each vector is scaled by, and whether it counts at all.

  Args:
    squared_norms: float64, any shape; not finite where any entry was not.
    l2_norm_clip: The bound on the norm.
    normalize: Whether to lengthen short vectors too.
    margin: How far norms stay below the bound, relative.

  Returns:
    float64 factors of the same shape, and booleans, False where the vector
    must be replaced by zeros (the factor alone would not do: 0 * NaN = NaN).
  """
  bound = tf.cast(l2_norm_clip, tf.float64) * (1 - margin)
  usable = tf.math.is_finite(squared_norms)
  zero = tf.zeros_like(squared_norms)
  norm = tf.sqrt(tf.where(usable, squared_norms, zero))
  factors = bound / (norm + _NORMALIZING if normalize else
                     tf.maximum(norm, bound))
  usable = tf.logical_and(usable, factors >= _SMALLEST_FACTOR)
  return tf.where(usable, factors, zero), usable


def check_kind(clipping: str) -> str:
  """Returns `clipping` if it is a kind of clipping.

  Raises:
    ValueError: if it is not.
  """
  if clipping not in KINDS:
    raise ValueError(
        f'Expected clipping in {KINDS}, got clipping={clipping!r}.')
  return clipping


def clip_and_sum(gradients: Sequence[forms.GradientForm], l2_norm_clip: tf.Tensor,
                 takes_part: tf.Tensor, clipping: str = 'flat',
                 groups: Sequence[int] = ()) -> Tuple[List[tf.Tensor], tf.Tensor]:
  """Clips each example's gradient and sums over the examples.

  Args:
    gradients: One for each variable.
    l2_norm_clip: The bound on the norm over all variables together.
    takes_part: Booleans, shape (batch,); False contributes exactly zero, as
      does an example with any entry that is not finite.
    clipping: 'flat', 'per_layer' or 'automatic'.
    groups: For 'per_layer', the number of each variable's layer.

  Returns:
    (float64 sums in the shape of each variable; how many of those taking part were
    not clipped less how many were, halved: an example adds 1/2 or -1/2).

  Source: 'automatic' is AUTO-S of Bu et al., "Automatic Clipping:
  Differentially Private Deep Learning Made Easier and Stronger" (2023).
  """
  if clipping != 'per_layer':
    groups = [0] * len(gradients)
  numbers = sorted(set(groups))
  bound = tf.cast(l2_norm_clip, tf.float64) / len(numbers)**0.5
  found, short, finite = {}, [], []
  for number in numbers:
    squared = tf.add_n([each.squared_norms() for each, group in
                        zip(gradients, groups) if group == number])
    found[number] = clip_factors(squared, bound, clipping == 'automatic')
    short.append(squared <= bound**2)
    finite.append(tf.math.is_finite(squared))
  # An example broken in one layer takes no part in any.
  keep = tf.reduce_all([usable for _, usable in found.values()], 0)
  keep = tf.logical_and(keep, takes_part)
  halves = tf.cast(tf.reduce_all(short, 0), tf.float64) - 0.5
  halves = tf.where(keep, halves, tf.zeros_like(halves))
  gradients = forms.finite(gradients, tf.reduce_all(finite, 0))
  factors = {group: tf.where(keep, each, tf.zeros_like(each))
             for group, (each, _) in found.items()}
  return ([each.weighted_sum(factors[group])
           for each, group in zip(gradients, groups)], tf.reduce_sum(halves))


def clipped_sums(per_example: Sequence[tf.Tensor], l2_norm_clip: tf.Tensor
                ) -> List[tf.Tensor]:
  """Returns clipped sums of gradients that are given as they are.

  Norms are taken in float64, so that clipped ones are closer to the bound than
  those of `clip_and_sum`, and squares of large float32 numbers do not overflow. Sums
  are taken in float64 too, and rounded once.

  Args:
    per_example: One for each variable, shape (batch, ...), all of it known.
    l2_norm_clip: The bound on the norm over all variables together.

  Returns:
    Sums in the shape and dtype of each variable.
  """
  check_dtypes(per_example)
  squared = tf.add_n([
      forms.squared_norms(tf.cast(each, tf.float64)) for each in per_example])
  entries = sum(each.shape[1:].num_elements() for each in per_example)
  # Of one example, the sum is rounded to float32; two roundings are allowed for.
  single = any(each.dtype == tf.float32 for each in per_example)
  factors, usable = clip_factors(
      squared, l2_norm_clip, margin=float64_margin(entries, 2 if single else 0))
  return [tf.cast(forms.Dense(each, each.shape[1:]).where(usable).weighted_sum(
      factors), each.dtype) for each in per_example]
