"""Truncated noise with its account: the delta it states is the accountant's."""

import dp_accounting
import numpy as np
import pytest

import tfcactus
from tfcactus import accounting, noise
from tfcactus.search import truncated


@pytest.mark.parametrize('sampling_prob', [1.0, 0.2])
def test_tells_what_the_accountant_says(sampling_prob):
  found = tfcactus.search.truncated_noise(8, utility=2, epsilon=0.5, steps=6, bins=3,
                                   sampling_prob=sampling_prob)
  step = accounting.noise_event(found.noise)
  if sampling_prob < 1:
    step = dp_accounting.PoissonSampledDpEvent(sampling_prob, step)
  accountant = accounting.PhiAccountant().compose(step, 6)
  assert found.delta == accountant.delta_bounds(0.5)
  outermost = 2 * np.exp(found.noise.log_density[-3:]) / 3 / 2
  assert found.omega == pytest.approx(
      1 - (1 - sampling_prob * np.sum(outermost))**6)
  assert found.omega <= found.delta.upper
  assert found.utility == found.noise.std == pytest.approx(2)
  assert (found.noise.range, found.method, found.steps) == (8, 'direct', 6)


@pytest.mark.slow
def test_smaller_changes_cost_less():
  """The account of the full shift covers every smaller change."""
  found = tfcactus.search.truncated_noise(6, utility=1.5, epsilon=0.4, steps=5, bins=4)
  from tfcactus.noise import scalar_table  # pylint: disable=import-outside-toplevel
  for cells in (1, 2, 3):
    pair = scalar_table.shifted_pair(found.noise, cells)
    smaller = accounting.PhiAccountant().compose(
        accounting.DominatingPairDpEvent(pair), 5)
    assert smaller.get_delta(0.4) < found.delta.upper


def test_accounts_for_what_is_sampled():
  """A test on the draws cannot beat the delta."""
  found = tfcactus.search.truncated_noise(4, utility=1.2, epsilon=0.3, bins=4)
  rng = np.random.default_rng(0)
  z = found.noise.sample(rng, 400_000)
  log_ratio = found.noise.log_density_at(z) - found.noise.log_density_at(z + 1)
  far = log_ratio > 0.3
  shifted = found.noise.sample(rng, 400_000) - 1
  with np.errstate(invalid='ignore'):
    far_shifted = (found.noise.log_density_at(shifted) -
                   found.noise.log_density_at(shifted + 1)) > 0.3
  gain = np.mean(far) - np.exp(0.3) * np.mean(far_shifted)
  assert gain == pytest.approx(found.delta.upper, abs=4e-3)


@pytest.mark.parametrize('bad, words', [
    (noise.Gaussian(1.0), 'ScalarTable'), (None, 'ScalarTable')])
def test_bad_noise(bad, words):
  with pytest.raises(ValueError, match=words):
    truncated.account(bad, epsilon=0.1)


def test_bad_arguments():
  table = tfcactus.search.truncated_noise(4, utility=1.2, epsilon=0.3, bins=4).noise
  for change, words in (({'epsilon': -1}, 'epsilon'), ({'steps': 0}, 'steps'),
                        ({'sampling_prob': 0}, 'sampling_prob')):
    with pytest.raises(ValueError, match=words):
      truncated.account(table, **{'epsilon': 0.1, **change})
