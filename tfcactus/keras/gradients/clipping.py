"""Clipping of per-example (per-sample) gradients; its bound holds in floats."""

from __future__ import annotations

from collections.abc import Sequence
import math

import tensorflow as tf

from tfcactus.keras.distribution import replicas
from tfcactus.keras.gradients import forms, gram

CLIP_MARGIN = 1e-5
"""Clipped norms stay this fraction below the clipping norm. It covers the error of
norms, `forms.NORM_ERROR`; the remaining 7.8e-6 covers the rounding of float64 sums
within `MOST_ROUNDINGS`."""

MOST_ROUNDINGS = 3.4e10
"""Limit on the examples of a batch times the roundings of each (rows of a physical
batch, plus physical batches, plus replicas), up to which `CLIP_MARGIN` covers the
rounding of the sum: 2.02 * MOST_ROUNDINGS * 2^-53 < 7.8e-6 (docs/soundness_numbers.md).
Where Gram matrices give norms, rows count once per position, and roundings
`gram.MOST_CANCELLATION` times."""

_AT_ONCE = 2**25
"""Numbers in gradients that are converted to float64 and summed at once: 256 MiB."""

KINDS = ('flat', 'per_layer', 'automatic')
"""Kinds of clipping to the norm C: of the whole gradient; of the part of each of L
layers, to C / sqrt(L); of the whole gradient, with short ones scaled up (AUTO-S)."""

_NORMALIZING = 0.01
"""Added to norms in automatic clipping, so that examples with small gradients, which
the model fits already, do not weigh as much as others."""

_SMALLEST_FACTOR = 1e-37
"""A gradient with a smaller factor, whose norm exceeds 1e37 clipping norms, is dropped
like one that is not finite. So factors stay above the denormal numbers of float32
(below 1.2e-38), which are rounded coarsely or flushed to zero."""


def _roundings(examples: float, rows: int, positions: float = 1.0, more: int = 0
              ) -> float:
  """Returns `examples` times the roundings of each; `MOST_ROUNDINGS` are allowed."""
  # A physical batch has `rows` rows, each a sum over `positions` if Gram matrices give
  # norms. The parts of all replicas are summed last. Two are for a product, or the
  # scaling to whole numbers, and for a physical batch that is not full; `more` are for
  # the matrix that correlates noise.
  return examples * (positions * rows + examples / rows + 2 + replicas.number() + more)


def check_roundings(examples: int, rows: int, bands: int = 1) -> None:
  """Raises ValueError if `CLIP_MARGIN` does not cover the rounding of the largest sum.

  The largest sum is over all `examples`, canaries included, and one more, in physical
  batches of `rows`. With noise correlated over several `bands`, a matrix multiplies
  sums, which rounds them further.
  """
  # A term of a product is rounded 2 bands times. All products that an example changes
  # hold each other example twice at most (docs/soundness_whole_numbers.md).
  more = 4 * bands if bands > 1 else 0
  if _roundings(examples + 1, rows, more=more) <= MOST_ROUNDINGS:
    return
  best = math.isqrt(examples + 1)  # At the root of N, n + N / n is least.
  raise ValueError(
      "Expected with arithmetic='integer' a physical batch size n with N (n + N / n "
      f'+ 2 + {replicas.number()} replicas{f" + 4 * {bands} bands" if more else ""}) '
      f'up to {MOST_ROUNDINGS:.1e} for N = num_examples (and canaries) + 1, got '
      f'n={rows} for N={examples + 1}: the rounding of a sum could exceed what the '
      'clipping norm allows for. ' + (
          f"Give physical_batch_size={best}, or take arithmetic='float'." if (
              _roundings(examples + 1, best, more=more) <= MOST_ROUNDINGS) else
          "No n meets this for so many examples: take arithmetic='float'."))


def most_positions(drawn: float, rows: int) -> float:
  """Returns the most positions of an example up to which Gram norms may be used.

  Up to that number, `CLIP_MARGIN` covers the rounding of sums over `drawn` examples,
  those of all replicas together, in physical batches of `rows`. The result may be a
  fraction; below 1 stands for none. Infinite `drawn` gives 0, and zero gives infinity.
  """
  if drawn == math.inf:
    return 0.0
  if drawn == 0:
    return math.inf
  # Positions count `drawn * rows` roundings each.
  left = MOST_ROUNDINGS / gram.MOST_CANCELLATION - _roundings(drawn, rows, 0.0)
  return left / (drawn * rows)


