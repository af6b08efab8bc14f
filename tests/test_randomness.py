"""Random bits: unpredictable, never repeated, and of their stated laws."""

import collections
import copy
import itertools
import os
import pickle
import signal

from cryptography.hazmat.primitives.ciphers import algorithms, Cipher, modes
import numpy as np
import pytest
from scipy import stats

from tests.representatives import representatives
from tfcactus import randomness
from tfcactus.randomness import fine_uniform, KeyStream, SystemRandom


def test_only_seeds_repeat():
  assert np.array_equal(SystemRandom(1).random(5), SystemRandom(1).random(5))
  assert not np.array_equal(SystemRandom(1).random(5), SystemRandom(2).random(5))
  assert not np.array_equal(SystemRandom(1, 'a').random(5),
                            SystemRandom(1, 'b').random(5))
  assert not np.array_equal(SystemRandom().random(5), SystemRandom().random(5))


def test_shapes_and_ranges():
  rng = SystemRandom(3)
  for draw in (rng.random, rng.standard_normal):
    assert draw((2, 3)).shape == (2, 3)
    assert draw(4).shape == (4,)
    assert np.shape(draw(())) == ()
  whole = rng.integers(7, 70_000)
  assert stats.chisquare(np.bincount(whole, minlength=7)).pvalue > 1e-3
  # Three quarters of the range of a word: a remainder would favour the first.
  large = rng.integers(3 * 2**61, 40_000) / (3 * 2**61)
  assert stats.kstest(large, 'uniform').pvalue > 1e-3


class Uniforms:
  """Stands in for a generator: every draw is as given."""

  def __init__(self, values):
    self.values = list(values)

  def random(self, size):
    return np.full(size, self.values.pop(0))


def test_uniforms_have_digits_below_the_float_grid():
  assert float(fine_uniform(Uniforms([0.0, 0.25]), 1)[0]) == 2.0**-55
  assert float(fine_uniform(Uniforms([0.0, 0.0]), 1)[0]) > 0
  top = 1 - 2.0**-53
  assert float(fine_uniform(Uniforms([top, top]), 1)[0]) < 1


def test_words_are_the_key_stream_of_aes(monkeypatch):
  key = bytes(range(32))
  monkeypatch.setattr(os, 'urandom', lambda size: key[:size])
  stream = KeyStream()
  words = np.concatenate([stream.words(5), stream.words(200_000)])
  cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
  expected = np.frombuffer(cipher.update(bytes(8 * words.size)), np.uint64)
  np.testing.assert_array_equal(words, expected)


def test_streams_differ_unless_seeded():
  first, second = (set(KeyStream().words(9)) for _ in range(2))
  assert not first & second
  one, two = KeyStream(1, 'a'), KeyStream(1, 'a')
  np.testing.assert_array_equal(one.words(9), two.words(9))
  assert set(KeyStream(1, 'b').words(9)).isdisjoint(two.words(9))


def test_a_forked_process_has_words_of_its_own():
  stream = KeyStream()
  read, write = os.pipe()
  child = os.fork()
  if child == 0:
    os.write(write, stream.words(4).tobytes())
    os._exit(0)
  os.waitpid(child, 0)
  theirs = np.frombuffer(os.read(read, 32), np.uint64)
  assert set(theirs).isdisjoint(stream.words(4))


def test_a_fork_while_a_thread_draws_does_not_lock_the_child():
  stream = KeyStream()
  with stream._lock:  # As a thread holds it that draws noise ahead.
    child = os.fork()
    if child == 0:
      signal.alarm(60)
      stream.words(1)
      os._exit(0)
  assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize('duplicate', [copy.copy, copy.deepcopy, pickle.dumps])
def test_streams_cannot_be_copied(duplicate):
  with pytest.raises(TypeError, match='repeat'):
    duplicate(KeyStream())


@pytest.mark.parametrize('count', [1, 2, 26_011, 400_001])
def test_normals_have_their_law(count):
  draws = KeyStream(1, 'test').normals(count)
  assert draws.shape == (count,)
  if count > 1000:
    assert stats.kstest(draws, 'norm').pvalue > 1e-3
    assert stats.kstest(1.02 * draws, 'norm').pvalue < (
        0.1 if count < 1e5 else 1e-6)
    half = count // 2
    assert abs(np.corrcoef(draws[:half], draws[half:2 * half])[0, 1]) < 0.02


def test_tails_beyond_what_tf_random_normal_can_draw():
  stream = KeyStream(2, 'test')
  stream.words = lambda count: np.full(count, 2**9, np.uint64)
  assert np.all(stream.normals(4) > 8.0)
  draws = KeyStream(3, 'test').normals(4_000_000)
  assert abs(np.sum(np.abs(draws) > 4.5) - 8e6 * stats.norm.sf(4.5)) < 25


