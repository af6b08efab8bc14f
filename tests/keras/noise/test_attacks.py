"""Attacks on floating-point noise: releases that only one of two sums can give."""

import numpy as np
import pytest
import tensorflow as tf

import tfcactus
from tfcactus.keras import NoiseSampler
from tfcactus.keras.step import step_noise
from tfcactus.noise import discrete_gaussian

DRAWS = 100_000
ONE = tf.constant(1.0, tf.float64)
SIGMAS = (0.5, 1.0, 2.0)


def _release(sampler, total, dtype):
  """Returns `DRAWS` noisy releases of a sum of clipping norm 1."""
  return sampler.add_to([tf.fill([DRAWS], tf.constant(total, tf.float64))], ONE, None,
                        [dtype])[0].numpy()


def _draws_near(released, total):
  """Yields float64 draws that could lead from `total` to a release."""
  near = released.astype(np.float64) - total
  for moves in range(-1, 2):
    yield np.nextafter(near, np.copysign(np.inf, moves)) if moves else near


@pytest.mark.parametrize('dtype', [tf.float64, tf.float32])
@pytest.mark.parametrize('sigma', SIGMAS)
def test_float_releases_are_possible_for_both_sums(sigma, dtype, monkeypatch):
  sampler = NoiseSampler(tfcactus.Gaussian(sigma), seed=1)
  released = _release(sampler, 0.0, dtype)
  possible = np.zeros(DRAWS, bool)
  for draw in _draws_near(released, 1.0):
    monkeypatch.setattr(sampler, '_sample', lambda size, draw=draw: draw.copy())
    possible |= _release(sampler, 1.0, dtype) == released
  assert possible.all()
  if dtype == tf.float64:  # Without the grid the attack succeeds.
    draws = NoiseSampler(tfcactus.Gaussian(sigma), seed=1).draw(DRAWS).numpy()
    reached = [1.0 + draw == draws for draw in _draws_near(draws, 1.0)]
    assert np.mean(~np.any(reached, 0)) > 0.1


@pytest.mark.parametrize('dtype', [tf.float64, tf.float32])
@pytest.mark.parametrize('sigma', SIGMAS)
def test_whole_releases_are_possible_for_both_sums(sigma, dtype, monkeypatch):
  sampler = step_noise.IntegerSampler(tfcactus.Gaussian(sigma), seed=1)
  shift = int(np.rint(sampler.per_unit(1.0)))
  drawn = []
  draw = discrete_gaussian.draw
  monkeypatch.setattr(discrete_gaussian, 'draw', lambda rng, count: (
      drawn.append(draw(rng, count)) or drawn[-1]))
  released = _release(sampler, 0.0, dtype)
  # The draw that leads from the other sum to the same release is a whole number that
  # the sampler can draw, with a probability of the same order.
  other = drawn[0] - shift
  assert np.abs(other).max() < discrete_gaussian.LARGEST / 2
  monkeypatch.setattr(discrete_gaussian, 'draw', lambda rng, count: other)
  assert np.array_equal(_release(sampler, 1.0, dtype), released)
