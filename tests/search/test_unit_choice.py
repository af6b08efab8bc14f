"""The choice between rows and users keeps its budget, by plans of either."""

import functools
import math

import numpy as np
import pytest

import tfcactus
from tfcactus import release, search
from tfcactus.search import unit_choice

ROWS = np.repeat([1, 2, 9, 30], [40, 30, 20, 10])
TERMS = dict(batch_size=60, steps=40, target_epsilon=2.0, delta=1e-4)


@pytest.fixture(autouse=True, scope='module')
def _calibrated_once():
  """Keeps noise multipliers, which depend on nothing but their arguments."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(unit_choice, '_noise_multiplier',
                  functools.cache(unit_choice._noise_multiplier))
    yield


def plan(sampling_prob, noise_multiplier, size, **unit):
  return tfcactus.PrivacyPlan(
      noise=tfcactus.Gaussian(noise_multiplier), l2_norm_clip=1.0, num_examples=size,
      sampling_prob=sampling_prob, steps=40, delta=1e-4, **unit)


@pytest.mark.more
def test_both_keep_the_epsilon_of_a_user_and_hardly_less():
  found = search.choose_unit(ROWS, caps=[4, 30], **TERMS)
  assert [(cost.cap, cost.rows) for cost in found.costs] == [(4, 220), (30, 580)]
  for cost in found.costs:
    by_user = plan(min(60 / cost.cap / 100, 1), cost.user_noise_multiplier, 100,
                   unit='user').guarantee().upper
    by_row = plan(60 / cost.rows, cost.row_noise_multiplier, cost.rows).guarantee(
        rows_of_one=cost.cap).upper
    assert 1.99 < by_user <= 2 and 1.99 < by_row <= 2


def test_one_row_a_user_is_a_draw_and_alike_rows_gain_nothing():
  one = search.choose_unit(ROWS, caps=[1], **TERMS).costs[0]
  assert one.row_noise == one.user_noise and one.rows == 100
  same, apart = (search.choose_unit(ROWS, caps=[9], alike=alike, **TERMS).costs[0]
                 for alike in (1, 0))
  assert same.user_noise == pytest.approx(same.user_noise_multiplier * 9 / 60)
  kept = np.minimum(ROWS, 9)
  assert apart.user_noise == pytest.approx(
      same.user_noise * math.sqrt(np.mean(1 / kept)))
  assert apart.row_noise == same.row_noise


def test_the_least_noise_is_recommended():
  found = search.choose_unit(np.minimum(ROWS, 2), **TERMS)
  assert [cost.cap for cost in found.costs] == [1, 2]
  assert found.unit == 'user'
  assert found.by_user.user_noise == min(cost.user_noise for cost in found.costs)
  assert found.by_row.row_noise == min(cost.row_noise for cost in found.costs)


@pytest.mark.more
def test_rows_are_recommended_for_small_samples_of_alike_rows():
  found = search.choose_unit(np.full(200, 3), caps=[3], alike=1, **{
      **TERMS, 'batch_size': 3})
  assert found.unit == 'example'


def test_the_cap_may_be_a_released_quantile():
  cap = release.quantile(ROWS, 0.8, low=1, high=64, resolution=1, seed=0,
                         noise=tfcactus.Gaussian(2.0)).value
  assert [cost.cap for cost in search.choose_unit(ROWS, caps=[cap], **TERMS).costs] == [
      cap]


def test_more_rows_than_have_an_account_leave_users():
  found = search.choose_unit([1, 1, 2000], caps=[5000], **TERMS)
  assert found.unit == 'user' and found.costs[0].cap == 2000
  assert found.costs[0].row_noise == math.inf


@pytest.mark.parametrize('changes, words', [
    ({'rows_per_user': [1.5]}, 'whole number of rows'),
    ({'rows_per_user': [0, 0]}, 'whole number of rows'),
    ({'rows_per_user': [-1, 3]}, 'whole number of rows'),
    ({'rows_per_user': []}, 'rows_per_user'),
    ({'rows_per_user': 'abc'}, 'rows_per_user'),
    ({'caps': [0]}, 'caps >= 1'), ({'caps': [2.5]}, 'caps'), ({'caps': []}, 'caps'),
    ({'caps': 3}, 'caps to be a list of numbers of rows, got caps=3'),
    ({'alike': 1.5}, r'alike in \[0, 1\]'), ({'batch_size': 0}, 'batch_size'),
    ({'target_epsilon': 0}, 'target_epsilon'), ({'delta': 2}, 'delta'),
    ({'steps': 0}, 'steps')])
def test_bad_arguments_are_named(changes, words):
  with pytest.raises(ValueError, match=words):
    search.choose_unit(**{'rows_per_user': ROWS, **TERMS, **changes})
