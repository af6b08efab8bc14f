"""Generators, sensitivities, public grids and error quantiles of noisy releases."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import optimize

from tfcactus import _checks, noise as noise_lib
from tfcactus.noise import Noise, ScalarNoise
from tfcactus.randomness import Size, SystemRandom

_FINENESS = 20
"""Values without a public resolution are rounded to about sensitivity / 2^20. This
raises the sensitivity of a number by at most two millionths."""

ROUNDING = 2
"""Steps by which rounding can increase the distance of two values: each moves by half a
step on the grid, and an integer beyond 2^53 by another half in float64."""

_LARGEST = 2.0**52
"""Largest value in steps: larger ones do not fit beside their noise in a float64."""

_LARGEST_NOISE = 2.0**46
"""Largest standard deviation in steps. A draw beyond 128 of them would not be exact to
a step in float64 (docs/releases.md), and would show the answer's low bits."""

_SCALES = (2.0**-900, 2.0**900)
"""Sensitivities whose grid stays clear of float64's underflow and overflow."""


def generator(seed: int | None) -> SystemRandom:
  """Returns the generator of a release: the system's entropy unless seeded."""
  if seed is not None:
    seed = _checks.integer('seed', seed, 0)
  return SystemRandom(seed)


def sensitivity(value: object, name: str = 'sensitivity') -> float:
  """Returns `value` as a valid sensitivity: the largest change by one record."""
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
  """Returns `noise` if independent draws protect a change spread over several queries.

  A change (a_1, a_2, ...) then costs no more than the change |a_1| + |a_2| + ... of one
  query. Raises ValueError for noise that is not log-concave, and for a table unless
  `whole`: all changes are whole numbers of sensitivities.
  """
  # With T_a the trade-off function of a shift by a, the product of T_a and T_b lies
  # above T_b(1 - T_a) (transitivity), which is T_(a+b) since the best tests are nested
  # thresholds. A table's density has steps, where that holds for whole changes only.
  law = noise_lib.check_scalar(noise)
  if not law.log_concave_on_cells:
    raise ValueError(
        'Expected log-concave noise, without which no account of this release '
        f'is proved, got {noise!r}; use Gaussian, Laplace or SinhNormal noise.')
  if not (law.log_concave or whole):
    raise ValueError(
        'Expected closed-form noise, since one record may change several noisy numbers '
        'by fractions of the sensitivity here, where no account of a table is proved, '
        f'got {noise!r}; use Gaussian, Laplace or SinhNormal noise.')
  return law


def upper_quantile(noise: ScalarNoise, tail: npt.ArrayLike) -> np.ndarray:
  """Returns the z with P(Z > z) = tail, accurate for tiny tails (symmetric noise)."""
  return -noise.quantile(tail)


def step_below(scale: float, fineness: int) -> float:
  """Returns the power of two in (scale / 2^(fineness + 1), scale / 2^fineness]."""
  return 2.0**(math.frexp(scale)[1] - 1 - fineness)


def lattice(value: npt.ArrayLike, scale: float, resolution: float | None = None
            ) -> tuple[np.ndarray, float, float]:
  """Returns values on a public grid: (int64 steps, step, sensitivity of a value there).

  `scale` is the sensitivity before values are rounded to the grid. `resolution` is a
  power of two of which all values are multiples, whatever the records; None rounds
  values to about a millionth of `scale`. Raises ValueError if there are no values, or
  for values that are not numbers, not finite, not such multiples, or beyond 2^52 steps.
  A list that mixes integers and floats stands for float64 numbers.
  """
  # A release on the grid has no low bits that leak the data. The grid never depends on
  # the values or their type, which could reveal a record.
  array = np.asarray(value)
  if array.dtype.kind not in 'iuf':
    raise ValueError(f'Expected numbers, got values of type {array.dtype}.')
  if array.size == 0:
    raise ValueError('Expected at least one value, got none.')
  given, array = array, array.astype(np.float64)
  if not np.all(np.isfinite(array)):
    raise ValueError(
        'Expected finite values, got NaN or infinite ones; sanitise each '
        'record before the query is formed.')
  if resolution is None:
    step = step_below(scale, _FINENESS)
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
  if resolution is not None and (np.any(whole != steps) or _cut(given, step)):
    raise ValueError(
        f'Expected multiples of resolution={resolution!r}, got other values; '
        'leave resolution out, or round what each record adds to the query.')
  if resolution is None:
    scale += ROUNDING * step
  return whole.astype(np.int64), step, scale


