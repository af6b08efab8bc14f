"""The clipping norm of a private model, constant or adaptive."""

from __future__ import annotations

import tensorflow as tf

from tfcactus.adaptive_clipping import AdaptiveClipping
from tfcactus.keras.compat import training
from tfcactus.keras.distribution import replicas
from tfcactus.keras.gradients import engine
from tfcactus.plan import PrivacyPlan

_RANGE = 1e6
"""The adaptive norm stays within this factor of its start, whatever noise the count
gets: a norm of zero would never grow again."""


class ClipNorm:
  """A plan's clipping norm: constant, or following a quantile of gradient norms.

  With `adaptive_clipping` a step releases one vector (sum of gradients, weight *
  count), so that one draw of the plan's noise covers both. The count adds 1/2 for each
  unclipped and -1/2 for each clipped example.

  Attributes:
    variable: float64 variable, or None for a constant norm.
  """

  def __init__(self, plan: PrivacyPlan):
    """Starts the norm at `plan.l2_norm_clip`."""
    self._start = plan.l2_norm_clip
    self._rule = plan.adaptive_clipping
    self._expected = plan.expected_batch_size
    self.variable = None
    if self._rule is not None:
      self._noise_multiplier = plan.noise.noise_multiplier
      self._sensitivity = plan.release_sensitivity
      with tf.init_scope():
        self.variable = training.counter(
            self._start, 'l2_norm_clip', 'float64')

  def value(self) -> tf.Tensor:
    """Returns the clipping norm of the next step, float64."""
    return tf.constant(self._start, tf.float64) if self.variable is None else (
        tf.convert_to_tensor(self.variable))

  def to_release(self, batch: engine.BatchResult
             ) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns the tensors to release, and the sensitivity that scales their noise.

    The gradients that `batch` sums were clipped to `value()`.
    """
    if self._rule is None:
      return batch.sums, self.value()
    return [*batch.sums, batch.unclipped * self._weight(self._rule)], self._scale()

  def _scale(self) -> tf.Tensor:
    """Returns the sensitivity: a bound on the l2 norm of one example's contribution."""
    return self.value() * self._sensitivity

  def _weight(self, rule: AdaptiveClipping) -> tf.Tensor:
    """Returns the factor on the count in the released vector."""
    # The noisy count, divided by the factor, has the standard deviation of `rule`.
    stddev = rule.count_stddev(self._noise_multiplier, self._expected)
    return self._scale() * (self._noise_multiplier / stddev)

  def update_from(self, noisy: list[tf.Tensor]) -> list[tf.Tensor]:
    """Updates an adaptive norm from a noisy release; returns the noisy sums.

    `noisy` are the tensors of `to_release` with noise: the sums, then the count.

    Source: TensorFlow Privacy's QuantileEstimatorQuery.
    """
    rule, norm = self._rule, self.value()
    if rule is None or self.variable is None:
      return noisy
    unclipped = noisy[-1] / self._weight(rule) / self._expected + 0.5
    step = rule.learning_rate * (
        tf.clip_by_value(unclipped, 0.0, 1.0) - rule.target_unclipped_quantile)
    moved = norm * tf.exp(-step) if rule.geometric_update else norm - step
    kept = tf.clip_by_value(moved, self._start / _RANGE, self._start * _RANGE)
    # All replicas have the same noisy release, so they compute the same norm.
    variable = self.variable
    replicas.once(lambda norms: variable.assign(norms[0]), kept)
    return noisy[:-1]
