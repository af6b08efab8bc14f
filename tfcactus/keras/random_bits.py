"""Random bits inside TensorFlow graphs."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfcactus.keras.compat import models
from tfcactus.randomness import KeyStream


class SystemBits:
  """Numbers inside TensorFlow graphs from a `KeyStream`."""

  def __init__(self, stream: KeyStream):
    """Initialises the source.

    Args:
      stream: Where the bits come from.
    """
    self._stream = stream

  def uniform(self, shape, dtype=tf.float64) -> tf.Tensor:
    """float64 in [0, 1), shape (size,)."""
    (size,) = shape
    return self._call(self._stream.uniforms, size, dtype)

  def normal(self, size: int) -> tf.Tensor:
    """Standard normals, float64, shape (size,)."""
    return self._call(self._stream.normals, size, tf.float64)

  def integers(self, size: int) -> tf.Tensor:
    """int64 of 64 random bits each, shape (size,)."""
    return self._call(
        lambda count: self._stream.words(count).view(np.int64), size, tf.int64)

  def _call(self, draw, size, dtype):
    if models.in_xla():
      raise ValueError(
          'Expected jit_compile=False, got a function that XLA compiles: bits '
          'under fresh keys are drawn outside of it. Compile the model with '
          'jit_compile=False.')
    drawn = tf.int64 if dtype == tf.int64 else tf.float64
    values = tf.numpy_function(lambda: draw(size), [], drawn)
    return tf.cast(tf.ensure_shape(values, [size]), dtype)
