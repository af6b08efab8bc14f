"""Levy's formula on given phi functions, against closed forms and enumeration."""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from tests.representatives import representatives
from tfcactus import accounting, noise
from tfcactus.accounting.composition.losses import gaussian
from tfcactus.pairs.dominating_pair import DominatingPair
from tfcactus.papers import levy
from tfcactus.papers.levy import LevyComposition, PhiFunction


@pytest.fixture(autouse=True)
def few_nodes(monkeypatch):
  """Limits the number of nodes: functions that do not decay take no time."""
  monkeypatch.setattr(levy, 'MAX_NODES', 1 << 18)


@pytest.mark.parametrize('mu, count', [
    (1e-3, 1), (0.05, 10), (0.3, 100), (1.0, 1), (1.0, 10), (5.0, 1), (5.0, 100)])
def test_gaussians(mu, count):
  whole = LevyComposition([(PhiFunction.gaussian(mu), count)])
  joint = mu * math.sqrt(count)
  for epsilon in (0.0, 0.1, 1.0, 10.0):
    exact = float(gaussian.gaussian_delta(joint, np.array([epsilon]))[0][0])
    bounds = whole.delta(epsilon)
    assert bounds.lower <= exact <= bounds.upper
    assert bounds.upper - bounds.lower <= 5e-12 * count
    below = stats.norm.cdf((epsilon - 0.5 * joint**2) / joint)
    bounds = whole.loss_cdf(epsilon)
    assert bounds.lower <= below <= bounds.upper
    assert bounds.upper - bounds.lower <= 2e-11 * count


def test_losses_below_zero_have_a_distribution_too():
  bounds = LevyComposition([(PhiFunction.gaussian(2.0), 1)]).loss_cdf(-3.0)
  assert bounds.lower <= stats.norm.cdf(-2.5) <= bounds.upper
  assert bounds.upper - bounds.lower <= 1e-10


def mixture_delta(mu, prob, count, epsilon):
  """Returns delta of a Gaussian and `count` responses, over the number of true ones."""
  loss = math.log(prob / (1 - prob))
  total = 0.0
  for true in range(count + 1):
    mass = stats.binom.pmf(true, count, prob)
    total += mass * float(gaussian.gaussian_delta(
        mu, np.array([epsilon - loss * (2 * true - count)]))[0][0])
  return total


def test_gaussian_and_randomised_response():
  """Experiment 2 of the paper."""
  pair = DominatingPair.from_masses([0.52, 0.48], [0.48, 0.52])
  whole = LevyComposition([
      (PhiFunction.gaussian(0.2), 10), (PhiFunction.of_pair(pair), 10)])
  for epsilon in (0.0, 1.0, 2.5):
    exact = mixture_delta(0.2 * math.sqrt(10), 0.52, 10, epsilon)
    bounds = whole.delta(epsilon)
    assert bounds.lower <= exact <= bounds.upper
    assert bounds.upper - bounds.lower <= 1e-8
    assert bounds.estimate == pytest.approx(exact, abs=1e-14)
  bounds = whole.epsilon(1e-5)
  assert mixture_delta(0.2 * math.sqrt(10), 0.52, 10, bounds.lower) >= 1e-5
  assert mixture_delta(0.2 * math.sqrt(10), 0.52, 10, bounds.upper) <= 1e-5
  assert bounds.upper - bounds.lower <= 1e-3


def test_a_phi_of_ones_own():
  """Two functions of a user, one of a tail without any bound."""
  def log_phi(t):
    return -0.5 * t * t + 0.5j * t

  exact = float(gaussian.gaussian_delta(1.0, np.array([0.7]))[0][0])
  bounded, free = (LevyComposition([(PhiFunction(log_phi, decay), 1)]).delta(0.7)
                   for decay in (lambda t: -0.5 * t * t, None))
  for bounds in (bounded, free):
    assert bounds.lower <= exact <= bounds.upper
    assert bounds.estimate == pytest.approx(exact, abs=1e-12)
  # Without a bound on its tail phi may be anything there, and the bounds say so.
  assert bounded.upper - bounded.lower <= 1e-11
  assert 1e-8 <= free.upper - free.lower <= 1e-3


