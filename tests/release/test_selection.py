import numpy as np
import pytest
from scipy import stats

from tests.noise.tables import gaussian_scalar, truncated_scalar, wavy_scalar
from tests.representatives import representatives
from tfcactus import noise, release
from tfcactus.noise import sinh_normal
from tfcactus.randomness import SystemRandom
from tfcactus.release import selection

LAWS = [noise.Gaussian(2.0), noise.Laplace(1.5), noise.SinhNormal(2.0, 3.0)]


def answers(scores, law, runs, seed=0, scale=1.0):
  return selection.obvious_answer_draws(
      np.asarray(scores), scale, law, SystemRandom(seed), runs)


@pytest.mark.parametrize('law', LAWS + [gaussian_scalar(2.0),
                                        truncated_scalar()])
@pytest.mark.parametrize('gap', [0, 2, 4, 9])
def test_obvious_answer_is_right_exactly_as_often_as_computed(law, gap):
  runs = 60_000
  scores = np.array([5, 5 + gap, 1, 5, 5])
  right = int(np.sum(answers(scores, law, runs) == (1 if gap else 0)))
  expected = selection.obvious_answer_success(law, 5, gap)
  assert stats.binomtest(right, runs, expected).pvalue > 1e-4
  wrong_law = selection.obvious_answer_success(law, 5, gap + 1.5)
  if gap >= 2 and abs(wrong_law - expected) > 0.03:
    assert stats.binomtest(right, runs, wrong_law).pvalue < 1e-4


@pytest.mark.parametrize('scores', [
    [3, 3, 3, 3], [3, 4, 3, 3], [0, 2, 1, 1], [7, 7, 0, 0]])
def test_without_a_gap_the_answer_is_exactly_uniform(scores):
  """Ties and gaps up to two sensitivities: drawn over all options at once."""
  counts = np.bincount(answers(scores, LAWS[0], 40_000), minlength=4)
  assert stats.chisquare(counts).pvalue > 1e-4


def test_wrong_answers_are_uniform_over_the_others():
  drawn = answers([0, 9, 0, 0], LAWS[0], 60_000)
  counts = np.bincount(drawn, minlength=4)[[0, 2, 3]]
  assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize('law', LAWS)
@pytest.mark.parametrize('options, m', [(2, 1), (7, 1), (40, 1), (9, 3)])
def test_histogram_success_is_bounded_closely(law, options, m):
  gap = selection.top_m_gap(law, options, 0.2, m)
  scores = np.where(np.arange(options) < m, gap, 0.0) * 2.0**20
  drawn = selection.top_m_draws(
      np.rint(scores).astype(np.int64), m, 2.0**20, law, SystemRandom(2), 20_000)
  right = np.mean(np.all(np.sort(drawn, axis=1) == np.arange(m), axis=1))
  assert 0.8 - 0.013 < right < 0.8 + 0.02


@representatives('law', LAWS, 2)
@pytest.mark.parametrize('method', selection.METHODS)
def test_gaps_are_enough_and_not_much_more(law, method):
  gap = release.smallest_gap(law, num_options=50, beta=0.1, method=method)
  scores = np.zeros(50)
  results = {}
  for name, size in (('enough', gap + 1e-4), ('less', 0.85 * gap)):
    scores[17] = size
    results[name] = np.mean([release.gap_max(
        scores, sensitivity=1, noise=law, method=method, seed=i).value == 17
                             for i in range(800)])
  assert results['enough'] > 0.9 - 0.034
  assert results['less'] < 0.9


def test_planned_gap_is_the_releases_own():
  made = release.gap_max(np.arange(30), sensitivity=2, noise=LAWS[2])
  assert made.error(0.05) == pytest.approx(release.smallest_gap(
      LAWS[2], num_options=30, beta=0.05, sensitivity=2), abs=3)
  assert release.smallest_gap(LAWS[0], num_options=2, beta=0.9) == 0


def test_gap_max_and_top_m_on_clear_data():
  scores = np.array([5.0, 300.0, 2.0, 200.0, 100.0])
  for method in selection.METHODS:
    assert release.gap_max(scores, sensitivity=1, noise=LAWS[0],
                           method=method).value == 1
  top = release.top_m(scores, 3, sensitivity=1, noise=LAWS[0])
  assert list(top.value) == [1, 3, 4]
  assert top.event.count == 3
  data = np.repeat([0, 1, 2], [5, 300, 2])
  assert release.most_frequent(
      data, num_bins=4, noise=LAWS[0]).value == 1


