"""Masses of cells of a normal law, whatever their width."""

import importlib
import math

import mpmath
import numpy as np
import pytest

from tfcactus import noise as noise_lib
from tfcactus.noise import gaussian, sinh_normal
from tfcactus.pairs import cells, dominating_pair


@pytest.mark.parametrize('width', [1e-9, 1e-3, 0.02, 0.1, 0.3, 1.0, 7.0, 60.0, 1e6])
def test_normal_cells_against_mpmath(width):
  first = np.array([-30.0, -12.0, -3.3, -0.5 * width, -0.1, 0.0, 0.4, 2.0, 9.0, 30.0])
  with mpmath.workdps(60):
    for x, mass in zip(first, cells.normal_cells(first, width)):
      low, high = mpmath.mpf(float(x)), mpmath.mpf(float(x + width))
      if low > 0:
        low, high = -high, -low
      # ncdf near one loses the digits of its tail.
      exact = (mpmath.erfc(-high / mpmath.sqrt(2)) -
               mpmath.erfc(-low / mpmath.sqrt(2))) / 2
      # The ends are rounded: a cell of width w is one of w (1 + EPS x / w).
      room = 2e-14 + 4e-16 * (abs(float(x)) + width) / width
      assert abs(float(mass) / exact - 1) <= room * (1 + width * abs(float(x)))


@pytest.mark.parametrize('count', [3, 40, 500, 1 << 14])
def test_they_add_up(count):
  edges = np.linspace(-40, 40, count + 1)
  assert np.sum(cells.normal_cells(edges[:-1], np.diff(edges))) == pytest.approx(
      1, abs=1e-14)


@pytest.mark.parametrize('mu', [1.0, 12.0, 34.0])
def test_ratios_of_masses_are_as_right_as_stated(mu):
  edges = np.linspace(-3.0, 3.0, 200)
  off = []
  with mpmath.workdps(40):
    at, beside = ([mpmath.erfc((float(x) + mpmath.mpf(shift)) / mpmath.sqrt(2))
                   for x in edges] for shift in (0.0, mu))
    for i, width in enumerate(np.diff(edges)):
      found = mpmath.mpf(float(cells.normal_cells(edges[i:i + 1], width)[0])) / float(
          cells.normal_cells(edges[i:i + 1], width, mu)[0])
      exact = (at[i] - at[i + 1]) / (beside[i] - beside[i + 1])
      off.append(abs(float(found / exact) - 1))
  assert max(off) <= 2 * cells.NORMAL_ROUNDOFF < cells.RATIO_ROUNDOFF


def tail(x):
  """Returns P(N > x) of a standard normal N, for the digits of a large x."""
  return mpmath.erfc(x / mpmath.sqrt(2)) / 2


def mass_between(low, high):
  """Returns the standard normal mass between two ends."""
  return tail(low) - tail(high) if low > 0 else tail(-high) - tail(-low)


def worst_mass(calls, step):
  """Returns the largest relative error of every `step`-th mass of `normal_cells`."""
  worst = 0.0
  with mpmath.workdps(60):
    for (first, width, *shift), found in calls:
      width = np.broadcast_to(width, first.shape)
      move = mpmath.mpf(float(shift[0])) if shift else mpmath.mpf(0)
      for i in range(0, first.size, step):
        low = mpmath.mpf(float(first[i])) + move
        exact = mass_between(low, low + mpmath.mpf(float(width[i])))
        if exact < 2 * cells.LEAST_CELL:
          assert 0 <= found[i] <= 2.1 * cells.LEAST_CELL
        else:
          worst = max(worst, abs(float(mpmath.mpf(float(found[i])) / exact - 1)))
  return worst


@pytest.fixture
def calls(monkeypatch):
  """List of (arguments, result) of all calls of `normal_cells`."""
  seen, real = [], cells.normal_cells

  def spied(*args):
    seen.append((args, real(*args)))
    return seen[-1][1]

  monkeypatch.setattr(cells, 'normal_cells', spied)
  return seen


MULTIPLIERS = [1 / 500, 1 / 51, 1 / 50, 1 / 38, 1 / 27.3, 1 / 19, 0.1, 0.37, 1.0, 30.0,
               1000.0]


@pytest.mark.parametrize('step', [
    199, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.more])])
