"""Keras masks, which tensors carry to tell real time steps from padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def mask_of(tensor: Any) -> tf.Tensor | None:
  """Returns the mask that a tensor carries, or None."""
  found: tf.Tensor | None = getattr(tensor, '_keras_mask', None)
  return found


def put(tensor: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
  """Sets or removes a tensor's mask; returns the tensor."""
  if mask is not mask_of(tensor):
    tensor._keras_mask = mask  # pylint: disable=protected-access
  return tensor


def of_all(outputs: Any) -> list[tf.Tensor | None]:
  """Returns the masks of the tensors of a structure, in the order of `tf.nest`."""
  return [mask_of(each) for each in tf.nest.flatten(outputs)]


def put_all(outputs: Any, masks: Sequence[tf.Tensor | None]) -> Any:
  """Sets the masks of the tensors of a structure; returns the structure."""
  for each, mask in zip(tf.nest.flatten(outputs), masks):
    put(each, mask)
  return outputs


def of_one(outputs: Any) -> dict[str, tf.Tensor]:
  """Returns {flat index as a string: mask without batch axis} of a batch of one.

  Tensors without a mask are left out.
  """
  return {str(i): mask[0] for i, mask in enumerate(of_all(outputs)) if mask is not None}


def put_rows(outputs: Any, masks: dict[str, tf.Tensor]) -> Any:
  """Sets masks, a dict as from `of_one`; removes all others; returns `outputs`."""
  return put_all(outputs, [
      masks.get(str(i)) for i, _ in enumerate(tf.nest.flatten(outputs))])
