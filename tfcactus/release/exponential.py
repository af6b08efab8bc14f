"""Selection by the exponential mechanism, which needs no gap between the best scores.

Source: McSherry and Talwar, "Mechanism Design via Differential Privacy" (FOCS 2007);
sections 2.3 and 5 of Bun, Dwork, Rothblum and Steinke (STOC 2018).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tfcactus import _checks, accounting
from tfcactus.accounting.exponential import check_epsilon
from tfcactus.randomness import fine_uniform, SystemRandom
from tfcactus.release import noise_sources
from tfcactus.release.result import Release


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
    Release whose value is an int in [0, k). With probability 1 - beta its score is at
    most `error(beta)` below the best.
  """
  epsilon = check_epsilon(epsilon)
  scale = noise_sources.sensitivity(sensitivity)
  steps, step, scale = noise_sources.lattice(scores, scale)
  if steps.ndim != 1 or steps.size < 2:
    raise ValueError(
        'Expected scores of shape (k,) with k >= 2 options, got shape '
        f'{steps.shape}: among fewer there is nothing to choose.')
  if not isinstance(monotone, (bool, np.bool_)):
    raise ValueError(f'Expected monotone to be True or False, got {monotone!r}.')
  rate = epsilon / (scale if monotone else 2 * scale)
  value = exponential_draws(
      steps, rate * step, noise_sources.generator(seed), 1)[0]
  return Release(
      value=int(value), event=accounting.ExponentialMechanismDpEvent(epsilon),
      mechanism=f'one of {steps.size} options by the exponential mechanism',
      seeded=seed is not None, error_kind='score below the best',
      error_bound=lambda beta: shortfall(steps.size, beta) / rate + 2 * step)


def exponential_draws(steps: np.ndarray, rate: float, rng: SystemRandom, runs: int
                      ) -> np.ndarray:
  """Returns `runs` independent answers of the exponential mechanism, shape (runs,).

  `steps` are integer scores; `rate` is the growth of an option's log-weight per step.
  Each option gets an exponential random variable, divided by the option's weight. The
  option with the smallest quotient is drawn (the Gumbel-max trick). The exponential
  variables are accurate in both tails, so that rare options have their true
  probability.
  """
  shape = (runs, steps.size)
  half = 0.5 * fine_uniform(rng, shape)
  clock = np.where(rng.random(shape) < 0.5, -np.log1p(-half), -np.log(half))
  below = rate * (np.max(steps) - steps)
  return np.argmin(np.log(clock) + below, axis=1)


def shortfall(num_options: int, beta: float) -> float:
  """Returns a t >= 0 with P(rate * (best score - drawn score) > t) <= `beta`.

  `rate` is the growth of an option's log-weight per unit of score; `beta` is in (0, 1).
  At most k - 1 of k options have a log-weight more than t below the best one's. Their
  probability is less than (k - 1) e^-t / (1 + (k - 1) e^-t). This equals `beta` at the
  returned t, if that is positive.
  """
  k = _checks.integer('num_options', num_options, 2)
  beta = _checks.delta(beta, 'beta')
  return max(math.log(k - 1) + math.log1p(-beta) - math.log(beta), 0.0)
