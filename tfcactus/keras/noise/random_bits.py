"""NumPy random draws inside TensorFlow graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

import numpy as np
import tensorflow as tf

from tfcactus.keras.compat import models


def drawn(draw: Callable[..., np.ndarray], size: int, dtype: tf.DType,
          *inputs: tf.Tensor) -> tf.Tensor:
  """Returns a tensor (size,) that calls `draw(*inputs)` in each run; not under XLA."""
  _check_outside_xla()
  return tf.ensure_shape(tf.numpy_function(draw, list(inputs), dtype), [size])


def changed(change: Callable[..., list[np.ndarray]], parts: Sequence[tf.Tensor],
            dtypes: Sequence[tf.DType], *inputs: tf.Tensor) -> list[tf.Tensor]:
  """Returns the arrays that `change` makes of `parts` whenever the graph runs.

  `change` takes the list of parts and then `inputs`, as arrays that it must not modify.
  It returns arrays of the parts' shapes and of `dtypes`. Raises ValueError under XLA.
  """
  _check_outside_xla()
  found = tf.numpy_function(
      lambda *arrays: change(arrays[len(inputs):], *arrays[:len(inputs)]),
      [*inputs, *parts], list(dtypes))
  # An eager call returns a single tensor without a list.
  return [tf.ensure_shape(each, part.shape)
          for each, part in zip(tf.nest.flatten(found), parts)]


def _check_outside_xla() -> None:
  """Raises ValueError in a function that XLA compiles."""
  if models.in_xla():
    raise ValueError(
        'Expected jit_compile=False, got a function that XLA compiles: bits '
        'are drawn outside of it. Compile the model with jit_compile=False.')
