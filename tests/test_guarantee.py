"""Property tests of the maximum over the sides of a split, against brute force."""

import itertools

import dp_accounting
import numpy as np
import pytest

from tfcactus import (
  accounting,
  guarantee as guarantee_lib,
  noise as noise_lib,
  relations,
)

OUTCOMES = 3


def lists(rng):
  """Returns the mechanisms of both sides: arrays of laws (without, with) a record."""
  return [[rng.dirichlet(np.full(OUTCOMES, 1.5), 2) for _ in range(rng.integers(1, 4))]
          for _ in range(2)]


def event_of(mechanisms):
  """Returns the composition of mechanisms, each known by its pair."""
  return dp_accounting.ComposedDpEvent([
      accounting.DominatingPairDpEvent(accounting.DominatingPair.from_masses(*laws))
      for laws in mechanisms])


def claimed(sides, delta, by='coin', relation='add-or-remove'):
  return guarantee_lib.guarantee(
      event_of(sides[0]), 1, delta, relation, statement='', releases=[
          accounting.ValidationDpEvent(event_of(sides[1]), 1, by, 'a split')])


def delta_of(p, q, epsilon):
  """Returns the exact delta of two laws of whole histories, in both directions."""
  return max(np.sum(np.maximum(a - np.exp(epsilon) * b, 0))
             for a, b in ((p, q), (q, p)))


def histories(rng, sides, present, used=((), ()), p=1.0, q=1.0):
  """Yields the masses of all histories of a random adaptive schedule.

  After each outcome the schedule stops, or runs a mechanism of either side that it has
  not run yet. `present` maps a side to the laws, 0 without and 1 with the record, that
  it runs under P and under Q.
  """
  left = [(side, i) for side in (0, 1) for i in range(len(sides[side]))
          if i not in used[side]]
  if not left or rng.random() < 0.1:
    yield p, q
    return
  side, i = left[rng.integers(len(left))]
  now = tuple(used[k] + ((i,) if k == side else ()) for k in (0, 1))
  for outcome in range(OUTCOMES):
    a, b = (sides[side][i][law][outcome] for law in present[side])
    yield from histories(rng, sides, present, now, p * a, q * b)


def laws(rng, sides, present):
  return np.array(list(histories(rng, sides, present))).T


@pytest.mark.parametrize('seed', range(12))
def test_no_adaptive_schedule_costs_more_than_the_maximum_of_the_sides(seed):
  rng = np.random.default_rng(seed)
  sides = lists(rng)
  for delta in (0.02, 0.2):
    found = claimed(sides, delta)
    worst = [0.0, 0.0]
    for _ in range(10):
      for side in (0, 1):  # A record on this side; the other side runs one law.
        other = rng.integers(2)
        present = {side: (0, 1), 1 - side: (other, other)}
        worst[side] = max(worst[side], delta_of(
            *laws(rng, sides, present), found.upper))
        assert delta_of(*laws(rng, sides, present), found.sides[side].upper) <= (
            delta * (1 + 1e-9))
    assert max(worst) <= delta * (1 + 1e-9)


def static(sides, present):
  """Returns the laws of all outcomes of all mechanisms, in a fixed order."""
  masses = [[np.array(laws[present[side][k]]) for side in (0, 1)
             for laws in sides[side]] for k in (0, 1)]
  return [np.array([np.prod(each) for each in itertools.product(*law)])
          for law in masses]


def test_the_maximum_is_attained_by_whoever_is_on_the_costlier_side():
  for seed in range(8):
    sides = lists(np.random.default_rng(seed))
    found = claimed(sides, 0.05)
    side = int(found.sides[1].upper > found.sides[0].upper)
    present = {side: (0, 1), 1 - side: (0, 0)}
    if found.upper > 0:
      assert delta_of(*static(sides, present), found.upper * 0.999) > 0.05


