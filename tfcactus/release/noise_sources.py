"""What all releases share: where noise comes from, and what it is valid for."""

from __future__ import annotations

import math
from typing import Any
from typing import Optional

import numpy as np
import numpy.typing as npt
from scipy import optimize

from tfcactus import _checks
from tfcactus import noise as noise_lib
from tfcactus.noise import Noise
from tfcactus.noise import ScalarNoise
from tfcactus.randomness import Size
from tfcactus.randomness import SystemRandom

_FINENESS = 20
"""Values are rounded to the sensitivity over about 2^20 before noise is added,
unless they are multiples of a public resolution; it costs two millionths."""

ROUNDING = 2
"""Steps by which two values can part in rounding: each by half a step on the
grid and, if it is an integer beyond 2^53, by as much on its way to a float64."""

_LARGEST = 2.0**52
"""Values beyond this many steps do not fit beside their noise in a float64."""

_LARGEST_NOISE = 2.0**46
"""Standard deviation of noise, in steps: a draw of more than 128 of them would
not be exact to a step in a float64, and would show the answer's low bits. Few floats
a step are left there: how much of the account that costs is in docs/releases.md."""

_SCALES = (2.0**-900, 2.0**900)
"""Sensitivities whose grid stays clear of the ends of the floats."""


def generator(seed: Optional[int]) -> SystemRandom:
  """Where releases draw from: the system's entropy unless seeded."""
  if seed is not None:
    seed = _checks.integer('seed', seed, 0)
  return SystemRandom(seed)


def sensitivity(value: object, name: str = 'sensitivity') -> float:
  """Returns a sensitivity: the most one record can change the query."""
  try:
    value = _checks.positive(name, value)
    if not _SCALES[0] <= value <= _SCALES[1]:
      raise ValueError(
          f'Expected {name} between 2^-900 and 2^900, got {name}={value!r}.')
    return value
  except ValueError as error:
    raise ValueError(
        f'{error} The sensitivity is the most that one added or removed record '
        'can change the query: a public number, never measured on the data.'
    ) from None


def spread_noise(noise: object, *, whole: bool = False) -> ScalarNoise:
  """Returns `noise` if independent draws protect a change spread over many.

  For log-concave noise a change (a_1, a_2, ...) of several queries with
  independent draws costs no more than the change |a_1| + |a_2| + ... of one:
  with T_a the trade-off curve of a shift by a, the product of T_a and T_b lies
  above T_b(1 - T_a) (transitivity), which is T_(a+b) since the best tests are
  nested thresholds. A table's density has steps, so that this holds for it
  where all changes are whole numbers of sensitivities only.

  Args:
    noise: The noise.
    whole: Whether all changes are whole numbers of sensitivities.

  Raises:
    ValueError: for noise that is not log-concave, or a table whose shifts may
      be fractions.
  """
  law = noise_lib.check_scalar(noise)
  if not law.log_concave_on_cells:
    raise ValueError(
        'Expected log-concave noise, without which no account of this release '
        f'is proved, got {noise!r}; use Gaussian, Laplace or SinhNormal noise.')
  if not (law.log_concave or whole):
    raise ValueError(
        'Expected closed-form noise, since one record may change several noisy '
        'numbers by fractions of the sensitivity here, where no account of a '
        f'table is proved, got {noise!r}; use Gaussian, Laplace or SinhNormal '
        'noise.')
  return law


def upper_quantile(noise: ScalarNoise, tail: npt.ArrayLike) -> np.ndarray:
  """The z with P(Z > z) = tail, accurate for tiny tails (symmetric noise)."""
  return -noise.quantile(tail)


def step_below(scale: float, fineness: int) -> float:
  """The power of two from scale / 2^(fineness + 1) to scale / 2^fineness."""
  return 2.0**(math.frexp(scale)[1] - 1 - fineness)


