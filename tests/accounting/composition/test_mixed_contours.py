"""Gaussians beside Laplace noise and discrete releases, against sums over outcomes."""

import itertools
import math

import dp_accounting
import mpmath
import numpy as np
import pytest

from tests.accounting.oracles import precise_gaussian_delta as gaussian_delta
from tests.representatives import representatives
from tfcactus import accounting
from tfcactus.accounting.composition import composition, lattice
from tfcactus.accounting.composition.discrete_contours import MixedContours
from tfcactus.accounting.composition.losses import laplace
from tfcactus.pairs.dominating_pair import DominatingPair, PairBounds


def exact_delta(mu, responses, top, epsilon):
  """Returns delta of a Gaussian, randomised responses and at most one Laplace release.

  Args:
    mu: Sensitivity of the Gaussian over its standard deviation.
    responses: Pairs (probability of the truth, how many).
    top: One over the Laplace noise's scale, or None.
    epsilon: Epsilon.
  """
  with mpmath.workdps(30):
    mu, total = mpmath.mpf(mu), mpmath.mpf(0)
    for true in itertools.product(*(range(count + 1) for _, count in responses)):
      mass, at = mpmath.mpf(1), mpmath.mpf(epsilon)
      for (prob, count), hits in zip(responses, true):
        prob = mpmath.mpf(prob)
        mass *= mpmath.binomial(count, hits) * prob**hits * (1 - prob)**(count - hits)
        at -= mpmath.log(prob / (1 - prob)) * (2 * hits - count)
      if top is None:
        total += mass * gaussian_delta(mu, at)
        continue
      a = mpmath.mpf(top)
      ends = (gaussian_delta(mu, at - a) + mpmath.exp(-a) * gaussian_delta(mu, at + a))
      middle = mpmath.quad(
          lambda x, a=a, at=at: mpmath.exp((x - a) / 2) * gaussian_delta(mu, at - x),
          mpmath.linspace(-a, a, 7))
      total += mass * (ends / 2 + middle / 4)
    return total


def events(sigma, responses, top):
  chosen = [dp_accounting.GaussianDpEvent(sigma)]
  for prob, count in responses:
    pair = DominatingPair.from_masses([prob, 1 - prob], [1 - prob, prob])
    chosen.append(dp_accounting.SelfComposedDpEvent(
        accounting.DominatingPairDpEvent(pair), count))
  if top is not None:
    chosen.append(dp_accounting.LaplaceDpEvent(1 / top))
  return dp_accounting.ComposedDpEvent(chosen)


CASES = [
    # sigma, randomised responses, 1 / Laplace scale, epsilon.
    (2.0, [(0.52, 10)], None, 1.0), (2.0, [(0.9, 1)], None, 0.0),
    (0.3, [(0.75, 3)], 0.5, 6.0), (5.0, [(0.6, 2)], 0.2, 0.5),
    (1.0, [], 1.0, 2.0), (1.0, [], 8.0, 9.5), (40.0, [], 0.0078125, 0.01),
    (300.0, [(0.5001, 4)], None, 1e-3), (0.05, [(0.999, 2)], None, 150.0),
    (1.0, [(0.6, 2), (0.8, 3)], 0.25, 12.0), (100.0, [(0.99, 1)], None, 4.5951)]


@representatives('sigma, responses, top, epsilon', CASES, 4)
def test_bounds_hold_and_are_close(sigma, responses, top, epsilon):
  account = accounting.PhiAccountant().compose(events(sigma, responses, top))
  exact = exact_delta(1 / mpmath.mpf(sigma), responses, top, epsilon)
  bounds = account.delta_bounds(epsilon)
  assert bounds.lower <= exact <= bounds.upper
  assert bounds.upper - bounds.lower <= 1e-10
  if 1e-12 < exact < 1:
    found = account.epsilon_bounds(float(exact))
    # Rounding delta to a float moves epsilon by up to `room`.
    later = exact_delta(1 / mpmath.mpf(sigma), responses, top, epsilon + 1e-6)
    room = 1e-15 + 1e-22 * float(exact / (exact - later))
    assert found.lower - room <= epsilon <= found.upper + room
    assert found.upper - found.lower <= 2e-10 * (1 + epsilon)


def test_experiment_2():
  """The composition of Figure 3b keeps its digits over a hundred releases."""
  pair = DominatingPair.from_masses([0.52, 0.48], [0.48, 0.52])
  account = accounting.PhiAccountant().compose(dp_accounting.ComposedDpEvent([
      dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(5.0), 100),
      dp_accounting.SelfComposedDpEvent(accounting.DominatingPairDpEvent(pair), 100)]))
  bounds = account.epsilon_bounds(1e-5)
  for epsilon, low in ((bounds.lower, 1e-5), (bounds.upper, 0.0)):
    exact = exact_delta(mpmath.mpf(100)**0.5 / 5, [(0.52, 100)], None, epsilon)
    assert low <= exact <= 1e-5 + (low and 1e-13)
  assert bounds.upper - bounds.lower <= 3e-10


