"""Tests that datasets are read once, and that each example comes once."""

import numpy as np
import pytest
import tensorflow as tf

import tfcactus
from tfcactus.keras import adapt, PoissonBatches, store_examples

X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
DATA = tf.data.Dataset.from_tensor_slices((X, np.arange(40)))


@pytest.mark.parametrize('repeated', [
    DATA.repeat(2).map(lambda x, y: (x, y)), DATA.repeat().take(80),
    DATA.filter(lambda x, y: True).repeat(2), DATA.concatenate(DATA.repeat(3))])
def test_a_dataset_that_repeats_examples_is_refused(repeated, tmp_path):
  for take in (lambda: PoissonBatches(repeated, sampling_prob=0.5),
               lambda: store_examples(repeated, tmp_path),
               lambda: adapt(
                   tf.keras.layers.Normalization(),
                   repeated.map(lambda x, y: x).batch(8), bounds=(-1, 1),
                   noise=tfcactus.Gaussian(2.0))):
    with pytest.raises(ValueError, match=r'of each example once.*leave out repeat\(\)'):
      take()


def test_a_constant_beside_examples_may_be_repeated():
  ones = tf.data.Dataset.from_tensors(1).repeat()
  both = tf.data.Dataset.zip((DATA.map(lambda x, y: x), ones)).repeat(1)
  assert PoissonBatches(both, sampling_prob=0.5).num_examples == 40
