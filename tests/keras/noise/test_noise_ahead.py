"""Noise of the next step, drawn while the device works: used once, in order."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from tests.keras import tiny
from tests.representatives import representatives
import tfcactus
from tfcactus.keras import NoiseSampler
from tfcactus.keras.noise import noise_addition, noise_ahead

_ONE = tf.ones([], tf.float64)


def _sampler(**kwargs):
  return NoiseSampler(tfcactus.Gaussian(1.0), randomness='host', **kwargs)


def _step(sampler, *sizes):
  """Returns a function of a step whose sum has parts of these sizes."""
  return tf.function(lambda: tf.concat(sampler.add_to(
      [tf.zeros([size], tf.float64) for size in sizes], _ONE), 0))


@pytest.fixture
def small(monkeypatch):
  monkeypatch.setattr(noise_ahead, 'FROM', 100)
  monkeypatch.setattr(noise_addition, 'TOGETHER', 1000)


def _slow(sampler, monkeypatch, seconds):
  """Makes draws take seconds; returns the list of their beginnings and ends."""
  times, sample = [], sampler._sample

  def slow(size):
    begun = time.perf_counter()
    time.sleep(seconds)
    times.append((begun, time.perf_counter()))
    return sample(size)

  monkeypatch.setattr(sampler, '_sample', slow)
  return times


def test_noise_is_drawn_while_the_device_works(small, monkeypatch):
  sampler = _sampler()
  step = _step(sampler, 500)
  drawn = _slow(sampler, monkeypatch, 0.3)
  asked = [time.perf_counter()]
  step()
  for number in range(2, 5):
    while len(drawn) < number:  # The device works.
      assert time.perf_counter() - asked[-1] < 60
      time.sleep(0.01)
    asked.append(time.perf_counter())
    step()
  # The noise of each step was there before the step asked for it, but not long before.
  for (begun, ended), before, when in zip(drawn[1:], asked, asked[1:]):
    assert before < begun < ended < when


def test_noise_of_a_device_that_waits_is_drawn_when_asked_for(small, monkeypatch):
  sampler = _sampler()
  step = _step(sampler, 50)  # Too few to be drawn ahead.
  drawn = _slow(sampler, monkeypatch, 0.3)
  begun = time.perf_counter()
  step(), step()
  assert time.perf_counter() - begun > 0.6 and len(drawn) == 2


def test_a_host_that_computes_large_steps_keeps_no_noise(small, monkeypatch):
  monkeypatch.setattr(noise_ahead, 'MOST_OF_HOST', 600)
  waiting = []
  for size in (600, 601):
    sampler = _sampler()
    _step(sampler, size)()
    waiting += sampler._ahead._waiting
  assert waiting == [(0, 600)]
  monkeypatch.setattr(tf.config, 'list_logical_devices', lambda kind: [kind])
  _step(sampler, 601)()
  assert list(sampler._ahead._waiting) == [(0, 601)]


def test_every_draw_is_used_once_and_has_the_law(small):
  sampler = _sampler(seed=2)
  step = _step(sampler, 800, 700, 90)
  steps = np.stack([step().numpy() for _ in range(30)])
  assert np.unique(steps).size > steps.size - 5  # The grid has 2^30 cells.
  assert stats.kstest(steps.ravel(), 'norm').pvalue > 1e-3
  assert stats.kstest(1.1 * steps.ravel(), 'norm').pvalue < 1e-6


def test_seeds_repeat(small):
  one, two = (np.stack([step().numpy() for _ in range(4)])
              for step in (_step(_sampler(seed=1), 800, 700, 90) for _ in range(2)))
  np.testing.assert_array_equal(one, two)
  # One part draws what steps without a thread draw.
  sampler, step = _sampler(seed=1), _step(_sampler(seed=1), 800)
  for _ in range(3):
    np.testing.assert_allclose(step(), sampler.draw(800), atol=2.0**-29)


def test_a_step_that_fails_neither_repeats_noise_nor_stops_the_next(small, monkeypatch):
  sampler = _sampler(seed=1)  # Two of 1,000 numbers may be one point of the grid.
  step = _step(sampler, 500)
  first = step().numpy()
  check = noise_addition.precision.check_graphs_are_as_written
  monkeypatch.setattr(noise_addition.precision, 'check_graphs_are_as_written',
                      lambda: 1 / 0)
  with pytest.raises(Exception, match='division by zero'):
    step()
  monkeypatch.setattr(noise_addition.precision, 'check_graphs_are_as_written', check)
  assert not np.isin(step().numpy(), first).any()
  # A draw that fails is reported by the step that asks for it, and not repeated.
  assert [each.result().size for each in sampler._ahead._waiting.values()] == [500]
  real = sampler._sample
  monkeypatch.setattr(sampler, '_sample', lambda size: 1 / 0)
  step()
  with pytest.raises(Exception, match='division by zero'):
    step()
  assert [each.exception() for each in sampler._ahead._waiting.values()] != [None]
  monkeypatch.setattr(sampler, '_sample', real)
  with pytest.raises(Exception, match='division by zero'):
    step()
  assert np.std(step()) > 0.5


def test_a_forked_process_uses_no_noise_of_its_parent():
  ahead = noise_ahead.NoiseAhead(_sampler()._sample)
  ahead.take((0, 5))
  ahead._waiting[(0, 5)].result()
  read, write = os.pipe()
  child = os.fork()
  if child == 0:
    os.write(write, ahead.take((0, 5)).tobytes())
    os._exit(0)
  os.waitpid(child, 0)
  theirs = np.frombuffer(os.read(read, 40))
  assert theirs.size == 5 and not np.isin(theirs, ahead.take((0, 5))).any()


@representatives('seed', [None, 1])
def test_noise_that_waits_after_a_fit_is_let_go(seed, monkeypatch):
  monkeypatch.setattr(noise_ahead, 'FROM', 10)
  private = tiny.privatized(seed=seed)
  ahead, kept = private._step._sampler._ahead, []
  at_end = tf.keras.callbacks.LambdaCallback(
      on_train_end=lambda logs: kept.extend(ahead._waiting))
  private.fit(tiny.poisson(), verbose=0, callbacks=[at_end])
  assert kept == [(0, 21)]
  # With a seed, a `fit` in two parts draws what one `fit` draws.
  assert list(ahead._waiting) == ([] if seed is None else kept)


@pytest.mark.more
def test_draws_go_on_after_the_main_thread():
  script = '''
import threading, time
from tfcactus.keras.noise.noise_ahead import NoiseAhead
from tfcactus.randomness import KeyStream, PARALLEL
ahead = NoiseAhead(KeyStream().normals)

def steps():
  threading.main_thread().join()
  time.sleep(0.2)
  found = [ahead.take((0, PARALLEL + 1)) for _ in range(3)]
  print(len({each[0] for each in found}), flush=True)

ahead.take((0, PARALLEL + 1))
threading.Thread(target=steps).start()
'''
  run = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True,
                       timeout=600)
  assert run.stdout == '3\n', run.stderr


def test_what_waits_is_bounded(monkeypatch):
  monkeypatch.setattr(noise_ahead, 'MOST', 1000)
  ahead = noise_ahead.NoiseAhead(np.zeros)
  for number in range(5):
    ahead.take((number, 400))
  assert list(ahead._waiting) == [(0, 400), (1, 400)]
  ahead.take((0, 400))
  assert list(ahead._waiting) == [(1, 400), (0, 400)]
