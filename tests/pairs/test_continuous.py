"""Pairs of laws on the line against closed forms, at 150 digits where they matter."""

import dp_accounting
import mpmath
import numpy as np
import pytest
from scipy import optimize, special, stats

from tfcactus import accounting
from tfcactus.pairs.continuous import continuous_pair, FunctionLaw


def normal_delta(p, q, epsilon):
  """Hockey-stick divergence of two normal laws (mean, std), by its two roots."""
  with mpmath.workdps(80):
    (m0, s0), (m1, s1) = (map(mpmath.mpf, law) for law in (p, q))
    alpha = mpmath.exp(mpmath.mpf(epsilon))
    a = (1 / s1**2 - 1 / s0**2) / 2
    b = m0 / s0**2 - m1 / s1**2
    c = m1**2 / (2 * s1**2) - m0**2 / (2 * s0**2) + mpmath.log(s1 / s0) - epsilon

    def below(x):
      return mpmath.ncdf((x - m0) / s0) - alpha * mpmath.ncdf((x - m1) / s1)

    def above(x):
      return mpmath.ncdf((m0 - x) / s0) - alpha * mpmath.ncdf((m1 - x) / s1)

    if a == 0:
      return max(1 - alpha, 0) if b == 0 else (above if b > 0 else below)(-c / b)
    square = b * b - 4 * a * c
    if square <= 0:
      return 1 - alpha if a > 0 else mpmath.mpf(0)
    low, high = sorted((-b + sign * mpmath.sqrt(square)) / (2 * a) for sign in (-1, 1))
    return below(low) + above(high) if a > 0 else below(high) - below(low)


def normal_break(p, q):
  """Where the loss of two normal laws turns."""
  (m0, s0), (m1, s1) = p, q
  if s0 == s1:
    return []
  return [m0 - (m1 - m0) / s1**2 / (1 / s0**2 - 1 / s1**2)]


def check_normals(p, q, **kwargs):
  bounds = continuous_pair(
      stats.norm(*p), stats.norm(*q), normal_break(p, q), **kwargs)
  for pair, laws in ((bounds, (p, q)), (bounds.reversed(), (q, p))):
    pair.lower.check()
    pair.upper.check()
    for epsilon in (-3.0, -0.5, 0.0, 1e-3, 0.1, 1.0, 3.0, 10.0, 30.0, 72.0):
      exact = float(normal_delta(*laws, epsilon))
      # What a sum of masses next to one rounds to.
      room = 1e-12 * exact + 4e-16
      assert pair.lower.hockey_stick(epsilon) <= exact + room, (laws, epsilon)
      assert pair.upper.hockey_stick(epsilon) >= exact - room, (laws, epsilon)
  return bounds


@pytest.mark.parametrize('p, q', [
    ((0.0, 1.0), (1.0, 1.0)), ((0.0, 1.0), (0.0, 1.2)), ((0.0, 1.0), (0.5, 1.1)),
    ((0.0, 1.0), (0.0, 1 + 1e-6)), ((0.0, 1.0), (1e-7, 1.0)),
    ((3e5, 1e-6), (3e5, 2e-6)), ((0.0, 1e8), (1e7, 0.9e8)), ((0.0, 1.0), (30.0, 1.0)),
    # No mass at the pivot: what is left of Q is rounding.
    ((0.0, 13039858.825335743), (-241908168.66994214, 11626451.060958982))])
def test_normal_laws(p, q):
  check_normals(p, q)


@pytest.mark.parametrize('seed', range(12))
def test_random_normal_laws(seed):
  rng = np.random.default_rng(seed)
  scale = 10.0**rng.uniform(-8, 8)
  mean, move = scale * rng.normal(size=2) * 10.0**rng.uniform(-3, 1.5, 2)
  std = scale * np.exp(rng.normal() * 10.0**rng.uniform(-4, 0))
  check_normals((mean, scale), (mean + move, std), accuracy=10.0**rng.uniform(-12, -10),
                cells=int(2**rng.integers(4, 14)))


