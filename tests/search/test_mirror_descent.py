"""Mirror descent steps from a design."""

from __future__ import annotations

import numpy as np
import pytest

from tests.design import oracles
from tfcactus import design
from tfcactus.search import epsilon_descent


@pytest.fixture(scope='module')
def table():
  return design.Monotone(0.5, bins=10).solve()


def test_a_step_of_length_zero_changes_nothing(table):
  slope = np.arange(table.log_density.size, dtype=float)
  moved = epsilon_descent.step(table, slope, 0.0)
  head = table.log_density > -20
  np.testing.assert_allclose(moved.log_density[head], table.log_density[head],
                             atol=1e-3)


def test_a_step_lowers_the_function_whose_gradient_it_takes(table):
  # The fourth moment: linear, so that its gradient is known.
  z = np.arange(table.log_density.size) / table.bins
  slope = 2 * z**4
  slope[-1] *= -1 / np.expm1(table.log_tail_ratio)
  moments = [table.moment(4.0)]
  for length in (0.1, 1.0):
    moved = epsilon_descent.step(table, slope, length)
    moments.append(moved.moment(4.0))
    assert moved.monotone
    assert oracles.scalar_cost(moved, 2.0) <= 0.5 * (1 + 1e-9)
    # No density within the budget has a smaller divergence than the optimum.
    assert oracles.scalar_divergence(moved, table.bins) >= (
        table.info['lower_bound'])
  assert moments == sorted(moments, reverse=True)


def test_steps_chain_and_carry_no_certificate(table):
  slope = np.arange(table.log_density.size, dtype=float)**2
  moved = epsilon_descent.step(epsilon_descent.step(table, slope, 0.1), slope, 0.1)
  assert moved.info['parameters'] == table.info['parameters']
  with pytest.raises(ValueError, match='certificate'):
    design.verify(moved)
