"""Inversion of a profile: what it cannot solve is refused, and tables serve nearby."""

import dp_accounting
import numpy as np
import pytest

from tfcactus import accounting
from tfcactus.accounting.bounds import IntractableError
from tfcactus.accounting.composition import contour, inversion
from tfcactus.accounting.composition.losses import base


def test_a_profile_of_which_every_measure_is_left_out_is_not_solved():
  # At some guess every measure was below the cut-off, and no node was left.
  profile = inversion.Profile([], lambda epsilon: 1e-120)
  with pytest.raises(IntractableError):
    inversion.solved(lambda guess: profile, 1e-100, 1.0)


def test_the_error_of_phi_counts_in_full_where_phi_vanishes():
  class Loss(base.TiltedLoss):
    log_mgf = 0.0

    def log_phi(self, spacing, count):
      return np.array([0.0, -1.0, -690.8, -1e4], np.complex128)

    def error(self, t):
      return np.full(t.shape, 1e-3)

  for steps in (1, 3):
    log_phi, slack = inversion.log_phi_of([(Loss(), steps)], 1.0, 4)
    most = np.exp(log_phi.real + slack)  # |phi| + error, each to the power of steps.
    true = (np.exp([0.0, -1.0, -690.8, -1e4]) + 2e-3)**steps
    np.testing.assert_allclose(most, true, rtol=1e-12)


def test_the_table_of_one_epsilon_serves_those_close_to_it(monkeypatch):
  made, table = [], contour.Contour.table
  monkeypatch.setattr(contour.Contour, 'table', lambda self, *args: (
      made.append(1) or table(self, *args)))

  def composition():
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(
        250 / 60000, dp_accounting.GaussianDpEvent(1.3)), 3600)
    return accounting.PhiAccountant().compose(event).compositions()['remove']

  epsilon = np.linspace(0.0, 3.0, 201)
  for order in (epsilon, epsilon[::-1]):
    kept = composition()
    made.clear()
    found = [kept.delta(float(one)) for one in order]
    assert len(made) < 150  # Not one for each.
    for one, bounds in list(zip(order, found))[::40]:
      fresh = composition().delta(float(one))
      # Both hold the truth, and neither is wide.
      assert bounds.lower <= fresh.upper and fresh.lower <= bounds.upper
      assert bounds.upper - bounds.lower <= max(
          1e-9 * bounds.upper, 1.01 * (fresh.upper - fresh.lower))
