"""Refuses loss scaling, under which gradients would be clipped while scaled."""

from __future__ import annotations

from tfcactus.keras.compat import optimizers
from tfcactus.keras.compat.versions import keras

UNSCALED = (
    'Keras puts a LossScaleOptimizer around the optimizer of a model that was '
    'made under the policy "mixed_float16". Make it under "float32" or '
    '"mixed_bfloat16", or use tfcactus.keras.privatize, which unscales '
    'gradients before it clips them.')
"""Remedy in messages: train without loss scaling."""


def check_unscaled(optimizer: keras.optimizers.Optimizer) -> None:
  """Raises ValueError if Keras or the optimizer is known to scale losses."""
  policy = keras.mixed_precision.global_policy().name
  factor = getattr(optimizer, 'loss_scale_factor', None)
  if policy == 'mixed_float16':
    refuse(f'the policy {policy!r}')
  if optimizers.is_wrapped(optimizer):
    refuse('it inside a LossScaleOptimizer')
  if factor is not None:
    refuse(f'loss_scale_factor={factor!r}')


def refuse(got: str) -> None:
  """Raises ValueError; `got` names what scales the loss."""
  raise ValueError(
      f'Expected a drop-in optimizer whose loss nothing scales, got {got}: '
      'scaled gradients would be clipped as if they were larger, and then '
      'unscaled. ' + UNSCALED)