@pytest.mark.parametrize('noise_multiplier', MULTIPLIERS)
class TestGaussianMasses:
  """All masses behind a Gaussian's pairs, to 60 digits and far beyond any delta."""

  def test_shifted(self, calls, noise_multiplier, step):
    gaussian.shifted_pair(1 / noise_multiplier, cells.CELLS)
    assert len(calls) == (2 if noise_multiplier >= 1 / gaussian.LARGEST_MU else 0)
    for (first, width, *_), _ in calls:
      # The cells meet, to the last digit.
      assert np.all(np.diff(first) == width)
    assert worst_mass(calls, step) <= cells.NORMAL_ROUNDOFF < (
        dominating_pair.MASS_ROUNDOFF)

  def test_mixed(self, calls, noise_multiplier, step):
    noise = gaussian.Gaussian(noise_multiplier)
    noise.replaced_pair(0.01)
    noise.zeroed_pair(0.01)
    assert worst_mass(calls, 5 * step) <= cells.NORMAL_ROUNDOFF


def mass_of(noise, low, high):
  """Returns the mass of a law between two ends, in units of the scale of a Laplace."""
  if isinstance(noise, noise_lib.Laplace):
    near, far = (low, high) if low >= 0 else (-high, -low)
    return (mpmath.exp(-near) - mpmath.exp(-far)) / 2
  bend, sigma = mpmath.mpf(noise.bend), mpmath.mpf(noise.sigma)
  return mass_between(*(bend / sigma * mpmath.sinh(z / bend) for z in (low, high)))


@pytest.mark.parametrize('noise', [
    noise_lib.Laplace(1 / 680), noise_lib.Laplace(0.01), noise_lib.Laplace(3.0),
    noise_lib.SinhNormal(1.0, 1.0), noise_lib.SinhNormal(0.3, 0.5),
    noise_lib.SinhNormal(0.05, 5.0), noise_lib.SinhNormal(0.03, 1.0),
    noise_lib.SinhNormal(1 / 73, 1.0), noise_lib.SinhNormal(100.0, 100.0)])
def test_other_laws_make_room_for_rounding(monkeypatch, noise):
  seen = {}
  module = importlib.import_module(type(noise).__module__)
  owner, real = (module, cells.from_cells) if hasattr(module, 'from_cells') else (
      cells, cells.from_cells)

  def spied(edges, p, q, *args, off=0.0, **kwargs):
    seen.update(edges=edges, p=p, q=q, off=np.broadcast_to(off, p.shape))
    return real(edges, p, q, *args, off=off, **kwargs)

  monkeypatch.setattr(owner, 'from_cells', spied)
  with mpmath.workdps(60):
    check_masses(noise, seen)


def check_masses(noise, seen):
  """Checks the masses that a law gives to `from_cells` against 60 digits."""
  noise.dominating_pair()
  count = seen['p'].size
  if isinstance(noise, noise_lib.Laplace):
    shift = mpmath.mpf(1 / noise.scale)
    places = [shift * i / count - shift / 2 for i in range(count + 1)]
  else:
    shift = mpmath.mpf(1)
    top = min(noise.bend * math.asinh(12 * noise.sigma / noise.bend) + 0.5,
              sinh_normal._threshold(noise, sinh_normal._LARGEST_LOSS, 1))
    places = [mpmath.mpf(y) for y in np.linspace(-top, top, count + 1).tolist()]
  checked = 0
  for i in {*range(30), *range(0, count, 97)}:
    for which, way in (('p', -1), ('q', 1)):
      exact = mass_of(noise, *(y + way * shift / 2 for y in places[i:i + 2]))
      found = float(seen[which][i])
      if exact > 2 * cells.LEAST_CELL:
        checked += 1
        allowed = dominating_pair.MASS_ROUNDOFF + seen['off'][i]
        assert abs(float(mpmath.mpf(found) / exact - 1)) <= allowed
      else:
        assert found <= 2.1 * cells.LEAST_CELL
  assert checked > 20


@pytest.mark.parametrize('signs', [(1, -1), (-1, 1), (1, 1), (-1, -1)])
def test_lower_pairs_are_dominated_whichever_way_masses_are_off(signs):
  edges, off = np.linspace(-2.0, 2.0, 9), 1e-6
  q = np.exp(-0.5 * edges[:-1]) * np.array([3, 1, 2, 2, 1, 1, 2, 3])
  p = q * np.exp(0.5 * (edges[1:] + edges[:-1]))
  p, q = p / p.sum(), q / q.sum()
  found = cells.from_cells(
      edges, p * (1 + signs[0] * off), q * (1 + signs[1] * off), 0.0, off=off).lower
  alpha = np.exp(np.linspace(0.0, 2.0, 60))
  for one, other, low_one, low_other in (
      (p, q, found.p, found.q), (q, p, found.q, found.p)):
    exact = np.maximum(one - alpha[:, None] * other, 0.0).sum(axis=1)
    low = np.maximum(low_one - alpha[:, None] * low_other, 0.0).sum(axis=1)
    assert np.all(low <= exact + 1e-15)
    assert np.all(low >= exact - 10 * off)
