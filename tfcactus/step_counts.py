"""Noisy counts that a step releases in one vector with the sum of its gradients.

A step releases (sum of gradients, weight * count, ...) under one draw of the plan's
noise. An example adds a gradient of norm C at most, and a number in [-1/2, 1/2] to each
count. Each weight is such that its count gets noise of `stddevs`. C * `sensitivity`
bounds the norm of the whole vector that an example adds.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple, Protocol

from tfcactus import _checks
from tfcactus.noise import Noise

_LARGEST_SHARE = 1 - 2.0**-20
"""Part of the squared sensitivity that counts may take. So close to one, the rounding
of the part would reach the margin of clipping (docs/soundness_numbers.md)."""


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
    _checks.shares('target_unclipped_quantile', _checks.real(
        'target_unclipped_quantile', self.target_unclipped_quantile))
    _checks.non_negative('learning_rate', self.learning_rate)
    _checks.flag('geometric_update', self.geometric_update)
    if self.clipped_count_stddev is not None:
      _checks.noise_scale('clipped_count_stddev', self.clipped_count_stddev)


@dataclasses.dataclass(frozen=True)
class NoisyAccuracy:
  """Noisy accuracy on the training data, as a part of each step's release.

  Each step releases the sum of clipped per-example gradients and a noisy count of right
  answers among the examples drawn. Both form one vector, (gradient, weight * count),
  released under one draw of the plan's noise. A step costs as much as without; the
  gradient gets slightly more noise instead. `fit` logs the mean over an epoch's steps
  as `noisy_accuracy`.

  Each example adds its share of right answers minus 1/2 to the count, so the count has
  sensitivity 1/2. A unit, such as a user, adds the mean over its rows.

  Attributes:
    count_stddev: Standard deviation of the noise on a step's count, in examples. None:
      a 20th of the expected batch size, or the noise multiplier if that is larger.
    output: Name or index of the output whose answers count, if several have a loss.

  Raises:
    ValueError: if an argument is out of range.

  Source: Andrew et al., "Differentially Private Learning with Adaptive Clipping"
  (2021), Theorem 1, which counts unclipped gradients in this way.
  """

  count_stddev: float | None = None
  output: str | int | None = None

  def __post_init__(self) -> None:
    if self.count_stddev is not None:
      object.__setattr__(
          self, 'count_stddev', _checks.noise_scale('count_stddev', self.count_stddev))
    if isinstance(self.output, bool) or not isinstance(
        self.output, (str, int, type(None))):
      raise ValueError('Expected output to be the name or index of an output, or None, '
                       f'got output={self.output!r}.')


class _Kind(NamedTuple):
  """A field of a `PrivacyPlan` that has steps release a count."""

  type: type  # Type of the field's value.
  stddev: str  # Attribute of the value: standard deviation of the noise on the count.
  words: str  # The count, in words.


KINDS = {'adaptive_clipping': _Kind(
             AdaptiveClipping, 'clipped_count_stddev',
             'the count of gradients that are not clipped'),
         'noisy_accuracy': _Kind(
             NoisyAccuracy, 'count_stddev', 'the count of right answers')}
"""Fields of a plan with counts, in the order in which a step releases them."""


class Plan(Protocol):
  """The fields of a `PrivacyPlan` that this module reads."""

  @property
  def noise(self) -> Noise: ...

  @property
  def expected_batch_size(self) -> float: ...

  @property
  def adaptive_clipping(self) -> AdaptiveClipping | None: ...

  @property
  def noisy_accuracy(self) -> NoisyAccuracy | None: ...


def _given(plan: Plan) -> dict[str, Any]:
  """Returns {field: value} of the counts that the plan has."""
  return {name: getattr(plan, name) for name in KINDS
          if getattr(plan, name) is not None}


def stddevs(plan: Plan) -> dict[str, float]:
  """Returns {`_Kind.stddev`: standard deviation of the noise on a count, in examples}.

  Counts are in the order in which a step releases them.
  """
  given = {KINDS[name].stddev: getattr(rule, KINDS[name].stddev)
           for name, rule in _given(plan).items()}
  if not given:  # A table with a very long tail raises for its noise multiplier.
    return {}
  default = max(plan.expected_batch_size / 20, plan.noise.noise_multiplier)
  return {name: default if value is None else float(value)
          for name, value in given.items()}


def sensitivity(plan: Plan) -> float:
  """Returns the l2 sensitivity of the released vector over the clipping norm.

  The plan's noise is scaled by this number S, with S^-2 = 1 - sum (z / (2 stddev))^2
  for noise multiplier z. Raises ValueError if the counts have too little noise.
  """
  # Gaussian noise on the gradient has noise multiplier S z, so that z^-2 = (S z)^-2 +
  # sum (2 stddev)^-2: the precisions of all parts add up.
  found = stddevs(plan)
  if not found:
    return 1.0
  multiplier = plan.noise.noise_multiplier
  share = sum((multiplier / (2 * stddev))**2 for stddev in found.values())
  if share > _LARGEST_SHARE:
    least, words = multiplier / 2, 'noise_multiplier / 2'
    if len(found) > 1:
      least, words = multiplier / math.sqrt(2), 'noise_multiplier / sqrt(2) each'
    raise ValueError(
        f'Expected {" and ".join(found)} above {words} = {least:g}, got '
        f'{", ".join(f"{name}={stddev!r}" for name, stddev in found.items())}: counts, '
        'of sensitivity 1/2, would cost more than the whole step; raise it.')
  return 1 / math.sqrt(1 - share)


def beside(plan: Plan) -> tuple[int, str]:
  """Returns the number of counts in a step's vector, and words on them for errors."""
  names = [KINDS[name].words for name in _given(plan)]
  return len(names), (
      f' ({" and ".join(names)} {"is one" if len(names) == 1 else "are two"} of them)'
      if names else '')


def check(plan: Plan, correlated: bool) -> None:
  """Raises ValueError unless a step of the plan can release its counts.

  `correlated` tells whether noise is correlated over steps.
  """
  for name, rule in _given(plan).items():
    if not isinstance(rule, KINDS[name].type):
      raise ValueError(f'Expected {name} of type {KINDS[name].type.__name__} or None, '
                       f'got {rule!r}.')
    if plan.noise.dim == 1:
      raise ValueError(
          f'Expected noise that protects a vector with {name}, which releases the '
          f'gradient and a count together, got {plan.noise!r}; use the Gaussian, or an '
          'isotropic table of one dimension more than the model has parameters for '
          'each count.')
  if correlated and plan.noisy_accuracy is not None:
    raise ValueError(
        'Expected no noisy_accuracy with a correlation: the error of its mean depends '
        'on how noise of several steps cancels, and is not computed here; keep one of '
        'them.')
  sensitivity(plan)


def check_none(plan: Plan, where: str) -> None:
  """Raises ValueError if the plan releases counts, which `where` does not release."""
  for name, rule in _given(plan).items():
    raise ValueError(
        f'Expected a plan without {name}, whose count {where} does not release, got '
        f'{rule!r}; use tfcactus.keras.privatize.')


def statement(plan: Plan) -> str:
  """Returns a sentence on the noisy accuracy; '' if the plan has none."""
  return '' if plan.noisy_accuracy is None else (
      ' Each step releases a noisy count of right answers with its gradient '
      '(noisy_accuracy), which epsilon covers.')