def test_selection_compares_whole_words():
  stream = KeyStream()
  edge = int(0.3 * 2.0**64)
  stream.words = lambda count: np.array(
      [0, edge - 1, edge, 2**64 - 1], np.uint64)
  assert stream.below(0.3, 4).tolist() == [True, True, False, False]
  assert stream.below(1.0, 4).tolist() == [True] * 4
  assert stream.below(2.0**-64, 4).tolist() == [True, False, False, False]
  assert stream.below(2.0**-70, 4).tolist() == [False] * 4


@pytest.mark.parametrize('draw, kinds', [
    (lambda stream: stream.subset(2, 5),
     list(itertools.combinations(range(5), 2))),
    (lambda stream: stream.permutation(4),
     list(itertools.permutations(range(4)))),
])
def test_subsets_and_orders_are_uniform(draw, kinds):
  stream = KeyStream(3)
  counts = collections.Counter(tuple(draw(stream)) for _ in range(12_000))
  assert set(counts) == set(kinds)
  found = [counts[kind] for kind in kinds]
  assert stats.chisquare(found).pvalue > 1e-3
  skewed = np.ones(len(kinds))
  skewed[:2] *= 1.2
  assert stats.chisquare(
      found, skewed * sum(found) / skewed.sum()).pvalue < 1e-3
  assert stream.subset(5, 5).tolist() == list(range(5))


def test_equal_words_are_drawn_again(monkeypatch):
  draws = [[7, 7, 1], [7, 2, 1], [3, 3, 3], [3, 2, 9]]
  monkeypatch.setattr(KeyStream, 'words', lambda self, count: np.array(
      draws.pop(0), np.uint64))
  assert KeyStream().subset(2, 3).tolist() == [1, 2]
  assert KeyStream().permutation(3).tolist() == [1, 0, 2]
  assert not draws


def test_replayed_words_are_those_that_were_drawn():
  stream = KeyStream(3, 'replayed')
  drawn = np.concatenate([stream.words(count) for count in (5, 2, 64)])
  for position in (0, 1, 5, 7, 70):
    again = stream.replayed(position)
    assert again.position == position
    np.testing.assert_array_equal(again.words(71 - position), drawn[position:])
  # The stream itself goes on with fresh ones.
  assert not np.isin(stream.words(71), drawn).any()
  for position in (142, 143, -1):
    with pytest.raises(ValueError, match='from which this process has drawn'):
      stream.replayed(position)


def test_words_of_another_process_are_not_replayed(monkeypatch):
  stream = KeyStream(3, 'replayed')
  stream.words(9)
  monkeypatch.setattr(os, 'getpid', lambda: -1)
  with pytest.raises(ValueError, match='this process'):
    stream.replayed(0)


@representatives('count', [randomness.PARALLEL + 1, 3 * randomness.PARALLEL + 7,
                                   100_001])
def test_many_normals_are_normal_and_repeat_with_a_seed(count):
  stream = randomness.KeyStream(3)
  drawn, more = stream.normals(count), stream.normals(count)
  assert drawn.shape == (count,)
  assert stats.kstest(drawn, 'norm').pvalue > 1e-4
  assert stats.kstest(1.05 * drawn, 'norm').pvalue < 1e-4
  # Parts are of streams of their own: none repeats, in this draw or the next.
  assert np.unique(np.concatenate([drawn, more])).size == 2 * count
  for lag in (1, count // 8, count // 2):
    assert abs(np.corrcoef(drawn[lag:], drawn[:-lag])[0, 1]) < 6 / np.sqrt(count - lag)
  np.testing.assert_array_equal(randomness.KeyStream(3).normals(count), drawn)
  position = stream.position
  third = stream.normals(count)
  np.testing.assert_array_equal(stream.replayed(position).normals(count), third)


def test_a_stream_of_a_key_is_that_of_the_key():
  one, other = (randomness.KeyStream.of_key(b'k' * 32) for _ in range(2))
  np.testing.assert_array_equal(one.words(5), other.words(5))
  assert not np.array_equal(one.words(5),
                            randomness.KeyStream.of_key(b'j' * 32).words(5))


def test_errors_of_tasks_in_threads_are_raised_and_nothing_is_repeated():
  called = []

  def task(number):
    called.append(number)
    if number == 1:
      raise RuntimeError('of the task')

  with pytest.raises(RuntimeError, match='of the task'):
    randomness.in_threads(task, range(3))
  assert sorted(called) == [0, 1, 2]
