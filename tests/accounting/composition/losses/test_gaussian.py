"""The subsampled Gaussian's loss against 30-digit quadrature."""

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from tests.accounting.oracles import precise_gaussian_delta
from tests.representatives import representatives
from tfcactus.accounting.composition.losses.gaussian import (
  ClosedForm,
  gaussian_delta,
  GaussianLoss,
)

CASES = [(1.0, 0.01, 'remove'), (1.0, 0.01, 'add'), (0.25, 0.1, 'add'),
         (2.0, 0.5, 'remove'), (1.0, 0.5, 'add')]


def moment(mu, prob, direction, order):
  """Returns E_P[exp(order * loss)] by mpmath, for complex orders."""
  def term(y):
    u = 1 - prob + prob * mpmath.exp(mu * y - mpmath.mpf(mu)**2 / 2)
    return mpmath.npdf(y) * u**((1 + order) if direction == 'remove' else -order)
  top = mu * (1 + abs(mpmath.re(order)))
  return mpmath.quad(term, mpmath.linspace(-14, top + 14, 41))


@representatives('mu, prob, direction', CASES, 2)
@representatives('order', [6.0, 0.3])
def test_moments_and_phi(mu, prob, direction, order):
  loss = GaussianLoss(mu, prob, direction)
  with mpmath.workdps(30):
    exact = moment(mu, prob, direction, order)
    cumulants = loss.cumulants(np.array([order]))[:, 0]
    assert cumulants[0] == pytest.approx(float(mpmath.log(exact)), rel=1e-12)
    tilted = loss.tilted(order, 20.0, 1e-16)
    t = 17.3
    phi = complex(moment(mu, prob, direction, mpmath.mpc(order, t)) / exact)
    got = complex(np.exp(tilted.log_phi(t, 2)[1]))
    assert abs(got - phi) <= 1e-13 + float(tilted.error(np.array([t]))[0])
    # The bound on |phi| at t and beyond holds at t.
    assert loss.log_decay(order, np.array([t]))[0] >= np.log(abs(phi)) - 1e-9


@pytest.mark.parametrize('mu, prob, direction', CASES)
def test_decay_bound_holds_along_the_line(mu, prob, direction):
  loss = GaussianLoss(mu, prob, direction)
  t = np.geomspace(0.1, 300, 40)
  bound = loss.log_decay(2.0, t)
  assert np.all(np.diff(bound) <= 1e-9)
  tilted = loss.tilted(2.0, 400.0, 1e-15)
  seen = tilted.log_phi(0.25, 1600).real
  for start, value in zip(t, bound):
    assert np.max(seen[int(np.ceil(start / 0.25)):], initial=-np.inf) <= (
        value + 1e-9)


@pytest.mark.parametrize('mu, prob, order', [
    (10.0, 0.3, 3.0), (22.0, 1e-3, 0.3), (45.0, 0.3, 0.02), (45.0, 1e-3, 1.0)])
def test_decay_bound_holds_for_little_noise(mu, prob, order):
  # Likelihood ratios are above e^300 where the tilted density has its mass.
  t = np.array([1e-3, 1e-2, 0.1])
  y = np.linspace(-15.0, mu * (1 + order) + 15, 40_001)
  log_u = np.logaddexp(np.log1p(-prob), np.log(prob) + mu * y - 0.5 * mu**2)
  weight = special.softmax((1 + order) * log_u - 0.5 * y**2)
  phi = np.exp(1j * t[:, None] * log_u) @ weight
  bound = GaussianLoss(mu, prob, 'remove').log_decay(order, t)
  assert np.all(np.log(np.abs(phi)) <= bound + 1e-9)


@pytest.mark.parametrize('mu, prob, direction', CASES)
def test_cumulants_are_derivatives(mu, prob, direction):
  loss = GaussianLoss(mu, prob, direction)
  value, slope, curvature = loss.cumulants(np.array([1.999, 2.0, 2.001]))
  assert (value[2] - value[0]) / 0.002 == pytest.approx(slope[1], rel=1e-6)
  assert (slope[2] - slope[0]) / 0.002 == pytest.approx(curvature[1], rel=1e-5)