def test_infinite_losses_and_bounds_that_do_not_meet():
  whole = DominatingPair.from_masses([0.5, 0.45, 0.05], [0.55, 0.45, 0.0])
  less = DominatingPair.from_masses([0.51, 0.45, 0.04], [0.55, 0.45, 0.0])
  gaussian = gaussian_loss(1.0)
  bounds = MixedContours([(gaussian, 1), (PairBounds(less, whole), 1)], (0.04, 0.05))
  for epsilon in (0.0, 0.5, 2.0):
    low, high = (
        float(pair.p_inf + sum(p * gaussian_delta(mpmath.mpf(1), epsilon - loss)
                               for p, loss in zip(pair.p, pair.loss)))
        for pair in (less, whole))
    found = bounds.delta(epsilon)
    assert found.lower <= low <= high <= found.upper
    assert found.lower == pytest.approx(low, abs=1e-11)
    assert found.upper == pytest.approx(high, abs=1e-11)
    at = bounds.epsilon(high)
    assert at.lower <= epsilon <= at.upper + 1e-13


def gaussian_loss(mu):
  return composition.GaussianLoss(mu, 1.0, 'remove')


def test_laplace_moments_against_mpmath():
  rng = np.random.default_rng(0)
  with mpmath.workdps(50):
    for _ in range(300):
      top, order = 10.0**rng.uniform(-8, 2), 10.0**rng.uniform(-4, 4)
      t = 10.0**rng.uniform(-4, 6) * rng.integers(2)
      s = mpmath.mpc(order, t)
      exact = mpmath.log(((s + 1) * mpmath.exp(s * top) + s * mpmath.exp(
          -(s + 1) * top)) / (2 * s + 1))
      loss = laplace.LaplaceLoss(top)
      tilted = loss.tilted(order, 0.0, 0.0)
      off = complex(laplace.log_moment(np.array([order + 1j * t]), top)[0] - exact)
      off = complex(off.real, math.remainder(off.imag, 2 * math.pi))
      size = math.exp(float(exact.real) - tilted.log_mgf)
      assert abs(off) * size <= float(tilted.error(np.array([t]))[0])
      if t:
        assert math.log(size) <= loss.log_decay(order, np.array([t]))[0] + 1e-12


@pytest.mark.parametrize('top', [0.01, 0.3, 3.0])
def test_laplace_cumulants(top):
  loss, order, step = laplace.LaplaceLoss(top), 1.7, 1e-4
  low, at, high = (loss.cumulants(np.array([order + k * step]))[:, 0]
                   for k in (-1, 0, 1))
  assert at[1] == pytest.approx((high[0] - low[0]) / (2 * step), rel=1e-5)
  assert at[2] == pytest.approx((high[1] - low[1]) / (2 * step), rel=1e-4)


def test_many_laplace_releases_need_no_lattice():
  account = accounting.PhiAccountant(direction='add').compose(
      dp_accounting.LaplaceDpEvent(5.0), 1000)
  bounds = account.epsilon_bounds(1e-5)
  assert bounds.upper - bounds.lower <= 1e-10
  other = lattice.Lattice([
      (step.bounds(), count) for step, count in
      account.compositions()['add'].groups]).epsilon(1e-5)
  assert other.lower <= bounds.lower <= bounds.upper <= other.upper


RESPONSE = accounting.DominatingPairDpEvent(
    DominatingPair.from_masses([0.6, 0.4], [0.4, 0.6]))


@representatives('direction', ['remove', 'add'])
@pytest.mark.parametrize('event', [
    dp_accounting.ComposedDpEvent([
        dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(
            0.01, dp_accounting.GaussianDpEvent(1.0)), 1000), RESPONSE, RESPONSE]),
    dp_accounting.ComposedDpEvent([
        accounting.RandomAllocationDpEvent(20, dp_accounting.GaussianDpEvent(1.0)),
        RESPONSE]),
    dp_accounting.ComposedDpEvent([
        dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(
            0.01, dp_accounting.LaplaceDpEvent(1.0)), 100),
        dp_accounting.GaussianDpEvent(4.0)])], ids=['poisson', 'allocation', 'laplace'])
def test_sampled_releases_agree_with_the_lattice(event, direction):
  account = accounting.PhiAccountant(direction=direction).compose(event)
  [whole] = account.compositions().values()
  bounds = whole.epsilon(1e-5)
  other = lattice.Lattice(
      [(step.bounds(), count) for step, count in whole.groups]).epsilon(1e-5)
  assert max(bounds.lower, other.lower) <= min(bounds.upper, other.upper)
  assert bounds.upper - bounds.lower <= 1e-2 * (other.upper - other.lower)
