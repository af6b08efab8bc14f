import numpy as np
import pytest

from tfcactus.pairs import dominating_pair as pair_lib
from tfcactus.pairs.dominating_pair import DominatingPair

ALPHA = np.exp(np.linspace(-6, 6, 61))


def random_pair(seed, outcomes=12, zeros=True):
  rng = np.random.default_rng(seed)
  p, q = rng.dirichlet(np.full(outcomes, 0.4), 2)
  if zeros:
    p[:2], q[2:4] = 0, 0
  return p / p.sum(), q / q.sum()


def profile(p, q, alpha):
  """H(alpha) by its definition: the best event of all."""
  return np.array([np.sum(np.maximum(p - a * q, 0)) for a in alpha])


def pair_profile(pair, alpha=ALPHA):
  return np.array([pair.hockey_stick(np.log(a)) for a in alpha])


@pytest.mark.parametrize('seed', range(5))
class TestExactPairs:

  def test_profile_is_the_best_event(self, seed):
    p, q = random_pair(seed)
    pair = DominatingPair.from_masses(p, q)
    np.testing.assert_allclose(pair_profile(pair), profile(p, q, ALPHA),
                               atol=1e-14)

  def test_reversed(self, seed):
    p, q = random_pair(seed)
    pair = DominatingPair.from_masses(p, q).reversed()
    np.testing.assert_allclose(pair_profile(pair), profile(q, p, ALPHA),
                               atol=1e-14)

  @pytest.mark.parametrize('prob', [1e-6, 0.01, 0.4, 0.999, 1.0])
  def test_poisson_mixes_the_inclusion(self, seed, prob):
    p, q = random_pair(seed)
    mixed = (1 - prob) * p + prob * q
    add, remove = DominatingPair.from_masses(p, q).poisson(prob)
    np.testing.assert_allclose(pair_profile(add), profile(p, mixed, ALPHA),
                               atol=1e-14)
    np.testing.assert_allclose(pair_profile(remove), profile(mixed, p, ALPHA),
                               atol=1e-14)

  def test_poisson_losses_are_finite_where_the_record_may_be_left_out(
      self, seed):
    p, q = random_pair(seed)
    add, remove = DominatingPair.from_masses(p, q).poisson(0.3)
    assert add.p_inf == 0
    assert remove.p_inf == pytest.approx(0.3 * np.sum(q[p == 0]))

  def test_splitting_raises_the_profile_and_keeps_masses(self, seed):
    pair = DominatingPair.from_masses(*random_pair(seed))
    first, p = pair_lib.split_to_grid(pair, 0.25)
    loss = (first + np.arange(p.size)) * 0.25
    split = DominatingPair(loss, p, p * np.exp(-loss), pair.p_inf)
    assert np.all(pair_profile(split) >= pair_profile(pair) - 1e-15)
    assert split.p.sum() == pytest.approx(pair.p.sum(), abs=1e-12)
    assert split.q.sum() == pytest.approx(pair.q.sum(), abs=1e-9)

  def test_random_labels_are_post_processing(self, seed):
    pair = DominatingPair.from_masses(*random_pair(seed))
    _, p, q = pair_lib.rounded_to_grid(pair, 0.25)
    assert np.all(profile(p, q, ALPHA) + pair.p_inf <=
                  pair_profile(pair) + 1e-15)
    assert (p.sum(), q.sum()) == pytest.approx((pair.p.sum(), pair.q.sum()))


def test_toy_of_truncated_noise():
  """Supports that differ: half the mass is seen by one side alone.

  With rate .02 removal shows up with probability .02 * .5 = .01 for certain.
  """
  base = DominatingPair.from_masses([0.5, 0.5, 0], [0, 0.5, 0.5])
  add, remove = base.poisson(0.02)
  assert remove.hockey_stick(5.0) == pytest.approx(0.01)
  assert add.p_inf == 0
  assert add.hockey_stick(-np.log(0.98) + 1e-12) == 0
  assert add.hockey_stick(0.0) == pytest.approx(0.01)


