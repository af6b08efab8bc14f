"""Vocabularies show no word of one record alone, and cost what their event says."""

import itertools
import math
import re

import numpy as np
import pytest
from scipy import stats

from tests.representatives import representatives
from tfcactus import accounting, noise, plan as plan_lib, relations, release
from tfcactus.release import words as words_lib

LAWS = {'gaussian': noise.Gaussian(1.5), 'laplace': noise.Laplace(1.2),
        'sinh-normal': noise.SinhNormal(2.0, 6.0)}


def words_of(records, law=LAWS['gaussian'], delta=0.1, **options):
  return release.vocabulary(records, noise=law, delta=delta, **options)


def threshold_of(result):
  return int(re.search(r'number of (-?\d+) records', result.mechanism)[1])


def laws_of_counts(counts, law, scale, threshold):
  """Returns the probability of each outcome of each word: hidden, threshold, ..."""
  found = []
  for count in counts:
    if count == 0:
      found.append(np.eye(24)[0])
      continue
    edges = (np.arange(threshold, threshold + 23) - 0.5 - count) / scale
    cdf = np.append(law.cdf(edges), 1.0)
    found.append(np.append(cdf[0], np.diff(cdf)))
  return found


def divergence(first, second, epsilon):
  """Returns the hockey-stick divergence of two products of discrete laws."""
  joint = []
  for laws in (first, second):
    mass = np.ones(1)
    for each in laws:
      mass = np.multiply.outer(mass, each).ravel()
    joint.append(mass)
  return np.maximum(joint[0] - math.exp(epsilon) * joint[1], 0).sum()


def excess(law, most, relation, counted):
  """Returns by how much the worst divergence exceeds the claim, over small data.

  `counted` is what multiplies the noise in the mechanism.
  """
  result = words_of([], law, words_per_record=most)
  threshold = threshold_of(result)
  account = accounting.PhiAccountant(relation).compose(result.event)
  claims = {epsilon: account.get_delta(epsilon) for epsilon in (0.0, 0.7, 2.0)}
  worst = -1.0
  sets = [set(s) for size in range(most + 1)
          for s in itertools.combinations(range(3), size)]
  top = threshold + 1
  others = [(0, 0, 0), (0, 3, 2), (top, 0, 0), (top, top, 1)]
  pairs = itertools.product(sets, sets if relation == relations.REPLACE else [set()])
  for (one, other), base in itertools.product(pairs, others):
    laws = [laws_of_counts([n + (w in s) for w, n in enumerate(base)], law, counted,
                           threshold) for s in (one, other)]
    for epsilon, claim in claims.items():
      for first, second in (laws, laws[::-1]):
        worst = max(worst, divergence(first, second, epsilon) - claim)
  return worst


@representatives('name, most, relation', itertools.product(
    LAWS, (2, 1), (relations.ADD_OR_REMOVE, relations.REPLACE, relations.ZERO_OUT)), 3)
def test_no_pair_of_small_data_sets_exceeds_the_event(name, most, relation):
  law = LAWS[name]
  scale = math.sqrt(most) if name == 'gaussian' else most
  assert excess(law, most, relation, scale) <= 1e-9
  # Too little noise is found out; replacements cost less than twice the sensitivity.
  assert excess(law, most, relation, scale / 4) > 0.01


def test_the_cost_is_that_of_the_noise_and_of_the_threshold():
  event = words_of([], noise.Gaussian(2.0), delta=1e-3, words_per_record=7).event
  for relation, shift in ((relations.ADD_OR_REMOVE, 1), (relations.ZERO_OUT, 1),
                          (relations.REPLACE, 2)):
    account = accounting.PhiAccountant(relation).compose(event)
    for epsilon in (0.1, 1.0, 2.0):
      mu = shift / 2
      gaussian = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * (
          stats.norm.cdf(-mu / 2 - epsilon / mu))
      assert account.get_delta(epsilon) == pytest.approx(
          1e-3 + 0.999 * gaussian, rel=1e-6)


