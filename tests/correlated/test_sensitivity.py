"""Sensitivity of banded strategies, by all patterns of participation."""

import itertools

import numpy as np
import pytest

from tfcactus import correlated
from tfcactus.correlated import min_separation_sensitivity_squared as sensitivity
from tfcactus.randomness import KeyStream
from tfcactus.sampling import CyclicAllocationSampling, CyclicPoissonSampling


def brute_force(coefficients, steps, separation, times):
  """Returns the largest norm over all patterns of participation and signs."""
  matrix = np.zeros((steps, steps))
  for offset, value in enumerate(coefficients[:steps]):
    matrix += value * np.eye(steps, k=-offset)
  gram = matrix.T @ matrix
  worst = 0.0
  for count in range(1, times + 1):
    for pattern in itertools.combinations(range(steps), count):
      if all(b - a >= separation for a, b in zip(pattern, pattern[1:])):
        part = gram[np.ix_(pattern, pattern)]
        worst = max(worst, *(
            np.array((1, *signs)) @ part @ np.array((1, *signs))
            for signs in itertools.product((1, -1), repeat=count - 1)))
  return worst


@pytest.mark.parametrize('separation,times', [(1, 3), (2, 2), (3, 3), (4, 9), (10, 1)])
def test_sensitivity_is_the_largest_of_all_patterns(separation, times):
  rng = np.random.default_rng(separation)
  falling = np.sort(rng.uniform(0, 1, 6))[::-1]
  found = sensitivity(falling, 10, min_separation=separation, max_participations=times)
  assert found == pytest.approx(brute_force(falling, 10, separation, times), rel=1e-12)
  for _ in range(10):
    any_sign = rng.normal(size=6)
    assert sensitivity(
        any_sign, 10, min_separation=separation, max_participations=times
        ) >= brute_force(any_sign, 10, separation, times) * (1 - 1e-12)


def test_sensitivity_is_that_of_jax_privacy():
  # Of its minsep_sensitivity_squared; and a direct sum.
  assert sensitivity(0.9**np.arange(100), 100, min_separation=10, max_participations=5
                     ) == pytest.approx(45.88424375467111, rel=1e-13)


@pytest.mark.parametrize('strategy', [
    correlated.BandedStrategy(3).solve(12), correlated.BlockedStrategy(3).solve(12)])
@pytest.mark.parametrize('kind', [CyclicAllocationSampling, CyclicPoissonSampling])
def test_each_participation_is_released_in_rows_of_its_own(strategy, kind):
  """All that two epochs of six batches of three groups allow, and any gradients."""
  scheme, matrix = kind(num_examples=9, num_batches=6, groups=3), strategy.matrix(12)
  stream, seen = KeyStream(1, 'patterns'), set()
  for _ in range(60):
    draw = scheme.drawer(stream)
    steps = [set(batch.tolist()) for _ in range(2) for batch in draw()]
    for example in range(9):
      seen.add(tuple(step for step, batch in enumerate(steps) if example in batch))
  allowed = {pattern for group in range(3) for size in range(5)
             for pattern in itertools.combinations(range(group, 12, 3), size)}
  if kind is CyclicAllocationSampling:
    allowed = {(a, b) for group in range(3) for a in (group, group + 3)
               for b in (group + 6, group + 9)}
  assert seen == allowed
  for pattern in seen:
    rows = [set(np.flatnonzero(matrix[:, step])) for step in pattern]
    assert all(a.isdisjoint(b) for a, b in itertools.combinations(rows, 2))
    for step in pattern:  # A gradient of norm one, whatever the others are.
      assert np.linalg.norm(matrix[:, step]) <= 1
  # One group less, and they would meet.
  near = [set(np.flatnonzero(matrix[:, step])) for step in (0, 2)]
  assert not near[0].isdisjoint(near[1])


@pytest.mark.parametrize('kind', [CyclicAllocationSampling, CyclicPoissonSampling])
def test_groups_stay_and_are_uniform(kind):
  scheme, stream = kind(4000, 12, 4), KeyStream(2, 'groups')
  draw = scheme.drawer(stream)
  group = np.full(4000, -1)
  for _ in range(3):
    for step, batch in enumerate(draw()):
      assert np.all((group[batch] == -1) | (group[batch] == step % 4))
      group[batch] = step % 4
  sizes = np.bincount(group[group >= 0], minlength=4)
  assert np.all(np.abs(sizes - 1000) < 4.5 * np.sqrt(750))
  assert not np.array_equal(draw()[0], scheme.drawer(stream)()[0])


@pytest.mark.parametrize('kind', [CyclicAllocationSampling, CyclicPoissonSampling])
@pytest.mark.parametrize('arguments,words', [
    ((40, 6, 4), 'multiple of groups.*take num_batches=8'),
    ((40, 6, 0), 'groups >= 1'), ((40, 0, 1), 'num_batches >= 1'),
    ((4, 6, 3), 'num_batches of at most num_examples=4'),
    ((40, 6, 1.5), 'groups to be an integer')])
def test_other_numbers_are_refused(kind, arguments, words):
  with pytest.raises(ValueError, match=words):
    kind(*arguments)
