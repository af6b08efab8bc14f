"""Tests of counts by segments, against sets of single steps."""

import json

from hypothesis import given, settings, strategies as st
import numpy as np

from tfcactus.keras.ledger import counts
from tfcactus.keras.ledger.counts import Counts, Seeded


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30))
def test_merged_counts_are_those_of_the_union_of_all_steps(moves):
  """Each of four trainings has a set of steps; a move merges two, or takes a step."""
  truth = [set() for _ in range(4)]
  found = [Counts() for _ in range(4)]
  segments = list(range(1, 5))
  for i, j in moves:
    if i != j:  # Training i loads a file of j, and goes on as another process.
      truth[i] = truth[i] | truth[j]
      found[i] = found[i].merged(found[j])
      segments[i] = max(segments) + 1
    else:
      step = segments[i], sum(number == segments[i] for number, _ in truth[i])
      truth[i].add(step)
      found[i] = found[i].stepped(segments[i], 1, 1, Seeded.NOTHING)
    assert found[i].released_steps == found[i].epochs_begun == len(truth[i])
    assert Counts.of_flat(found[i].flat()) == found[i]
    assert Counts.of_json(json.loads(json.dumps(found[i]._asdict()))) == found[i]


def test_more_segments_than_fit_are_joined_and_lose_no_step():
  total, steps = Counts(), 0
  for number in range(1, 3 * counts.MAX_SEGMENTS):
    total = total.later((number << 60) // 2048 + (1 << 57), number, 1)
    total = Counts.of_flat(total.merged(total).flat())
    steps += number
    assert (total.released_steps, total.epochs_begun) == (steps, number)
    assert len(total.segments) <= counts.MAX_SEGMENTS


def test_values_that_no_record_wrote_count_no_fewer_steps():
  flat = Counts(((5, 3, 1), (9, 4, 0)), 1, 8, 0).flat()
  flat[6:12] = (5, 7, 0, 5, -2, 4)  # Rows of a number that is there already.
  assert Counts.of_flat(flat).segments == ((5, 7, 1), (9, 4, 0))


def test_numbers_of_segments_differ_and_fit_an_int64():
  numbers = {counts.new_segment() for _ in range(1000)}
  assert len(numbers) == 1000 and 0 < min(numbers)
  assert max(numbers) < np.iinfo(np.int64).max
