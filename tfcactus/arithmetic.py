"""Arithmetic of a private step: floats, or whole numbers whose account counts rounding.

In the mode 'integer' a step scales the sum of clipped gradients, rounds it to whole
numbers, adds discrete Gaussian noise as whole numbers, and scales back. The proof of
its account is in docs/soundness.md ("Whole numbers").
"""

from __future__ import annotations

import math
from typing import Protocol

from tfcactus import _checks
from tfcactus.noise import discrete_gaussian, Gaussian, Noise

MODES = ('float', 'integer')

LARGEST_DIM = 2**30
"""Number of weights that a plan without `dim` accounts for in the mode 'integer'."""

_LEAST, _MOST = 2.0**-100, 2.0**100
"""Clipping norms and noise multipliers between which float64 does not overflow, and
underflow is covered (docs/soundness.md)."""

_SQUARE = ' times the square of the number of replicas'

_INSTEAD = "Leave arithmetic out, or take arithmetic='float'."


class Plan(Protocol):
  """The fields of a `PrivacyPlan` that this module reads."""

  @property
  def arithmetic(self) -> str:
    """'float' or 'integer'."""

  @property
  def noise(self) -> Noise:
    """The noise of the plan."""

  @property
  def l2_norm_clip(self) -> float:
    """The clipping norm."""

  @property
  def num_examples(self) -> int:
    """Number of examples."""

  @property
  def dim(self) -> int | None:
    """Number of weights, or None."""

  @property
  def groups(self) -> int:
    """Number of steps over which noise is correlated."""

  @property
  def adaptive_clipping(self) -> object:
    """The rule of an adaptive clipping norm, or None."""

  @property
  def noisy_accuracy(self) -> object:
    """The noisy accuracy on the training data, or None."""


def check_mode(arithmetic: object) -> None:
  """Raises ValueError unless `arithmetic` is one of `MODES`."""
  _checks.choice('arithmetic', arithmetic, MODES)


def check(plan: Plan) -> None:
  """Raises ValueError if the plan's arithmetic is unknown, or has no proof for it."""
  check_mode(plan.arithmetic)
  if plan.arithmetic == 'float':
    return
  for wrong, reason in (
      (not isinstance(plan.noise, Gaussian),
       f'Gaussian noise, the only noise that is drawn in whole numbers, got '
       f'{plan.noise!r}'),
      (plan.groups > 1,
       'no correlation, because sums of earlier draws are not rounded to whole '
       f'numbers, got noise correlated over {plan.groups} steps'),
      (plan.adaptive_clipping is not None,
       'no adaptive_clipping, because the rounding of the count has no proof, got '
       f'{plan.adaptive_clipping!r}'),
      (plan.noisy_accuracy is not None,
       'no noisy_accuracy, because the rounding of the count has no proof, got '
       f'{plan.noisy_accuracy!r}'),
      (not all(_LEAST <= each <= _MOST for each in (
          plan.l2_norm_clip, plan.noise.noise_multiplier)),
       'l2_norm_clip and the noise multiplier between 2^-100 and 2^100, got '
       f'l2_norm_clip={plan.l2_norm_clip!r} and {plan.noise!r}')):
    if wrong:
      raise ValueError(f"Expected with arithmetic='integer' {reason}. {_INSTEAD}")


def check_float(plan: Plan, what: str) -> None:
  """Raises ValueError if the plan's arithmetic is not 'float'; `what` needs that."""
  if plan.arithmetic != 'float':
    raise ValueError(
        f"Expected a plan of arithmetic='float' with {what}, got arithmetic="
        f'{plan.arithmetic!r}, which has a proof for privatize(model, plan) only, on '
        f'the devices of one machine. {_INSTEAD}')


def check_dim(plan: Plan, dim: int) -> None:
  """Raises ValueError if a plan without `dim` does not cover so many weights."""
  if plan.arithmetic == 'integer' and plan.dim is None and dim > LARGEST_DIM:
    raise ValueError(
        f"Expected at most {LARGEST_DIM:,} weights with arithmetic='integer' and "
        f'without dim, got {dim:,}; give the plan dim={dim}.')


def check_replicas(plan: Plan, replicas: int, dim: int) -> None:
  """Raises ValueError if a plan does not cover the roundings of several replicas.

  Each replica rounds its own sum of `dim` weights, as if there were `replicas`^2 times
  as many weights; and float64 must hold the sum over all replicas exactly.
  """
  if plan.arithmetic == 'float' or replicas == 1:
    return
  if plan.dim is not None:
    raise ValueError(
        "Expected a plan without dim with arithmetic='integer' on several replicas, "
        f'got dim={plan.dim}: only the account without dim has room for the rounding '
        f'of {replicas} replicas. Leave dim out.')
  if dim * replicas**2 > LARGEST_DIM:
    raise ValueError(
        f"Expected with arithmetic='integer' at most {LARGEST_DIM:,} weights times "
        f'the square of the number of replicas, got {dim:,} weights on {replicas} '
        f'replicas; use fewer replicas. {_INSTEAD}')
  largest = (plan.num_examples + 1) * 1.001 * discrete_gaussian.SCALE / (
      plan.noise.noise_multiplier)
  if not largest + 2 * discrete_gaussian.LARGEST <= 2.0**53:
    raise ValueError(
        "Expected with arithmetic='integer' on several replicas num_examples below "
        '4,000,000 times the noise multiplier, got num_examples='
        f'{plan.num_examples} and {plan.noise!r}, whose sums over replicas float64 may '
        f'not hold. Use one replica. {_INSTEAD}')


def accounted(plan: Plan, noise: Noise) -> Noise:
  """Returns the noise for which a query of sensitivity one costs what a step costs.

  `noise` takes the place of the plan's. In the mode 'integer', an example changes the
  rounded sum by S / sigma + sqrt(dim) at most, where S is the scale of the noise.
  """
  if plan.arithmetic == 'float':
    return noise
  assert isinstance(noise, Gaussian), 'It was checked.'
  # One root, sum and product, and the factor of `step_noise`: 8 roundings at most.
  per_scale = 1 / noise.noise_multiplier + math.sqrt(
      plan.dim or LARGEST_DIM) / discrete_gaussian.SCALE
  return Gaussian((1 - 2.0**-48) / per_scale)


def distance(plan: Plan, steps: int) -> float:
  """Returns a bound on the total variation between released and accounted noise."""
  if plan.arithmetic == 'float':
    return 0.0
  return 1.01 * steps * (plan.dim or LARGEST_DIM) * discrete_gaussian.DISTANCE


def statement(plan: Plan) -> str:
  """Returns a sentence that says what the mode 'integer' promises; '' for 'float'."""
  if plan.arithmetic == 'float':
    return ''
  return (
      " Sums of gradients and their noise are whole numbers (arithmetic='integer'): "
      'epsilon counts the rounding of these sums, and the whole difference between the '
      'noise that is drawn and Gaussian noise, for up to '
      f'{plan.dim or LARGEST_DIM:,} weights{"" if plan.dim else _SQUARE}. It assumes '
      'that the bits of a gradient do not depend on its place in the batch, which '
      'random rows test when training starts, except in layers that draw'
      f'{"" if plan.dim else "; nor on the replica that computes it"}.')
