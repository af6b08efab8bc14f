"""The exponential mechanism: its draws, its accuracy and its account."""

import math

import numpy as np
import pytest
from scipy import special, stats

from tests.representatives import representatives
from tfcactus import accounting, relations, release
from tfcactus.randomness import SystemRandom
from tfcactus.release import selection


def test_options_are_drawn_by_their_weights():
  steps, rate, runs = np.array([3, 0, 5, 5, -20]), 0.4, 200_000
  drawn = selection.exponential_draws(steps, rate, SystemRandom(1), runs)
  expected = special.softmax(rate * steps)
  assert stats.chisquare(np.bincount(drawn, minlength=5), runs * expected).pvalue > 1e-4
  assert stats.chisquare(np.bincount(drawn, minlength=5), runs * special.softmax(
      1.05 * rate * steps)).pvalue < 1e-4


def test_a_rare_option_stays_possible():
  """A weight of e^-60 is below the 53 bits of a uniform; exponential clocks keep it."""

  class Early:  # The clock of the last option rings as early as it can.

    def random(self, size):
      return np.broadcast_to([0.9, 0.9, 0.0], size)

  assert selection.exponential_draws(np.array([60, 60, 0]), 1.0, Early(), 1)[0] == 2


@representatives('monotone', [False, True])
@pytest.mark.parametrize('beta', [0.05, 0.5])
def test_answers_fall_short_by_no_more_than_is_said(monotone, beta):
  settings = dict(sensitivity=2.0, epsilon=1.5, monotone=monotone)
  made = release.exponential_mechanism(np.zeros(40), **settings)
  scores = np.zeros(40)
  scores[7] = made.error(beta) + 1e-3
  wrong = np.mean([release.exponential_mechanism(scores, seed=i, **settings).value != 7
                   for i in range(3000)])
  assert wrong == pytest.approx(beta, abs=4 * math.sqrt(beta * (1 - beta) / 3000))


def test_it_costs_its_epsilon_and_twice_that_for_replaced_records():
  made = release.exponential_mechanism([1, 2, 3], sensitivity=1, epsilon=0.5)
  assert made.event == accounting.ExponentialMechanismDpEvent(0.5)
  assert made.guarantee(1e-9).upper <= 0.5
  assert made.guarantee(1e-9, relations.REPLACE).upper <= 1.0
  assert made.guarantee(1e-9, relations.REPLACE).upper > 0.99
  assert made.tcdp(1e-6).rho < accounting.TCDP.from_pure_dp(0.5).rho / 2
  assert 'exponential mechanism' in made.report(1e-6)


def test_neighbours_are_told_apart_no_better_than_claimed():
  """The exact laws of neighbouring scores are compared."""
  epsilon = 1.2
  one, other = np.array([4, 4, 2, 1]), np.array([5, 3, 2, 2])
  made = release.exponential_mechanism(one, sensitivity=1, epsilon=epsilon)
  rate = epsilon / (2 * (1 + 2 * 2.0**-20))  # Of the sensitivity on the grid, at most.
  p, q = special.softmax(rate * one), special.softmax(rate * other)
  assert 0.5 < np.max(np.abs(np.log(p / q))) / epsilon <= 1
  for at in (0.0, 0.3, 0.6):
    apart = max(np.sum(np.maximum(p - math.exp(at) * q, 0)),
                np.sum(np.maximum(q - math.exp(at) * p, 0)))
    claim = accounting.PhiAccountant().compose(made.event).get_delta(at)
    assert apart <= claim


@pytest.mark.parametrize('change, words', [
    ({'scores': [1]}, 'k >= 2'), ({'scores': [[1, 2]]}, 'k >= 2'),
    ({'scores': [1, math.nan]}, 'finite'), ({'epsilon': 0}, 'epsilon'),
    ({'epsilon': 300}, 'protects nothing'), ({'sensitivity': -1}, 'sensitivity'),
    ({'monotone': 1}, 'monotone'), ({'seed': -1}, 'seed')])
def test_bad_arguments_are_refused(change, words):
  arguments = {'scores': [1, 2], 'sensitivity': 1, 'epsilon': 1, **change}
  with pytest.raises(ValueError, match=words):
    release.exponential_mechanism(arguments.pop('scores'), **arguments)