def test_symmetric_profile_round_trip():
  """A pair rebuilt from its own profile is the same pair."""
  loss = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
  q = np.array([0, 0, 0.3, 0.15, 0.02])
  p = q * np.exp(loss)
  p[:2], q[:2] = q[:2:-1], p[:2:-1]
  p[2] = q[2] = 1 - p.sum() + p[2]
  pair = DominatingPair.from_masses(p, q)
  alpha = np.exp(np.linspace(0, 2.5, 26))
  built = DominatingPair.from_symmetric_profile(alpha, pair_profile(pair, alpha))
  np.testing.assert_allclose(pair_profile(built), pair_profile(pair),
                             atol=1e-13)


def test_profile_points_that_are_not_convex_get_their_hull():
  alpha = np.array([1.0, 2.0, 3.0, 4.0])
  value = np.array([0.3, 0.25, 0.04, 0.0])
  built = DominatingPair.from_symmetric_profile(alpha, value)
  hull = np.array([0.3, 0.17, 0.04, 0.0])
  np.testing.assert_allclose(pair_profile(built, alpha), hull, atol=1e-14)


@pytest.mark.parametrize('p, q, message', [
    ([0.5, 0.4], [0.5, 0.5], 'p to sum to 1'),
    ([0.5, 0.5], [0.5, 0.6], 'q to sum to 1'),
    ([1.5, -0.5], [0.5, 0.5], 'non-negative'),
    ([np.nan, 1.0], [0.5, 0.5], 'finite entries in p'),
    ([0.5, 0.5], [1.0], 'same shape'),
    ([], [], 'at least one'),
    ([[1.0]], [1.0], 'vector'),
])
def test_bad_masses_are_refused(p, q, message):
  with pytest.raises(ValueError, match=message):
    DominatingPair.from_masses(p, q)


@pytest.mark.parametrize('prob', [0, -0.1, 1.1, np.nan, '0.1', None])
def test_bad_sampling_probabilities_are_refused(prob):
  with pytest.raises(ValueError, match='sampling_prob'):
    DominatingPair.from_masses([0.5, 0.5], [0.5, 0.5]).poisson(prob)


@pytest.mark.parametrize('prob', [0.999999, 1 - 2.0**-30, 1 - 2.0**-50])
def test_losses_of_nearly_everything_sampled_keep_their_digits(prob):
  pair = DominatingPair.from_masses([0.65, 0.35], [2.0**-40, 1 - 2.0**-40])
  add, remove = pair.poisson(prob)
  mixed = [(1 - prob) * p + prob * q for p, q in zip(pair.p, pair.q)]
  # Sums of positive terms: the ratio is right to a few ulps.
  exact = np.log(pair.p) - np.log(mixed)
  np.testing.assert_allclose(add.loss, exact, rtol=1e-14)
  np.testing.assert_allclose(remove.loss, -exact, rtol=1e-14)


@pytest.mark.parametrize('loss', [np.nan, np.inf, -np.inf])
def test_losses_of_atoms_without_mass_are_finite(loss):
  """NaN there switched off the check that the upper pair dominates the lower one."""
  halves = np.array([0.5, 0.0, 0.5])
  with pytest.raises(ValueError, match='finite losses'):
    DominatingPair(np.array([0.0, loss, 0.0]), halves, halves).check()


@pytest.mark.parametrize('epsilon', [np.nan, 'one', None, [0.0, 1.0]])
def test_divergences_want_a_number(epsilon):
  """The divergence at NaN was zero."""
  pair = DominatingPair.from_masses([0.9, 0.1], [0.1, 0.9])
  assert pair.hockey_stick(np.inf) == 0
  assert pair.hockey_stick(-np.inf) == pytest.approx(1, abs=1e-15)
  with pytest.raises(ValueError, match='epsilon'):
    pair.hockey_stick(epsilon)


@pytest.mark.parametrize('prob', [5e-324, 1e-310, 1e-200])
def test_losses_at_tiny_sampling_probabilities(prob):
  """1 / prob overflowed, so that a loss of nearly zero was infinite."""
  p = np.array([np.exp(-100), 1 - np.exp(-100)])
  add, _ = DominatingPair.from_masses(p, p[::-1]).poisson(prob)
  np.testing.assert_allclose(add.loss, [-prob * np.exp(100.0), prob], rtol=1e-9)