@representatives('mu, prob, direction', CASES, 2)
@pytest.mark.parametrize('epsilon', [-0.2, 0.0, 1e-3, 0.3, 2.0])
def test_delta_of_one_release(mu, prob, direction, epsilon):
  def density(y, shift):
    return mpmath.npdf(y - shift)
  def gain(y):
    plain = density(y, 0)
    mixed = (1 - prob) * plain + prob * density(y, mu)
    p, q = (mixed, plain) if direction == 'remove' else (plain, mixed)
    return max(p - mpmath.exp(epsilon) * q, 0)
  # The gain is zero on one side of the point where the loss is epsilon.
  ratio = (np.exp(epsilon if direction == 'remove' else -epsilon) - 1 + prob) / prob
  cut = (np.log(ratio) / mu + mu / 2) if ratio > 0 else -14.0
  points = [-14] + [c for c in (float(cut),) if -14 < c < 16 + mu] + [16 + mu]
  with mpmath.workdps(25):
    exact = mpmath.quad(gain, sorted(set(points + list(range(-12, 14, 2)))))
  value, error = GaussianLoss(mu, prob, direction).delta(epsilon)
  assert abs(value - float(exact)) <= error + 1e-16 + 1e-13 * float(exact)


def test_plain_gaussian_delta_keeps_relative_accuracy():
  with mpmath.workdps(60):
    for mu, epsilon in ((1.0, 5.0), (0.01, 0.05), (3.0, 40.0)):
      exact = mpmath.ncdf(mpmath.mpf(mu) / 2 - mpmath.mpf(epsilon) / mu) - (
          mpmath.exp(epsilon) * mpmath.ncdf(
              -mpmath.mpf(mu) / 2 - mpmath.mpf(epsilon) / mu))
      value, error = gaussian_delta(mu, epsilon)
      assert abs(value - float(exact)) <= error
      assert error < 1e-9 * value


def test_oracle_knows_the_normal_law():
  assert float(moment(1.0, 1.0, 'remove', 2)) == pytest.approx(np.exp(3.0))
  assert stats.norm.cdf(0.5) - stats.norm.cdf(-0.5) == pytest.approx(
      gaussian_delta(1.0, 0.0)[0])


@pytest.mark.parametrize('log_mu', range(-7, 16, 2))
def test_delta_at_any_scale(log_mu):
  """The error bound covers the cancellation of large numbers at very little noise."""
  mu = 10.0**log_mu
  with mpmath.workdps(60):
    for x in (-8.0, -4.0, -0.5, 0.0, 0.7, 5.0):
      for epsilon in (mu * (0.5 * mu - x), 0.1 * mu, -0.3 * mu * mu):
        if abs(epsilon) < 1e6:
          exact = precise_gaussian_delta(mu, epsilon)
        elif epsilon > 0:  # Where exp(epsilon) times the tail is next to the density.
          y = mpmath.mpf(mu) / 2 + mpmath.mpf(epsilon) / mu
          z = mpmath.mpf(mu) / 2 - mpmath.mpf(epsilon) / mu
          exact = mpmath.ncdf(z) - mpmath.exp(-z * z / 2) / (
              mpmath.sqrt(2 * mpmath.pi) * y) * (1 - y**-2 + 3 * y**-4 - 15 * y**-6)
        else:
          exact = mpmath.mpf(1)
        value, error = gaussian_delta(mu, np.float64(epsilon))
        assert abs(float(value) - exact) <= error + 1e-18, (x, epsilon)


@pytest.mark.parametrize('mu', [1e2, 1e6, 1e9, 1e12])
def test_epsilon_of_noise_next_to_none(mu):
  found = ClosedForm(GaussianLoss(mu, 1.0, 'remove')).epsilon(1e-5)
  # delta's second term is a share of 1 / mu or so of the first, and lowers epsilon.
  exact = 0.5 * mu * mu - stats.norm.ppf(1e-5) * mu
  assert found.lower <= exact * (1 + 1e-15)
  assert found.upper >= exact - 1.5 * max(1.0, 1e-15 * mu * mu)
  assert found.upper <= exact * (1 + 1e-13)


def test_likelihood_ratios_at_tiny_sampling_probabilities():
  """Beyond z = 300 they were taken to be linear: 12.5 in place of 5e-65."""
  law = GaussianLoss(25.0, 1e-200, 'remove')
  z = 25.0 * np.array([25.0, 40.0]) - 0.5 * 25.0**2
  np.testing.assert_allclose(law.log_u(np.array([25.0, 40.0])), [
      np.exp(z[0] + np.log(1e-200)), z[1] + np.log(1e-200)], rtol=1e-12)
