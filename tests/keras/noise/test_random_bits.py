"""Tests that graphs draw fresh bits in every run."""

import numpy as np
import tensorflow as tf

from tfcactus import noise as noise_lib
from tfcactus.keras import NoiseSampler


def test_unseeded_samplers_draw_from_the_system(radial):
  for noise in (noise_lib.Gaussian(1.0), noise_lib.Laplace(1.0), radial):
    sampler = NoiseSampler(noise)
    step = tf.function(lambda s=sampler: s.draw(3))
    assert len({float(step()[0]) for _ in range(5)}) == 5
  step = tf.function(lambda: NoiseSampler(noise_lib.Gaussian(1.0)).draw(3))
  draws = np.ravel([step() for _ in range(5)])
  assert len(set(draws)) == 15
