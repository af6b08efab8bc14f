"""Noise made on the device: its law, its keys, and the functions that it comes from."""

import collections

import mpmath
import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

import tfcactus
from tfcactus.keras import NoiseSampler
from tfcactus.keras.noise import chacha20, device_noise, noise_addition

_ONE = tf.ones([], tf.float64)


def _sampler(multiplier=1.0, **kwargs):
  return NoiseSampler(tfcactus.Gaussian(multiplier), randomness='device', **kwargs)


@pytest.fixture
def blocks(monkeypatch):
  """Records the key and number of each block of a key stream that is asked for."""
  made = collections.Counter()

  def words(key, nonce, first, count):
    def note(key, *numbers):
      part, first = (int(each) for each in numbers)
      made.update((key.tobytes(), part, first + i) for i in range(count))
      return np.arange(16, dtype=np.uint32)

    found = tf.numpy_function(note, [key, nonce[0], first], tf.uint32)
    return [tf.fill([count], each) for each in tf.unstack(found, 16)]

  plain = tf.function(device_noise._chunk.python_function, autograph=False)
  monkeypatch.setattr(device_noise, '_chunk', plain)
  monkeypatch.setattr(device_noise, 'check', lambda blocks: None)
  monkeypatch.setattr(chacha20, 'words', words)
  return made


def _normals_of(words):
  """Returns the two normals of a pair of five words and ten more bits, to 40 digits."""
  *words, more = (mpmath.mpf(int(word)) for word in words)
  with mpmath.workdps(40):
    uniform = words[0] / 2**32 + words[1] / 2**64 + words[2] / 2**96 + (
        more + .5) / 2**106
    bits = int(words[3])
    angle = ((bits % 2**29) / mpmath.mpf(2)**29 + (words[4] + .5) / mpmath.mpf(2)**61
             ) * mpmath.pi / 4
    sides = [mpmath.sin(angle), mpmath.cos(angle)]
    if bits >> 29 & 1:
      sides.reverse()
    return [mpmath.sqrt(-2 * mpmath.log(uniform)) * side * (1 - 2 * (bits >> place & 1))
            for side, place in zip(sides, (30, 31))]


@pytest.mark.parametrize('compiled', [False, True])
def test_normals_are_those_of_box_and_muller_to_the_last_bits(compiled):
  rng = np.random.default_rng(1)
  words = rng.integers(0, 2**32, (6, 400), np.uint32)
  words[5] %= 1024
  words[0, :40] = 0  # Tails: radii up to 12.
  words[1, :30] = 0
  words[2, :20] >>= np.uint32(20)
  words[2:, :3] = 0
  words[3, 100:200] &= np.uint32(0xE0000000)  # Angles near the axes.
  found = tf.function(lambda w: tf.stack(device_noise._pair(
      tf.unstack(w[:5]), w[5])), jit_compile=compiled)(words).numpy()
  for place in range(words.shape[1]):
    exact = _normals_of(words[:, place])
    # The square of the radius errs by a last bit of numbers near one.
    last = 2.0**-50 * (1 + 1 / sum(each**2 for each in exact))
    for one, other in zip(found[:, place], exact):
      assert abs(one - other) <= last * abs(other)
  assert np.max(np.abs(found)) > 12


def test_words_of_equal_bits_reach_both_ends():
  for bits in (0, 2**32 - 1):
    words = [tf.constant([bits], tf.uint32) for _ in range(5)]
    pair = [float(each[0]) for each in device_noise._pair(
        words, tf.constant([bits % 1024], tf.uint32))]
    assert np.all(np.isfinite(pair))
    assert max(map(abs, pair)) == pytest.approx(12.18 if bits == 0 else 0, abs=0.01)


def test_draws_have_the_law_of_the_noise():
  draws = _sampler(0.7, seed=3).draw(40_000).numpy()
  assert stats.kstest(draws / 0.7, 'norm').pvalue > 1e-3
  assert stats.kstest(1.1 * draws / 0.7, 'norm').pvalue < 1e-6


@pytest.mark.more
def test_tails_have_their_mass():
  draws = _sampler(seed=3).draw(4_000_000).numpy()
  assert abs(np.sum(np.abs(draws) > 4.5) - 8e6 * stats.norm.sf(4.5)) < 25
  assert abs(np.sum(1.1 * np.abs(draws) > 4.5) - 8e6 * stats.norm.sf(4.5)) > 50


def test_coordinates_are_independent_over_chunks_and_parts(monkeypatch):
  monkeypatch.setattr(device_noise, '_CHUNK', 2**12)
  monkeypatch.setattr(device_noise, 'TOGETHER', 50_000)
  sums = [tf.zeros([n], tf.float64) for n in (60_000, 20_000, 25_000, 7)]
  assert [len(group) for group in noise_addition._groups(sums)] == [1, 3]
  drawn = np.concatenate([each.numpy() for each in _sampler(seed=3).add_to(sums, _ONE)])
  assert np.unique(drawn).size > drawn.size - 20  # The grid has 2^30 cells.
  assert stats.kstest(drawn, 'norm').pvalue > 1e-3
  assert stats.kstest(1.05 * drawn, 'norm').pvalue < 1e-6
  for lag in (1, 2, 2**12, 2**13, 6 * 2**12, 60_000):
    assert abs(np.corrcoef(drawn[lag:], drawn[:-lag])[0, 1]) < 6 / np.sqrt(
        drawn.size - lag)


