"""Audits every release by counting outcomes in a million runs on two neighbours.

The audit's lower bound on epsilon (Clopper-Pearson, 1e-3) must not exceed the upper
bound that is claimed. With half the noise it must exceed it: an attack that cannot
detect too little noise would prove nothing.
"""

import numpy as np
import pytest

from tests.representatives import representatives
from tfcactus import accounting, audit, noise, release
from tfcactus.randomness import SystemRandom
from tfcactus.release import interior, noise_sources, selection, threshold_queries

RUNS = 1_000_000
PILOT = 100_000
DELTA = 1e-3

LAWS = {
    'gaussian': lambda size: noise.Gaussian(2 * size),
    'laplace': lambda size: noise.Laplace(2 * size),
    'sinh-normal': lambda size: noise.SinhNormal(3 * size, 12 * size)}


def rare(law):
  """Returns how often the event of an attack shall happen.

  A Laplace loss is bounded: rarer events tell no more.
  """
  return 0.1 if isinstance(law, noise.Laplace) else 0.004


def attack(draw, delta=DELTA):
  """Returns the largest epsilon that counting refutes.

  Args:
    draw: (which, runs, seed) -> a statistic of the releases on neighbour 0 or
      1, shape (runs,). The event is chosen on a pilot, then counted afresh.
    delta: Delta of the claim.
  """
  best, plan = -1.0, None
  pilot = [draw(0, PILOT, 1), draw(1, PILOT, 2)]
  values = np.unique(np.concatenate(pilot))
  cells = min(values.size, 400)
  edges = values[1:] if values.size <= cells else np.quantile(
      np.concatenate(pilot), np.linspace(0, 1, cells)[1:])
  cell = lambda x: np.searchsorted(edges, x, side='right')
  for one, other in ((0, 1), (1, 0)):
    p, q = pilot[one], pilot[other]
    hits, others = (np.bincount(cell(x), minlength=cells) for x in (p, q))
    # Few outcomes are ordered by likelihood ratio, other statistics by value.
    order = (np.argsort(-(hits + 0.5) / (others + 0.5)) if cells <= 16 else
             np.arange(cells)[::-1 if np.mean(p) > np.mean(q) else 1])
    bounds = [audit.epsilon_lower_bound(int(a), int(b), PILOT, delta=delta)
              for a, b in zip(np.cumsum(hits[order]), np.cumsum(others[order]))]
    last = int(np.argmax(bounds))
    if bounds[last] > best:
      best, plan = bounds[last], (one, other, order[:last + 1])
  one, other, chosen = plan
  event = np.zeros(cells, bool)
  event[chosen] = True
  return audit.epsilon_lower_bound(*(
      int(np.sum(event[cell(draw(which, RUNS, seed))]))
      for which, seed in ((one, 3), (other, 4))), RUNS, delta=delta)


def check(draw_with, event_with, law, *, tight=0.7):
  """Audits honest noise and halved noise against the claim for honest noise."""
  claim = accounting.PhiAccountant().compose(event_with(law(1.0))).get_epsilon(DELTA)
  honest = attack(lambda *run: draw_with(law(1.0), *run))
  halved = attack(lambda *run: draw_with(law(0.5), *run))
  assert tight * claim < honest <= claim
  assert halved > claim


@representatives('law', LAWS.values(), ids=LAWS)
def test_histogram(law):
  """Each of a million counts is one run; a neighbour has one more in each."""
  def draw(noise_law, which, runs, seed):
    return release.histogram(np.arange(runs) if which else [], num_bins=runs,
                             noise=noise_law, seed=seed).value

  check(draw, accounting.noise_event, law)


