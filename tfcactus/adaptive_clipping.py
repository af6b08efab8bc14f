"""Adaptive clipping: a clipping norm that follows the norms of gradients."""

from __future__ import annotations

import dataclasses

from tfcactus import _checks


@dataclasses.dataclass(frozen=True)
class AdaptiveClipping:
  """Adaptive clipping: moves the clipping norm towards a quantile of gradient norms.

  Each step releases the sum of clipped per-example gradients and a noisy count of
  the gradients that were not clipped. The count moves the clipping norm of the next
  step. Both form one vector, (gradient, weight * count), released under one draw of
  the plan's noise. A step costs as much as with a constant clipping norm; the
  gradient gets slightly more noise instead.

  Each example adds 1/2 or -1/2 to the count, so the count has sensitivity 1/2.

  Attributes:
    target_unclipped_quantile: Share of examples, in [0, 1], whose gradient norms
      should be below the clipping norm.
    learning_rate: Largest change of the clipping norm in a step: by a factor of
      exp(learning_rate), or by learning_rate if `geometric_update` is False.
    clipped_count_stddev: Standard deviation of the noise on the count, in
      examples. None: a 20th of the expected batch size, or the noise multiplier
      if that is larger.
    geometric_update: Whether the norm is multiplied by a factor; if False, a
      difference is subtracted.

  Raises:
    ValueError: if an argument is out of range.

  Source: Andrew et al., "Differentially Private Learning with Adaptive
  Clipping" (2021), Theorem 1 and Algorithm 1; the names are those of
  TensorFlow Privacy's QuantileAdaptiveClipSumQuery.
  """

  target_unclipped_quantile: float = 0.5
  learning_rate: float = 0.2
  clipped_count_stddev: float | None = None
  geometric_update: bool = True

  def __post_init__(self):
    quantile = _checks.real('target_unclipped_quantile', self.target_unclipped_quantile)
    if not 0 <= quantile <= 1:
      raise ValueError(
          'Expected target_unclipped_quantile in [0, 1], got '
          f'target_unclipped_quantile={quantile!r}.')
    _checks.non_negative('learning_rate', self.learning_rate)
    if self.clipped_count_stddev is not None:
      _checks.noise_scale('clipped_count_stddev', self.clipped_count_stddev)
