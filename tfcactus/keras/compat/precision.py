"""Dtypes of losses, graph rewrites, and the grid that noisy sums are rounded to."""

from __future__ import annotations

from collections.abc import Sequence
import os

import tensorflow as tf


def alike(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """Casts tensors to one dtype: float64 if all are float64, else float32."""
  double = all(each.dtype == tf.float64 for each in values)
  return [each if double else tf.cast(each, tf.float32) for each in values]


def check_graphs_are_as_written() -> None:
  """Raises ValueError if TensorFlow may round numbers in norms and sums differently."""
  # Grappler would round a gradient in some places only, so that the norm would be
  # computed from other numbers than the sum.
  for name, value in tf.config.optimizer.get_experimental_options().items():
    if name.startswith('auto_mixed_precision') and value:
      raise ValueError(
          f'Expected the optimizer option {name!r} to be off, got {value!r}: it rounds '
          'gradients between the norm and the sum, and one could exceed the clip '
          f'norm. Call tf.config.optimizer.set_experimental_options({{{name!r}: '
          "False}); for speed, use keras.mixed_precision.set_global_policy("
          "'mixed_bfloat16').")
  # XLA computes a number anew where it is used, so that norm and sum may differ.
  if tf.config.optimizer.get_jit() or '--tf_xla_auto_jit' in os.environ.get(
      'TF_XLA_FLAGS', ''):
    raise ValueError(
        'Expected no XLA in private steps, got tf.config.optimizer.set_jit or '
        'TF_XLA_FLAGS=--tf_xla_auto_jit, by which norms and sums may be computed from '
        "numbers of different rounding. Call tf.config.optimizer.set_jit('') and unset "
        'the flag.')


def grid(scale: tf.Tensor) -> tf.Tensor:
  """Returns the step of the grid that a noisy sum is rounded to before release.

  The low bits of a float64 sum depend on which numbers were added, so that some sums
  can come from one data set only (Mironov 2012). On a grid some 2^30 times finer than
  the noise, or coarser, many pairs of a sum and a draw give each released number.

  `scale` is a float64 scalar, `NoiseSampler.grid_scale`; its sign does not matter. The
  step is a float64 scalar: 2^-1022, or the largest power of two of at most 2^-30 times
  the scale if that is more. Dividing and multiplying by a power of two is exact.
  """
  bits = tf.bitwise.bitwise_and(  # The exponent of a float64.
      tf.bitcast(scale, tf.int64), tf.constant(0x7FF0000000000000, tf.int64))
  return tf.maximum(tf.bitcast(bits, tf.float64) * 2.0**-30,
                    tf.constant(2.0**-1022, tf.float64))


def rounded_to_grid(noisy: tf.Tensor, scale: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """Returns a float64 noisy sum rounded to the grid `grid(scale)`, then to `dtype`."""
  step = grid(scale)
  return tf.cast(tf.round(noisy / step) * step, dtype)
