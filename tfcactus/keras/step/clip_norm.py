"""The clipping norm of a private model, and counts released beside its gradients."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfcactus import step_counts
from tfcactus.keras.compat import training
from tfcactus.keras.distribution import replicas
from tfcactus.keras.gradients import engine
from tfcactus.keras.step import right_answers
from tfcactus.plan import PrivacyPlan

_RANGE = 1e6
"""The adaptive norm stays within this factor of its start, whatever noise the count
gets: a norm of zero would never grow again."""


class ClipNorm:
  """A plan's clipping norm: constant, or following a quantile of gradient norms.

  With `adaptive_clipping` or `noisy_accuracy` a step releases one vector (sum of
  gradients, weight * count, ...), so that one draw of the plan's noise covers all. To
  the count of adaptive clipping an unclipped example adds 1/2, and a clipped one -1/2.
  To the count of right answers an example adds the share of its answers that are right,
  minus 1/2.

  Attributes:
    variable: float64 variable that holds the norm; None for a constant norm.
    answers: float64 variable of shape (2,): the sum of all noisy counts of right
      answers, and their number; None without a noisy accuracy.
  """

  def __init__(self, plan: PrivacyPlan):
    """Starts the norm at `plan.l2_norm_clip`."""
    self._start = plan.l2_norm_clip
    self._rule, self._accuracy = plan.adaptive_clipping, plan.noisy_accuracy
    self._expected = plan.expected_batch_size
    self._sensitivity = step_counts.sensitivity(plan)
    # A noisy count, divided by its weight and the norm, has the plan's standard
    # deviation. `room` covers the rounding of two products with a count of at most
    # num_examples / 2.
    room = 1 - (plan.num_examples + 2) * 2.0**-51
    self._weights = [
        self._sensitivity * (plan.noise.noise_multiplier / stddev) * room
        for stddev in step_counts.stddevs(plan).values()]
    self.variable = self.answers = None
    with tf.init_scope():
      if self._rule is not None:
        self.variable = training.counter(self._start, 'l2_norm_clip', 'float64')
      if self._accuracy is not None:
        self.answers = training.counter([0.0, 0.0], 'noisy_answers', 'float64')

  def value(self) -> tf.Tensor:
    """Returns the clipping norm of the next step, float64."""
    return tf.constant(self._start, tf.float64) if self.variable is None else (
        tf.convert_to_tensor(self.variable))

  def to_release(self, batch: engine.BatchResult, losses: Any = None, each: int = 1
                ) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns the tensors to release, and the sensitivity that scales their noise.

    The gradients that `batch` sums were clipped to `value()`. `losses` and `each` are
    as for `right_answers.count`, if the plan has a noisy accuracy.
    """
    norm, counts = self.value(), []
    if not self._weights:
      return batch.sums, norm
    if self._rule is not None:
      counts.append(batch.unclipped)
    if self._accuracy is not None:
      counts.append(right_answers.count(losses, self._accuracy.output, batch, each))
    return [*batch.sums, *(count * (norm * weight) for count, weight in zip(
        counts, self._weights))], norm * self._sensitivity

  def update_from(self, noisy: list[tf.Tensor]) -> list[tf.Tensor]:
    """Updates norm and answers from a noisy release; returns the noisy sums.

    `noisy` are the tensors of `to_release` with noise: the sums, then the counts.
    Source for the norm: TensorFlow Privacy's QuantileEstimatorQuery.
    """
    sums = noisy[:len(noisy) - len(self._weights)]
    norm = self.value()
    counts = [total / (norm * weight)
              for total, weight in zip(noisy[len(sums):], self._weights)]
    # All replicas have the same noisy release, so they compute the same numbers.
    if (rule := self._rule) is not None:
      step = rule.learning_rate * (
          tf.clip_by_value(counts[0] / self._expected + 0.5, 0.0, 1.0) -
          rule.target_unclipped_quantile)
      moved = norm * tf.exp(-step) if rule.geometric_update else norm - step
      _assign(self.variable, tf.clip_by_value(
          moved, self._start / _RANGE, self._start * _RANGE))
    if self.answers is not None:  # The count of right answers is the last.
      _assign(self.answers, tf.convert_to_tensor(self.answers) + tf.stack(
          [counts[-1], tf.ones([], tf.float64)]))
    return sums


def _assign(variable: tf.Variable, value: tf.Tensor) -> None:
  """Assigns a value, equal on all replicas, once in each process."""
  replicas.once(lambda values: variable.assign(values[0]), value)
