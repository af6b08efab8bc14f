"""Tests of `PoissonBatches`: the law of samples, padding, and refusals."""

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from tfcactus.keras import AllocatedBatches, PoissonBatches


def _batches(n=30, q=0.2, **kwargs):
  return PoissonBatches(np.arange(n, dtype=np.float32)[:, None], np.arange(n),
                        q, **kwargs)


def test_each_example_enters_independently_with_probability_q():
  batches = _batches(steps_per_epoch=2000, seed=1)
  entered = np.zeros((2000, 30))
  for step, (_, y, weights) in enumerate(batches):
    entered[step, y[weights == 1]] = 1
  per_example = entered.sum(0)
  deviations = (per_example - 400) / np.sqrt(2000 * 0.2 * 0.8)
  assert stats.chi2.sf(np.sum(deviations**2), 30) > 1e-3
  sizes = entered.sum(1)
  expected = stats.binom.pmf(np.arange(31), 30, 0.2) * 2000
  counts = np.bincount(sizes.astype(int), minlength=31)
  pooled = [np.append(v[2:12], v[:2].sum() + v[12:].sum())
            for v in (counts, expected)]
  assert stats.chisquare(*pooled).pvalue > 1e-3
  wrong = stats.binom.pmf(np.arange(31), 30, 0.22) * 2000
  wrong = np.append(wrong[2:12], wrong[:2].sum() + wrong[12:].sum())
  assert stats.chisquare(pooled[0], wrong).pvalue < 1e-6
  pairs = np.corrcoef(entered.T)[~np.eye(30, dtype=bool)]
  assert np.abs(pairs).max() < 0.12


def test_no_sample_is_truncated_and_padding_has_weight_zero():
  for x, y, weights in _batches(physical_batch_size=4, seed=1):
    assert len(x) == len(y) == len(weights) and len(x) % 4 == 0
    drawn = y[weights == 1]
    assert len(set(drawn)) == len(drawn)
    np.testing.assert_array_equal(x[weights == 1, 0], drawn)
    assert not np.any(x[weights == 0])


def test_empty_samples_are_one_padded_example():
  for x, _, weights in _batches(q=1e-12, steps_per_epoch=3):
    assert x.shape == (1, 1) and weights.tolist() == [0]


def test_probability_one_takes_all_examples():
  batches = _batches(q=1.0)
  assert len(batches) == 1
  assert batches[0][1].tolist() == list(range(30))


def test_epochs_are_drawn_anew_and_seeds_repeat_them():
  def ids(batches):
    return [tuple(y[w == 1]) for _, y, w in batches]

  batches = _batches(seed=1)
  first = ids(batches)
  assert len(first) == len(batches) == batches.steps_per_epoch == 5
  assert ids(batches) != first
  assert ids(_batches(seed=1)) == first
  assert ids(_batches()) != ids(_batches())
  assert batches.draws == 10 and batches.seeded and not _batches().seeded


def test_datasets_have_static_inner_shapes_and_draw_anew():
  batches = PoissonBatches(tf.zeros([20, 4, 3]), np.arange(20), 0.25, seed=1)
  dataset = batches.dataset()
  assert dataset.element_spec[0].shape.as_list() == [None, 4, 3]
  passes = [[tuple(y[w == 1]) for _, y, w in dataset.as_numpy_iterator()]
            for _ in range(2)]
  assert passes[0] != passes[1] and len(passes[0]) == 4
  assert dataset.cardinality() == 4


def test_datasets_have_no_more_batches_than_an_epoch_that_is_drawn_as_a_whole():
  assert len(list(_batches().dataset(7))) == 7
  dealt = AllocatedBatches(np.zeros(8), np.zeros(8), num_batches=4)
  assert len(list(dealt.dataset(3))) == 3
  with pytest.raises(ValueError, match='at most the 4 batches of an epoch'):
    dealt.dataset(5)


def test_a_forked_process_raises():
  batches = _batches()
  batches._pid += 1
  with pytest.raises(RuntimeError, match='forked'):
    batches[0]
  with pytest.raises(IndexError, match='batch index'):
    batches[5]


def test_examples_that_are_not_finite_are_padding():
  x = np.ones((4, 2, 2))
  x[1, 0, 1], x[2, 1, 1] = np.nan, np.inf
  batches = PoissonBatches(x, np.array([0.0, 1.0, 2.0, np.nan]), 1.0)
  drawn, y, weights = batches[0]
  assert y[weights == 1].tolist() == [0.0]
  assert np.all(np.isfinite(drawn)) and batches.num_examples == 4


@pytest.mark.parametrize('args, words', [
    ((np.zeros((3, 2)), np.zeros(4), 0.5), '3 examples in x and 4 in y'),
    ((np.zeros((0, 2)), np.zeros(0), 0.5), 'at least one'),
    ((np.zeros((3, 2)), np.zeros(3), 0.0), r'sampling_prob in \(0, 1\]'),
    ((np.zeros((3, 2)), np.zeros(3), 1.5), r'sampling_prob in \(0, 1\]'),
    ((np.zeros((3, 2)), np.zeros(3), float('nan')), 'finite'),
    ((np.zeros((3, 2)), np.zeros(3), 'half'), 'number'),
    ((np.zeros((3, 2)), ['a', 'b', 'c'], 0.5), 'array of numbers'),
    ((7, np.zeros(3), 0.5), 'first axis'),
])
def test_invalid_data_raise(args, words):
  with pytest.raises(ValueError, match=words):
    PoissonBatches(*args)


@pytest.mark.parametrize('kwargs, words', [
    ({'steps_per_epoch': 0}, 'steps_per_epoch >= 1'),
    ({'physical_batch_size': 0}, 'physical_batch_size >= 1'),
    ({'physical_batch_size': 2.5}, 'integer'),
    ({'seed': -3}, 'seed >= 0'),
])
def test_invalid_settings_raise(kwargs, words):
  with pytest.raises(ValueError, match=words):
    _batches(**kwargs)
