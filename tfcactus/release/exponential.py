"""Which option scores well, by the exponential mechanism: no gap is asked for.

Source: McSherry and Talwar, "Mechanism Design via Differential Privacy" (FOCS 2007);
sections 2.3 and 5 of Bun, Dwork, Rothblum and Steinke (STOC 2018).
"""

from __future__ import annotations

import math
from typing import Optional

import numpy as np
import numpy.typing as npt

from tfcactus import _checks
from tfcactus import accounting
from tfcactus.accounting.exponential import check_epsilon
from tfcactus.randomness import fine_uniform
from tfcactus.randomness import SystemRandom
from tfcactus.release import noise_sources
from tfcactus.release.result import Release


def exponential_mechanism(
    scores: npt.ArrayLike, *, sensitivity: float, epsilon: float,
    monotone: bool = False, seed: Optional[int] = None) -> Release:
  """Releases the index of one option, better ones exponentially more often.

  Its event is accounted exactly: for half the losses that pure
  epsilon-differential privacy allows, they lie within a range of epsilon.

  Args:
    scores: Shape (k,), k >= 2; ties are allowed, NaN is not.
    sensitivity: The most one added or removed record changes any score.
    epsilon: Of pure differential privacy, in (0, 250].
    monotone: Whether adding a record lowers no score, or raises none: counts, for
      example. Scores then weigh twice as much. An argument, never looked up in the
      data.
    seed: For repeatable experiments; None draws from the system.

  Returns:
    Release whose value is an int in [0, k); its `error(beta)` is how far below the best
    the score of the answer is at most, with probability 1 - beta.
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
  """The exponential mechanism, `runs` times on the same scores; shape (runs,).

  The option whose exponential clock rings first; clocks are drawn with many digits at
  both ends, so that rare options are as rare as they should be.

  Args:
    steps: Shape (k,), integer scores.
    rate: By how much the logarithm of an option's weight grows with a step.
    rng: A generator.
    runs: How many independent answers.
  """
  shape = (runs, steps.size)
  half = 0.5 * fine_uniform(rng, shape)
  clock = np.where(rng.random(shape) < 0.5, -np.log1p(-half), -np.log(half))
  below = rate * (np.max(steps) - steps)
  return np.argmin(np.log(clock) + below, axis=1)


def shortfall(num_options: int, beta: float) -> float:
  """How far below the best, over its rate, the answer is with probability beta.

  At most k - 1 options are that far below, beside the best: their share of the weight
  is largest if all are just there.

  Args:
    num_options: k, at least two.
    beta: In (0, 1).
  """
  k = _checks.integer('num_options', num_options, 2)
  beta = _checks.delta(beta, 'beta')
  return max(math.log(k - 1) + math.log1p(-beta) - math.log(beta), 0.0)
