"""The allocated Gaussian's loss against closed forms, quadrature and simulation."""

import math

import numpy as np
import pytest
from scipy import special

from tests.accounting import allocation_oracles
from tests.representatives import representatives
from tfcactus.accounting.composition.contour import Contour
from tfcactus.accounting.composition.losses import lognormal_lattice
from tfcactus.accounting.composition.losses.allocated import AllocatedGaussian
from tfcactus.accounting.composition.losses.mean_lognormal import MeanLognormal

WAYS = ('remove', 'add')


def loss_of(sigma, bins, direction):
  return AllocatedGaussian(1 / sigma, bins, direction)


@pytest.mark.parametrize('mu', [0.1, 1.0, 3.0])
@pytest.mark.parametrize('direction', WAYS)
@pytest.mark.parametrize('order', [0.3, 4.7])
def test_one_batch_is_the_gaussian(mu, direction, order):
  # log L of one lognormal is normal: its phi is known along the whole line.
  loss = AllocatedGaussian(mu, 1, direction)
  q = order + 1 if direction == 'remove' else -order
  exact = 0.5 * mu**2 * q * (q - 1)
  assert exact <= loss.log_moment(order) <= exact + 1e-9 * (1 + exact)
  np.testing.assert_allclose(loss.cumulants(np.array([order]))[:, 0], [
      exact, 0.5 * mu**2 * (2 * order + 1), mu**2], rtol=1e-4)
  top = 8 / mu
  tilted = loss.tilted(order, top, 1e-16)
  t = np.linspace(0, top, 41)
  turned = q + 1j * t if direction == 'remove' else q - 1j * t
  phi = np.exp(0.5 * mu**2 * turned * (turned - 1) - exact)
  error = tilted.error(t) + tilted.error(t[:1])
  off = np.abs(np.exp(tilted.log_phi(t[1], t.size)) - phi)
  assert np.all(off <= error + 1e-15)
  assert error[0] < 1e-9 and np.all(error < 1e-6)
  assert np.all(loss.log_decay(order, t) >= np.log(np.abs(phi)) - 1e-12)


@pytest.mark.parametrize('mu', [0.2, 1.0, 2.0])
@pytest.mark.parametrize('bins', [2, 7, 300])
def test_whole_moments_are_sums(mu, bins):
  law = MeanLognormal(mu, bins)
  second = 1 + math.expm1(mu**2) / bins
  third = (math.exp(3 * mu**2) + 3 * (bins - 1) * math.exp(mu**2) + (
      bins - 1) * (bins - 2)) / bins**2
  for q, exact in ((1, 1.0), (2, second), (3, third)):
    upper = law.line(float(q), 0.0, 0.0).log_moment()
    assert -1e-13 <= upper - math.log(exact) <= 1e-9
    assert float(law.log_bound(q)) == pytest.approx(math.log(exact), abs=1e-12)
  # Above the line of whole orders by convexity, and not far.
  assert 0 <= law.log_bound(2.5) - law.line(2.5, 0.0, 0.0).log_moment() + 1e-9
  # The geometric mean is smaller.
  assert 0 <= law.log_bound(-3.0) - law.line(-3.0, 0.0, 0.0).log_moment() <= 2 * mu**2


@pytest.mark.parametrize('bins', [2, 3])
@pytest.mark.parametrize('direction', WAYS)
@pytest.mark.parametrize('sigma', [0.6, 1.0, 3.0])
def test_few_batches_against_quadrature(bins, direction, sigma):
  loss = loss_of(sigma, bins, direction)
  for epsilon in (0.05, 0.4, 2.0):
    exact = allocation_oracles.delta(1 / sigma, bins, direction, epsilon)
    if exact < 1e-10:
      continue
    lower, _, upper = Contour([(loss, 1)]).delta(epsilon)
    assert lower <= exact * (1 + 1e-12) and exact * (1 - 1e-12) <= upper
    assert upper - lower <= 1e-8 * exact


@pytest.mark.parametrize(
    'sigma, bins, epochs, remove, add',
    allocation_oracles.SPECTRAL + allocation_oracles.QUADRATURE)
