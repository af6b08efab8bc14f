"""Gradients of epsilon with respect to densities, against differences of epsilon."""

from __future__ import annotations

import dataclasses

import dp_accounting
import numpy as np
import pytest

from tfcactus import accounting, design
from tfcactus.noise import scalar_table
from tfcactus.search import epsilon_descent

RELATION = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE


def epsilon(table, rate, steps, delta):
  accountant = accounting.PhiAccountant(RELATION)
  accountant.compose(dp_accounting.PoissonSampledDpEvent(
      rate, accounting.noise_event(table)), steps)
  return accountant.epsilon_bounds(delta).estimate


# The epsilon of one release has kinks, so its differences are taken far apart.
@pytest.mark.parametrize('rate, steps, size, tolerance', [
    (0.01, 2000, 1e-3, 0.02), (0.2, 100, 1e-3, 0.02), (1.0, 20, 1e-3, 0.05),
    (1.0, 1, 1e-2, 0.15)])
@pytest.mark.slow
def test_gradient_is_the_derivative_of_epsilon(rate, steps, size, tolerance):
  table = design.Monotone(1.0, bins=10, objective='chi2').solve()
  p = np.exp(table.log_density) / table.bins
  mass = np.full(p.size, 2.0)
  mass[0], mass[-1] = 1.0, -2 / np.expm1(table.log_tail_ratio)
  before = epsilon(table, rate, steps, 1e-5)
  slope = epsilon_descent.epsilon_gradient(table, sampling_prob=rate, steps=steps,
                                    epsilon=before)
  index = np.arange(p.size) / table.bins
  for bump in (np.exp(-index), np.cos(2 * index), index**2):
    # A change that keeps the mass, and the fall of the density.
    move = p * (bump - (mass * p) @ bump / (mass @ p))
    move *= size / np.max(np.abs(move[mass * p > 1e-9] / p[mass * p > 1e-9]))
    ends = []
    for side in (-1, 1):
      changed = scalar_table.ScalarTable.normalized(
          table.bins, np.log((p + side * move) * table.bins),
          table.log_tail_ratio)
      ends.append(epsilon(dataclasses.replace(changed), rate, steps, 1e-5))
    assert slope @ move == pytest.approx(
        0.5 * (ends[1] - ends[0]), rel=tolerance, abs=2e-7)


def test_a_wrong_gradient_would_be_noticed():
  table = design.Monotone(1.0, bins=10).solve()
  right, wrong = (epsilon_descent.epsilon_gradient(
      table, sampling_prob=0.1, steps=steps, epsilon=2.0) for steps in (50, 60))
  assert np.max(np.abs(wrong / right - 1)) > 0.05
