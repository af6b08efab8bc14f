"""Families of trade-off functions: audits find the most private one not refuted.

An epsilon found in this way is an extrapolation inside the family. Canaries never see
events as rare as delta.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
import math

import dp_accounting
from scipy import special

from tfcactus import _checks, accounting
from tfcactus.accounting import attacks
from tfcactus.audit.counts import Curve, largest
from tfcactus.noise import Gaussian
from tfcactus.plan import PrivacyPlan
from tfcactus.relations import Relation
from tfcactus.sampling import PoissonSampling, SamplingScheme, suitable

Refutes = Callable[[Curve], bool]
"""A test: whether the counts refute a trade-off function."""

POINTS, FEW_POINTS = 60, 20
"""Points of a claim's trade-off curve, and of each of the many curves that the search
of its family computes. Affects tightness only."""

LARGEST_MU = 20.0
"""Largest mu of Gaussian differential privacy that is tried."""

REACH, STRIDE = 5.0, 0.25
"""Log of the largest change of noise that is tried, and of one step towards it."""


def gaussian_curve(mu: float) -> Curve:
  """Returns the trade-off function of mu-GDP (Gaussian differential privacy)."""
  mu = _checks.real('mu', mu)
  return lambda rate: special.ndtr(-special.ndtri(rate) - mu)


def gaussian_mu(refutes: Refutes, *, tolerance: float = 1e-3) -> float:
  """Returns the largest refuted mu of Gaussian differential privacy, or zero.

  It is too small by at most `tolerance`, unless `LARGEST_MU` is refuted.
  """
  _checks.function('refutes', refutes, 'such as Errors(...).refutes')
  tolerance = _checks.positive('tolerance', tolerance)
  return largest(lambda mu: refutes(gaussian_curve(mu)), 0.0, LARGEST_MU, tolerance)


def gaussian_epsilon(mu: float, delta: float) -> float:
  """Returns a lower bound on the epsilon of mu-GDP at `delta`."""
  if _checks.real('mu', mu) <= 0:
    return 0.0
  event = dp_accounting.GaussianDpEvent(1 / mu)
  return accounting.PhiAccountant().compose(event).epsilon_bounds(delta).lower


@dataclasses.dataclass(frozen=True)
class Claim:
  """A claim of privacy that an audit tries to refute.

  Attributes:
    account: account(noise, sampled) returns the account of the whole run at `noise`
      times the claimed noise multiplier and `sampled` times the claimed sampling
      probability.
    delta: Delta of the claim.
    noise_multiplier: Standard deviation of the noise over the clipping norm; None if
      the noise is not Gaussian, which leaves the claim itself as all that is tested.
    sampling_prob: Sampling probability of one step.
    poisson: Whether batches are Poisson samples.
    independent: Whether canaries are drawn independently of each other; if not, only
      the one-run bounds hold.
  """

  account: Callable[[float, float], accounting.PhiAccountant]
  delta: float
  noise_multiplier: float | None = None
  sampling_prob: float = 1.0
  poisson: bool = True
  independent: bool = True

  @classmethod
  def of_plan(cls, plan: PrivacyPlan, sampling: type[SamplingScheme] | None = None,
              draws: int | None = None,
              neighboring_relation: Relation | None = None) -> Claim:
    """Returns the claim of a plan's guarantee for its steps, without `releases`.

    Other arguments are those of `plan.guarantee`, whose `steps` is `draws` here. The
    relation is between data with a canary and data without: 'zero-out' if an absent
    canary is drawn like a present one but adds no row to the batch. Statistics released
    beside the steps see no canary.
    """
    plan = dataclasses.replace(_checks.plan(plan), releases=())
    normal = isinstance(plan.noise, Gaussian)

    def account(noise: float, sampled: float) -> accounting.PhiAccountant:
      """Returns the plan's account at these multiples of its noise and sampling."""
      other = plan if noise == sampled == 1 else dataclasses.replace(
          plan, noise=Gaussian(noise * plan.noise.noise_multiplier),
          sampling_prob=sampled * plan.sampling_prob)
      return other.guarantee(
          draws, neighboring_relation, sampling=sampling).proven_account()

    scheme = suitable(sampling, None if plan.strategy is None else plan.groups)
    return cls(account, plan.delta, plan.noise.noise_multiplier if normal else None,
               plan.sampling_prob, scheme is PoissonSampling, scheme.independent)

  @functools.lru_cache(maxsize=64)  # noqa: B019  Several tests ask for the same curves.
  def curve(self, noise: float = 1.0) -> Curve:
    """Returns a lower bound on the trade-off function at `noise` times the noise."""
    return attacks.TradeoffCurve.of(
        self.account(noise, 1.0), POINTS if noise == 1 else FEW_POINTS, 1e-6
        ).false_negatives

  def epsilon(self, refutes: Refutes) -> float:
    """Returns a lower bound on epsilon at the claim's delta, within the claim's family.

    The family has the claim's scheme and steps, and other noise multipliers. The bound
    is the epsilon of the least noise multiplier that `refutes` still refutes, or zero.
    """
    _checks.function('refutes', refutes, 'such as Errors(...).refutes')
    if not refutes(gaussian_curve(0.0)):  # Not even guessing is refuted.
      return 0.0
    # The noise is multiplied by exp(-less). If a value of `less` is refuted, so are all
    # smaller ones. `low` and `high` bracket the largest refuted one.
    refuted = functools.lru_cache(lambda less: refutes(self.curve(math.exp(-less))))
    low = high = 0.0
    while refuted(low) and refuted(high) and high < REACH:
      low, high = high, high + STRIDE
    while not refuted(low):
      if low <= -REACH:
        return 0.0
      low, high = low - STRIDE, low
    less = largest(refuted, low, high, 0.005)  # Affects tightness only.
    return self.account(math.exp(-less), 1.0).epsilon_bounds(self.delta).lower