@pytest.mark.more
def test_variables_without_entries_get_noise_of_their_shape(monkeypatch):
  monkeypatch.setattr(device_noise, 'TOGETHER', 50)
  shapes = [[0], [60], [0, 3], [70]]
  noisy = _sampler().add_to([tf.zeros(shape) for shape in shapes], _ONE)
  assert [each.shape.as_list() for each in noisy] == shapes


@pytest.mark.more
def test_no_block_of_a_key_is_made_twice(blocks, monkeypatch):
  monkeypatch.setattr(device_noise, '_CHUNK', 64)
  monkeypatch.setattr(device_noise, 'TOGETHER', 1000)
  sums = [tf.zeros([n]) for n in (900, 300, 300, 800)]
  for sampler in (_sampler(), _sampler(), _sampler(seed=1)):
    step = tf.function(lambda s=sampler: s.add_to(sums, _ONE))
    for _ in range(3):
      step()
  # Three draws of each sampler, each under a key of its own.
  assert len({key for key, *_ in blocks}) == 9
  assert max(blocks.values()) == 1


def test_blocks_made_twice_are_found(blocks):
  key = tf.constant(np.arange(8, dtype=np.uint32))
  for _ in range(2):
    device_noise.added(key, 0, tf.zeros([30], tf.float64), _ONE, None)
  assert max(blocks.values()) == 2


def test_compiled_functions_draw_by_keys_from_outside():
  sampler = _sampler(seed=1)
  step = tf.function(
      lambda key: sampler.add_to([tf.zeros([20_000])], _ONE, key=key)[0],
      jit_compile=True)
  first, second = (step(sampler.key()).numpy() for _ in range(2))
  assert stats.kstest(first, 'norm').pvalue > 1e-3
  assert not np.any(first == second)
  again = _sampler(seed=1)
  np.testing.assert_allclose(first, again.add_to([tf.zeros([20_000])], _ONE)[0],
                             rtol=1e-6)


@pytest.mark.parametrize('draw, words', [
    (lambda s: tf.function(lambda: s.draw(3), jit_compile=True)(), 'key=sampler.key()'),
    (lambda s: (lambda key: tf.function(lambda: s.draw(3, key=key))())(s.key()),
     'captures'),
    (lambda s: tf.function(lambda key: tf.while_loop(
        lambda i: i < 2, lambda i: [i + tf.size(s.draw(3, key=key))], [0]))(s.key()),
     'captures'),
    (lambda s: [s.draw(3, key=key) for key in [s.key()] for _ in range(2)],
     'used before'),
    (lambda s: tf.function(lambda key: s.draw(3, key=key) - s((3,), key=key))(s.key()),
     'used before'),
    (lambda s: s.draw(3, key=s.key().numpy()), 'Expected key to be a tensor'),
    (lambda s: s.draw(3, key=s.key()[:4]), 'uint32 of shape')])
def test_keys_that_would_serve_two_draws_are_refused(draw, words):
  with pytest.raises(ValueError, match=words):
    draw(_sampler())


@pytest.mark.parametrize('noise', [
    tfcactus.Laplace(1.0), tfcactus.SinhNormal(1.5, 1.8)])
def test_other_noise_is_refused(noise):
  with pytest.raises(ValueError, match="Gaussian noise with randomness='device'"):
    NoiseSampler(noise, randomness='device')
  with pytest.raises(ValueError, match="Gaussian noise with randomness='device'"):
    NoiseSampler(noise).draw(3, key=_sampler().key())


def test_randomness_is_one_of_three():
  with pytest.raises(ValueError, match="'auto', 'host' or 'device', got 'gpu'"):
    NoiseSampler(tfcactus.Gaussian(1.0), randomness='gpu')
  with pytest.raises(ValueError, match="got 'host'"):
    NoiseSampler(tfcactus.Gaussian(1.0), randomness='host').draw(
        3, key=_sampler().key())


def test_large_sums_on_a_gpu_choose_the_device(monkeypatch):
  sampler = NoiseSampler(tfcactus.Gaussian(1.0))
  large = device_noise.LARGE
  assert not sampler.on_device(large) or tf.config.list_logical_devices('GPU')
  monkeypatch.setattr(device_noise, 'serves', lambda: True)
  assert sampler.on_device(large) and not sampler.on_device(large - 1)
  assert not NoiseSampler(tfcactus.Gaussian(1.0), seed=1).on_device(large)
  assert not NoiseSampler(tfcactus.Laplace(1.0)).on_device(large)
  assert not NoiseSampler(tfcactus.Gaussian(1.0), randomness='host').on_device(large)


def test_a_device_that_computes_something_else_is_refused(monkeypatch):
  real = device_noise._chunk.python_function
  for wrong in (lambda key, part, *others: real(key + 1, part, *others),
                lambda *inputs: real(*inputs) * (1 + 1e-12)):
    device_noise.check.cache_clear()
    monkeypatch.setattr(device_noise, '_chunk', wrong)
    with pytest.raises(RuntimeError, match="Pass randomness='host'"):
      _sampler().draw(100)
  device_noise.check.cache_clear()
