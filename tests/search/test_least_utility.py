"""The search for the least truncated noise at an (epsilon, delta)."""

import math

import numpy as np
import pytest
from scipy import optimize

import tfcactus
from tfcactus import accounting, design
from tfcactus.search import truncated

STAIRCASE = {'range': 5, 'epsilon': 0.3, 'norm': 1, 'bins': 20}


def by_linprog(reach, bins, epsilon, delta, norm):
  """Returns the least utility^norm of a full release, by an independent program.

  Its variables are the masses of all cells, not of mirrored pairs, and one excess per
  outcome and direction. delta is a constraint and the utility the objective.
  """
  cells = 2 * reach * bins
  centre = (np.arange(cells) - cells / 2 + 0.5) / bins
  cost = np.abs(centre) if norm == 1 else centre**2 + 1 / (12 * bins**2)
  outcomes = cells + bins
  here = np.eye(outcomes, cells)
  there = np.eye(outcomes, cells, -bins)
  zero = np.zeros((outcomes, outcomes))
  rows = [np.hstack([here - math.exp(epsilon) * there, -np.eye(outcomes), zero]),
          np.hstack([there - math.exp(epsilon) * here, zero, -np.eye(outcomes)])]
  right = [np.zeros(2 * outcomes)]
  for i in range(2):
    row = np.zeros((1, cells + 2 * outcomes))
    row[0, cells + i * outcomes:cells + (i + 1) * outcomes] = 1
    rows.append(row)
    right.append([delta])
  falls = np.zeros((cells - 1, cells + 2 * outcomes))
  for i in range(cells - 1):  # Rises up to the centre, falls from there.
    sign = 1 if i < cells // 2 - 1 else -1
    falls[i, i], falls[i, i + 1] = sign, -sign
  falls[cells // 2 - 1] = 0
  rows.append(falls)
  right.append(np.zeros(cells - 1))
  total = np.concatenate([np.ones(cells), np.zeros(2 * outcomes)])[None]
  found = optimize.linprog(
      np.concatenate([cost, np.zeros(2 * outcomes)]), np.vstack(rows),
      np.concatenate(right), total, [1.0])
  return found.fun


@pytest.mark.parametrize('reach, bins, epsilon, delta, norm', [
    (3, 4, 0.5, 0.12, 1), (4, 3, 0.3, 0.09, 2), (6, 2, 0.3, 0.05, 1),
    (3, 4, 1.0, 0.06, 2)])
def test_least_of_one_release_is_that_of_a_program_of_its_own(
    reach, bins, epsilon, delta, norm):
  found = tfcactus.search.least_utility(reach, delta=delta, epsilon=epsilon, norm=norm,
                                 bins=bins, tolerance=1e-4)
  least = by_linprog(reach, bins, epsilon, delta, norm)**(1 / norm)
  assert found.lower_bound <= least * (1 + 1e-7)
  assert least * (1 - 1e-7) <= found.utility <= least * (1 + 2e-4)
  assert found.lower_bound > least * (1 - 1e-3)
  assert found.found.delta.upper <= delta


def test_finds_the_staircase_of_the_paper():
  """U = 1.884 where the delta is that of the truncated staircase (Figure 1)."""
  delta = truncated.account(design.Staircase(0.3, range=5, bins=20).solve(),
                            epsilon=0.3, norm=1).delta.upper
  found = tfcactus.search.least_utility(
      delta=delta * (1 + 1e-5), tolerance=1e-4, **STAIRCASE)
  assert found.utility == pytest.approx(1.884, abs=2e-3)
  assert found.lower_bound == pytest.approx(1.884, abs=2e-3)
  assert 'below' in found.statement


def test_several_releases_stay_within_delta_and_need_less_than_the_gaussian():
  ask = {'epsilon': 0.3, 'steps': 2}
  normal = design.TruncatedGaussian(30, utility=10, bins=1).solve()
  delta = truncated.account(normal, **ask).delta.upper
  found = tfcactus.search.least_utility(30, delta=delta, bins=1, tolerance=0.01, **ask)
  accountant = accounting.PhiAccountant().compose(
      accounting.noise_event(found.found.noise), 2)
  assert accountant.get_delta(0.3) <= delta
  assert found.utility < 9.9 and found.lower_bound is None
  assert 'Not proved' in found.statement


def test_subsampled_releases_stay_within_delta():
  found = tfcactus.search.least_utility(
      8, delta=1e-3, epsilon=0.3, sampling_prob=0.1, bins=4)
  assert found.found.sampling_prob == 0.1 and found.found.delta.upper <= 1e-3
  assert found.lower_bound <= found.utility <= found.lower_bound * 1.01


@pytest.mark.parametrize('change, words', [
    ({'delta': 1e-6}, 'widen the range'), ({'delta': 0}, 'delta'),
    ({'tolerance': 0}, 'tolerance'), ({'norm': 3}, 'norm'), ({'range': 0.4}, 'range'),
    ({'epsilon': -1}, 'epsilon'), ({'steps': 0}, '0')])
def test_bad_requests_are_refused(change, words):
  ask = {'range': 5, 'delta': 0.06, 'epsilon': 0.3, 'bins': 4, **change}
  with pytest.raises(ValueError, match=words):
    tfcactus.search.least_utility(ask.pop('range'), **ask)


def test_ends_where_no_float_is_left_between_the_ends(monkeypatch):
  made, asked = truncated.truncated_noise, []

  def counted(*args, **settings):
    asked.append(settings['utility'])
    assert len(asked) < 200
    return made(*args, **settings)

  monkeypatch.setattr(truncated, 'truncated_noise', counted)
  found = tfcactus.search.least_utility(
      1, delta=0.5, epsilon=0.1, bins=2, tolerance=1e-300)
  assert found.found.delta.upper <= 0.5
  assert found.lower_bound <= found.utility
