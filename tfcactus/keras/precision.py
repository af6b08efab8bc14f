"""Numbers of one dtype, of those that layers and losses give."""

from __future__ import annotations

from typing import List
from typing import Sequence

import tensorflow as tf


def alike(values: Sequence[tf.Tensor]) -> List[tf.Tensor]:
  """The same in float64 if all are, else in float32."""
  double = all(each.dtype == tf.float64 for each in values)
  return [each if double else tf.cast(each, tf.float32) for each in values]