def lattice(value: npt.ArrayLike, sensitivity_: float,
            resolution: Optional[float] = None) -> tuple[np.ndarray, float, float]:
  """Puts values on a public grid, so that a release has no low bits to leak from.

  The grid follows from the arguments alone, never from the values or their
  type, which could tell whether a record is there.

  Args:
    value: Numbers of any shape.
    sensitivity_: How much one record can change each.
    resolution: A power of two that all values are multiples of, whatever the
      records; None rounds them to a millionth of the sensitivity.

  Returns:
    (values in steps, as int64; the step; the sensitivity of each on the grid).
  """
  array = np.asarray(value)
  if array.dtype.kind not in 'iuf':
    raise ValueError(
        f'Expected numbers, got values of type {array.dtype}.')
  if array.size == 0:
    raise ValueError('Expected at least one value, got none.')
  array = array.astype(np.float64)
  if not np.all(np.isfinite(array)):
    raise ValueError(
        'Expected finite values, got NaN or infinite ones; sanitise each '
        'record before the query is formed.')
  if resolution is None:
    step = step_below(sensitivity_, _FINENESS)
  else:
    step = _checks.positive('resolution', resolution)
    if math.frexp(step)[0] != 0.5:
      raise ValueError(
          'Expected resolution to be a power of two, such as 1 for whole '
          f'numbers, got resolution={resolution!r}.')
  with np.errstate(over='ignore'):
    steps = array / step
  if np.max(np.abs(steps)) > _LARGEST:
    raise ValueError(
        'Expected values below 2^31 sensitivities or so (2^52 times a '
        'resolution), got larger ones, beside which noise of that size is lost '
        'in a float64; check the units of sensitivity.')
  whole = np.rint(steps)
  if resolution is not None and np.any(whole != steps):
    raise ValueError(
        f'Expected multiples of resolution={resolution!r}, got other values; '
        'leave resolution out, or round what each record adds to the query.')
  raised = sensitivity_ if resolution is not None else (
      sensitivity_ + ROUNDING * step)
  return whole.astype(np.int64), step, raised


def on_lattice(noise: np.ndarray, step: float) -> np.ndarray:
  """Noise rounded to the grid, in steps: x + rint(z) = rint(x + z) for whole x."""
  return np.rint(noise / step).astype(np.int64)


def in_steps(noise: Noise, drawn: np.ndarray, scale: float, step: float
             ) -> np.ndarray:
  """Puts fresh noise on a grid, in steps.

  Args:
    noise: In units of `scale`.
    drawn: What was drawn of it.
    scale: The sensitivity.
    step: Of the grid.

  Raises:
    ValueError: if the noise is too large for the grid.
  """
  if not noise.noise_multiplier * scale <= _LARGEST_NOISE * step:
    raise ValueError(
        'Expected noise whose standard deviation is below 2^46 steps of the '
        f'grid it is released on (of {step!r}), got {noise!r} at sensitivity '
        f'{scale!r}, beyond which a float64 holds no exact steps.')
  return on_lattice(scale * drawn, step)


def drawn_steps(noise: ScalarNoise, rng: SystemRandom, shape: Size, scale: float = 1.0,
                step: float = 1.0) -> np.ndarray:
  """Fresh noise on a grid, in steps; as `in_steps`, drawn here.

  Args:
    noise: In units of `scale`.
    rng: A generator.
    shape: As `noise.sample` takes it.
    scale: The sensitivity.
    step: Of the grid.
  """
  return in_steps(noise, noise.sample(rng, shape), scale, step)


def noisy(exact: np.ndarray, scale: float, noise: ScalarNoise, rng: SystemRandom
          ) -> np.ndarray:
  """Exact answers that change by `scale` at most, each with noise of its own.

  For answers that are compared and never published: they are on no grid.
  """
  return exact + scale * noise.sample(rng, exact.shape)


def to_numbers(steps: np.ndarray, step: float) -> Any:
  """Steps as numbers: int64 on the whole numbers, exact float64 elsewhere."""
  return steps if step == 1.0 else steps * step


def max_error(noise: ScalarNoise, count: int, beta: float) -> float:
  """The t with P(max of `count` independent |Z| > t) = beta."""
  return noise.max_error(count, beta)


def sum_error(noise: ScalarNoise, terms: int, sums: int, beta: float
              ) -> float:
  """A t with P(some of `sums` sums of at most `terms` draws exceeds it) <= beta.

  Markov's inequality for exp(t sum), the best t.
  """
  log_ratio = math.log(2 * sums / _checks.delta(beta, 'beta'))
  if terms == 1:
    return max_error(noise, sums, beta)
  bound = lambda log_t: min((terms * noise.log_mgf(math.exp(log_t)) +
                             log_ratio) / math.exp(log_t), 1e100)
  guess = math.log(math.sqrt(2 * log_ratio / terms) / noise.std)
  # Unimodal in log t; infinite beyond the noise's own exponential rate.
  found = optimize.minimize_scalar(
      bound, bounds=(guess - 4, guess + 4), method='bounded')
  return min(float(bound(found.x)), float(bound(guess - 1)),
             terms * max_error(noise, sums * terms, beta))