def test_a_split_of_fixed_size_breaks_the_maximum_and_is_refused():
  # A record that is added moves another from training to validation: both sides change.
  broken = 0
  for seed in range(8):
    sides = lists(np.random.default_rng(seed))
    found = claimed(sides, 0.05)
    both = {0: (0, 1), 1: (0, 1)}
    broken += delta_of(*static(sides, both), found.upper) > 0.05 * 1.01
  assert broken >= 6
  with pytest.raises(ValueError, match='an added record moves others'):
    claimed(sides, 0.05, by='position')
  with pytest.raises(ValueError, match='has another id'):
    claimed(sides, 0.05, by='id', relation='replace')


def test_without_a_split_and_for_several_rows_the_sides_compose():
  sides = lists(np.random.default_rng(1))
  composed = accounting.PhiAccountant().compose(event_of(sides[0] + sides[1]))
  assert claimed(sides, 0.05, by='').upper == composed.get_epsilon(0.05)
  assert not claimed(sides, 0.05, by='').sides
  noise = accounting.noise_event
  held = accounting.ValidationDpEvent(noise(noise_lib.Gaussian(9.0)), 3, 'coin', 'x')
  found = guarantee_lib.guarantee(
      noise(noise_lib.Gaussian(5.0)), 2, 1e-5, 'add-or-remove', statement='',
      releases=[held], rows_of_one=2)
  together = accounting.PhiAccountant(rows_of_one=2).compose(
      noise(noise_lib.Gaussian(5.0)), 2).compose(noise(noise_lib.Gaussian(9.0)), 3)
  assert found.upper == together.get_epsilon(1e-5) and not found.sides


def test_statistics_of_all_records_count_on_both_sides():
  sides, beside = lists(np.random.default_rng(2)), lists(np.random.default_rng(3))[0]
  found = guarantee_lib.guarantee(
      event_of(sides[0]), 1, 0.05, 'add-or-remove', statement='All.', releases=[
          event_of(beside), accounting.ValidationDpEvent(
              event_of(sides[1]), 1, 'coin', 'a split')])
  for side, mechanisms in zip(found.sides, sides):
    assert side.upper == pytest.approx(accounting.PhiAccountant().compose(
        event_of(mechanisms)).compose(event_of(beside)).get_epsilon(0.05), rel=1e-9)
  assert found.upper == max(side.upper for side in found.sides)
  assert found.statement.startswith('All. ') and 'A split by coin' in found.statement


@pytest.mark.more
def test_an_iterator_of_releases_counts_on_both_sides_of_a_search():
  noise = dp_accounting.GaussianDpEvent
  search = accounting.SearchDpEvent(
      accounting.ListedRuns([0, 0, 0, 1]), noise(9.0), score='public')
  validation = accounting.ValidationDpEvent(noise(5.0), 1, 'coin', 'a split')
  listed, iterated = (guarantee_lib.search_guarantee(
      search, 1e-5, 'add-or-remove', releases=releases, validation=validation)
                      for releases in ([noise(3.0)], iter([noise(3.0)])))
  assert iterated.upper == listed.upper == listed.sides[1].upper


def test_only_searches_have_a_guarantee_of_a_search():
  with pytest.raises(ValueError, match='search to be a SearchDpEvent, got Gaussian'):
    guarantee_lib.search_guarantee(
        dp_accounting.GaussianDpEvent(1.0), 1e-5, 'add-or-remove')


def test_marks_reach_the_sides():
  sides = lists(np.random.default_rng(4))
  found = claimed(sides, 0.05).given('If so.').seeded_by('noise')
  for each in (found, *found.sides):
    assert each.seeded and 'If so.' in each.conditions and 'SEEDED' in each.statement


def test_an_event_of_validation_is_refused_for_other_relations_and_samples():
  event = accounting.ValidationDpEvent(
      event_of(lists(np.random.default_rng(5))[0]), 1, 'position', 'x')
  assert not accounting.PhiAccountant().supports(event)
  assert not accounting.PhiAccountant().supports(
      dp_accounting.PoissonSampledDpEvent(0.1, event))
  assert event.proved_relations == (relations.ZERO_OUT, relations.REPLACE)
  with pytest.raises(ValueError, match='Expected by in'):
    accounting.ValidationDpEvent(event.event, 1, 'fixed')