def chi_square_delta(count, epsilon, ratio, wide):
  """delta of N(0, 1) against N(0, ratio), `count` times: the loss is a chi square.

  Args:
    count: How many releases.
    epsilon: Epsilon.
    ratio: Standard deviation of the wider law.
    wide: Whether P is the wider law.
  """
  slope = 0.5 * (1 - ratio**-2)
  if wide:
    level = (count * np.log(ratio) + epsilon) / slope
    return stats.chi2.sf(level / ratio**2, count) - np.exp(epsilon) * stats.chi2.sf(
        level, count)
  level = (count * np.log(ratio) - epsilon) / slope
  return stats.chi2.cdf(level, count) - np.exp(epsilon) * stats.chi2.cdf(
      level / ratio**2, count)


@pytest.mark.parametrize('count', [1, 2, 7, 100])
def test_variance_that_depends_on_the_data(count):
  """Example 14 of the paper: no Renyi divergence of large order, and yet an epsilon."""
  pair = continuous_pair(stats.norm(0, 1), stats.norm(0, 1.2), [0.0])
  account = accounting.PhiAccountant().compose(
      accounting.DominatingPairDpEvent(pair), count)
  exact = max(optimize.brentq(
      lambda x, wide: chi_square_delta(count, x, 1.2, wide) - 1e-6, -5, 100, (wide,))
              for wide in (True, False))
  bounds = account.epsilon_bounds(1e-6)
  assert bounds.lower <= exact <= bounds.upper
  assert bounds.upper - bounds.lower <= 2e-5 * exact


def test_sampled():
  """Poisson sampling of the pair of a Gaussian is that of the Gaussian."""
  pair = continuous_pair(stats.norm(0, 2), stats.norm(1, 2))
  account, known = (accounting.PhiAccountant().compose(
      dp_accounting.PoissonSampledDpEvent(0.1, event), 50) for event in (
          accounting.DominatingPairDpEvent(pair), dp_accounting.GaussianDpEvent(2.0)))
  bounds, exact = account.epsilon_bounds(1e-6), known.get_epsilon(1e-6)
  assert bounds.lower <= exact <= bounds.upper
  assert bounds.upper - bounds.lower <= 1e-4 * exact


def test_cauchy_noise():
  """Heavy tails, and a loss with two extremes."""
  root = np.sqrt(1.25)
  pair = continuous_pair(stats.cauchy(0), stats.cauchy(1), [0.5 - root, 0.5 + root])
  for epsilon in (0.0, 0.3, 0.9):
    # (1 + (x - 1)^2) = e^eps (1 + x^2) at the ends of where p exceeds e^eps q.
    a = np.exp(epsilon)
    ends = np.roots([1 - a, -2, 2 - a]) if epsilon else np.array([-np.inf, 0.5])
    ends = np.sort(np.real(ends))
    exact = np.diff(stats.cauchy.cdf(ends) - a * stats.cauchy.cdf(ends - 1))[0]
    exact = abs(exact) if epsilon else exact
    assert pair.lower.hockey_stick(epsilon) <= exact <= pair.upper.hockey_stick(epsilon)
    assert pair.upper.hockey_stick(epsilon) - exact <= 1e-8
  assert pair.upper.hockey_stick(0.97) < 1e-40


def test_mass_at_infinity():
  """Where one law alone has mass the loss is infinite, in both directions."""
  pair = continuous_pair(
      stats.uniform(0, 1), stats.uniform(0.1, 1), [0.0, 0.1, 1.0, 1.1])
  for side in (pair, pair.reversed()):
    assert side.lower.p_inf == pytest.approx(0.1, abs=1e-8)
    assert side.upper.p_inf == pytest.approx(0.1, abs=1e-12)
    assert side.lower.p_inf <= 0.1 <= side.upper.p_inf
    assert side.upper.hockey_stick(0.0) == pytest.approx(0.1, abs=1e-9)


