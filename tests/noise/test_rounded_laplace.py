"""Rounded Laplace draws: digits to 200 bits, and the law of draws."""

import mpmath
import numpy as np
from scipy import stats

from tfcactus.noise import rounded_laplace
from tfcactus.randomness import KeyStream, SystemRandom


def test_digits_have_the_probabilities_of_a_geometric_law():
  found = rounded_laplace.probabilities()
  with mpmath.workprec(300):
    for digit, chance in enumerate(found):
      power = mpmath.exp(mpmath.mpf(2)**(digit - 32))
      assert 0 <= mpmath.mpf(2)**128 / (1 + power) - chance < 1
    # What is lost: less than 2^-128 a digit, and all larger numbers.
    lost = len(found) * mpmath.mpf(2)**-128 + mpmath.exp(
        -mpmath.mpf(2)**(len(found) - 32))
    assert lost < rounded_laplace.DISTANCE


def test_independent_digits_make_a_rounded_laplace_variable():
  # The same digits at scale 4, whose law can be enumerated.
  with mpmath.workprec(200):
    q = mpmath.exp(-mpmath.mpf(1) / 8)
    masses = {0: mpmath.mpf(1)}
    for digit in range(12):
      one = q**(2**digit) / (1 + q**(2**digit))
      masses = {**{k: mass * (1 - one) for k, mass in masses.items()},
                **{k + 2**digit: mass * one for k, mass in masses.items()}}
    for k in (0, 1, 2, 7, 30):
      found = mpmath.fsum(masses[g] for g in masses if (g + 1) // 2 == k)
      # Of a Laplace variable L of scale 4: the probability that |L| rounds to k.
      low, high = max(k - 0.5, 0), k + 0.5
      true = mpmath.exp(-mpmath.mpf(low) / 4) - mpmath.exp(-mpmath.mpf(high) / 4)
      assert abs(found / true - 1) < mpmath.mpf(10)**-40


class Words:
  """Stands in for a `KeyStream`: its words are as given."""

  def __init__(self, *words):
    self.left = [np.array([each], np.uint64) for each in words]

  def words(self, count):
    assert count == 1
    return self.left.pop(0)


def test_a_digit_compares_all_128_bits():
  chances = rounded_laplace.probabilities()
  none = [2**64 - 1] * len(chances)
  for digit in (0, 3, 38):
    high, low = divmod(chances[digit], 2**64)
    assert high or digit == 38
    for first, rest, one in ((high + 1, [], False), (high, [low - 1], True),
                             (high, [low], False), *([(high - 1, [], True)] * (
                                 high > 0))):
      words = [*none[:digit], first, *rest, *none[digit + 1:], 2**63]
      drawn = rounded_laplace._draw(Words(*words), 1)
      assert drawn == ((one << digit) + 1) // 2
  drawn = rounded_laplace._draw(Words(*none[:3], 0, *none[4:], 0), 1)
  assert drawn == -4  # The last word has the sign.


def _chance(draws):
  """Returns the p-value of whole numbers that should be Laplace of scale `SCALE`."""
  cells = np.linspace(0, 1, 201)[1:-1]
  edges = stats.laplace.ppf(cells)
  return stats.chisquare(np.bincount(
      np.searchsorted(edges, draws / rounded_laplace.SCALE), minlength=200)).pvalue


def test_draws_have_their_law_and_a_scale_of_1_01_is_rejected():
  draws = rounded_laplace.draw(SystemRandom(1), 1_500_000)
  assert draws.dtype == np.int64 and np.abs(draws).max() <= rounded_laplace.LARGEST
  assert _chance(draws) > 1e-3
  assert _chance(np.rint(1.01 * draws)) < 1e-9
  for shift in (0, 8, 16):
    assert stats.chisquare(np.bincount(draws >> shift & 255)).pvalue > 1e-3
  again = rounded_laplace._draw(KeyStream(2, 'test'), 100)
  assert np.array_equal(again, rounded_laplace._draw(KeyStream(2, 'test'), 100))
