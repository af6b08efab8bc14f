"""The masks that Keras hangs on tensors: which steps of a sequence are real."""

from __future__ import annotations

from typing import Any
from typing import Optional

import tensorflow as tf


def mask_of(tensor: Any) -> Optional[tf.Tensor]:
  """The mask that a tensor carries, or None."""
  found: Optional[tf.Tensor] = getattr(tensor, '_keras_mask', None)
  return found


def put(tensor: tf.Tensor, mask: Optional[tf.Tensor]) -> tf.Tensor:
  """Has a tensor carry a mask, or none; returns the tensor."""
  if mask is not mask_of(tensor):
    tensor._keras_mask = mask  # pylint: disable=protected-access
  return tensor
