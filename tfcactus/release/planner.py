"""Planning of releases: noise, error and epsilon as functions of each other."""

from __future__ import annotations

import math
from typing import Callable

from scipy import optimize

from tfcactus import _checks, accounting, arithmetic as modes, noise as noise_lib
from tfcactus.accounting import calibration
from tfcactus.noise import sinh_normal
from tfcactus.release import noise_sources, whole_numbers
from tfcactus.release.result import repeated

_SCALED: dict[str, Callable[[float], noise_lib.ScalarNoise]] = {
    'gaussian': noise_lib.Gaussian, 'laplace': noise_lib.Laplace}

FAMILIES = (*_SCALED, 'sinh-normal')
"""Names of closed-form noise distributions."""


def smallest_count(noise: noise_lib.ScalarNoise, *, num_bins: int, beta: float,
                   arithmetic: str = 'float') -> int:
  """Returns the smallest count, an int, that is told from empty counts by a threshold.

  Report the counts of a `histogram` at or above the `count_threshold` of beta / 2. With
  probability at least 1 - beta no empty count is reported, and a given count of this
  size is.

  Args:
    noise: The histogram's noise.
    num_bins: Size of the domain.
    beta: Bound on the probability that an empty count is reported or this one is not.
    arithmetic: As for `histogram`.
  """
  half = 0.5 * _checks.delta(beta, 'beta')
  threshold = count_threshold(
      noise, num_bins=num_bins, beta=half, arithmetic=arithmetic)
  larger, off = _of_histogram(noise, arithmetic)
  reserve = float(noise_sources.upper_quantile(noise, half))
  return math.ceil(threshold + larger * reserve + off)


def _of_histogram(noise: noise_lib.ScalarNoise, arithmetic: str
                  ) -> tuple[float, float]:
  """Returns (factor that multiplies the noise, most that rounding moves a count)."""
  _checks.choice('arithmetic', arithmetic, modes.MODES)
  if arithmetic == 'float':
    return 1.0, 0.5 + noise_sources.blur(noise, 1.0, 1.0)
  found = whole_numbers.scaled(noise, 1.0, 1.0, 1, 1.0)
  return found.larger, 0.5 + whole_numbers.OFF / found.unit


def count_threshold(noise: noise_lib.ScalarNoise, *, num_bins: int, beta: float,
                    scale: float = 1.0, arithmetic: str = 'float') -> int:
  """Returns the threshold that no empty count reaches with probability 1 - beta.

  Args:
    noise: The histogram's noise.
    num_bins: Size of the domain.
    beta: Upper bound on the probability that any empty count reaches the threshold.
    scale: Factor that multiplies the noise.
    arithmetic: The histogram's arithmetic, 'float' or 'integer'.
  """
  noise_lib.check_scalar(noise)
  scale = _checks.positive('scale', scale)
  num_bins = _checks.count('num_bins', num_bins)
  tail = -math.expm1(math.log1p(-_checks.delta(beta, 'beta')) / num_bins)
  larger, off = _of_histogram(noise, arithmetic)
  return math.floor(
      scale * larger * float(noise_sources.upper_quantile(noise, tail)) + off) + 1


def noise_family(family: str, bend: float | None = None
                 ) -> Callable[[float], noise_lib.ScalarNoise]:
  """Returns a function that maps a size to the noise of a family with that size.

  The size is in units of the sensitivity: the standard deviation of 'gaussian', the
  scale of 'laplace', sigma of 'sinh-normal', which alone takes a bend.
  """
  _checks.choice('family', family, FAMILIES)
  if (bend is not None) != (family == 'sinh-normal'):
    raise ValueError('Expected a bend with sinh-normal noise and with no other, got '
                     f'bend={bend!r} with {family}.')
  if bend is None:
    return _SCALED[family]
  known = _checks.positive('bend', bend)
  return lambda sigma: noise_lib.SinhNormal(sigma, known)