def test_infinite_losses():
  pair = DominatingPair.from_masses([0.5, 0.4, 0.1], [0.6, 0.4, 0.0])
  whole = LevyComposition([
      (PhiFunction.of_pair(pair), 2), (PhiFunction.gaussian(0.5), 1)])
  infinite = 1 - 0.9**2
  assert whole.epsilon(0.9 * infinite) == (math.inf, math.inf, math.inf)
  for epsilon in (0.0, 0.4, 3.0):
    exact = infinite + sum(
        weight * float(gaussian.gaussian_delta(0.5, np.array([epsilon - loss]))[0][0])
        for weight, loss in ((0.25, 2 * math.log(5 / 6)), (0.4, math.log(5 / 6)),
                             (0.16, 0.0)))
    bounds = whole.delta(epsilon)
    assert bounds.lower <= exact <= bounds.upper
    assert bounds.upper - bounds.lower <= 1e-8


@pytest.mark.parametrize('scale, count', [(1.0, 1), (5.0, 3), (0.2, 2)])
def test_laplace(scale, count):
  whole = LevyComposition([(PhiFunction.laplace(scale), count)])
  other = accounting.PhiAccountant(direction='add').compose(
      accounting.noise_event(noise.Laplace(scale)), count)
  for epsilon in (0.1 * count / scale, 0.7 * count / scale):
    bounds, known = whole.delta(epsilon), other.delta_bounds(epsilon)
    assert max(bounds.lower, known.lower) <= min(bounds.upper, known.upper)
    if count == 1:
      exact = -math.expm1(0.5 * (epsilon - 1 / scale))
      assert bounds.lower <= exact <= bounds.upper
    assert bounds.upper - bounds.lower <= 1e-3


@representatives('seed', range(6), 2)
def test_random_pairs_against_enumeration(seed):
  """The tail of phi alone bounds what is beyond a period, however far losses are."""
  rng = np.random.default_rng(seed)
  p, q = rng.dirichlet(np.full(4, 0.3), 2) + 1e-12
  p, q = p / p.sum(), q / q.sum()
  pair = DominatingPair.from_masses(p, q)
  whole = LevyComposition([(PhiFunction.of_pair(pair), 2)])
  one, two = np.meshgrid(range(4), range(4))
  mass, other = p[one] * p[two], q[one] * q[two]
  for epsilon in (0.0, 0.5, 3.0, 30.0):
    exact = np.sum(np.maximum(mass - np.exp(epsilon) * other, 0))
    bounds = whole.delta(epsilon)
    assert bounds.lower <= exact + 1e-15 and exact - 1e-15 <= bounds.upper


def test_hardly_any_finite_loss():
  pair = DominatingPair.from_masses([0.99996, 4e-5], [0.0, 1.0])
  bounds = LevyComposition([
      (PhiFunction.of_pair(pair), 1), (PhiFunction.gaussian(1.0), 1)]).delta(0.5)
  assert bounds.lower <= 0.99996 + 1e-12 and 0.99996 - 1e-12 <= bounds.upper


def laplace_or_infinite(p_inf, decay=True):
  """Returns Laplace noise of scale 1/20 with a mass p_inf of infinite loss."""
  one, log_w = PhiFunction.laplace(1 / 20), math.log1p(-p_inf)
  return LevyComposition([(PhiFunction(
      lambda t: log_w + one.log_phi(t),
      (lambda t: log_w + one.log_decay(t)) if decay else None, p_inf,
      one.accuracy), 1)])


@pytest.mark.parametrize('decay', [True, False])
@representatives('p_inf, epsilon', [
    (0.9, 19.99995), (0.5, 20.0), (0.5, 20.5), (0.99, 19.0)])
