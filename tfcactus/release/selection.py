"""Selection of the best options: Gap-Max, top-m, and the exponential mechanism.

Scores themselves are not released.

Source: section 5 of Bun, Dwork, Rothblum and Steinke (STOC 2018): Algorithm 22 (the
obvious answer) and Algorithm 21 (the generalised histogram). The exponential mechanism:
McSherry and Talwar, "Mechanism Design via Differential Privacy" (FOCS 2007).
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt
from scipy import optimize

from tfcactus import _checks, accounting, noise as noise_lib
from tfcactus.accounting.exponential import check_epsilon
from tfcactus.randomness import exponentials, SystemRandom
from tfcactus.release import _records, additive_noise, noise_sources
from tfcactus.release.result import Release, repeated

METHODS = ('obvious-answer', 'histogram')


def gap_max(scores: npt.ArrayLike, *, sensitivity: float, noise: noise_lib.ScalarNoise,
            method: str = 'obvious-answer', seed: int | None = None
            ) -> Release:
  """Releases the index of the best score, by its gap to the others (Gap-Max).

  Both methods cost one release of the noise. The obvious-answer mechanism adds noise to
  the clipped gap: half the gap between the best and the second score, in sensitivities,
  less one, but at least zero. It returns the best option if the sum exceeds a
  threshold, which noise alone exceeds with probability 1/k; else one of the other
  options at random.

  Args:
    scores: Shape (k,), k >= 2; ties are allowed, NaN is not.
    sensitivity: The largest change of any score by one added or removed record.
    noise: Log-concave scalar noise, in units of the sensitivity; closed-form for
      'histogram'.
    method: 'obvious-answer' or 'histogram'.
    seed: For repeatable experiments; None draws from the system.

  Returns:
    Release whose value is an int in [0, k). If the best score leads by `error(beta)` or
    more, the answer is right with probability at least 1 - beta.
  """
  _checks.choice('method', method, METHODS)
  if method == 'histogram':
    release = top_m(scores, 1, sensitivity=sensitivity, noise=noise, seed=seed)
    return dataclasses.replace(release, value=int(release.value[0]))
  steps, step, scale = _scores(scores, sensitivity, 1)
  # The proof for the clipped gap covers one added or removed record; a replaced record
  # can change the best option while the gap is not clipped. Replacement is two such
  # changes; for log-concave noise they cost no more than one shift by two.
  noise_sources.spread_noise(noise, whole=True)
  value = obvious_answer_draws(
      steps, scale / step, noise, noise_sources.generator(seed), 1)[0]
  return Release(
      value=int(value), event=accounting.noise_event(noise),
      mechanism=f'the best of {steps.size} options by the obvious-answer '
      f'mechanism with {noise.name} noise', seeded=seed is not None,
      error_kind='gap that is enough', error_bound=lambda beta: scale *
      obvious_answer_gap(noise, steps.size, beta) + 2 * step)


def most_frequent(records: _records.Records, *, num_bins: int,
                  noise: noise_lib.ScalarNoise,
                  method: str = 'obvious-answer', outside: str = 'refuse',
                  seed: int | None = None) -> Release:
  """Releases the most frequent value, which is found if its count leads by a gap.

  Arguments are as for `gap_max` and `histogram`; `num_bins` is two or more.
  """
  counts = additive_noise.exact_counts(records, num_bins=num_bins, outside=outside)
  return gap_max(counts, sensitivity=1, noise=noise, method=method, seed=seed)


def top_m(scores: npt.ArrayLike, m: int, *, sensitivity: float,
          noise: noise_lib.ScalarNoise, seed: int | None = None) -> Release:
  """Releases the indices of the m best scores, in the order of their noisy gaps.

  Each score becomes its gap to the (m+1)-th best if it is above, else zero. Independent
  noise is added to all gaps, and the m largest sums are named. Between neighbours, the
  gaps of an option that enters the best m and of one that leaves change together by at
  most twice the sensitivity, and so does the gap of each option that stays. The cost is
  therefore m releases, not 2m.

  Args:
    scores: Shape (k,), k > m; ties are allowed, NaN is not.
    m: Number of options to release.
    sensitivity: The largest change of any score by one added or removed record.
    noise: Log-concave closed-form scalar noise, in units of the sensitivity.
    seed: For repeatable experiments; None draws from the system.

  Returns:
    Release whose value has shape (m,), int64. If the m-th score leads the next one by
    `error(beta)` or more, all m are right with probability at least 1 - beta.
  """
  m = _checks.integer('m', m, 1)
  steps, step, scale = _scores(scores, sensitivity, m)
  noise_sources.spread_noise(noise)
  value = top_m_draws(
      steps, m, scale / step, noise, noise_sources.generator(seed), 1)[0]
  return Release(
      value=value, event=repeated(accounting.noise_event(noise), m),
      mechanism=f'the best {m} of {steps.size} options by the generalised '
      f'histogram with {noise.name} noise', seeded=seed is not None,
      error_kind='gap that is enough', error_bound=lambda beta: scale *
      top_m_gap(noise, steps.size, beta, m) + 2 * step)


def _scores(scores: npt.ArrayLike, sensitivity: float, m: int
            ) -> tuple[np.ndarray, float, float]:
  """Returns more than m scores on a grid: (int64 steps, step, sensitivity there).

  Rounding to the grid changes a gap between two scores by less than 2 steps.
  """
  steps, step, scale = noise_sources.lattice(
      scores, noise_sources.sensitivity(sensitivity))
  if steps.ndim != 1 or steps.size <= m:
    raise ValueError(
        f'Expected scores of shape (k,) with k >= {m + 1} options, got shape '
        f'{steps.shape}: among {m} there is nothing to choose.')
  return steps, step, scale


def obvious_answer_draws(steps: np.ndarray, scale: float, noise: noise_lib.ScalarNoise,
                         rng: SystemRandom, runs: int) -> np.ndarray:
  """Returns answers of Algorithm 22, (runs,); a record changes steps by <= `scale`."""
  size = steps.size
  best = int(np.argmax(steps))
  second = int(np.max(np.delete(steps, best)))
  gap = max((int(steps[best]) - second) / (2 * scale) - 1, 0.0)
  if gap == 0:  # Uniform among all, as the proof needs it, despite floating point.
    return rng.integers(size, runs)
  threshold = float(noise_sources.upper_quantile(noise, 1 / size))
  above = noise_sources.noisy(np.full(runs, gap), 1.0, noise, rng) > threshold
  other = rng.integers(size - 1, runs)
  return np.where(above, best, other + (other >= best))


def top_m_draws(steps: np.ndarray, m: int, scale: float, noise: noise_lib.ScalarNoise,
                rng: SystemRandom, runs: int) -> np.ndarray:
  """Returns answers of Algorithm 21, (runs, m); a record moves steps by <= `scale`."""
  next_best = np.partition(steps, steps.size - m - 1)[steps.size - m - 1]
  gap = np.maximum(steps - next_best, 0) / (2 * scale)
  noisy = noise_sources.noisy(np.broadcast_to(gap, (runs, steps.size)), 1.0, noise, rng)
  chosen = np.argpartition(-noisy, m - 1, axis=1)[:, :m]
  order = np.argsort(-np.take_along_axis(noisy, chosen, 1), axis=1)
  return np.take_along_axis(chosen, order, 1)


def obvious_answer_gap(noise: noise_lib.ScalarNoise, num_options: int, beta: float
                       ) -> float:
  """Returns the gap, in sensitivities, at which Algorithm 22 errs with chance beta."""
  # The right answer has exactly the probability P(noise > threshold - clipped gap), or
  # 1/k if the clipped gap max(gap / 2 - 1, 0) is zero.
  k = _checks.integer('num_options', num_options, 2)
  beta = _checks.delta(beta, 'beta')
  if beta >= 1 - 1 / k:
    return 0.0
  threshold, reserve = noise_sources.upper_quantile(noise, np.array([1 / k, beta]))
  return float(2 * (1 + threshold + reserve))


def top_m_gap(noise: noise_lib.ScalarNoise, num_options: int, beta: float, m: int = 1
              ) -> float:
  """Returns a gap, in sensitivities, that makes Algorithm 21 err with P <= beta.

  The gap is between the m-th score and the next.
  """
  m = _checks.integer('m', m, 1)
  k = _checks.integer('num_options', num_options, m + 1)
  beta = _checks.delta(beta, 'beta')
  # `rival` and `mass` are upper ends and masses of cells of the largest draw of the
  # k - m others, which counts as the upper end of its cell. Cells are finest in the
  # upper tail, which decides whether the best options win.
  tail = np.geomspace(1.0, 1e-13, 4000)[1:]
  mass = -np.diff(np.append(1.0, tail))
  rival = noise_sources.upper_quantile(
      noise, -np.expm1(np.log1p(-tail) / float(k - m)))
  excess = lambda gap: 1 - beta - float(np.sum(mass * noise.cdf(0.5 * gap - rival)**m))
  if excess(0.0) <= 0:
    return 0.0
  # All k draws are below high / 4 with probability 1 - beta / 2.
  high = 4 * noise.max_error(k, 0.5 * beta)
  while excess(high) > 0:
    high *= 1.5
  gap = optimize.brentq(excess, 0.0, high, xtol=1e-9, rtol=1e-12)
  return gap + 1e-8  # Above the root, by more than its tolerance.


def smallest_gap(noise: noise_lib.ScalarNoise, *, num_options: int, beta: float,
                 sensitivity: float = 1.0, method: str = 'obvious-answer'
                 ) -> float:
  """Returns the smallest gap at which `gap_max` is right with probability 1 - beta.

  It is in units of the scores. For 'histogram' it is a bound: a smaller one may do.
  Other arguments are as for `gap_max`.

  Args:
    num_options: k, at least two.
    beta: Probability of a wrong answer.
  """
  _checks.choice('method', method, METHODS)
  gap = top_m_gap if method == 'histogram' else obvious_answer_gap
  return noise_sources.sensitivity(sensitivity) * gap(
      noise_lib.check_scalar(noise), num_options, beta)


def obvious_answer_success(noise: noise_lib.ScalarNoise, num_options: int, gap: float
                           ) -> float:
  """Returns the exact P(Algorithm 22 names the best), `gap` being in sensitivities."""
  clipped = max(0.5 * gap - 1, 0.0)
  if clipped == 0:
    return 1 / num_options
  threshold = float(noise_sources.upper_quantile(noise, 1 / num_options))
  return float(noise.cdf(clipped - threshold))


def exponential_mechanism(
    scores: npt.ArrayLike, *, sensitivity: float, epsilon: float,
    monotone: bool = False, seed: int | None = None) -> Release:
  """Releases the index of an option with probability exponential in its score.

  The privacy losses lie in an interval of length epsilon (bounded range), half the
  length that pure epsilon-differential privacy allows. The accountant uses the exact
  privacy profile of such losses.

  Args:
    scores: Shape (k,), k >= 2; ties are allowed, NaN is not.
    sensitivity: The largest change of any score by one added or removed record.
    epsilon: Epsilon of pure differential privacy, in (0, 250].
    monotone: Whether adding a record lowers no score, or raises none, as for counts.
      This must be known without the data. If True, an option's probability is
      proportional to exp(epsilon score / sensitivity), else to exp(epsilon score /
      (2 sensitivity)).
    seed: For repeatable experiments; None draws from the system.

  Returns:
    Release whose value is an int in [0, k). With probability at least 1 - beta its
    score is at most `error(beta)` below the best.
  """
  epsilon = check_epsilon(epsilon)
  steps, step, scale = _scores(scores, sensitivity, 1)
  rate = epsilon / (scale if _checks.flag('monotone', monotone) else 2 * scale)
  value = exponential_draws(steps, rate * step, noise_sources.generator(seed), 1)[0]
  return Release(
      value=int(value), event=accounting.ExponentialMechanismDpEvent(epsilon),
      mechanism=f'one of {steps.size} options by the exponential mechanism',
      seeded=seed is not None, error_kind='score below the best',
      error_bound=lambda beta: shortfall(steps.size, beta) / rate + 2 * step)


def exponential_draws(steps: np.ndarray, rate: float, rng: SystemRandom, runs: int
                      ) -> np.ndarray:
  """Returns `runs` independent answers of the exponential mechanism, shape (runs,)."""
  # An option's log-weight grows by `rate` per step of its score. The option with the
  # least exponential random variable over its weight wins (the Gumbel-max trick). Both
  # tails are accurate, so that rare options have their true probability.
  clock = exponentials(rng, (runs, steps.size))
  below = rate * (np.max(steps) - steps)
  return np.argmin(np.log(clock) + below, axis=1)


def shortfall(num_options: int, beta: float) -> float:
  """Returns a t >= 0 with P(rate * (best score - drawn score) > t) <= `beta`."""
  # At most k - 1 of k options have a log-weight more than t below the best one's. Their
  # probability is less than (k - 1) e^-t / (1 + (k - 1) e^-t). This equals `beta` at
  # the returned t, if that is positive.
  k = _checks.integer('num_options', num_options, 2)
  beta = _checks.delta(beta, 'beta')
  return max(math.log(k - 1) + math.log1p(-beta) - math.log(beta), 0.0)
