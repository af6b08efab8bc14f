"""Dominating pairs of noise against quadrature, simulation and closed forms."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from tests.noise.tables import (
  gaussian_radial,
  gaussian_scalar,
  truncated_scalar,
  wavy_scalar,
)
from tests.representatives import representatives
from tfcactus import accounting, design, noise
from tfcactus.noise import library, scalar_table
from tfcactus.pairs import envelope
from tfcactus.pairs.dominating_pair import DominatingPair

EPSILONS = [0.0, 0.1, 0.5, 1.0, 2.0, 4.0]


def bracket(bounds, epsilon):
  return bounds.lower.hockey_stick(epsilon), bounds.upper.hockey_stick(epsilon)


@pytest.mark.parametrize('sigma', [0.3, 0.7, 1.0, 5.0])
@pytest.mark.parametrize('shift', [1, 2])
def test_gaussian_brackets_the_closed_form(sigma, shift):
  """Balle and Wang (2018), Theorem 8."""
  bounds = accounting.dominating_pair(noise.Gaussian(sigma), shift=shift)
  mu = shift / sigma
  for epsilon in EPSILONS:
    exact = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(
        epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
    lower, upper = bracket(bounds, epsilon)
    assert lower <= exact + 1e-15 and exact <= upper + 1e-15
    assert upper - lower <= 1e-6


@pytest.mark.parametrize('scale', [0.3, 1.0, 4.0])
@pytest.mark.parametrize('shift', [1, 2])
def test_laplace_brackets_the_closed_form(scale, shift):
  bounds = accounting.dominating_pair(noise.Laplace(scale), shift=shift)
  for epsilon in EPSILONS:
    exact = max(0.0, -math.expm1((epsilon - shift / scale) / 2))
    lower, upper = bracket(bounds, epsilon)
    assert lower <= exact + 1e-15 and exact <= upper + 1e-15
    assert upper - lower <= 1e-6


def scalar_quadrature(table, shift, epsilon):
  """Returns sup_A P(A) - e^eps Q(A), by summing the density over half cells."""
  width = 0.5 / table.bins
  z = (np.arange(-30_000, 30_000) + 0.5) * width
  p = np.exp(table.log_density_at(z))
  q = np.exp(table.log_density_at(z - shift))
  return np.sum(np.maximum(p - math.exp(epsilon) * q, 0)) * width


@pytest.mark.parametrize('table', [
    gaussian_scalar(), gaussian_scalar(sigma=0.4, bins=8, tail_ratio=0.3),
    truncated_scalar()], ids=repr)
@pytest.mark.parametrize('shift', [1, 2])
def test_monotone_scalar_tables_by_quadrature(table, shift):
  bounds = accounting.dominating_pair(table, shift=shift)
  assert bounds.lower is bounds.upper
  for epsilon in EPSILONS:
    assert bounds.upper.hockey_stick(epsilon) == pytest.approx(
        scalar_quadrature(table, shift, epsilon), abs=1e-12)


@pytest.mark.parametrize('shift', [0.05, 0.33, 0.5, 0.71, 0.95])
def test_full_shift_dominates_smaller_ones_if_monotone(shift):
  table = gaussian_scalar()
  pair = accounting.dominating_pair(table).upper
  for epsilon in EPSILONS:
    assert scalar_quadrature(table, round(40 * shift) / 40, epsilon) <= (
        pair.hockey_stick(epsilon) + 1e-12)


def test_envelope_is_the_largest_profile_over_shifts():
  table = wavy_scalar()
  bounds = accounting.dominating_pair(table)
  worst_shifts = set()
  for epsilon in EPSILONS:
    deltas = [scalar_quadrature(table, k / table.bins, epsilon)
              for k in range(1, table.bins + 1)]
    worst_shifts.add(int(np.argmax(deltas)) + 1)
    lower, upper = bracket(bounds, epsilon)
    assert lower <= max(deltas) + 1e-13
    assert max(deltas) <= upper + 1e-13
    assert upper - lower < 1e-6
  # No single shift is the worst one: that is why the envelope is needed.
  assert len(worst_shifts) > 1
  # Fractional shifts lie below their whole neighbours.
  for shift in (0.275, 0.525, 0.975):
    assert scalar_quadrature(table, shift, 0.5) <= bracket(bounds, 0.5)[1]


def test_envelope_of_both_signs_is_symmetric():
  upper = accounting.dominating_pair(wavy_scalar()).upper
  for epsilon in EPSILONS:
    assert upper.hockey_stick(epsilon) == pytest.approx(
        upper.reversed().hockey_stick(epsilon), abs=1e-14)


@pytest.mark.parametrize('prob', [250 / 60_000, 0.3])
@pytest.mark.parametrize('name', ['cactus-budget0.25'])
def test_lower_envelopes_of_two_directions_are_pairs(name, prob):
  """They meet at epsilon zero in a kink: no steeper tangent than symmetry has.

  With one, the masses sum to up to two and the composed bound from below lies
  above the truth.
  """
  base = accounting.dominating_pair(library.get(name), shift=2)
  both = envelope.envelope_of(list(base.poisson(prob)))
  for pair in (both.lower, both.upper):
    assert np.sum(pair.p) + pair.p_inf == pytest.approx(1, abs=1e-9)
    assert np.sum(pair.q) + pair.q_inf == pytest.approx(1, abs=1e-9)
  for epsilon in EPSILONS:
    low, high = bracket(both, epsilon)
    assert low <= high
    assert low == pytest.approx(high, rel=1e-2, abs=1e-9)


def radial_quadrature(table, shift, epsilon):
  """Returns the divergence in R^dim, by quadrature over radius and cosine."""
  dim = table.dim
  a = 0.5 * (dim - 3)
  edges = table.radii[:1200]

  def log_f(radius):
    index = np.ceil((radius - table.first_radius) / table.width)
    return table.shell_log_density[
        np.clip(index, 0, table.shell_log_density.size - 1).astype(int)]

  # For fixed radius the loss steps where the other radius crosses a shell: the
  # cosine's law is integrated exactly between the steps.
  nodes, weights = np.polynomial.legendre.leggauss(24)
  total = 0.0
  for i in range(edges.size - 1):
    low = edges[i - 1] if i else 0.0
    radii = low + (edges[i] - low) * 0.5 * (nodes + 1)
    fill = weights * 0.5 * (edges[i] - low) * dim * radii**(dim - 1)
    volume = edges[i]**dim - low**dim
    for radius, weight in zip(radii, fill / volume):
      crossings = (radius**2 + shift**2 - edges**2) / (2 * radius * shift)
      cosine = np.unique(np.clip(np.append(crossings, [-1, 1]), -1, 1))
      middle = 0.5 * (cosine[1:] + cosine[:-1])
      other = np.sqrt(radius**2 + shift**2 - 2 * radius * shift * middle)
      mass = np.diff(stats.beta.cdf(0.5 * (1 + cosine), a + 1, a + 1))
      gain = -np.expm1(np.minimum(
          epsilon - (log_f(np.array([radius])) - log_f(other)), 0))
      total += table.shell_mass[i] * weight * np.sum(mass * gain)
  return total


@pytest.mark.parametrize('name', ['isotropic-dim3-sigma0.5',
                                  'isotropic-chi2-dim3-sigma0.5'])
@pytest.mark.slow
def test_shipped_radial_tables_by_quadrature(name):
  table = library.get(name)
  bounds = accounting.dominating_pair(table)
  for epsilon in (0.0, 0.5, 2.0):
    exact = radial_quadrature(table, 1, epsilon)
    assert bracket(bounds, epsilon) == pytest.approx((exact, exact), abs=1e-6)


def test_cactus_of_a_conic_solver_by_quadrature():
  table = design.Cactus(0.25, bins=6, solver='cvxpy').solve()
  assert not table.monotone
  bounds = accounting.dominating_pair(table)
  for epsilon in (0.0, 0.5, 2.0, 4.0):
    exact = max(scalar_quadrature(table, k / 6, epsilon) for k in range(1, 7))
    assert bracket(bounds, epsilon) == pytest.approx((exact, exact), abs=1e-6)


@representatives('dim, sigma, shift', [
    (3, 0.5, 1), (3, 0.5, 2), (7, 0.5, 1), *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in ((2, 0.8, 1), (2, 0.8, 2), (7, 0.5, 2)))])
def test_radial_tables_by_quadrature(dim, sigma, shift):
  table = gaussian_radial(dim=dim, sigma=sigma, bins=20, shells=120)
  bounds = accounting.dominating_pair(table, shift=shift)
  for epsilon in (0.0, 0.5, 2.0):
    exact = radial_quadrature(table, shift, epsilon)
    lower, upper = bracket(bounds, epsilon)
    assert lower - 1e-6 <= exact <= upper + 1e-6
    assert upper - lower < 1e-6


@pytest.mark.parametrize('table', [
    gaussian_radial(dim=3, sigma=0.5), gaussian_scalar(sigma=0.5),
    wavy_scalar()], ids=repr)
def test_likelihood_ratios_of_the_sampler(table):
  """Draws of the very sampler: E_P[(1 - e^(eps - L))+] is the delta."""
  rng = np.random.default_rng(8)
  z = table.sample(rng, 200_000)
  moved = z.copy()
  if table.dim > 1:
    moved[:, 0] -= 1
  else:
    moved -= 1
  loss = table.log_density_at(z) - table.log_density_at(moved)
  pair = (accounting.dominating_pair(table).upper if table.monotone else
          scalar_table.shifted_pair(table, table.bins))
  for epsilon in (0.0, 0.5, 1.5):
    gain = np.maximum(-np.expm1(np.minimum(epsilon - loss, 0)), 0)
    error = np.std(gain) / math.sqrt(gain.size)
    assert abs(np.mean(gain) - pair.hockey_stick(epsilon)) < 4 * error
    # A sampler off by 10 % in scale is told.
    wrong = table.log_density_at(1.1 * z) - table.log_density_at(
        1.1 * z - (z - moved))
    gain = np.maximum(-np.expm1(np.minimum(epsilon - wrong, 0)), 0)
    assert abs(np.mean(gain) - pair.hockey_stick(epsilon)) > 4 * error


def test_high_dimension_is_near_the_gaussian():
  """A radial Gaussian on fine shells costs what the Gaussian costs."""
  dim, width = 1000, 0.005
  first = math.sqrt(dim) - 5
  rho = first + width * np.arange(2200)
  table = noise.RadialTable.normalized(
      dim, first, width, -(rho - width / 2)**2 / 2, -rho[-1] * width)
  bounds = accounting.dominating_pair(table)
  gauss = accounting.dominating_pair(noise.Gaussian(table.noise_multiplier))
  for epsilon in (0.0, 1.0, 3.0):
    assert bounds.upper.hockey_stick(epsilon) == pytest.approx(
        gauss.upper.hockey_stick(epsilon), rel=0.03)
    lower, upper = bracket(bounds, epsilon)
    assert 0 <= upper - lower < 1e-6


@pytest.mark.parametrize('shift', [1, 10, 20])
def test_shifts_far_into_a_radial_tail_have_finite_losses(shift):
  radial = gaussian_radial(dim=1, bins=10, shells=60)
  line = noise.ScalarTable.normalized(
      10, radial.log_density, radial.log_tail_ratio, edge_at_zero=True)
  bounds, exact = radial.dominating_pair(shift), line.dominating_pair(shift).upper
  for epsilon in (1.0, 20.0, 100.0, 300.0, 900.0):
    lower, upper = bracket(bounds, epsilon)
    assert lower <= exact.hockey_stick(epsilon) * (1 + 1e-9) <= upper * (1 + 1e-6)
  assert bounds.lower.hockey_stick(1.0) == pytest.approx(exact.hockey_stick(1.0))


def test_truncated_noise_has_mass_at_infinity():
  table = truncated_scalar(bins=10, cells=30)
  pair = accounting.dominating_pair(table).upper
  beyond = 1 - table.cdf(3.05 - 1)
  assert pair.p_inf == pytest.approx(float(beyond), rel=1e-9)
  assert pair.q_inf == pytest.approx(pair.p_inf)


def test_radial_noise_that_is_not_monotone_is_refused():
  bad = noise.RadialTable.normalized(3, 0.1, 0.1, [0.0, 0.1, -3.0], -1.0)
  with pytest.raises(ValueError, match='never increases'):
    accounting.dominating_pair(bad)


@pytest.mark.parametrize('bad', [None, 1.0, 'gaussian'])
def test_unknown_noise_is_refused(bad):
  with pytest.raises(ValueError, match='Expected noise'):
    accounting.dominating_pair(bad)


def test_quadrature_oracle_knows_the_gaussian():
  value, _ = integrate.quad(lambda z: max(
      stats.norm.pdf(z) - math.e**0.5 * stats.norm.pdf(z - 1), 0), -12, 12,
                            limit=400)
  table = gaussian_scalar(bins=200, cells=1600)
  assert scalar_quadrature(table, 1, 0.5) == pytest.approx(value, abs=1e-5)


class TestBoundedNoise:

  def _table(self, wave):
    cells = np.arange(40)
    half = np.exp(-cells / 15) * (1 + wave * np.cos(2 * np.pi * cells / 10))
    half /= 2 * np.sum(half)
    return noise.ScalarTable.from_cell_masses(
        10, np.concatenate([half[::-1], half]))

  @pytest.mark.parametrize('shift', [1, 3, 10])
  def test_shifted_pair_against_plain_masses(self, shift):
    table = self._table(0.3)
    mass = np.exp(np.append(table.log_density[::-1], table.log_density)) / 10
    nothing = np.zeros(shift)
    plain = DominatingPair.from_masses(np.append(mass, nothing),
                                       np.append(nothing, mass))
    pair = scalar_table.shifted_pair(table, shift)
    for epsilon in (0.0, 0.3, 1.0, 5.0):
      assert pair.hockey_stick(epsilon) == pytest.approx(
          plain.hockey_stick(epsilon), rel=1e-12)
    assert pair.p_inf == pytest.approx(np.sum(mass[:shift]), rel=1e-12)

  def test_envelope_keeps_infinite_losses_on_both_sides(self):
    table = self._table(0.3)
    assert not table.monotone
    bounds = accounting.dominating_pair(table)
    for epsilon in (0.0, 0.3, 0.6, 1.0, 4.0):
      truth = max(scalar_table.shifted_pair(table, k).hockey_stick(epsilon)
                  for k in range(1, 11))
      assert bounds.lower.hockey_stick(epsilon) <= truth * (1 + 1e-12)
      assert bounds.upper.hockey_stick(epsilon) >= truth * (1 - 1e-12)
      assert bounds.upper.hockey_stick(epsilon) - bounds.lower.hockey_stick(
          epsilon) < 1e-5 * truth

  def test_monotone_noise_needs_the_full_shift_only(self):
    table = self._table(0.0)
    full = accounting.dominating_pair(table).upper
    for epsilon in (0.0, 0.5, 2.0):
      for k in range(1, 11):
        assert scalar_table.shifted_pair(table, k).hockey_stick(
            epsilon) <= full.hockey_stick(epsilon) + 1e-15