def excess(drawn: float, rows: int, positions: int) -> float:
  """Returns an upper bound on what an example changes a computed sum by, beyond C.

  The bound is in clipping norms C. It is 0 where `CLIP_MARGIN` covers the rounding of
  sums over `drawn` examples, those of all replicas together, in physical batches of
  `rows`. `positions` is the most that Gram norms were used for, 0 for none.

  Source: docs/soundness_numbers.md, points 4 and 5.
  """
  roundings = _roundings(drawn, rows, max(positions, 1)) * (
      gram.MOST_CANCELLATION if positions else 1)
  return 2.02 * roundings * 2.0**-53 if roundings > MOST_ROUNDINGS else 0.0


def check_dtypes(gradients: Sequence[tf.Tensor | tf.Variable]) -> None:
  """Raises ValueError unless all are float32 or float64, which the margin is for."""
  for each in gradients:
    if each.dtype not in (tf.float32, tf.float64):
      raise ValueError(
          'Expected gradients in float32 or float64, got '
          f'{tf.as_dtype(each.dtype).name}: its rounding could exceed the clip norm. '
          'Keep the variables in float32 (with a mixed_bfloat16 policy they are).')


def clip_factors(squared_norms: tf.Tensor, l2_norm_clip: tf.Tensor,
                 normalize: bool = False, margin: float = CLIP_MARGIN
                ) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns each vector's clipping factor, float64, and whether the vector is usable.

  Both results have the shape of `squared_norms`, which is float64. Vectors whose
  squared norm is not finite, or whose factor is below `_SMALLEST_FACTOR`, are not
  usable: the caller replaces them by zeros. Their factor of zero is not enough, since
  0 * NaN = NaN. Clipped norms stay below `l2_norm_clip` by the relative `margin`. With
  `normalize`, factors divide by the norm plus `_NORMALIZING`: those of short vectors
  exceed one.
  """
  bound = tf.cast(l2_norm_clip, tf.float64) * (1 - margin)
  usable = tf.math.is_finite(squared_norms)
  zero = tf.zeros_like(squared_norms)
  norm = tf.sqrt(tf.where(usable, squared_norms, zero))
  factors = bound / (norm + _NORMALIZING if normalize else tf.maximum(norm, bound))
  usable = tf.logical_and(usable, factors >= _SMALLEST_FACTOR)
  return tf.where(usable, factors, zero), usable


def check_kind(clipping: str) -> str:
  """Returns `clipping` if it is a kind of clipping, else raises ValueError."""
  if clipping not in KINDS:
    raise ValueError(f'Expected clipping in {KINDS}, got clipping={clipping!r}.')
  return clipping


def clip_and_sum(gradients: Sequence[forms.GradientForm], l2_norm_clip: tf.Tensor,
                 takes_part: tf.Tensor, clipping: str = 'flat',
                 groups: Sequence[int] = (), scales: tf.Tensor | None = None
                ) -> tuple[list[tf.Tensor], tf.Tensor]:
  """Clips each example's gradient and sums over the examples.

  The first result has float64 sums in the shape of each variable. The second is the sum
  of 1/2 per unclipped and -1/2 per clipped example, over the examples that contribute
  to the sums: one example changes it by 1/2, as `step_counts` expects of a count.
  Unclipped is an example whose computed norm is at most the bound, in every group.

  `gradients` has a form for each variable; `l2_norm_clip` bounds the norm over all
  variables together. An example contributes exactly zero if it is False in
  `takes_part`, (batch,), or not usable (see `clip_factors`) in a group. `clipping` is
  one of `KINDS`; `groups` is as in `Routes.groups`, for 'per_layer'. `scales`, float64
  of shape (batch,), multiplies gradients before they are clipped; None for ones.

  Source: 'automatic' is AUTO-S of Bu et al., "Automatic Clipping: Differentially
  Private Deep Learning Made Easier and Stronger" (2023).
  """
  places, joined, groups, norms = _measured(gradients, clipping, groups)
  # L groups of norm C / sqrt(L) each have norm C together.
  bound = tf.cast(l2_norm_clip, tf.float64) / len(norms)**0.5
  factors, keep, unclipped, finite = {}, [takes_part], [], []
  for group, squared in norms.items():
    if scales is not None:
      squared *= tf.square(scales)
    factors[group], usable = clip_factors(squared, bound, clipping == 'automatic')
    keep.append(usable)
    unclipped.append(squared <= bound**2)
    finite.append(tf.math.is_finite(squared))
  # An example that is not usable in one group is dropped in all.
  kept = tf.reduce_all(keep, 0)
  halves = tf.cast(tf.reduce_all(unclipped, 0), tf.float64) - 0.5
  joined = forms.finite(joined, tf.reduce_all(finite, 0))
  factors = {group: tf.where(kept, each if scales is None else each * scales,
                             tf.zeros_like(each)) for group, each in factors.items()}
  return (forms.apart(_sums(joined, [factors[group] for group in groups]), places,
                      gradients),
          tf.reduce_sum(tf.where(kept, halves, tf.zeros_like(halves))))


def _sums(gradients: Sequence[forms.GradientForm], factors: Sequence[tf.Tensor]
         ) -> list[tf.Tensor]:
  """Returns the weighted sum of each form, float64, in the variable's shape."""
  # A sum converts its numbers to float64, which takes twice their memory. TensorFlow
  # would convert all of them before the first product: `gate` makes a sum wait for
  # earlier ones, so that about `_AT_ONCE` numbers are converted at once.
  sizes = [sum(tensor.shape.num_elements() for tensor in each.tensors())
           for each in gradients]
  totals: list[tf.Tensor] = []
  gate: list[tf.Operation] = []
  first, at_once = 0, 0  # Sum i may run together with those from `first` on.
  for i, (each, own) in enumerate(zip(gradients, factors)):
    at_once, before = at_once + sizes[i], first
    while at_once > _AT_ONCE and first < i:
      at_once, first = at_once - sizes[first], first + 1
    if first > before:
      gate = [tf.group(*gate, *totals[before:first])]
    with tf.control_dependencies([own, *gate]):
      totals.append(each.weighted_sum(own))
  return totals