def test_the_end_of_a_sum_counts_infinite_losses_once(p_inf, epsilon, decay):
  """The bound on |phi| counts infinite losses already; they were once counted twice."""
  exact = p_inf - (1 - p_inf) * min(math.expm1(0.5 * (epsilon - 20)), 0)
  bounds = laplace_or_infinite(p_inf, decay).delta(epsilon)
  assert bounds.lower <= exact <= bounds.upper <= exact + 1e-3


def test_a_decay_is_no_more_than_the_mass_of_finite_losses():
  one = PhiFunction.laplace(1.0)
  for given, most in ((None, 0.25), (lambda t: 0 * t, 0.25), (lambda t: 0 * t - 3,
                                                             math.exp(-3))):
    whole = LevyComposition([
        (PhiFunction(lambda t: one.log_phi(t) + math.log(0.25), given, 0.75), 1)])
    assert np.exp(whole.log_decay(np.ones(2))) == pytest.approx([most] * 2, rel=1e-12)


def test_above_the_infinite_mass_epsilon_is_finite(monkeypatch):
  """1 - (1 - 0.05) is above 0.05: inf was once returned as a lower bound of 20."""
  monkeypatch.setattr(levy, 'MAX_NODES', 1 << 14)
  bounds = laplace_or_infinite(0.05).epsilon(math.nextafter(0.05, 1))
  assert 19 < bounds.lower < 20 and bounds.upper == math.inf
  assert laplace_or_infinite(0.05).epsilon(0.0499).lower == math.inf


@pytest.mark.parametrize('scale', [0.001, 0.1, 1.0, 10.0, 100.0])
def test_the_accuracy_of_laplace(scale):
  phi, top = PhiFunction.laplace(scale), mpmath.mpf(1 / scale)
  t = np.concatenate([np.geomspace(1e-6, 3e6, 60),
                      np.arange(1, 60) * scale * math.pi / 2,
                      np.random.default_rng(0).uniform(9e4, 1e5, 100)])
  (log_phi, _), error = phi.values(t), phi.accuracy(t)
  with mpmath.workdps(40):
    for at, found, room in zip(t, log_phi, error):
      s = mpmath.mpc(0, at)
      exact = ((s + 1) * mpmath.exp(s * top) + s * mpmath.exp(-(s + 1) * top)) / (
          2 * s + 1)
      assert abs(mpmath.exp(mpmath.mpc(found)) - exact) <= room
      assert abs(exact) <= math.exp(phi.log_decay(at))


def test_the_accuracy_of_a_pair():
  """The phase's error grows with t, and log phi's error where phi is small."""
  p, q = np.array([0.49, 0.51]), np.array([0.51, 0.49])
  pair = DominatingPair.from_masses(p / p.sum(), q)
  phi, t = PhiFunction.of_pair(pair), np.linspace(1e5, 1.1e5, 400)
  t = np.append(t, math.pi / 2 / pair.loss[1] * np.arange(1, 2001, 50))
  (log_phi, off), error = phi.values(t), phi.accuracy(t)
  with mpmath.workdps(40):
    for at, found, more, room in zip(t, log_phi, off, error):
      exact = sum(mpmath.mpf(mass) * mpmath.exp(mpmath.mpc(0, at) * loss)
                  for mass, loss in zip(pair.p, pair.loss))
      found = mpmath.exp(mpmath.mpc(found))
      assert abs(found - exact) <= room <= abs(found) * mpmath.expm1(more) * 1.0001


def test_a_phi_that_is_zero_somewhere():
  """The bounds were once nan."""
  def log_phi(t):
    return np.where(t > 20, -np.inf, -0.5 * t * t) + 0.5j * t

  for count in (1, 3):
    exact = float(gaussian.gaussian_delta(math.sqrt(count), np.array([0.7]))[0][0])
    bounds = LevyComposition([(PhiFunction(log_phi), count)]).delta(0.7)
    assert bounds.lower <= exact <= bounds.upper <= exact + 1e-3
    assert bounds.estimate == pytest.approx(exact, abs=1e-10)


