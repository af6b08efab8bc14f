"""Tests that every sampling scheme draws as it states and costs what its event costs.

A new scheme is one file in tfcactus/sampling, one line there in `SCHEMES`, and one
case in `sampling_cases.CASES`; `ToySampling` shows it.
"""

import dataclasses

import dp_accounting
import numpy as np
import pytest

from tests.conformance import sampling_cases as cases
from tests.conformance.sampling_cases import each_case  # noqa: F401
import tfcactus
from tfcactus import relations, sampling
from tfcactus.randomness import KeyStream
from tfcactus.sampling import base

ALL = (*cases.CASES, cases.TOY)


def _plan(case, **changes):
  return tfcactus.PrivacyPlan(**{**dict(
      noise=tfcactus.Gaussian(2.0), l2_norm_clip=1.0, num_examples=40,
      sampling_prob=0.25, steps=12, delta=1e-5), **case.settings, **changes})


def test_every_listed_scheme_has_a_case():
  assert {type(case.scheme) for case in cases.CASES} == set(sampling.SCHEMES)


def test_numbers_of_examples_are_kept_as_integers():
  """Of 200 examples as an np.uint8, NumPy 2 would once have drawn words for eight."""
  for each in cases.CASES:
    size = np.uint8(each.scheme.num_examples)
    assert type(dataclasses.replace(each.scheme, num_examples=size).num_examples) is int


def test_codes_and_names_are_unique(case):
  kind = type(case.scheme)
  assert 1 <= kind.code <= 999 and sampling.of_code(kind.code) is kind
  assert [other.name for other in sampling.SCHEMES].count(kind.name) == 1
  assert kind.relations[0] and set(kind.relations) <= set(relations.NAMES.values())
  assert bool(kind.unproved) == (len(kind.relations) < 3)


def test_inclusions_are_as_stated_and_no_others(case):
  drawn = cases.batches_of(case.scheme, KeyStream(3, 'inclusions'), 4000)
  # One of 40 normal numbers exceeds 4.5 for one seed in 4,000.
  assert cases.far_from(case, drawn, case.inclusion) < 4.5
  assert cases.far_from(case, drawn, case.inclusion * 1.15) > 4.5
  together = np.mean([np.isin([0, 1], batch).all() for batch in drawn])
  spread = np.sqrt(case.pair * (1 - case.pair) / len(drawn))
  assert abs(together - case.pair) < 4 * spread


def test_sizes_and_distinct_examples(case):
  drawn = cases.batches_of(case.scheme, KeyStream(4, 'sizes'), 4000)
  for batch in drawn:
    assert batch.dtype.kind == 'i' and len(set(batch.tolist())) == batch.size
    assert batch.size == 0 or 0 <= batch.min() <= batch.max() < 40
  mean, variance = case.sizes
  sizes = np.array([batch.size for batch in drawn])
  assert abs(sizes.mean() - mean) <= 4 * np.sqrt(variance / len(drawn))
  assert abs(sizes.var() - variance) <= 0.1 * variance


def test_other_records_are_drawn_beside_at_most_as_often(case):
  other = case.scheme.beside(30)
  assert type(other) is type(case.scheme) and case.scheme.beside(4).num_examples >= 4
  assert other.batches_per_epoch <= case.scheme.batches_per_epoch
  drawn = cases.batches_of(other, KeyStream(6, 'beside'), 4000)
  steps = len(drawn) / other.batches_per_epoch * case.scheme.batches_per_epoch
  often = np.bincount(np.concatenate(drawn), minlength=30)[:30] / steps
  allowed = 5 * np.sqrt(case.inclusion / steps)
  assert np.all(often <= case.inclusion + allowed)
  assert np.all(often > 0.5 * case.inclusion)


def test_a_draw_is_one_batch_or_an_epoch(case):
  scheme, stream = case.scheme, KeyStream(5, 'draws')
  for _ in range(20):
    drawn = scheme.draw(stream)
    if scheme.draws_epochs:
      assert len(drawn) == scheme.batches_per_epoch == 4
      if case.covers:
        assert sorted(np.concatenate(drawn)) == list(range(40))
    else:
      assert len(drawn) == 1 and scheme.batches_per_epoch == 4


