"""Bounds on what an attacker can do, from the trade-off curve of an account.

A membership attack (membership inference) decides from what was released whether one
record was in the data. With the privacy profile H(alpha), alpha = e^epsilon, a test of
false positive rate a has a true positive rate of at most the minimum over alpha of
H(alpha) + alpha a. H is convex, so that extended chords bound it from below.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Any, Callable

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from tfcactus import _checks, _format, _numerics
from tfcactus.accounting.base import TwoSidedAccountant
from tfcactus.accounting.bounds import Bounds, crossing
from tfcactus.pairs.dominating_pair import lower_hull

RATES = (1e-3, 1e-2)
"""False positive rates of a report."""

LEAST_RATE = 1e-10
"""Least error rate at which the mu of a report is proved."""

POINTS, FEW_POINTS = 160, 40
"""Points of the profile on each side of epsilon 0: if all steps have a Gaussian loss in
closed form, and else, as such profiles take longer. Affects tightness only."""

LARGEST_LOSS = 100.0
"""Largest loss at which the profile is evaluated. Affects tightness only."""

ROUNDING = 16 * _numerics.EPS
"""Allowance for the rounding of a rate or of a value of the profile."""

STEP = 1e-4
"""Least distance in epsilon of the points around a minimum. Affects tightness only."""


@dataclasses.dataclass(frozen=True, eq=False)
class TradeoffCurve:
  """Bounds on the symmetric trade-off function (f-DP) of an account.

  The curve covers both directions, and is the convex hull of the two.

  Attributes:
    alpha: Shape (points,), e^epsilon, increasing from 0.
    lower: Shape (points,), lower bounds on the profile H(alpha).
    upper: Shape (points,), upper bounds on it.
  """

  alpha: np.ndarray
  lower: np.ndarray
  upper: np.ndarray

  @classmethod
  def at(cls, accountant: TwoSidedAccountant, epsilon: npt.ArrayLike) -> TradeoffCurve:
    """Returns the curve from the profile at increasing `epsilon`, of either sign.

    Raises ValueError if the accountant's direction is not 'both'.
    """
    accountant.check_both()
    loss = np.asarray(epsilon, dtype=np.float64)
    bounds = {x: accountant.delta_bounds(x) for x in sorted(set(np.abs(loss).tolist()))}
    # Rows: lower and upper bounds.
    delta = np.array([bounds[abs(x)] for x in loss.tolist()])[:, [0, 2]].T
    alpha = np.exp(loss)
    # H(alpha) = 1 - alpha + alpha H(1 / alpha), by the symmetry of the curve.
    below = 1 - alpha + alpha * delta
    low, high = np.where(loss < 0, below, delta)
    # The difference from one is rounded absolutely, all else relatively.
    rounded = ROUNDING * np.where(loss < 0, 1.0, delta[1])
    low, high = np.clip(low - rounded, 0.0, 1.0), np.clip(high + rounded, 0.0, 1.0)
    return cls(np.append(0.0, alpha), np.append(1.0, low), np.append(1.0, high))

  @classmethod
  def of(cls, accountant: TwoSidedAccountant, points: int | None = None,
         least: float = LEAST_RATE) -> TradeoffCurve:
    """Returns the curve from a grid that reaches error rates of about `least`.

    `points` is the number of epsilons >= 0 on it; None: fewer where delta is slow.
    """
    parts = accountant.compositions().values()
    if points is None:
      quick = all(step.loss is not None for part in parts for step, _ in part.groups)
      points = POINTS if quick else FEW_POINTS
    # The grid ends where delta hardly counts at the rate `least`, or hardly exceeds the
    # probability of an infinite loss, below which it never falls.
    last_delta = max([0.01 * least, *(1.01 * part.p_inf[1] for part in parts)])
    low, top = 0.0, 1.0
    while top < LARGEST_LOSS and accountant.get_delta(top) > last_delta:
      low, top = top, 2 * top
    for _ in range(4):  # Bisect roughly: the curve's bounds hold for any grid.
      middle = 0.5 * (low + top)
      low, top = (low, middle) if accountant.get_delta(middle) <= last_delta else (
          middle, top)
    half = np.linspace(0.0, top, points)
    return cls.at(accountant, np.append(-half[:0:-1], half))

  def most_true_positives(self, false_positive: npt.ArrayLike) -> np.ndarray:
    """Returns an upper bound on the true positive rate of any test, any shape."""
    rate = _checks.shares('false_positive', false_positive)
    return np.minimum((1 + ROUNDING) * np.min(
        self.upper + self.alpha * rate[..., None], axis=-1), 1.0)

  def best_true_positives(self, false_positive: npt.ArrayLike) -> np.ndarray:
    """Returns a lower bound on the best test's true positive rate, any shape.

    It holds for the dominating pairs that the account bounds.
    """
    rate = _checks.shares('false_positive', false_positive)[..., None]
    gap = np.diff(self.alpha)
    value = self.lower + self.alpha * rate
    # Between two points, H lies above the extended chord of the cell before, of slope
    # `before`, and above that of the cell behind, of slope `behind`. Slopes of H are in
    # [-1, 0], which serves the ends.
    before = np.append(-1.0, (self.lower[1:] - self.upper[:-1]) / gap)
    behind = np.append((self.upper[1:] - self.lower[:-1]) / gap, 0.0)
    rounded = ROUNDING / gap
    if np.any(before[1:-1] - behind[1:-1] > rounded[1:] + rounded[:-1]):
      # No convex profile: a pair is not symmetric. Guessing reaches the rate itself.
      return rate[..., 0]
    # A line plus alpha times the rate is least at one end of a cell. Beyond the last
    # point H is also at least zero.
    from_left = value[..., :-1] + np.minimum(before[:-1] + rate, 0.0) * gap
    from_right = value[..., 1:] - np.maximum(behind[1:] + rate, 0.0) * gap
    last = np.where(before[-1] + rate >= 0, value[..., -1:], self.alpha[-1] * rate)
    of_cells = np.append(np.maximum(from_left, from_right), last, axis=-1)
    return np.clip(np.min(of_cells, axis=-1) - ROUNDING, rate[..., 0], 1.0)

  def false_negatives(self, false_positive: npt.ArrayLike) -> np.ndarray:
    """Returns a lower bound on the false negative rate of any test, any shape."""
    return 1 - self.most_true_positives(false_positive)

  def gaussian(self) -> tuple[float, float]:
    """Returns the least mu of Gaussian differential privacy, and the rate that decides.

    False negative rates are at least those of mu-GDP where both error rates are at
    least `LEAST_RATE`. The mu is inf if a test may have both below `LEAST_RATE`. The
    rate is the false positive rate at which no smaller mu would do.
    """
    hull = lower_hull(self.alpha, self.upper)
    alpha, value = self.alpha[hull], self.upper[hull]
    # The lower bound on the trade-off function is linear between these rates, and the
    # one of mu-GDP is convex. The curve is symmetric: half of it is enough.
    rate = np.clip(-np.diff(value) / np.diff(alpha), 0.0, 1.0)
    rate = np.append(LEAST_RATE, rate[rate > LEAST_RATE])
    missed = self.false_negatives(rate)
    rate, missed = rate[rate <= missed], missed[rate <= missed]
    if not rate.size:
      return math.inf, LEAST_RATE
    # The mu whose curve goes through each point.
    mu = -special.ndtri(rate) - special.ndtri(missed)
    decides = int(np.argmax(mu))
    return max(float(mu[decides]), 0.0), float(rate[decides])

  def regret(self, mu: float) -> Bounds:
    """Returns bounds on the regret of the curve of mu-GDP in place of this one.

    The regret is the least k with f(x + k) - k <= f_mu(x) for all x, where f is this
    curve. With mu alone, error rates of attacks are understated by at most k.

    Source: Gomez, Kulynych, Kaissis, du Pin Calmon, Hayes, Balle and Honkela, "Gaussian
    DP for Reporting Differential Privacy Guarantees in Machine Learning" (2025).
    """
    if math.isinf(mu):  # Infinite mu promises nothing; every regret is in [0, 1].
      return Bounds(0.0, 0.5, 1.0)
    # Rates, dense near 0 and near 1. With fewer of them the regret's bounds are wider.
    x = np.append(special.ndtr(np.linspace(-8.0, 8.0, 20000)), 1.0)
    x[0] = 0.0
    normal = special.ndtr(-special.ndtri(x) - mu)
    # A convex curve is below its chords.
    knots = np.append(x[:-1:50], 1.0)
    chords = 1 - self.best_true_positives(knots)
    lower = _least_shift(self.false_negatives, x[::20], normal[::20])[0]
    # Both curves fall: f(x + k) - k <= f_mu(x') proves the inequality between x and x'.
    upper = _least_shift(
        lambda rate: np.interp(rate, knots, chords), x[:-1], normal[1:])[1]
    return Bounds(lower, 0.5 * (lower + upper), upper)


def _least_shift(curve: Callable[[np.ndarray], np.ndarray], x: np.ndarray,
                 most: np.ndarray) -> tuple[float, float]:
  """Returns an interval around the least k with curve(x + k) - k <= most at all x."""
  return crossing(
      lambda k: bool(np.all(curve(np.minimum(x + k, 1.0)) - k <= most)), 0.0, 1.0,
      tolerance=2.0**-30)


def true_positive_rate(accountant: TwoSidedAccountant, false_positive: float) -> Bounds:
  """Returns bounds on the largest true positive rate of any membership attack."""
  rate = _checks.delta(false_positive, 'false_positive')

  @functools.lru_cache
  def estimate(loss: float) -> float:
    """Returns the bound on the true positive rate from the profile at one point."""
    delta = accountant.delta_bounds(abs(loss)).estimate
    return delta + math.exp(loss) * rate if loss >= 0 else (
        1 - math.exp(loss) * (1 - rate - delta))

  # Search for the best loss by estimates. The bounds below hold at whatever it finds.
  # The estimate is convex in e^loss, and at least 1 where the loss is -log(rate).
  low, high = 0.0, min(-math.log(rate), LARGEST_LOSS)
  if estimate(STEP) >= estimate(0.0):  # The least value is at a loss <= 0.
    low, high = STEP, 0.0
    while low < LARGEST_LOSS and estimate(-low) <= estimate(-0.5 * low):
      low *= 2
  best = float(optimize.minimize_scalar(
      estimate, bounds=(-low, high), method='bounded', options={'xatol': STEP}).x)
  # Slopes between the points must stand out against the width of the bounds.
  bounds = accountant.delta_bounds(abs(best))
  share = min(math.exp(best), 1.0)
  width = share * (bounds.upper - bounds.lower) + ROUNDING * (
      estimate(best) if best >= 0 else 1.0)
  step = min(max(STEP, 8 * math.sqrt(width / min(estimate(best), share))), 0.1)
  curve = TradeoffCurve.at(accountant, np.unique(
      np.append(best + step * np.array([-2, -1, 0, 1, 2]), 0.0)))
  lower, upper = curve.best_true_positives(rate), curve.most_true_positives(rate)
  return Bounds(float(lower), 0.5 * float(lower + upper), float(upper))


def check_target(rates: object) -> tuple[float, float]:
  """Returns a target (true positive rate, false positive rate); ValueError if wrong."""
  if not isinstance(rates, (tuple, list)) or len(rates) != 2:
    raise ValueError(
        'Expected target_tpr to be a pair (true positive rate, false positive rate) '
        f'such as (0.05, 0.01), got target_tpr={rates!r}.')
  most, rate = (_checks.delta(x, 'each rate of target_tpr') for x in rates)
  if most <= rate:
    raise ValueError(
        'Expected the true positive rate of target_tpr, the first, above the false '
        f'positive rate, which guessing reaches, got target_tpr={rates!r}.')
  return most, rate


def posterior(prior: float, false_positive: float, true_positive: Bounds) -> Bounds:
  """Returns bounds on the probability, given an alarm, of a record in the data."""
  prior = _checks.delta(prior, 'prior')
  # The quotient of both rates cannot underflow: it is at least `false_positive`.
  return Bounds(*(prior / (prior + (1 - prior) * (false_positive / rate))
                  for rate in true_positive))


@dataclasses.dataclass(frozen=True, eq=False)
class AttackReport:
  """Bounds on what an attacker can do against released steps; publish each `upper`.

  Attributes:
    true_positive: Bounds on the true positive rate of the best membership attack, by
      its false positive rate.
    advantage: Bounds on the largest true minus false positive rate of an attack.
    posterior: Bounds on the probability that a record was in the data if the best
      attack says so, by the attack's false positive rate.
    prior: Probability, before the attack, that the record was in the data.
    mu: Bounds on the mu of Gaussian differential privacy, for attacks whose two error
      rates are at least `LEAST_RATE`.
    regret: Bounds on how much mu alone understates error rates of attacks; if it is
      below 0.01, mu stands for the whole curve.
    statement: Statement of the guarantee: who is protected, and what is public.
    curve: The trade-off curve.
  """

  true_positive: dict[float, Bounds]
  advantage: Bounds
  posterior: dict[float, Bounds]
  prior: float
  mu: Bounds
  regret: Bounds
  statement: str
  curve: TradeoffCurve = dataclasses.field(repr=False)

  @classmethod
  def of(cls, accountant: TwoSidedAccountant, statement: str, *, prior: float = 0.5,
         false_positive: Sequence[float] = RATES) -> AttackReport:
    """Returns the report of an account; arguments are as for `Guarantee.report`."""
    prior = _checks.delta(prior, 'prior')
    with accountant.composed_once():
      advantage = accountant.delta_bounds(0.0)
      rates = {rate: true_positive_rate(accountant, rate) for rate in _checks.vector(
          'false_positive', false_positive).tolist()}
      curve = TradeoffCurve.of(accountant)
    mu, where = curve.gaussian()
    # The true positive rate that is attained at one point refutes every smaller mu.
    least = float(special.ndtri(curve.best_true_positives(where)) -
                  special.ndtri(where)) if where < 1 else 0.0
    least = min(max(least, 0.0), mu)
    return cls(
        rates, advantage, {
            rate: posterior(prior, rate, bounds) for rate, bounds in rates.items()},
        prior, Bounds(least, mu, mu), curve.regret(mu), statement, curve)

  def as_dict(self) -> dict[str, Any]:
    """Returns the report without its curve, ready for JSON."""
    return {
        'true_positive': {str(rate): bounds._asdict()
                          for rate, bounds in self.true_positive.items()},
        'advantage': self.advantage._asdict(), 'prior': self.prior,
        'posterior': {str(rate): bounds._asdict()
                      for rate, bounds in self.posterior.items()},
        'mu': self.mu._asdict(), 'regret': self.regret._asdict(),
        'statement': self.statement}

  def __str__(self) -> str:
    lines = [
        f'At a false positive rate of {rate!r}, a membership attack has a true '
        f'positive rate of {_within(bounds)}. With a prior of {self.prior!r} its alarm '
        f'is right with probability {_within(self.posterior[rate])}.'
        for rate, bounds in self.true_positive.items()]
    return '\n'.join((
        *lines, f'Membership advantage: {_within(self.advantage)}.',
        f'Gaussian differential privacy: mu {_within(self.mu)} where both error rates '
        f'are at least {LEAST_RATE:g}; regret {_within(self.regret)}.', self.statement))


def _within(bounds: Bounds) -> str:
  """Returns bounds in words, rounded to the safe side."""
  return (f'at most {_format.upper(bounds.upper)} (at least '
          f'{_format.lower(bounds.lower)})')
