"""Tests of the sampler of training against the dominating pairs of the account."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from tfcactus import accounting, design
from tfcactus.keras import NoiseSampler
from tfcactus.noise import library, scalar_table

TABLES = {
    'isotropic': lambda: library.get('isotropic-dim3-sigma0.5'),
    'monotone': lambda: library.get('monotone-budget0.25'),
    'cactus by a conic solver':
        lambda: design.Cactus(0.25, bins=6, solver='cvxpy').solve(),
}


def draw(table, count):
  """Draws joint vectors one at a time, in a graph, as training does."""
  sampler = NoiseSampler(table, table.dim, seed=11)

  @tf.function
  def draws():
    return tf.map_fn(lambda _: sampler.draw(table.dim),
                     tf.zeros([count], tf.float64), parallel_iterations=1)

  return draws().numpy().reshape(count, table.dim)


def log_density(table, z):
  return table.log_density_at(z if table.dim > 1 else z[:, 0])


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=(
        pytest.mark.more if name == 'isotropic' else pytest.mark.slow))
    for name in TABLES])
def test_likelihood_ratios_of_draws_give_the_accounted_delta(name):
  table = TABLES[name]()
  z = draw(table, 40_000)
  shift = np.eye(1, table.dim)
  pair = (accounting.dominating_pair(table).upper if table.monotone else
          scalar_table.shifted_pair(table, table.bins))

  def gains(epsilon, scale):
    loss = log_density(table, scale * z) - log_density(
        table, scale * z - shift)
    gain = -np.expm1(np.minimum(epsilon - loss, 0))
    return np.mean(gain), np.std(gain) / math.sqrt(gain.size)

  told = []
  for epsilon in (0.0, 0.5, 1.5):
    exact = pair.hockey_stick(epsilon)
    mean, error = gains(epsilon, 1.0)
    assert abs(mean - exact) < 4 * error
    mean, error = gains(epsilon, 1.1)
    told.append(abs(mean - exact) > 4 * error)
  # A sampler off by 10 % in scale does not pass.
  assert any(told)
