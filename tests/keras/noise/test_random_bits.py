"""Tests that graphs draw fresh bits in every run, and are let go of after it."""

import gc
import weakref

import numpy as np
import tensorflow as tf

from tfcactus import noise as noise_lib
from tfcactus.keras import NoiseSampler
from tfcactus.keras.noise import random_bits


def test_unseeded_samplers_draw_from_the_system(radial):
  for noise in (noise_lib.Gaussian(1.0), noise_lib.Laplace(1.0), radial):
    sampler = NoiseSampler(noise)
    step = tf.function(lambda s=sampler: s.draw(3))
    assert len({float(step()[0]) for _ in range(5)}) == 5
  step = tf.function(lambda: NoiseSampler(noise_lib.Gaussian(1.0)).draw(3))
  draws = np.ravel([step() for _ in range(5)])
  assert len(set(draws)) == 15


def test_a_graph_that_calls_numpy_ends_with_its_function():
  """TensorFlow keeps functions that graphs call, which must not hold the graphs."""

  def graph():
    run = tf.function(lambda x: random_bits.changed(
        lambda parts, scale: [scale * part for part in parts], [x], [x.dtype], 2 * x[0]
    )[0])
    np.testing.assert_array_equal(run(tf.constant([1.0, 2.0])), [2.0, 4.0])
    return weakref.ref(run.get_concrete_function(tf.TensorSpec([2])).graph)

  found = graph()
  gc.collect()
  assert found() is None
