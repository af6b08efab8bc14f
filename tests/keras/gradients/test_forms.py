"""Norms of per-example gradients are as exact as clipping takes them to be."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tfcactus.keras.gradients import clipping
from tfcactus.keras.gradients import forms


def _values(entries):
  """Rows of float32 that round as badly as they may, and of all magnitudes."""
  rng = np.random.default_rng(entries)
  rows = [rng.normal(size=entries), rng.standard_t(1, entries),
          # One large square, to which each of the others is added.
          np.where(np.arange(entries) == 0, 1.0, 2.0**-11.6),
          np.full(entries, 1 + 2.0**-12), np.full(entries, 2.0**-64),
          10.0**rng.uniform(-30, 15, entries)]
  return np.stack(rows).astype(np.float32)


@pytest.mark.parametrize('entries', [1, 7, 8, 63, 64, 65, 127, 640, 4096, 5041])
def test_norms_err_by_no_more_than_is_proved(entries):
  values = _values(entries)
  exact = [math.fsum(float(v)**2 for v in row) for row in values]
  found = forms.squared_norms(tf.constant(values)).numpy()
  # Rounding of the norm is half that of the square; two more are of scaling.
  error = 2 * forms.NORM_ERROR
  added = entries * 2.0**-126
  assert np.all(found >= np.array(exact) * (1 - error))
  assert np.all(found <= (np.array(exact) + added) * (1 + error))
  assert 4 * forms.NORM_ERROR < clipping.CLIP_MARGIN


def test_float32_sums_of_any_length_would_not_do():
  """The test above sees an error that the margin would not cover."""
  values = np.float32(2.0**-12.2) * np.ones(2**20, np.float32)
  values[0] = 1.0
  naive = np.add.accumulate(values**2, dtype=np.float32)[-1]
  exact = math.fsum(float(v)**2 for v in values)
  assert 1 - naive / exact > 2 * clipping.CLIP_MARGIN
  found = forms.squared_norms(tf.constant(values[None])).numpy()[0]
  assert abs(found / exact - 1) < 2 * forms.NORM_ERROR


def _clipped_in_its_form(row: tf.Tensor, clip: tf.Tensor) -> tf.Tensor:
  return clipping.clip_and_sum(
      [forms.Dense(row, row.shape[1:])], clip, tf.ones([1], tf.bool))[0][0]


def _clipped_by_float64(row: tf.Tensor, clip: tf.Tensor) -> tf.Tensor:
  return clipping.clipped_sums([row], clip)[0]


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
@pytest.mark.parametrize('clipped', [_clipped_in_its_form, _clipped_by_float64])
def test_clipped_rows_stay_within_the_bound(dtype, clipped):
  values = np.concatenate([_values(4096), _values(4096)[:2] * 1e-12]).astype(dtype)
  for row in values:
    total = clipped(tf.constant(row[None]), tf.constant(0.5))
    norm = math.sqrt(math.fsum(float(v)**2 for v in total.numpy()))
    assert norm <= 0.5