def test_an_error_of_one_leaves_phi_unknown():
  """An error of log phi above one was once cut to one."""
  phi = PhiFunction(lambda t: -500 + 0j * t, lambda t: 0 * t, accuracy=1.0)
  wrong = LevyComposition([(phi, 1)])._nodes(64.0)._wrong
  assert np.all(wrong >= 1)


@pytest.mark.parametrize('mu, count', [(1e4, 1), (19.996, 100_000)])
def test_epsilons_beyond_all_periods(mu, count):
  """nan was once passed on as an epsilon."""
  bounds = LevyComposition([(PhiFunction.gaussian(mu), count)]).epsilon(1e-5)
  assert bounds.upper == math.inf and 0 <= bounds.lower <= 2e7
  joint = mu * math.sqrt(count)
  assert bounds.lower <= 0.5 * joint**2 + 4 * joint


def test_the_tail_is_a_bound():
  whole = LevyComposition([(PhiFunction.gaussian(1.0), 4)])
  for x in (-1.0, 2.0, 5.0, 20.0, 200.0):
    assert whole.tail(x) >= stats.norm.sf((x - 2) / 2)
  assert whole.tail(60.0) < 1e-3 and whole.tail(2e3) < 1e-11


@pytest.mark.parametrize('call, message', [
    (lambda: LevyComposition([]), 'at least one'),
    (lambda: LevyComposition([(1.0, 1)]), 'PhiFunction'),
    (lambda: LevyComposition([(PhiFunction.gaussian(1.0), 0)]), 'count'),
    (lambda: PhiFunction(np.log, p_inf=1.0), 'p_inf'),
    (lambda: PhiFunction(np.log, accuracy=0.0), 'accuracy'),
    (lambda: LevyComposition([(PhiFunction(lambda t: 0 * t + 1), 1)]).delta(1.0),
     'at most the mass'),
    (lambda: LevyComposition([(PhiFunction(lambda t: 0 * t + np.inf), 1)]).delta(1.0),
     'at most the mass'),
    (lambda: LevyComposition([(
        PhiFunction(lambda t: np.full(t.shape, complex(0, np.inf))), 1)]).delta(1.0),
     'finite imaginary part'),
    (lambda: LevyComposition([PhiFunction.gaussian(1.0)]), r'is \[\(phi, 1\)\]'),
    (lambda: LevyComposition(PhiFunction.gaussian(1.0)), r'is \[\(phi, 1\)\]'),
    (lambda: LevyComposition([(PhiFunction.gaussian(1.0), 1, 1)]), 'Expected groups'),
    (lambda: PhiFunction(None), 'log_phi to be a function'),
    (lambda: PhiFunction(np.log, -1.0), 'log_decay to be a function'),
    (lambda: PhiFunction(np.log, accuracy='a'), 'accuracy'),
    (lambda: LevyComposition([(PhiFunction(lambda t: -t * t, lambda t: t * np.nan), 1)]
                             ).delta(1.0), 'log_decay'),
    (lambda: LevyComposition([(PhiFunction(lambda t: -t * t, None, 0.0, lambda t: -t),
                               1)]).delta(1.0), 'accuracy'),
    (lambda: LevyComposition([(PhiFunction(lambda t: 0.0), 1)]).delta(1.0), 'each t'),
    (lambda: LevyComposition([(PhiFunction.gaussian(1.0), 1)]).delta(-1.0), 'epsilon'),
    (lambda: LevyComposition([(PhiFunction.gaussian(1.0), 1)]).epsilon(0.0), 'delta'),
])
def test_bad_input(call, message):
  with pytest.raises(ValueError, match=message):
    call()
