"""A clip norm that follows the gradients, released together with them."""

from __future__ import annotations

import dataclasses
import math
from typing import Optional

from tfcactus import _checks


@dataclasses.dataclass(frozen=True)
class AdaptiveClipping:
  """Moves the clip norm to a quantile of the norms of gradients.

  Each step releases, from the same sample, the sum of clipped gradients and a
  noisy count of how many were not clipped; the count moves the clip norm of the
  next step. Both are one release of one longer vector under the plan's noise:
  (gradient, count times a weight), so that a step costs what it costs with a
  constant clip norm, and the gradient gets a little more noise instead.

  An example adds 1/2 or -1/2 to the count, which is its sensitivity.

  Attributes:
    target_unclipped_quantile: The share of examples, in [0, 1], whose gradients
      are to be shorter than the clip norm.
    learning_rate: How fast the norm moves: by a factor of at most exp(rate) in
      a step.
    clipped_count_stddev: Standard deviation of the noise on the count, in
      examples; by default a 20th of the expected batch size, or the noise
      multiplier if that is more.
    geometric_update: Whether the norm moves by factors; else by differences.

  Source: Andrew et al., "Differentially Private Learning with Adaptive
  Clipping" (2021), Theorem 1 and Algorithm 1; the names are those of
  TensorFlow Privacy's QuantileAdaptiveClipSumQuery.
  """

  target_unclipped_quantile: float = 0.5
  learning_rate: float = 0.2
  clipped_count_stddev: Optional[float] = None
  geometric_update: bool = True

  def __post_init__(self):
    quantile = _checks.real(
        'target_unclipped_quantile', self.target_unclipped_quantile)
    if not 0 <= quantile <= 1:
      raise ValueError(
          'Expected target_unclipped_quantile in [0, 1], got '
          f'target_unclipped_quantile={quantile!r}.')
    _checks.non_negative('learning_rate', self.learning_rate)
    if self.clipped_count_stddev is not None:
      _checks.positive('clipped_count_stddev', self.clipped_count_stddev)

  def count_stddev(self, noise_multiplier: float,
                   expected_batch_size: float) -> float:
    """Standard deviation of the noise on the count, in examples."""
    if self.clipped_count_stddev is not None:
      return float(self.clipped_count_stddev)
    return max(expected_batch_size / 20, noise_multiplier)

  def sensitivity(self, noise_multiplier: float,
                  expected_batch_size: float) -> float:
    """Norm of the longer vector at most, in units of the clip norm.

    The noise of the plan is scaled by it. For a Gaussian of noise multiplier z
    the gradient then has noise multiplier (z^-2 - (2 stddev)^-2)^-1/2.

    Args:
      noise_multiplier: Of the plan's noise.
      expected_batch_size: Of the plan.

    Raises:
      ValueError: if the noise on the count is less than that on the whole.
    """
    stddev = self.count_stddev(noise_multiplier, expected_batch_size)
    share = (noise_multiplier / (2 * stddev))**2
    if share >= 1:
      raise ValueError(
          'Expected clipped_count_stddev above noise_multiplier / 2 = '
          f'{noise_multiplier / 2:g}, got clipped_count_stddev={stddev!r}: the '
          'count, of sensitivity 1/2, would cost more than the whole step; '
          'raise it.')
    return 1 / math.sqrt(1 - share)