def test_one_release_each():
  from tfcactus import accounting
  for method in selection.METHODS:
    made = release.gap_max([1, 2], sensitivity=1, noise=LAWS[0], method=method)
    assert made.event == accounting.noise_event(LAWS[0])


def test_gaps_of_neighbours_change_as_the_accounts_assume():
  """The moves of f between neighbouring scores, m = 1..4, by brute force."""
  rng = np.random.default_rng(4)
  for _ in range(3000):
    k, m = int(rng.integers(3, 9)), int(rng.integers(1, 5))
    if m >= k:
      continue
    x = rng.integers(0, 6, k).astype(float)
    y = x + rng.choice([-1.0, 0.0, 1.0], k)
    f = [np.maximum(s - np.sort(s)[k - m - 1], 0) for s in (x, y)]
    move = np.abs(f[0] - f[1])
    assert np.max(move) <= 2 and np.sum(move) <= 2 * m
    gamma = [np.diff(np.sort(s)[-2:])[0] for s in (x, y)]
    if np.argmax(x) != np.argmax(y):
      assert sum(gamma) <= 2


@pytest.mark.parametrize('call', [
    lambda: release.gap_max([], sensitivity=1, noise=LAWS[0]),
    lambda: release.gap_max([3], sensitivity=1, noise=LAWS[0]),
    lambda: release.gap_max([3, np.nan], sensitivity=1, noise=LAWS[0]),
    lambda: release.gap_max([[3, 4]], sensitivity=1, noise=LAWS[0]),
    lambda: release.gap_max([3, 4], sensitivity=1, noise=LAWS[0], method='x'),
    lambda: release.gap_max([3, 4], sensitivity=1, noise=gaussian_scalar(),
                            method='histogram'),
    lambda: release.gap_max([3, 4], sensitivity=1, noise=noise.SinhNormal(3, 1)),
    lambda: release.gap_max([3, 4], sensitivity=1, noise=wavy_scalar()),
    lambda: release.top_m([1, 2, 3], 3, sensitivity=1, noise=LAWS[0]),
    lambda: release.top_m([1, 2, 3], 0, sensitivity=1, noise=LAWS[0]),
    lambda: release.top_m([1, 2, 3], 1.5, sensitivity=1, noise=LAWS[0]),
    lambda: release.smallest_gap(LAWS[0], num_options=1, beta=0.1),
    lambda: release.smallest_gap(LAWS[0], num_options=5, beta=0),
    lambda: release.smallest_gap(LAWS[0], num_options=5, beta=.1, method='y'),
])
def test_bad_input_is_one_clear_error(call):
  with pytest.raises(ValueError, match='Expected'):
    call()


def answer_law(scores, law):
  """Returns the exact probabilities of the obvious answer."""
  k = len(scores)
  order = np.sort(scores)
  success = selection.obvious_answer_success(law, k, order[-1] - order[-2])
  p = np.full(k, (1 - success) / (k - 1))
  p[int(np.argmax(scores))] = success
  return p


@representatives('shift', [1, 2])
def test_obvious_answers_of_neighbours_are_as_close_as_accounted(shift):
  """Exact laws; by replacement (two) the best may change beyond the clipping."""
  law = noise.SinhNormal(1.0, 2.0)
  rng = np.random.default_rng(5)
  closest = 0.0
  for _ in range(4000):
    k = int(rng.integers(2, 5))
    x = rng.integers(0, 9, k).astype(float)
    p, q = (answer_law(s, law) for s in (x, x + rng.uniform(-shift, shift, k)))
    for epsilon in (0.0, 0.5, 1.5):
      gain = np.sum(np.maximum(p - np.exp(epsilon) * q, 0))
      bound = sinh_normal.delta(law, epsilon, shift=shift)
      assert gain <= bound + 1e-12
      closest = max(closest, gain / bound)
  assert closest > 0.8


def test_one_option_is_explained():
  with pytest.raises(ValueError, match='nothing to choose'):
    release.gap_max([3], sensitivity=1, noise=LAWS[0])