def test_draws_are_fresh_and_repeat_with_their_seed(case):
  def drawn(seed):
    stream = KeyStream(seed, 'fresh')
    return [tuple(batch) for _ in range(5) for batch in case.scheme.draw(stream)]

  assert drawn(1) == drawn(1) != drawn(2)
  assert len(set(drawn(1))) == len(drawn(1))


def test_the_accountant_composes_its_event(case):
  noise_event = dp_accounting.GaussianDpEvent(2.0)
  assert case.scheme.event(noise_event) == case.event
  for relation in type(case.scheme).relations:
    accountant = tfcactus.PhiAccountant(relation)
    accountant.compose(case.event, 3)
    found = _plan(case).guarantee(3, relation, sampling=type(case.scheme))
    bounds = accountant.epsilon_bounds(1e-5)
    assert (found.lower, found.estimate, found.upper) == (
        bounds.lower, bounds.estimate, bounds.upper)
    assert found.steps == 3
    assert found.neighboring_relation == relations.label(relation)


def test_plans_make_it_from_their_numbers(case):
  kind = type(case.scheme)
  assert kind.of_plan(_plan(case)) == case.scheme
  case.scheme.check_plan(_plan(case))
  for other in case.others:
    with pytest.raises(ValueError, match='Expected batches with'):
      other.check_plan(_plan(case))


@pytest.mark.parametrize('kind', sampling.SCHEMES)
def test_a_probability_whose_inverse_is_no_float_is_refused_or_has_an_epoch(kind):
  try:
    scheme = kind.of_plan(base.Numbers(1000, 1e-310))
  except ValueError as error:
    assert 'sampling_prob' in str(error)
  else:
    assert scheme.batches_per_epoch >= 1000


def test_other_relations_are_refused_in_words(case):
  kind = type(case.scheme)
  default = _plan(case).guarantee(2, sampling=kind)
  assert default.neighboring_relation == relations.label(kind.relations[0])
  for relation in set(relations.NAMES.values()) - set(kind.relations):
    with pytest.raises(ValueError, match='Expected neighboring_relation') as told:
      _plan(case).guarantee(2, relation, sampling=kind)
    assert kind.unproved in str(told.value)
  with pytest.raises(ValueError, match='swap'):
    _plan(case).guarantee(2, 'swap', sampling=kind)


def test_statements_name_what_was_released_and_what_is_public(case):
  kind = type(case.scheme)
  assert case.words in case.scheme.released(3)
  for relation in kind.relations:
    statement = _plan(case).guarantee(3, relation, sampling=kind).statement
    for words in (relations.protected(relation), case.scheme.released(3),
                  'num_examples=40', 'sampling_prob=0.25', *kind.also_public,
                  'are public constants'):
      assert words in statement


def test_statements_give_no_probability_below_the_true_one():
  """Failed when they were rounded down: epsilon of the text was below the true one."""
  plan = tfcactus.PrivacyPlan(
      noise=tfcactus.Gaussian(1.0), l2_norm_clip=1.0, num_examples=60000,
      sampling_prob=250 / 60000, steps=1, delta=1e-6)
  statement = plan.guarantee().statement
  assert 'probability 0.00416667 per' in statement
  assert f'sampling_prob={250 / 60000!r} ' in statement


def test_draws_are_counted_as_steps_or_epochs(case):
  kind = type(case.scheme)
  assert _plan(case).guarantee(0, sampling=kind).upper == 0
  costs = [_plan(case).guarantee(n, sampling=kind).upper for n in (1, 2, 12)]
  assert 0 < costs[0] < costs[1] < costs[2]
  assert _plan(case).steps_within(costs[1], sampling=kind) == 2
  # The plan has 12 steps: three epochs of four.
  planned = 3 if kind.draws_epochs else 12
  plan = _plan(case)
  assert plan.guarantee(sampling=kind) == plan.guarantee(planned, sampling=kind)
  assert _plan(case).steps_within(1e6, sampling=kind) == planned
