"""Refusal of `fit` of a model without privacy on this package's batches."""

from __future__ import annotations

import sys
from typing import Any

from tfcactus.keras import tfp
from tfcactus.keras.compat import optimizers


def refuse(source: Any) -> None:
  """Raises ValueError if a `fit`, in any thread, trains a plain model on `source`."""
  # Keras asks `source` for its length, batches or iterator, and never names the model.
  # So this function inspects `self` and `x` of each `fit` that any thread is in.
  frame: Any
  for frame in sys._current_frames().values():  # pylint: disable=protected-access
    while frame is not None:
      if frame.f_code.co_name == 'fit':
        model, x = (frame.f_locals.get(name) for name in ('self', 'x'))
        if x is not None and x is source and hasattr(model, 'optimizer') and (
            not _is_private(model)):
          raise ValueError(_PLAIN.format(
              type(model).__name__, getattr(model, 'name', '?'),
              type(model.optimizer).__name__))
      frame = frame.f_back


def _is_private(model: Any) -> bool:
  """Returns whether a model, or an optimizer that it holds, trains privately."""
  held = [optimizers.unwrapped(model.optimizer), *vars(model).values()]
  return any(
      hasattr(type(each), 'training_ledger') or tfp.is_foreign_dp_optimizer(each)
      for each in (model, *held)
      if each is model or hasattr(type(each), 'apply_gradients'))


_PLAIN = (
    'Expected a private model in fit(batches), got the {} {!r} with the optimizer {}, '
    'which trains without noise. Fit the model that tfcactus.keras.privatize(model, '
    'plan) returns, compiled, or compile a drop-in optimizer such as '
    'DPKerasSGDOptimizer. Where plain training is meant, '
    'fit(batches.for_plain_training()).')
