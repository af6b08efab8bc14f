"""Tests that norms by Gram matrices are never too small, and sums exact enough."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tfcactus.keras.gradients import clipping, forms, gram
from tfcactus.keras.gradients.operations import pull_back


def _cancelling(rng, rows, positions, d, p):
  """Factors whose outer products cancel, in part or (nearly) wholly, in each row."""
  shape = (rows, positions)
  inputs = rng.normal(size=(*shape, d)) * 10.0**rng.uniform(-8, 8, (*shape, 1))
  outputs = rng.normal(size=(*shape, p)) * 10.0**rng.uniform(-8, 8, (*shape, 1))
  half = positions // 2
  kind = rng.integers(0, 4, rows)[:, None, None]
  # Pairs of opposite sign, whole or but for the last bits; or one input for all
  # positions, with output gradients that add up to (nearly) nothing.
  off = np.where(kind == 0, 0.0, 10.0**rng.uniform(-8, -3, (rows, half, 1)))
  again = np.where(kind < 2, inputs[:, :half], inputs[:, :1])
  inputs = np.concatenate([again, again], 1)
  outputs = np.concatenate([outputs[:, :half], -outputs[:, :half] * (1 + off)], 1)
  whole = outputs.astype(np.float32).astype(float)
  whole[:, -1] = np.where(kind[:, 0] == 3, -whole[:, :-1].sum(1), whole[:, -1])
  return inputs.astype(np.float32), whole.astype(np.float32)


def _exact(inputs, outputs):
  """Returns lower bounds on the norms, and S, in extended precision."""
  inputs, outputs = (each.astype(np.longdouble) for each in (inputs, outputs))
  sums = np.zeros((len(inputs), inputs.shape[2], outputs.shape[2]), np.longdouble)
  for a, g in zip(np.moveaxis(inputs, 1, 0), np.moveaxis(outputs, 1, 0)):
    sums += a[:, :, None] * g[:, None]
  spread = np.sqrt(np.sum(inputs**2, 2) * np.sum(outputs**2, 2)).sum(1)
  rounding = 2 * inputs.shape[1] * np.finfo(np.longdouble).eps
  return np.sqrt(np.sum(sums**2, (1, 2))) - rounding * spread, spread


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 2.0**-63,
                    reason='no precision higher than float64')
@pytest.mark.parametrize('positions, d, p', [(2, 3, 2), (6, 4, 3), (16, 2, 33)])
def test_norms_of_sequences_that_cancel_are_never_too_small(
    positions, d, p, monkeypatch):
  # Without it every such norm would be far too large, and the allowance not seen.
  monkeypatch.setattr(gram, 'MOST_CANCELLATION', 1e30)
  rng = np.random.default_rng(positions)
  inputs, outputs = _cancelling(rng, 3400, positions, d, p)
  exact, spread = _exact(inputs, outputs)
  found = gram.squared_norms(tf.constant(inputs), tf.constant(outputs)).numpy()
  assert np.all(found >= np.maximum(exact, 0)**2)
  assert np.all(found <= (exact + 2e-7 * spread)**2)
  # The sequences are hard: without the allowance many norms are too small.
  monkeypatch.setattr(gram, 'allowance', lambda terms: 0.0)
  naive = gram.squared_norms(tf.constant(inputs), tf.constant(outputs)).numpy()
  assert np.mean(naive < np.maximum(exact, 0)**2) > 0.02


def test_norms_of_sequences_that_do_not_cancel_have_eleven_digits():
  rng = np.random.default_rng(0)
  inputs, outputs = (rng.normal(size=(4, 32, n)).astype(np.float32) for n in (24, 50))
  exact, _ = _exact(inputs, outputs)
  found = np.sqrt(gram.squared_norms(tf.constant(inputs), tf.constant(outputs)))
  np.testing.assert_allclose(found, exact.astype(float), rtol=1e-11)


def test_a_sequence_that_cancels_wholly_adds_nothing_but_rounding():
  """The sum of float64 products is exact to S / 2^53 only, so S itself is bounded."""
  rng = np.random.default_rng(1)
  inputs, outputs = (rng.normal(size=(64, 8, n)).astype(np.float32) for n in (5, 6))
  inputs[:, 4:] = inputs[:, :4]
  outputs[:, 4:] = -outputs[:, :4]
  outputs *= 1e30
  form = forms.Outer(tf.constant(inputs), tf.constant(outputs))
  (total,), _ = clipping.clip_and_sum(
      [form], tf.constant(1.0), tf.ones([64], tf.bool))
  roundings = 64 * 8 + 2
  assert 0 < np.linalg.norm(total) <= (
      64 * roundings * 2.0**-53 * gram.MOST_CANCELLATION)


def test_factors_of_other_types_are_refused():
  rows = tf.ones([1, 2, 3], tf.float64)
  with pytest.raises(TypeError, match='Expected factors in float32'):
    gram.squared_norms(rows, rows)
  assert isinstance(forms.product(rows, rows, [3, 3]), forms.Dense)
  with pytest.raises(ValueError, match='2\\^40'):
    gram.allowance(2**40)


@pytest.mark.parametrize('uses', [1, 3])
def test_several_uses_and_views_are_further_positions(uses):
  rng = np.random.default_rng(uses)
  made = [forms.product(*(tf.constant(rng.normal(size=(6, 2, n)).astype(np.float32))
                          for n in (9, 8)), [9, 8]) for _ in range(uses)]
  want = sum(each.dense().numpy() for each in made)
  found = forms.added(made)
  assert isinstance(found, forms.Outer) and found.inputs.shape[1] == 2 * uses
  np.testing.assert_allclose(found.dense(), want, rtol=1e-5, atol=1e-6)
  views = found.averaged(2 if uses == 1 else 3)
  # 18 positions have larger Gram matrices than a kernel of 72 numbers.
  assert isinstance(views, forms.Outer if uses == 1 else forms.Dense)
  rows = want.reshape(-1, 2 if uses == 1 else 3, 9, 8).mean(1)
  np.testing.assert_allclose(views.dense(), rows, rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(
      views.squared_norms(), np.sum(rows.astype(float)**2, (1, 2)), rtol=1e-5)


@pytest.mark.parametrize('axes', ['io', 'oi'])
def test_output_gradients_larger_than_a_kernel_are_not_held(axes):
  """Six positions of 40 outputs have more numbers than a kernel of 5 by 40."""
  rng = np.random.default_rng(4)
  for positions, form in ((5, forms.Outer), (6, forms.Dense)):
    inputs, outputs = (tf.constant(rng.normal(size=(2, positions, n)), tf.float32)
                       for n in (5, 40))
    found = pull_back.Products((inputs, outputs), ('ti', 'to'), list(axes), {
        't': positions, 'i': 5, 'o': 40}).written()
    assert isinstance(found, form)
    np.testing.assert_allclose(found.dense(), tf.einsum(
        f'bti,bto->b{axes}', inputs, outputs), rtol=1e-5, atol=1e-5)


def test_flushed_numbers_do_not_carry_a_row_over_the_bound():
  """Denormal numbers times large ones count in the norm, or else add nothing."""
  inputs, outputs = tf.fill([1, 2, 40], 1e-40), tf.fill([1, 2, 50], 1e38)
  (total,), _ = tf.function(lambda: clipping.clip_and_sum(
      [forms.Outer(inputs, outputs)], tf.constant(1e-3), tf.ones([1], tf.bool)))()
  assert np.linalg.norm(total) <= 1e-3


def test_norms_are_the_same_at_every_place_of_a_batch():
  rng = np.random.default_rng(5)
  for rows, positions, d, p in ((13, 33, 17, 5), (32, 16, 64, 64), (3, 2, 500, 600)):
    inputs, outputs = (np.repeat(rng.normal(size=(1, positions, n)), rows, 0).astype(
        np.float32) for n in (d, p))
    assert len(set(gram.squared_norms(*map(tf.constant, (inputs, outputs))).numpy()
                   )) == 1


def test_a_row_that_is_not_finite_is_dropped():
  inputs = np.ones((3, 2, 3), np.float32)
  inputs[1, 1, 0] = np.nan
  form = forms.Outer(tf.constant(inputs), tf.ones([3, 2, 4]))
  (total,), _ = clipping.clip_and_sum(
      [form], tf.constant(100.0), tf.ones([3], tf.bool))
  np.testing.assert_allclose(total, np.full((3, 4), 4.0))


def _of_tied(rng, rows, looked_up, positions, vocabulary, p):
  ids = rng.integers(0, vocabulary, (rows, looked_up)).astype(np.int32)
  values, logits, outputs = (rng.normal(size=(rows, *shape)).astype(np.float32)
                             for shape in ((looked_up, p), (positions, vocabulary),
                                           (positions, p)))
  table = forms.Rows.merged(tf.constant(ids), tf.constant(values), vocabulary)
  return table, forms.product(
      tf.constant(logits), tf.constant(outputs), [vocabulary, p])


def test_norms_of_tied_tables_have_the_product_of_both_parts():
  table, outer = _of_tied(np.random.default_rng(2), 5, 4, 3, 9, 8)
  found = forms.added([table, outer])
  assert isinstance(found, forms.Tied)
  dense = (table.dense() + outer.dense()).numpy().astype(float)
  np.testing.assert_allclose(found.dense(), dense, rtol=1e-6)
  np.testing.assert_allclose(
      found.squared_norms(), np.sum(dense**2, (1, 2)), rtol=1e-6)
  factors = np.arange(5.0)
  np.testing.assert_allclose(found.weighted_sum(tf.constant(factors)), np.tensordot(
      factors, dense, 1), rtol=1e-5, atol=1e-5)
  keep = found.where(tf.constant([True, False, True, True, True]))
  np.testing.assert_array_equal(keep.squared_norms()[1], 0)
  with_others = forms.added([found.rows, found.outer, forms.Dense(
      tf.constant(dense, tf.float32), [9, 8])])
  np.testing.assert_allclose(with_others.dense(), 2 * dense, rtol=1e-5, atol=1e-6)


def test_norms_of_tied_tables_that_cancel_are_never_too_small(monkeypatch):
  monkeypatch.setattr(gram, 'MOST_CANCELLATION', 1e30)
  rng = np.random.default_rng(3)
  ids = np.tile(np.arange(4, dtype=np.int32), (1000, 1))
  values = rng.normal(size=(1000, 4, 6)).astype(np.float32)
  # Logits have gradients at one row each: what was looked up is taken off again.
  logits = np.tile(np.eye(4, 40, dtype=np.float32), (1000, 1, 1))
  outputs = (-values * (1 + 10.0**rng.uniform(-8, -4, (1000, 4, 1)))).astype(np.float32)
  left = np.sum((values.astype(np.longdouble) + outputs)**2, (1, 2))
  form = forms.added([forms.Rows(tf.constant(ids), tf.constant(values), 40),
                      forms.Outer(tf.constant(logits), tf.constant(outputs))])
  assert isinstance(form, forms.Tied)
  assert np.all(form.squared_norms().numpy() >= left)
  monkeypatch.setattr(gram, 'allowance', lambda terms: 0.0)
  assert np.mean(form.squared_norms().numpy() < left) > 0.02


@pytest.mark.parametrize('lean', [False, True])
def test_kernels_are_written_out_where_they_are_faster(lean):
  long, short = (forms.product(tf.ones([1, n, 300]), tf.ones([1, n, 300]), [300, 300])
                 for n in (64, 16))
  small = forms.product(tf.ones([1, 2, 9]), tf.ones([1, 2, 9]), [9, 9])
  assert all(isinstance(each, forms.Outer) for each in (long, short, small))
  found = [type(forms.held(each, lean, 1e9)) for each in (long, short, small)]
  assert found == ([forms.Outer] * 3 if lean else [
      forms.Dense, forms.Outer, forms.Dense])


def test_kernels_are_written_out_where_the_margin_does_not_cover_gram_norms():
  short = forms.product(tf.ones([1, 16, 300]), tf.ones([1, 16, 300]), [300, 300])
  for drawn, rows, covered in ((1000, 1000, True), (4000, 4000, False),
                               (4000, 250, True), (math.inf, 8, False)):
    most = clipping.most_positions(drawn, rows)
    assert isinstance(forms.held(short, False, most), forms.Outer) == covered
    roundings = rows * 16 + drawn / rows + 3
    assert covered == (
        drawn * roundings * gram.MOST_CANCELLATION <= clipping.MOST_ROUNDINGS)
