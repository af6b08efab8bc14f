"""cvxpy and Clarabel as an independent check of the interior-point method."""

from __future__ import annotations

import dataclasses

import pytest

from tfcactus import design
from tfcactus.design.solvers import conic

pytest.importorskip('cvxpy')


@pytest.mark.parametrize('request_', [
    design.Cactus(0.25, bins=10),
    design.Cactus(1.0, bins=6),
    design.Monotone(0.25, bins=10),
    design.Monotone(1.0, bins=8, objective='chi2'),
    design.Isotropic(3, 0.5, bins=8),
    design.Isotropic(2, 1.0, bins=6, objective='chi2'),
], ids=str)
def test_two_solvers_agree(request_):
  own = request_.solve()
  other = dataclasses.replace(request_, solver='cvxpy').solve()
  assert other.info['solver'] == 'cvxpy'
  assert other.info['objective'] == pytest.approx(
      own.info['objective'], rel=2e-5)
  # Each lower bound holds for the other's table.
  assert own.info['lower_bound'] <= other.info['objective'] * (1 + 1e-12)
  assert other.info['lower_bound'] <= own.info['objective'] * (1 + 1e-12)


def test_too_large_for_cvxpy(monkeypatch):
  monkeypatch.setattr(conic, 'MAX_EDGES', 100)
  with pytest.raises(design.SolverError, match='interior-point'):
    design.Cactus(0.25, bins=10, solver='cvxpy').solve()


def test_other_objectives_are_refused_by_cvxpy():
  with pytest.raises(ValueError, match='interior-point'):
    design.Monotone(0.25, bins=6, objective='renyi:3', solver='cvxpy').solve()
