"""The one place that imports TensorFlow Privacy."""

from __future__ import annotations

from typing import Any

from tensorflow_privacy.privacy.dp_query import dp_query

SumAggregationDPQuery = dp_query.SumAggregationDPQuery


def is_foreign_dp_optimizer(optimizer: Any) -> bool:
  """Whether `optimizer` is one of TensorFlow Privacy's own."""
  modules = (cls.__module__ for cls in type(optimizer).__mro__)
  return any(name.startswith('tensorflow_privacy') for name in modules)