@representatives('law', LAWS.values(), ids=LAWS)
def test_noisy_vector(law):
  """Each coordinate is a noisy number on a grid."""
  def draw(noise_law, which, runs, seed):
    # Half a thousand at once: each is charged a grid's step for all.
    value = np.full(500, 0.25 + 0.5 * which)
    return np.concatenate([release.noisy_vector(
        value, l1_sensitivity=0.5, noise=noise_law, seed=seed + 10 * i).value
                           for i in range(runs // 500)])

  check(draw, accounting.noise_event, law)


@pytest.mark.parametrize('runs', [
    pytest.param(8_000, marks=pytest.mark.more),
    pytest.param(RUNS, marks=pytest.mark.slow)])
def test_noisy_value_in_single_calls(runs):
  law = noise.Laplace(1.0)
  counts = [sum(release.noisy_value(
      which, sensitivity=1, noise=size, seed=10 * i + which).value >= 2
                for i in range(runs))
            for size in (law, noise.Laplace(0.5)) for which in (1, 0)]
  claim = accounting.PhiAccountant().compose(
      accounting.noise_event(law)).get_epsilon(DELTA)
  assert audit.epsilon_lower_bound(*counts[:2], runs, delta=DELTA) <= claim
  assert audit.epsilon_lower_bound(*counts[2:], runs, delta=DELTA) > claim


def test_noisy_sum_of_clipped_records():
  """A record far beyond the clip norm, along a million coordinates in turn."""
  def draw(law, which, runs, seed):
    total = release.additive_noise._clipped_steps(
        np.array([[1e9], [0.0]])[:1 + (1 - which)], 1.0, 2.0**-30)
    steps = np.full(runs, int(np.sum(total[:1])) if which else 0)
    return release.additive_noise._noisy_steps(
        steps, 2.0**-30, 1.0, law, seed, 'float', 1.0, runs, '', '').value

  check(draw, accounting.noise_event, LAWS['gaussian'])


@representatives('law', LAWS.values(), ids=LAWS)
def test_obvious_answer(law):
  """The gaps of 50 options differ by two sensitivities."""
  def draw(noise_law, which, runs, seed):
    scores = np.zeros(50, np.int64)
    scores[7] = round(release.smallest_gap(
        noise_law, num_options=50, beta=rare(noise_law))) - which
    scores[3] = which
    drawn = selection.obvious_answer_draws(
        scores, 1.0, noise_law, SystemRandom(seed), runs)
    return drawn == 7

  check(draw, accounting.noise_event, law)


@representatives('law', LAWS.values(), ids=LAWS)
@representatives('options, m', [(2, 1), (6, 2)])
def test_generalised_histogram(law, options, m):
  """The audit counts sets of the best m, without their order."""
  def draw(noise_law, which, runs, seed):
    beta = rare(noise_law) if m == 1 else 0.2
    gap = selection.top_m_gap(noise_law, options, beta, m)
    scores = np.where(np.arange(options) < m, round(gap) - which, which)
    drawn = selection.top_m_draws(
        scores, m, 1.0, noise_law, SystemRandom(seed), runs)
    return np.sum(1 << drawn, axis=1)

  def event(noise_law):
    return release.top_m(np.arange(options), m, sensitivity=1,
                         noise=noise_law).event

  # Only indices come out, and the rivals' noise hides some of the change.
  check(draw, event, law, tight=0.2)


@representatives('law', LAWS.values(), ids=LAWS)
def test_thresholds(law):
  """The record is counted in a leaf and in the root of the tree."""
  def draw(noise_law, which, runs, seed):
    answer = threshold_queries.threshold_draws(
        np.array([3 + which, 2]), noise_law, SystemRandom(seed), runs)
    return answer[:, 0] + answer[:, 1]

  def event(noise_law):
    return release.thresholds([0], num_values=2, noise=noise_law).event

  check(draw, event, law, tight=0.5)


@pytest.mark.parametrize('runs', [8_000, RUNS // 4])
@pytest.mark.slow
def test_threshold_sketch_in_single_calls(runs):
  """A record on the left moves the split, its part's count and the total."""
  def told(which, law, i):
    made = release.threshold_sketch(
        np.repeat([1, 2], [3 + which, 3]), num_values=2, depth=1, noise=law,
        seed=10 * i + which)
    # Eleven only where the part was counted, which is where it was split.
    return np.sum(made.value.counts) >= 11

  laws = [noise.Laplace(2.0), noise.Laplace(0.5)]
  counts = [sum(told(which, law, i) for i in range(runs))
            for law in laws for which in (1, 0)]
  event = release.threshold_sketch(
      [1], num_values=2, depth=1, noise=laws[0]).event
  claim = accounting.PhiAccountant().compose(event).get_epsilon(DELTA)
  assert audit.epsilon_lower_bound(*counts[:2], runs, delta=DELTA) <= claim
  assert audit.epsilon_lower_bound(*counts[2:], runs, delta=DELTA) > claim


@representatives('law', LAWS.values(), ids=LAWS)
def test_binary_search_by_its_answer(law):
  """An audit by the answer alone: for two values, the search is one comparison."""
  def draw(noise_law, which, runs, seed):
    offset = round(float(noise_sources.upper_quantile(
        noise_law, rare(noise_law))))
    balance = interior.Balance.of(
        np.repeat([1, 2], [offset + which, 0]), 0.5, 2)
    return interior.binary_search_draws(
        balance, noise_law, SystemRandom(seed), runs)

  def event(noise_law):
    return release.interior_point([1], num_values=2, noise=noise_law).event

  check(draw, event, law)


def noisy_answers(monkeypatch, run):
  """Returns the noisy answers that a search was given, which the account covers."""
  seen = []
  noisy = noise_sources.noisy

  def spy(exact, scale, law, rng):
    seen.append(noisy(exact, scale, law, rng))
    return seen[-1]

  with monkeypatch.context() as patch:
    patch.setattr(noise_sources, 'noisy', spy)
    run()
  return seen


def test_binary_search_by_all_noisy_answers(monkeypatch):
  """Each of the three balances changes by the whole sensitivity."""
  def draw(law, which, runs, seed):
    balance = interior.Balance.of(
        np.repeat([1, 8], [3 + which, 3]), 0.5, 8)
    return sum(noisy_answers(monkeypatch, lambda: interior.binary_search_draws(
        balance, law, SystemRandom(seed), runs)))

  def event(law):
    return release.interior_point([1], num_values=8, noise=law).event

  check(draw, event, LAWS['gaussian'])


def test_recursion_by_all_noisy_answers(monkeypatch):
  """Sixty records in the middle value make the path always the same."""
  def draw(law, which, runs, seed):
    balance = interior.Balance.of(np.full(60 + which, 2), 0.5, 3)
    answers = noisy_answers(monkeypatch, lambda: interior.recursion_draws(
        balance, 50.0, law, SystemRandom(seed), runs))
    root, leaf, nodes, end = answers
    # How much each changes, over its scale squared: the likelihood ratio.
    return (0.5 * root + leaf + nodes @ [-0.125, 0.25, -0.125] + 0.5 * end)

  def event(law):
    return release.interior_point([1], num_values=3, noise=law,
                                  method='recursion').event

  check(draw, event, LAWS['gaussian'], tight=0.5)
