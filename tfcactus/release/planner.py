"""Planning: how much noise, for which error, at which price."""

from __future__ import annotations

import math
from typing import Callable
from typing import Optional

from scipy import optimize

from tfcactus import _checks
from tfcactus import accounting
from tfcactus import noise as noise_lib
from tfcactus.accounting import calibration
from tfcactus.accounting import sinh_normal
from tfcactus.release import _noise
from tfcactus.release.result import repeated

FAMILIES: dict[str, Callable[[float], noise_lib.Noise]] = {
    'gaussian': noise_lib.Gaussian, 'laplace': noise_lib.Laplace}

_LARGEST_BEND = 1e4
"""In standard deviations: the noise is then Gaussian to eight digits."""


def smallest_count(noise: noise_lib.Noise, *, num_bins: int, beta: float
                   ) -> float:
  """The smallest count that survives a threshold no empty count passes.

  Report the counts of a `histogram` at or above `count_threshold`: with
  probability 1 - beta no empty one is among them, and a given count of this
  size is.

  Args:
    noise: Of the histogram.
    num_bins: Size of the domain.
    beta: Probability that either fails.
  """
  threshold = count_threshold(noise, num_bins=num_bins, beta=0.5 * beta)
  reserve = float(_noise.upper_quantile(noise, 0.5 * beta))
  return math.ceil(threshold + reserve + 0.5)


def count_threshold(noise: noise_lib.Noise, *, num_bins: int, beta: float) -> int:
  """The threshold that none of `num_bins` empty counts reaches but with beta.

  Args:
    noise: Of the histogram.
    num_bins: Size of the domain.
    beta: Probability that one does.
  """
  noise_lib.check_scalar(noise)
  num_bins = _checks.integer('num_bins', num_bins, 1)
  tail = -math.expm1(math.log1p(-_checks.delta(beta, 'beta')) / num_bins)
  return math.floor(float(_noise.upper_quantile(noise, tail)) + 0.5) + 1


def noise_for_error(family: str, error: float, *, beta: float, count: int = 1,
                    sensitivity: float = 1.0, bend: Optional[float] = None
                    ) -> noise_lib.Noise:
  """The most noise that keeps all errors within bounds.

  Args:
    family: 'gaussian', 'laplace' or 'sinh-normal'.
    error: Bound on the largest of `count` errors, in units of the query.
    beta: Probability of a larger one.
    count: How many noisy numbers.
    sensitivity: Of the query.
    bend: For 'sinh-normal', in sensitivities.

  Raises:
    ValueError: if an argument is out of range or the family is unknown.
  """
  error = _checks.positive('error', error) / _noise.sensitivity(sensitivity)
  count = _checks.integer('count', count, 1)
  if family in FAMILIES:
    if bend is not None:
      raise ValueError(f'Expected bend with sinh-normal noise only, got {bend!r}.')
    # A family of scales: errors are proportional to them.
    unit = _noise.max_error(FAMILIES[family](1.0), count, beta)
    return FAMILIES[family](error / unit)
  _check_sinh_normal(family)
  bend = _checks.positive('bend', bend)
  normal = _noise.max_error(noise_lib.Gaussian(1.0), count, beta)
  # Solve bend arsinh(sigma z / bend) = error.
  sigma = bend * math.sinh(error / bend) / normal
  return noise_lib.check_scalar(noise_lib.SinhNormal(sigma, bend))


def noise_for_epsilon(family: str, epsilon: float, delta: float, *,
                      releases: int = 1, bend: Optional[float] = None
                      ) -> noise_lib.Noise:
  """The least noise of a family whose releases cost epsilon at delta.

  Args:
    family: 'gaussian', 'laplace' or 'sinh-normal'.
    epsilon: Budget for the accountant's upper bound.
    delta: Target delta.
    releases: How many releases share the budget (see each release's event).
    bend: For 'sinh-normal', in sensitivities.

  Raises:
    ValueError: if no noise of the family reaches the budget; for sinh-normal
      noise, if the one that would is not log-concave.
  """
  releases = _checks.integer('releases', releases, 1)
  if family in FAMILIES:
    if bend is not None:
      raise ValueError(f'Expected bend with sinh-normal noise only, got {bend!r}.')
    make = FAMILIES[family]
  else:
    _check_sinh_normal(family)
    bend = _checks.positive('bend', bend)
    make = lambda sigma: noise_lib.SinhNormal(min(sigma, bend), bend)
  cost = calibration.account(
      lambda size: repeated(
          accounting.noise_event(make(size)), releases), delta)
  try:
    noise = make(calibration.calibrate_noise(epsilon, cost))
  except ValueError as error:
    if bend is None:
      raise
    raise ValueError(
        f'Expected bend={bend!r} to allow log-concave noise (sigma <= bend) '
        f'that costs epsilon={epsilon!r} at delta={delta!r}; raise bend.'
    ) from error
  return noise


def best_sinh_normal(epsilon: float, delta: float,
                     error: Callable[[noise_lib.Noise], float]
                     ) -> noise_lib.SinhNormal:
  """The sinh-normal noise of least error among those of one price.

  Args:
    epsilon: Exact epsilon of one release.
    delta: At this delta.
    error: What is to be small, such as the smallest gap for many options.
  """
  epsilon = _checks.positive('epsilon', epsilon)
  delta = _checks.delta(delta)

  def noise(log_ratio: float) -> noise_lib.SinhNormal:
    """Of that price, with bend = sigma exp(log_ratio)."""
    ratio = math.exp(log_ratio)
    make = lambda log_sigma: noise_lib.SinhNormal(
        math.exp(log_sigma), ratio * math.exp(log_sigma))
    excess = lambda log_sigma: sinh_normal.epsilon(
        make(log_sigma), delta) - epsilon
    low = high = math.log(2 / epsilon)
    while excess(high) > 0:
      high += 1
    while excess(low) <= 0:
      low -= 1
    return make(optimize.brentq(excess, low, high, xtol=1e-10) + 2e-10)

  found = optimize.minimize_scalar(
      lambda log_ratio: math.log(error(noise(log_ratio))),
      bounds=(0.0, math.log(_LARGEST_BEND)), method='bounded',
      options={'xatol': 1e-3})
  ends = [noise(found.x), noise(0.0)]
  return min(ends, key=error)


def _check_sinh_normal(family: str) -> None:
  if family != 'sinh-normal':
    raise ValueError(
        f'Expected family in {tuple(FAMILIES) + ("sinh-normal",)}, got '
        f'family={family!r}.')
