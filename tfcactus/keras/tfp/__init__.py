"""Adapter to TensorFlow Privacy, which is imported by `query` only."""

from __future__ import annotations

PACKAGE = 'tensorflow_privacy'


def is_foreign_dp_optimizer(optimizer: object) -> bool:
  """Whether `optimizer` is one of TensorFlow Privacy's own."""
  modules = (cls.__module__ for cls in type(optimizer).__mro__)
  return any(name.startswith(PACKAGE) for name in modules)