def lone(law, most, threshold_change=0, monkeypatch=None):
  """Returns how many of 10,000 records show a word that they alone hold."""
  if threshold_change:
    true = words_lib.planner.count_threshold
    monkeypatch.setattr(words_lib.planner, 'count_threshold', lambda *args, **options: (
        true(*args, **options) + threshold_change))
  records = [[10 * i + j for j in range(most)] for i in range(10_000)]
  found = words_of(records, law, delta=0.02, words_per_record=most, seed=5).value
  return len({word // 10 for word in found})


@representatives('most', [3, 1])
@representatives('name', LAWS)
def test_words_of_one_record_alone_show_as_rarely_as_delta_says(
    name, most, monkeypatch):
  wide = {'gaussian': noise.Gaussian(6.0), 'laplace': noise.Laplace(6.0),
          'sinh-normal': noise.SinhNormal(6.0, 20.0)}[name]
  limit = stats.binom.ppf(1 - 1e-6, 10_000, 0.02)
  assert lone(wide, most) <= limit
  # A threshold that is too low by a third of the noise is found out.
  assert lone(wide, most, -2 * most, monkeypatch) > limit


def test_a_record_counts_each_word_once_and_few_words():
  exact = noise.Gaussian(1e-6)
  found = words_of([['a', 'a', 'b']] * 30, exact, words_per_record=2).value
  assert found == {'a': 30, 'b': 30}
  many = words_of([list(range(50))] * 3000, exact, words_per_record=4, seed=1).value
  assert sum(many.values()) == 3000 * 4 and len(many) == 50
  # The choice is uniform: each word is in it with probability 4 / 50.
  assert stats.chisquare(list(many.values())).pvalue > 1e-6


def test_order_follows_the_noisy_numbers_and_ties_the_words():
  records = [[word] for word in 'dcab' for _ in range(60)] + [['e']] * 61
  found = words_of(records, noise.Gaussian(8.0), seed=3).value
  numbers = list(found.values())
  assert numbers == sorted(numbers, reverse=True) and list(found)[0] != 'e'
  exact = words_of(records[::-1], noise.Gaussian(1e-6)).value
  assert list(exact) == ['e', 'a', 'b', 'c', 'd']


def test_a_word_that_enough_records_hold_is_missed_as_rarely_as_said():
  law, beta = noise.Laplace(3.0), 0.05
  need = math.ceil(words_of([], law).error(beta))
  found = words_of([[i] for i in range(2000) for _ in range(need)], law, seed=2).value
  assert 2000 - len(found) <= stats.binom.ppf(1 - 1e-6, 2000, beta)


def test_what_has_no_proof_is_refused():
  with pytest.raises(ValueError, match='split a text, or put a word'):
    words_of(['abc', 'abd'])
  with pytest.raises(ValueError, match='got one of type int'):
    words_of([5])
  with pytest.raises(ValueError, match='one peak'):
    words_of([], noise.SinhNormal(6.0, 2.0))
  with pytest.raises(ValueError, match='delta'):
    words_of([], delta=0)
  with pytest.raises(ValueError, match='words_per_record'):
    words_of([], words_per_record=0)
  with pytest.raises(ValueError, match='without a seed'):
    plan_lib.PrivacyPlan(
        noise=noise.Gaussian(1.0), l2_norm_clip=1.0, num_examples=100, steps=1,
        sampling_prob=0.1, delta=1e-5, releases=[words_of([], seed=1)])


def test_several_rows_of_a_person_cost_more():
  law = noise.Gaussian(1.5)
  result = words_of([], law, delta=1e-3)
  account = accounting.PhiAccountant(rows_of_one=3).compose(result.event)
  # A word in all three rows of one person alone is shown that often.
  shown = 1 - law.cdf(threshold_of(result) - 0.5 - 3)
  assert 1 > account.get_delta(20.0) >= shown > 2e-3


def test_how_a_frequent_word_is_written_tells_of_nobody():
  alike = [words_of([[first]] + [[1]] * 300).value for first in (True, 1.0, 1)]
  assert all(list(map(repr, each)) == ['1'] for each in alike)