def _measured(gradients: Sequence[forms.GradientForm], clipping: str,
              groups: Sequence[int]
             ) -> tuple[list[list[int]], list[forms.GradientForm], list[int],
                        dict[int, tf.Tensor]]:
  """Returns (places, joined forms, group of each form, {group: squared norms}).

  Places and forms are those of `forms.joined`. Norms are float64, shape (batch,).
  """
  if clipping != 'per_layer':  # All variables are one group.
    groups = [0] * len(gradients)
  # The joined numbers are measured, and the same numbers are added.
  places, joined = forms.joined(gradients, groups)
  groups = [groups[indices[0]] for indices in places]
  return places, joined, groups, {
      group: tf.add_n([each.squared_norms() for each, own in zip(joined, groups)
                       if own == group]) for group in sorted(set(groups))}


def numbers_of_rows(gradients: Sequence[forms.GradientForm], clipping: str,
                    groups: Sequence[int]) -> list[tf.Tensor]:
  """Returns all tensors that `clip_and_sum` adds up, and the norms by which it clips.

  Norms are squared, one tensor for each group. All tensors have one row per example.
  """
  *_, norms = _measured(gradients, clipping, groups)
  return [*(tensor for form in gradients for tensor in form.tensors()),
          *norms.values()]


def clipped_sums(per_example: Sequence[tf.Tensor], l2_norm_clip: tf.Tensor
                ) -> list[tf.Tensor]:
  """Returns clipped sums of dense gradients, in each variable's shape and dtype.

  Norms are float64: clipped norms get closer to the clipping norm than in
  `clip_and_sum`, and squares of large float32 numbers do not overflow. Sums are float64
  and rounded once; the margin covers the rounding of one example, not that of a sum
  over many. `per_example` has a tensor of known shape (batch, ...) per variable;
  `l2_norm_clip` bounds the norm over all variables together. Examples that are not
  usable (see `clip_factors`) add zero. Raises ValueError as `check_dtypes` does.
  """
  check_dtypes(per_example)
  squared = tf.add_n([
      forms.squared_norms(tf.cast(each, tf.float64)) for each in per_example])
  entries = sum(each.shape[1:].num_elements() for each in per_example)
  # A sum over one example is rounded to float32 once; two roundings are allowed for.
  # The square of the norm has fewer than three float64 roundings per entry: one of the
  # entry's square, and two of the sum, in parts and over the parts. The root halves
  # these and rounds once. The bound, the factor and the product with an entry add five.
  # 1.01 covers terms of second order.
  float32_roundings = 2 if any(each.dtype == tf.float32 for each in per_example) else 0
  factors, usable = clip_factors(squared, l2_norm_clip, margin=1.01 * (
      float32_roundings * 2.0**-24 + (1.5 * entries + 6) * 2.0**-53))
  return [tf.cast(forms.Dense(each, each.shape[1:]).where(usable).weighted_sum(
      factors), each.dtype) for each in per_example]
