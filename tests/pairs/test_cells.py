"""Masses of cells of a normal law, whatever their width."""

import mpmath
import numpy as np
import pytest

from tfcactus.pairs import cells


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


@pytest.mark.parametrize('mu, more', [(1.0, False), (12.0, False), (34.0, True)])
def test_ratios_of_masses_are_as_right_as_stated(mu, more):
  edges = np.linspace(-3.0, 3.0, 200)
  allowed = cells.ratio_roundoff(mu * edges + 0.5 * mu * mu)
  off = []
  with mpmath.workdps(40):
    at, beside = ([mpmath.erfc((float(x) + mpmath.mpf(shift)) / mpmath.sqrt(2))
                   for x in edges] for shift in (0.0, mu))
    for i, width in enumerate(np.diff(edges)):
      found = mpmath.mpf(float(cells.normal_cells(edges[i:i + 1], width)[0])) / float(
          cells.normal_cells(edges[i:i + 1] + mu, width)[0])
      exact = (at[i] - at[i + 1]) / (beside[i] - beside[i + 1])
      off.append(abs(float(found / exact) - 1))
  assert np.all(off <= allowed)
  assert more == (max(off) > cells.RATIO_ROUNDOFF)