def test_laplace_noise():
  pair = continuous_pair(stats.laplace(0, 2), stats.laplace(1, 2), [0.0, 1.0])
  for epsilon in (0.0, 0.2, 0.45):
    exact = -np.expm1(0.5 * (epsilon - 0.5))
    assert pair.lower.hockey_stick(epsilon) <= exact <= pair.upper.hockey_stick(epsilon)
    assert pair.upper.hockey_stick(epsilon) - pair.lower.hockey_stick(epsilon) < 1e-8
  assert pair.upper.hockey_stick(0.5) < 1e-8


@pytest.mark.parametrize('move, accuracy', [
    (0.3, 1e-3), (1e-3, 1e-6), (1e-9, 1e-13), (-1e-9, 1e-13), (1e-11, 1e-13),
    (1e-6, 1e-6)])
def test_a_loss_that_moves_less_than_its_error_on_every_cell(move, accuracy):
  bounds = check_normals((0.0, 1.0), (move, 1.0), accuracy=accuracy, cells=4096)
  exact = float(normal_delta((0.0, 1.0), (move, 1.0), 0))
  assert bounds.upper.hockey_stick(0.0) <= 1.01 * exact + 100 * accuracy


@pytest.mark.parametrize('seed', range(8))
def test_wrong_within_the_stated_accuracy(seed):
  """Densities that are off, by as much as is said, from place to place."""
  rng = np.random.default_rng(seed)
  accuracy = 10.0**rng.uniform(-9, -3)
  move = 10.0**rng.uniform(-6, 0)

  def off(law):
    turn, start = 10.0**rng.uniform(-1, 3), rng.uniform(0, 7)

    def logpdf(x):
      exact = law.logpdf(x)
      return exact + 0.99 * accuracy * (1 + np.abs(exact)) * np.sin(turn * x + start)
    return FunctionLaw(law.cdf, law.sf, logpdf)

  bounds = continuous_pair(off(stats.norm()), off(stats.norm(move)),
                           accuracy=accuracy, cells=1024)
  for pair in (bounds, bounds.reversed()):
    for epsilon in (-0.1, 0.0, 0.3 * move, move, 3 * move):
      exact = float(normal_delta((0.0, 1.0), (move, 1.0), epsilon))
      # What sums of masses next to one may lack, as for any pair.
      room = 2e-13
      assert pair.lower.hockey_stick(epsilon) <= exact + room
      assert pair.upper.hockey_stick(epsilon) >= exact - room


def power_delta(a, b, epsilon):
  """delta of the densities a x^(a - 1) and b x^(b - 1) on [0, 1], for a < b."""
  x = np.exp((np.log(a / b) - epsilon) / (b - a))
  return x**a - np.exp(epsilon) * x**b


@pytest.mark.parametrize('a, b, loc, epsilon', [
    (0.1, 1.0, 0.0, 5.0), (0.1, 1.0, 1.0, 31.0), (0.1, 0.4, 1.0, 9.0),
    (0.01, 0.3, 0.0, 200.0), (0.9, 1.0, -7.0, 3.0), (0.1, 0.2, 1e6, 2.0)])
def test_a_loss_without_bound_at_a_break(a, b, loc, epsilon):
  """Between a break and the next float a loss may be anything beyond."""

  def power(c):
    # Of the float, which is loc + t, not of t: as the laws of SciPy.
    def inner(x):
      return np.clip(x - loc, 0.0, 1.0)

    def logpdf(x):
      with np.errstate(divide='ignore'):
        there = np.log(c) + (c - 1) * np.log(inner(x))
      return np.where((x < loc) | (x > loc + 1), -np.inf, there)
    return FunctionLaw(lambda x: inner(x)**c, lambda x: _sf(inner(x), c), logpdf)

  def _sf(t, c):
    with np.errstate(divide='ignore'):
      return -np.expm1(c * np.log(t))

  bounds = continuous_pair(power(a), power(b), [loc, loc + 1], cells=2000)
  bounds.lower.check()
  bounds.upper.check()
  exact = power_delta(a, b, epsilon)
  assert bounds.lower.hockey_stick(epsilon) <= exact
  assert bounds.upper.hockey_stick(epsilon) >= exact > 0