def _cut(given: np.ndarray, step: float) -> bool:
  """Returns whether float64 rounds values that are no multiples of `step`."""
  if given.dtype.kind == 'f':  # Only longer floats are rounded.
    return bool(np.any(given != given.astype(np.float64)))
  # Float64 holds all integers up to 2^53, and steps below one are too fine for others.
  mask = int(min(max(step, 1.0), 2.0**63)) - 1
  return given.dtype.itemsize == 8 and bool(np.any(given & given.dtype.type(mask)))


def in_steps(noise: Noise, drawn: np.ndarray, scale: float, step: float) -> np.ndarray:
  """Returns drawn noise in steps of a grid, as int64; ValueError if it is too large."""
  if not noise.noise_multiplier * scale <= _LARGEST_NOISE * step:
    raise ValueError(
        'Expected noise whose standard deviation is below 2^46 steps of the '
        f'grid it is released on (of {step!r}), got {noise!r} at sensitivity '
        f'{scale!r}, beyond which a float64 holds no exact steps.')
  # Rounding commutes with a whole number x of steps: x + rint(z) = rint(x + z).
  return np.rint(scale * drawn / step).astype(np.int64)


def blur(noise: Noise, scale: float, step: float) -> int:
  """Returns how many steps uniform noise beside float noise reaches: std / 2^10."""
  # Draws are on a float grid, and different numbers of them round to different steps:
  # that shows which records there were. Sums over many steps are even, and independent
  # noise is post-processing.
  return math.floor(noise.noise_multiplier * scale / step * 2.0**-10)


def drawn_steps(noise: ScalarNoise, rng: SystemRandom, shape: Size, scale: float = 1.0,
                step: float = 1.0) -> np.ndarray:
  """Draws noise times sensitivity `scale` in int64 steps; ValueError if too large."""
  return in_steps(noise, noise.sample(rng, shape), scale, step)


def noisy(exact: np.ndarray, scale: float, noise: ScalarNoise, rng: SystemRandom
          ) -> np.ndarray:
  """Returns exact answers plus independent noise times `scale`, on no grid."""
  # Low bits of the sums may leak the data: compare them, and never publish them.
  return exact + scale * noise.sample(rng, exact.shape)


def sum_error(noise: ScalarNoise, terms: int, sums: int, beta: float) -> float:
  """Returns a t with P(one of `sums` sums is beyond t in absolute value) <= beta.

  Each sum has at most `terms` draws of the noise.
  """
  if terms == 1:
    return noise.max_error(sums, beta)
  # Chernoff's bound with the best exponent u; or the sum of the largest draws, if that
  # is smaller. The factor 2 is for both signs.
  log_ratio = math.log(2 * sums / _checks.delta(beta, 'beta'))
  bound = lambda log_u: min((terms * noise.log_mgf(math.exp(log_u)) +
                             log_ratio) / math.exp(log_u), 1e100)
  guess = math.log(math.sqrt(2 * log_ratio / terms) / noise.std)
  # Unimodal in log u; infinite beyond the exponential rate of the noise's tail. Each u
  # gives a valid bound: the search decides only how tight it is.
  found = optimize.minimize_scalar(
      bound, bounds=(guess - 4, guess + 4), method='bounded')
  return min(float(bound(found.x)), float(bound(guess - 1)),
             terms * noise.max_error(sums * terms, beta))
