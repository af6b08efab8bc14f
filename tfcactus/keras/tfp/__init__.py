"""Adapter to TensorFlow Privacy, which only the module `stand_in` imports."""

from __future__ import annotations

PACKAGE = 'tensorflow_privacy'
"""Name by which TensorFlow Privacy is imported."""


def is_foreign_dp_optimizer(optimizer: object) -> bool:
  """Returns whether `optimizer` is one of TensorFlow Privacy."""
  modules = (cls.__module__ for cls in type(optimizer).__mro__)
  return any(name.startswith(PACKAGE) for name in modules)
