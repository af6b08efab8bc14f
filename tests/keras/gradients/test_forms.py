"""Tests that norms and sums of per-example gradients err by no more than is proved."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import rounded_products
from tfcactus.keras.gradients import clipping, forms


def _values(entries):
  """Rows of float32 of all magnitudes, some of which round as badly as possible."""
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
  # A square errs by twice as much as its norm; scaling may err by as much again.
  error = 2 * forms.NORM_ERROR
  added = entries * 2.0**-126
  assert np.all(found >= np.array(exact) * (1 - error))
  assert np.all(found <= (np.array(exact) + added) * (1 + error))
  assert 4 * forms.NORM_ERROR < clipping.CLIP_MARGIN


@pytest.mark.parametrize('first, second', [
    (1.4e-154, -6.4e153), (1e-300, 1e300), (3.0, 1e-200), (0.0, 1e300),
    (1e160, 1e-155)])
def test_norms_of_outer_products_of_float64_do_not_underflow(first, second):
  inputs = tf.constant([[first] * 784, [1.0] * 784], tf.float64)
  outputs = tf.constant([[second], [2.0]], tf.float64)
  norms = np.sqrt(forms.Outer(inputs, outputs).squared_norms().numpy())
  np.testing.assert_allclose(
      norms, [abs(first * second) * 28, 56], rtol=1e-12, atol=1e-150)


def test_float32_sums_of_any_length_would_not_do():
  """Shows that a naive float32 sum errs by more than the margin covers."""
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


def _forms_of(rows):
  """Gradients of a variable of shape (1, d) in every form."""
  made = [forms.Dense(rows[:, None], [1, rows.shape[1]]),
          forms.Outer(tf.ones_like(rows[:, :1]), rows),
          # Three positions, all of whose numbers are exact.
          forms.Outer(tf.ones([rows.shape[0], 3, 1]),
                      tf.stack([rows / 2, rows, -rows / 2], 1)),
          forms.Rows(tf.zeros([rows.shape[0], 1], tf.int32), rows[:, None], 1)]
  made.append(forms.Tied(forms.Rows(made[-1].ids, rows[:, None] / 2, 1), forms.Outer(
      tf.ones_like(rows[:, None, :1]), rows[:, None] / 2)))
  assert {type(each) for each in made} == set(forms.GradientForm.__subclasses__())
  return made


def _summed(form, clip):
  rows = form.tensors()[0].shape[0]
  total, _ = clipping.clip_and_sum(
      [form], tf.constant(clip, tf.float64), tf.ones([rows], tf.bool))
  return total[0].numpy().astype(np.float64)


@pytest.mark.parametrize('form', range(5))
@pytest.mark.parametrize('mode', rounded_products.SIGNIFICANT_BITS)
def test_rounded_products_never_carry_a_row_over_the_bound(mode, form):
  """Entries and factors lie where rounding to fewer digits makes them largest."""
  half = 2.0**-rounded_products.SIGNIFICANT_BITS[mode] + 2.0**-20
  row = np.full((1, 16), 1 + half, np.float32)
  rng = np.random.default_rng(0)
  factor = (1 + half) / 2
  with rounded_products.rounding(mode):
    for clip in [np.linalg.norm(row) * factor / (1 - clipping.CLIP_MARGIN),
                 *rng.uniform(0.1, 4, 30)]:
      assert np.linalg.norm(_summed(_forms_of(tf.constant(row))[form], clip)) <= clip


def _unlucky(examples):
  """(examples, 1): one tiny number that decides whether others are rounded away.

  The first half add up to where numbers are `step` apart. Each of the second half takes
  off half a step, which is rounded away above the sum of the first, but not from it.
  """
  half = examples // 2
  step = 2.0**(math.floor(math.log2(half)) - 23)
  return np.concatenate([np.ones(half), [2 * step], np.full(half, -step / 2)])[:, None]


@pytest.mark.parametrize('form', range(5))
@pytest.mark.parametrize('examples', [1025, 16_385])
def test_sums_err_by_no_more_than_is_proved(examples, form):
  rng = np.random.default_rng(examples)
  for rows in (_unlucky(examples), rng.normal(size=(examples, 3)) / 4):
    rows = rows.astype(np.float32)
    clip = 1.01 * np.max(np.linalg.norm(rows, axis=1))
    exact = [math.fsum(column) for column in rows.T.astype(float)]
    error = np.linalg.norm(_summed(_forms_of(tf.constant(rows))[form], clip) - exact)
    # Each term goes through as many roundings as there are rows, or positions of rows,
    # where the terms are twice as long as their sum.
    many = {2: 6, 4: 2}.get(form, 1)
    assert error <= (
        1.01 * many * examples * 2.0**-53 * np.sum(np.linalg.norm(rows, axis=1)))


def test_one_row_moves_a_sum_of_many_by_no_more_than_itself():
  rows = _unlucky(16_385).astype(np.float32)
  without = np.where(np.arange(len(rows))[:, None] == 8192, 0, rows)
  for some, others in zip(*(_forms_of(tf.constant(each)) for each in (rows, without))):
    moved = np.linalg.norm(_summed(some, 1.01) - _summed(others, 1.01))
    assert moved <= 1.001 * rows[8192, 0]


def test_the_margin_covers_norms_and_sums():
  sums = 2.02 * clipping.MOST_ROUNDINGS * 2.0**-53
  assert (1 - clipping.CLIP_MARGIN) * (1 + forms.NORM_ERROR) * (1 + sums) <= 1


def test_ids_outside_of_the_table_add_nothing():
  values = tf.constant(np.arange(1., 9, dtype=np.float32).reshape(1, 4, 2))
  found = forms.Rows.merged(tf.constant([[5, 0, -1, 0]]), values, 5)
  assert np.all((found.ids >= 0) & (found.ids < 5))
  want = np.zeros((5, 2))
  want[0] = [3 + 7, 4 + 8]
  np.testing.assert_array_equal(found.weighted_sum(tf.ones([1], tf.float64)), want)
  np.testing.assert_allclose(found.squared_norms(), [np.sum(want**2)], rtol=1e-6)
