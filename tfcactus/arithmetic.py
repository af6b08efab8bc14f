"""Arithmetic of a private step: floats, or whole numbers whose account counts rounding.

In the mode 'integer' a step scales the vector of the sum of clipped gradients and the
counts (`step_counts`), rounds it to whole numbers, adds discrete Gaussian noise as
whole numbers, and scales back. Proof of its account: docs/soundness_whole_numbers.md.
"""

from __future__ import annotations

import math
from typing import Protocol

from tfcactus import _checks, step_counts
from tfcactus.noise import discrete_gaussian, Gaussian, Noise

MODES = ('float', 'integer')

LARGEST_DIM = 2**30
"""Number of weights and counts, times the bands of a correlation, that a plan without
`dim` accounts for in the mode 'integer'."""

_LEAST, _MOST = 2.0**-80, 2.0**80
"""Range of clipping norms and noise multipliers without overflow in float64. Underflow
is covered, and moves of an adaptive clipping norm by 2^20
(docs/soundness_whole_numbers.md)."""

_SQUARE = ' times the square of the number of replicas'

NO_DISTANCE = ('the event of a step does not hold how far the drawn noise is from '
               'Gaussian noise')
"""Why no event has the cost of a step in the mode 'integer'."""

_INSTEAD = "Leave arithmetic out, or take arithmetic='float'."


class Plan(step_counts.Plan, Protocol):
  """The fields of a `PrivacyPlan` that this module reads."""

  @property
  def arithmetic(self) -> str: ...

  @property
  def l2_norm_clip(self) -> float: ...

  @property
  def num_examples(self) -> int: ...

  @property
  def dim(self) -> int | None: ...

  @property
  def groups(self) -> int: ...


def check(plan: Plan) -> None:
  """Raises ValueError if the arithmetic is unknown, or has no proof for the plan."""
  _checks.choice('arithmetic', plan.arithmetic, MODES)
  if plan.arithmetic == 'float':
    return
  if not isinstance(plan.noise, Gaussian):
    raise ValueError(
        "Expected with arithmetic='integer' Gaussian noise, the only noise that is "
        f'drawn in whole numbers, got {plan.noise!r}. {_INSTEAD}')
  if not all(_LEAST <= each <= _MOST for each in (
      plan.l2_norm_clip, plan.noise.noise_multiplier)):
    raise ValueError(
        "Expected with arithmetic='integer' l2_norm_clip and the noise multiplier "
        'between 2^-80 and 2^80, beyond which float64 may underflow or overflow, got '
        f'l2_norm_clip={plan.l2_norm_clip!r} and {plan.noise!r}. {_INSTEAD}')


def check_float(plan: Plan, what: str, why: str) -> None:
  """Raises ValueError unless arithmetic is 'float', which `what` needs for `why`."""
  if plan.arithmetic != 'float':
    raise ValueError(
        f"Expected a plan of arithmetic='float' with {what}, got arithmetic="
        f'{plan.arithmetic!r}: {why}. {_INSTEAD}')


def check_dim(plan: Plan, dim: int) -> None:
  """Raises ValueError if an 'integer' plan without dim does not cover `dim` weights."""
  if plan.arithmetic == 'integer' and plan.dim is None and (
      dim + _counts(plan) > _coordinates(plan)):
    bands = f' and {plan.groups} bands' if plan.groups > 1 else ''
    raise ValueError(
        f"Expected at most {_coordinates(plan):,} weights{_and_counts(plan)} with "
        f"arithmetic='integer'{bands} and without dim, got {dim:,}; give the plan "
        f'dim={dim}.')