def test_laws_without_a_float_to_see_them_at():
  """All mass between two places where no density is seen: nothing is known."""
  with np.errstate(over='ignore'):
    bounds = continuous_pair(stats.norm(0, 1e-200), stats.norm(5e-200, 1e-200))
  assert bounds.upper.hockey_stick(0.0) >= 0.987580669348447


def test_masses_of_other_densities():
  with pytest.raises(ValueError, match='of one law'):
    continuous_pair(broken(cdf=stats.norm(1).cdf, sf=stats.norm(1).sf), stats.norm())


@pytest.mark.parametrize('log_half, breaks, refused', [
    (0.0, [], True), (0.0, [0.0], True), (np.log(0.5), [], True),
    (np.log(0.5), [0.0], False)])
def test_an_atom(log_half, breaks, refused):
  """Seen, and where it is at a break accounted as mass of an infinite loss."""
  atom = FunctionLaw(lambda x: 0.5 * stats.norm.cdf(x) + 0.5 * (x >= 0),
                     lambda x: 0.5 * stats.norm.sf(x) + 0.5 * (x < 0),
                     lambda x: stats.norm.logpdf(x) + log_half)
  if refused:
    with pytest.raises(ValueError, match='no atoms'):
      continuous_pair(atom, stats.norm(), breaks)
  else:
    bounds = continuous_pair(atom, stats.norm(), breaks)
    assert bounds.upper.hockey_stick(5.0) >= 0.5 >= bounds.lower.hockey_stick(5.0)


@pytest.mark.parametrize('p, q', [
    ((0.0, 1.0), (0.0, 30.0)), ((0.0, 1.0), (0.0, 1e3)), ((0.0, 1.0), (0.0, 1e7)),
    ((5.0, 1e-6), (5.000035, 1e-6)), ((0.0, 1.0), (40.0, 1.0))])
def test_masses_too_small_for_floats(p, q):
  bounds = check_normals(p, q)
  accounting.DominatingPairDpEvent(bounds)
  exact = float(normal_delta(p, q, 1.0))
  # The ends of cells of (5, 1e-6) are rounded.
  assert bounds.lower.hockey_stick(1.0) >= exact - 1e-4


def test_exponential_laws_of_very_different_scales():
  pair = continuous_pair(stats.expon(), stats.expon(scale=50), [0.0])
  accounting.DominatingPairDpEvent(pair)
  for epsilon in (0.5, 2.0):
    x = (np.log(50) - epsilon) / (1 - 0.02)
    exact = -np.expm1(-x) + np.exp(epsilon) * np.expm1(-0.02 * x)
    assert pair.lower.hockey_stick(epsilon) <= exact <= pair.upper.hockey_stick(epsilon)


def test_the_same_law_twice():
  pair = continuous_pair(stats.norm(), stats.norm(), accuracy=1e-12)
  assert pair.lower.hockey_stick(0.0) == 0
  assert 0 <= pair.upper.hockey_stick(0.0) < 1e-9


def logistic(scale, at):
  return FunctionLaw(
      lambda x: special.expit((x - at) / scale),
      lambda x: special.expit((at - x) / scale),
      lambda x: -np.abs(x - at) / scale - 2 * np.log1p(
          np.exp(-np.abs(x - at) / scale)) - np.log(scale))


def test_functions_of_ones_own():
  pair = continuous_pair(logistic(0.5, 0.0), logistic(0.5, 1.0))
  for epsilon in (0.1, 1.0, 1.9):
    x = optimize.brentq(
        lambda x, loss: logistic(0.5, 0).logpdf(x) - logistic(0.5, 1).logpdf(x) - loss,
        -4, 5, (epsilon,))
    exact = special.expit(2 * x) - np.exp(epsilon) * special.expit(2 * (x - 1))
    assert pair.lower.hockey_stick(epsilon) <= exact + 1e-14
    assert pair.upper.hockey_stick(epsilon) >= exact - 1e-14