def noise_for_error(family: str, error: float, *, beta: float, count: int = 1,
                    sensitivity: float = 1.0, bend: float | None = None
                    ) -> noise_lib.ScalarNoise:
  """Returns the largest noise of a family whose errors keep to a bound.

  Args:
    family: 'gaussian', 'laplace' or 'sinh-normal'.
    error: Bound on the largest of `count` errors, in units of the query. Releases round
      to a grid, and blur by a thousandth of the noise, which is not counted.
    beta: Probability that the largest error exceeds the bound.
    count: Number of noisy values.
    sensitivity: Sensitivity of the query.
    bend: Bend of 'sinh-normal', in units of the sensitivity.

  Raises:
    ValueError: if an argument is out of range or the family is unknown.
  """
  error = _checks.positive('error', error) / noise_sources.sensitivity(sensitivity)
  count = _checks.count('count', count)
  make = noise_family(family, bend)
  if bend is None:
    # A scale family: errors are proportional to the scale.
    return make(error / make(1.0).max_error(count, beta))
  normal = noise_lib.Gaussian(1.0).max_error(count, beta)
  # Solve bend arsinh(sigma z / bend) = error; beyond 700 no sigma is in range.
  sigma = bend * math.sinh(min(error / bend, 700.0)) / normal
  return noise_lib.check_scalar(make(sigma))


def noise_for_epsilon(family: str, epsilon: float, delta: float, *,
                      releases: int = 1, bend: float | None = None,
                      arithmetic: str = 'float', count: int = 1
                      ) -> noise_lib.ScalarNoise:
  """Returns the smallest noise of a family whose releases cost epsilon at delta.

  Args:
    family: 'gaussian', 'laplace' or 'sinh-normal'.
    epsilon: Budget for the accountant's upper bound.
    delta: Target delta.
    releases: How many releases share the budget (see each release's event).
    bend: Bend of 'sinh-normal', in units of the sensitivity.
    arithmetic: That of the releases; 'integer' counts their leaks.
    count: Number of noisy values of a release that one record may change, which sets
      its leak: one for a histogram.

  Raises:
    ValueError: if no noise of the family keeps the budget; for sinh-normal noise, if
      the one that would is not log-concave.
  """
  _checks.choice('arithmetic', arithmetic, modes.MODES)
  count = _checks.count('count', count)
  releases = _checks.count('releases', releases)
  family_of = noise_family(family, bend)
  # Sinh-normal noise with sigma above its bend is not log-concave.
  make = lambda size: family_of(size if bend is None else min(size, bend))
  event = accounting.noise_event if arithmetic == 'float' else (
      lambda noise: whole_numbers.cost(noise, count))
  event(make(1.0))  # Refuses a family that is not drawn in whole numbers.
  cost = calibration.account(
      lambda size: repeated(event(make(size)), releases), delta)
  try:
    return make(calibration.calibrate_noise(epsilon, cost))
  except ValueError as error:
    if bend is None:
      raise
    raise ValueError(
        f'Expected bend={bend!r} to allow log-concave noise (sigma <= bend) '
        f'that costs epsilon={epsilon!r} at delta={delta!r}; raise bend.'
    ) from error


def best_sinh_normal(epsilon: float, delta: float,
                     error: Callable[[noise_lib.ScalarNoise], float]
                     ) -> noise_lib.SinhNormal:
  """Returns the sinh-normal noise of least error at a given epsilon and delta.

  Args:
    epsilon: Epsilon of one release, to rounding on either side. Publish that of its
      own `guarantee`, an upper bound, which is larger by some 1e-6 of it.
    delta: The delta of this epsilon.
    error: Function of the noise to minimise, such as the smallest gap for many options.
  """
  epsilon = _checks.positive('epsilon', epsilon)
  delta = _checks.delta(delta)
  _checks.function('error', error, 'such as lambda noise: noise.std')

  def noise(log_ratio: float) -> noise_lib.SinhNormal:
    """Returns noise with bend = sigma exp(log_ratio), sigma set by `epsilon`."""
    make = lambda sigma: noise_lib.SinhNormal(sigma, math.exp(log_ratio) * sigma)
    # Errors are compared: they differ by more than this tolerance.
    return make(calibration.calibrate_noise(
        epsilon, lambda sigma: sinh_normal.epsilon(make(sigma), delta),
        tolerance=1e-9))

  # With a bend of 1e4 sigma, noise is Gaussian to eight digits.
  found = optimize.minimize_scalar(
      lambda log_ratio: math.log(error(noise(log_ratio))),
      bounds=(0.0, math.log(1e4)), method='bounded', options={'xatol': 1e-3})
  # The bounded search never tries its ends.
  return min([noise(found.x), noise(0.0)], key=error)