def check_step(plan: Plan, dim: int, replicas: int, shadow: int = 0, draws: int = 1
              ) -> None:
  """Raises ValueError if an 'integer' plan does not cover the roundings of a step.

  Each replica rounds its own sum of `dim` weights, `shadow` coordinates of canaries,
  and its counts. The noise is the sum of `draws` draws.
  """
  if plan.arithmetic == 'float' or replicas == 1 and not shadow:
    return  # `check_dim` covers one replica without canaries.
  if plan.groups > 1 and replicas > 1:
    raise ValueError(
        "Expected one replica with arithmetic='integer' and a correlation, got "
        f'{replicas} replicas, each of which would round sums over steps of its own, '
        f'which has no proof here. Use one replica. {_INSTEAD}')
  what, beside = (
      ('audit=', ' and two coordinates for each canary') if shadow else
      (f'{replicas} replicas', ''))
  if plan.dim is not None:
    raise ValueError(
        f"Expected a plan without dim with arithmetic='integer' and {what}, got "
        f'dim={plan.dim}: only the account without dim has room for their rounding. '
        'Leave dim out.')
  # Rounding errors of all replicas add up as if there were `replicas`^2 times as many
  # coordinates.
  if (dim + shadow + _counts(plan)) * replicas**2 > _coordinates(plan):
    raise ValueError(
        f"Expected with arithmetic='integer' at most {_coordinates(plan):,} weights"
        f'{_and_counts(plan)}{beside}{_SQUARE}, got {dim + shadow:,} coordinates on '
        f'{replicas} replicas; use fewer {"canaries" if shadow else "replicas"}. '
        f'{_INSTEAD}')
  # Float64 must hold sums over replicas exactly: of gradients, and of noise.
  largest = (plan.num_examples + 1) * 1.001 * math.sqrt(draws) * (
      discrete_gaussian.SCALE / plan.noise.noise_multiplier)
  if replicas > 1 and not largest + 2 * draws * discrete_gaussian.LARGEST <= 2.0**53:
    raise ValueError(
        "Expected with arithmetic='integer' on several replicas num_examples below "
        f'4,000,000 times the noise multiplier over sqrt({draws}) for noise of {draws} '
        f'draws, got num_examples={plan.num_examples} and {plan.noise!r}, whose sums '
        f'over replicas float64 may not hold. Use one replica. {_INSTEAD}')


def accounted(plan: Plan, noise: Noise) -> Noise:
  """Returns noise for which a query of sensitivity one costs a step with `noise`."""
  # In the mode 'integer', an example changes the rounded vectors of b steps, the bands
  # of a correlation or one, by S / sigma + sqrt(b d) at most, where S is the scale of
  # the noise and d the length of the vector of sum and counts.
  if plan.arithmetic == 'float':
    return noise
  assert isinstance(noise, Gaussian), 'It was checked.'
  # 2^-48 is 32 roundings. There are 6 here, 5 in the factor of `step_noise`, and 3 in
  # the sensitivity of `step_counts`.
  scale = discrete_gaussian.SCALE if plan.groups == 1 else discrete_gaussian.FINE_SCALE
  per_scale = 1 / noise.noise_multiplier + math.sqrt(
      plan.groups * _coordinates(plan)) / scale
  return Gaussian((1 - 2.0**-48) / per_scale)


def distance(plan: Plan, steps: int) -> float:
  """Returns a bound on the total variation from the noise drawn to that accounted for.

  All noise of `steps` steps counts together.
  """
  if plan.arithmetic == 'float':
    return 0.0
  return 1.01 * steps * _coordinates(plan) * discrete_gaussian.DISTANCE


def _counts(plan: Plan) -> int:
  """Returns how many counts a step of the plan releases."""
  return step_counts.beside(plan)[0]


def _and_counts(plan: Plan) -> str:
  """Returns ' and counts' if a step of the plan releases counts, else ''."""
  return ' and counts' if _counts(plan) else ''


def _coordinates(plan: Plan) -> int:
  """Returns the number of coordinates of a step that are accounted for."""
  if plan.dim is None:
    return LARGEST_DIM // plan.groups
  return plan.dim + _counts(plan)


def statement(plan: Plan) -> str:
  """Returns a sentence that says what the mode 'integer' promises; '' for 'float'."""
  if plan.arithmetic == 'float':
    return ''
  product = ', multiplied by the matrix of the correlation' if plan.groups > 1 else ''
  answers = '' if plan.noisy_accuracy is None else ', or of an output that is counted,'
  square = '' if plan.dim or plan.groups > 1 else _SQUARE
  return (
      f' Sums of gradients{_and_counts(plan)}{product}, and their noise, are whole '
      "numbers (arithmetic='integer'): epsilon counts the rounding of these sums, and "
      'the whole difference between the noise that is drawn and Gaussian noise, for '
      f'up to {_coordinates(plan):,} weights{_and_counts(plan)}'
      f'{square}. It assumes that the bits of a gradient'
      f'{answers} do not depend on its place in the batch, which random rows '
      'test when training starts, except in layers that draw'
      f'{"; nor on the replica that computes it" if square else ""}.')