def test_epsilon_against_other_methods(sigma, bins, epochs, remove, add):
  digits = 1e-13 if epochs == 1 and bins == 2 else 1.2e-10
  for direction, known in zip(WAYS, (remove, add)):
    lower, middle, upper = Contour([(loss_of(sigma, bins, direction), epochs)]).epsilon(
        1e-5)
    assert lower <= known + digits and known - digits <= upper
    assert middle == pytest.approx(known, abs=1e-10)
    assert upper - lower <= 1e-7


@representatives('sigma, bins', [(0.6, 15), (1.0, 59), (0.9, 240)])
def test_simulation_is_a_third_witness(sigma, bins):
  rng = np.random.default_rng(7)
  mu, runs = 1 / sigma, 200_000
  # Under P the first normal has the record.
  ratio = np.zeros(runs)
  for index in range(bins):
    ratio += np.exp(mu * (rng.standard_normal(runs) + (mu if index == 0 else 0.0)) -
                    0.5 * mu**2) / bins
  for epsilon in (0.05, 0.2):
    gain = np.maximum(1 - np.exp(epsilon) / ratio, 0.0)
    mean, error = gain.mean(), gain.std() / math.sqrt(runs)
    at = [Contour([(loss_of(scale * sigma, bins, 'remove'), 1)]).delta(epsilon).estimate
          for scale in (1.0, 0.8, 1.25)]
    assert abs(at[0] - mean) < 4.5 * error
    assert min(abs(at[1] - mean), abs(at[2] - mean)) > 4.5 * error > 0


@pytest.mark.parametrize('direction', WAYS)
@representatives('mu, bins', [(0.115, 764), (0.328, 12837), (0.1, 875)])
def test_many_batches_of_little_privacy_loss(mu, bins, direction):
  # Lines far from the real one lost all digits there, and errors were cut off.
  loss = AllocatedGaussian(mu, bins, direction)
  t = np.linspace(0, 800, 81)
  tilted = loss.tilted(30.0 if direction == 'remove' else 600.0, 800.0, 1e-16)
  phi = tilted.log_phi(t[1], t.size)
  assert np.all(phi.real <= loss.log_decay(1.0, t) + 1e-12)
  assert np.all(tilted.error(t) <= 2 * np.exp(loss.log_decay(1.0, t)) + 1e-15)


def test_powers_are_products():
  rng = np.random.default_rng(1)
  for degree, exponent in ((5, 1), (5, 3), (3, 7), (4, 4), (1, 1000)):
    base = rng.uniform(0, 1, (degree + 1, 3))
    found = lognormal_lattice.power(base, exponent)
    for column in range(3):
      exact = np.ones(1)
      for _ in range(exponent):
        exact = np.convolve(exact, base[:, column])[:degree + 1]
      np.testing.assert_allclose(found[:, column], exact, rtol=1e-10)


@pytest.mark.parametrize('angle, stride_wanted', [(0.0, False), (-1.2, True)])
def test_coefficients_against_quadrature(angle, stride_wanted):
  mu, bins, n = 0.7, 5, 6
  spacing = 0.9 if stride_wanted else 0.02
  lattice = lognormal_lattice.Lattice.of(mu, bins, n, -3.0, 4.0, spacing, angle, 37.0)
  assert (lattice.stride > 1) == stride_wanted and (lattice.comb > 1) != stride_wanted
  a, errors = lattice._coefficients()
  y = np.linspace(-12, 22, 40_001)
  density = np.exp(-0.5 * y * y) / math.sqrt(2 * math.pi) * (y[1] - y[0])
  k = np.arange(n + 1)
  for column in range(0, lattice.u.size, 7):
    t = np.exp(lattice.u[column] + 1j * angle)
    tx = t * np.exp(mu * y - 0.5 * mu * mu) / bins
    exact = np.array([np.sum(density * tx**each * np.exp(-tx)) for each in k])
    exact = exact / special.factorial(k) / t**k * np.exp(k * lattice._log_unit)
    assert np.all(np.abs(a[:, column] - exact) <= errors[:, column] + 1e-14 * np.abs(
        exact).max())
    assert np.all(errors[:, column] <= 1e-9 * np.abs(a[:, column]))