@pytest.mark.parametrize('p, q, breaks', [
    (stats.gamma(2.0), stats.gamma(3.0), [0.0]),
    (stats.t(5), stats.t(5, scale=1.3), [0.0]),
    (stats.beta(2, 3), stats.beta(3, 3), [0.0, 1.0]),
    (stats.pareto(2), stats.pareto(3), [1.0]),
    (stats.logistic(), stats.logistic(1), []), (stats.chi2(3), stats.chi2(5), [0.0])])
def test_other_laws_by_the_roots_of_their_losses(p, q, breaks):
  bounds = continuous_pair(p, q, breaks, cells=4096)
  share = np.linspace(1e-6, 1 - 1e-6, 2000)
  grid = np.unique(np.concatenate([p.ppf(share), q.ppf(share)]))
  for epsilon in (0.0, 0.4):
    def loss(x, epsilon=epsilon):
      return p.logpdf(x) - q.logpdf(x) - epsilon
    turns = np.flatnonzero(np.diff(loss(grid) > 0))
    roots = [optimize.brentq(loss, grid[i], grid[i + 1]) for i in turns]
    ends = np.array([-np.inf, *roots, np.inf])
    gain = np.diff(p.cdf(ends)) - np.exp(epsilon) * np.diff(q.cdf(ends))
    exact = float(np.sum(np.maximum(gain, 0.0)))
    assert bounds.lower.hockey_stick(epsilon) <= exact + 1e-14
    assert bounds.upper.hockey_stick(epsilon) >= exact - 1e-14
    assert bounds.upper.hockey_stick(epsilon) <= exact + 1e-6


def broken(**changes):
  whole = dict(cdf=stats.norm.cdf, sf=stats.norm.sf, logpdf=stats.norm.logpdf)
  return FunctionLaw(**{**whole, **changes})


@pytest.mark.parametrize('args, kwargs, message', [
    ((stats.norm(0, 1), stats.norm(0, 2)), {}, 'turn near'),
    ((stats.cauchy(0), stats.cauchy(1)), {'breaks': [0.5]}, 'add its extremes'),
    ((stats.norm(), stats.norm(1)), {'breaks': [1.0, 0.0]}, 'increasing'),
    ((stats.norm(), stats.norm(1)), {'breaks': [np.nan]}, 'breaks'),
    ((stats.norm(), stats.norm(1)), {'breaks': [np.inf]}, 'finite'),
    ((stats.norm(), stats.norm(1)), {'breaks': ['a']}, 'breaks'),
    ((None, stats.norm(1)), {}, 'FunctionLaw'),
    ((stats.norm(), stats.poisson(3)), {}, 'Expected q .* without logpdf'),
    ((stats.norm(), stats.norm(1)), {'accuracy': 0.1}, 'accuracy'),
    ((stats.norm(), stats.norm(1)), {'cells': 2}, 'cells'),
    ((broken(cdf=lambda x: 0.9 * stats.norm.cdf(x)), stats.norm(1)), {}, 'cdf . sf'),
    ((broken(sf=lambda x: 2.5 + 0 * x), stats.norm(1)), {}, 'probabilities'),
    ((broken(cdf=lambda x: 0.5), stats.norm(1)), {}, 'one for each point'),
    ((broken(logpdf=lambda x: x * np.nan), stats.norm(1)), {}, 'logpdf'),
])
def test_bad_input(args, kwargs, message):
  with pytest.raises(ValueError, match=message):
    continuous_pair(*args, **kwargs)


def test_an_event_wants_a_pair():
  with pytest.raises(ValueError, match='PairBounds'):
    accounting.DominatingPairDpEvent((stats.norm(), stats.norm(1)))
