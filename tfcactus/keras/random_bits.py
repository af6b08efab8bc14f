"""What NumPy draws, inside TensorFlow graphs."""

from __future__ import annotations

from typing import Callable
from typing import List
from typing import Sequence

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
  _check_outside_xla()
  return tf.ensure_shape(tf.numpy_function(draw, list(inputs), dtype), [size])


def changed(change: Callable[..., List[np.ndarray]], parts: Sequence[tf.Tensor],
            dtypes: Sequence[tf.DType], *inputs: tf.Tensor) -> List[tf.Tensor]:
  """Returns tensors as `change` makes them with what it draws, in their shapes.

  Args:
    change: Takes the list of them and `inputs`, as arrays that it leaves as they are.
    parts: The tensors.
    dtypes: Of the arrays that `change` returns, one for each part.
    *inputs: What else `change` is given.

  Raises:
    ValueError: inside a function that XLA compiles.
  """
  _check_outside_xla()
  found = tf.numpy_function(
      lambda *arrays: change(arrays[len(inputs):], *arrays[:len(inputs)]),
      [*inputs, *parts], list(dtypes))
  # Called eagerly, it gives one tensor as it is.
  return [tf.ensure_shape(each, part.shape)
          for each, part in zip(tf.nest.flatten(found), parts)]


def _check_outside_xla() -> None:
  if models.in_xla():
    raise ValueError(
        'Expected jit_compile=False, got a function that XLA compiles: bits '
        'are drawn outside of it. Compile the model with jit_compile=False.')
