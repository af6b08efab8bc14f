"""What NumPy draws, inside TensorFlow graphs."""

from __future__ import annotations

from typing import Callable

import numpy as np
import tensorflow as tf

from tfcactus.keras.compat import models


def drawn(draw: Callable[..., np.ndarray], size: int, dtype: tf.DType,
          *inputs: tf.Tensor) -> tf.Tensor:
  """What `draw` returns, anew whenever the graph runs.

  Args:
    draw: Returns an array of shape (size,) and `dtype`.
    size: Its length.
    dtype: Its type.
    *inputs: What `draw` is given, as arrays.

  Raises:
    ValueError: inside a function that XLA compiles.
  """
  if models.in_xla():
    raise ValueError(
        'Expected jit_compile=False, got a function that XLA compiles: bits '
        'are drawn outside of it. Compile the model with jit_compile=False.')
  return tf.ensure_shape(tf.numpy_function(draw, list(inputs), dtype), [size])
