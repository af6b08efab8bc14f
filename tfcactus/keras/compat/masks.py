"""Keras masks on tensors, which tell the real time steps of padded sequences."""

from __future__ import annotations

from typing import Any
from typing import Dict
from typing import List
from typing import Optional
from typing import Sequence

import tensorflow as tf


def mask_of(tensor: Any) -> Optional[tf.Tensor]:
  """Returns the mask that a tensor carries, or None."""
  found: Optional[tf.Tensor] = getattr(tensor, '_keras_mask', None)
  return found


def put(tensor: tf.Tensor, mask: Optional[tf.Tensor]) -> tf.Tensor:
  """Sets or removes a tensor's mask; returns the tensor."""
  if mask is not mask_of(tensor):
    tensor._keras_mask = mask  # pylint: disable=protected-access
  return tensor


def of_all(outputs: Any) -> List[Optional[tf.Tensor]]:
  """Returns the masks of the tensors of a structure, in the order of `tf.nest`."""
  return [mask_of(each) for each in tf.nest.flatten(outputs)]


def put_all(outputs: Any, masks: Sequence[Optional[tf.Tensor]]) -> Any:
  """Sets the masks of the tensors of a structure; returns the structure."""
  for each, mask in zip(tf.nest.flatten(outputs), masks):
    put(each, mask)
  return outputs


def of_one(outputs: Any) -> Dict[str, tf.Tensor]:
  """Returns {index in `tf.nest.flatten`: mask} of a batch of one, without its axis."""
  return {str(i): mask[0] for i, mask in enumerate(of_all(outputs))
          if mask is not None}


def put_rows(outputs: Any, masks: Dict[str, tf.Tensor]) -> Any:
  """Sets the masks of a structure from a dict as of `of_one`; returns the structure."""
  return put_all(outputs, [
      masks.get(str(i)) for i, _ in enumerate(tf.nest.flatten(outputs))])
