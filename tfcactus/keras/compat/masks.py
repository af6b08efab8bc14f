"""The masks that Keras hangs on tensors: which steps of a sequence are real."""

from __future__ import annotations

from typing import Any
from typing import Dict
from typing import List
from typing import Optional
from typing import Sequence

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


def of_all(outputs: Any) -> List[Optional[tf.Tensor]]:
  """The masks that the tensors of a structure carry, in the order of `tf.nest`."""
  return [mask_of(each) for each in tf.nest.flatten(outputs)]


def put_all(outputs: Any, masks: Sequence[Optional[tf.Tensor]]) -> Any:
  """Has the tensors of a structure carry masks; returns the structure."""
  for each, mask in zip(tf.nest.flatten(outputs), masks):
    put(each, mask)
  return outputs


def of_one(outputs: Any) -> Dict[str, tf.Tensor]:
  """The masks of what a batch of one gave, without that axis; by place."""
  return {str(i): mask[0] for i, mask in enumerate(of_all(outputs))
          if mask is not None}


def put_rows(outputs: Any, masks: Dict[str, tf.Tensor]) -> Any:
  """Has the tensors of a structure carry masks as `of_one` gives them."""
  return put_all(outputs, [
      masks.get(str(i)) for i, _ in enumerate(tf.nest.flatten(outputs))])
