"""Tests of clipped sums, in which small gradients share operations."""

import numpy as np
import pytest
import tensorflow as tf

from tfcactus.keras.gradients import clipping, forms

_CLIP = 1.5
_ROWS = 6
_SHAPES = [[3], [2, 5], [40, 40], [4], [], [0, 2], [1024], [1025], [3, 2]]


def _gradients(transposed=()):
  """Returns float64 arrays (examples, ...) of each shape, and their forms."""
  draws = np.random.default_rng(0)
  arrays = [draws.normal(size=[_ROWS, *shape]) for shape in _SHAPES]
  made = []
  for i, each in enumerate(arrays):
    if i in transposed:
      each = np.moveaxis(each, -1, 1)
    values = each.astype(np.float64 if i == 3 else np.float32)
    arrays[i] = np.moveaxis(values, 1, -1) if i in transposed else values
    made.append(forms.Dense(tf.constant(values), _SHAPES[i], i in transposed))
  return [each.astype(np.float64) for each in arrays], made


def _clipped(arrays, groups):
  """Returns clipped sums by NumPy, one example and one group after another."""
  sums = [np.zeros(shape) for shape in _SHAPES]
  bound = _CLIP / len(set(groups))**0.5
  for row in range(_ROWS):
    flat = [each[row].ravel() for each in arrays]
    if not all(np.isfinite(each).all() for each in flat):
      continue
    for group in set(groups):
      own = [i for i, each in enumerate(groups) if each == group]
      norm = np.linalg.norm(np.concatenate([flat[i] for i in own]))
      for i in own:
        sums[i] += arrays[i][row] * bound / max(bound, norm)
  return sums


@pytest.mark.parametrize('clipping_kind, groups', [
    ('flat', [0] * 9), ('per_layer', [0, 0, 1, 1, 2, -1, 1, 2, 0])])
def test_joined_gradients_are_clipped_as_each_alone(clipping_kind, groups):
  arrays, given = _gradients(transposed=(1, 8))
  sums, _ = clipping.clip_and_sum(
      given, tf.constant(_CLIP), tf.fill([_ROWS], True), clipping_kind, groups)
  for found, expected in zip(sums, _clipped(arrays, groups)):
    assert found.shape == expected.shape and found.dtype == tf.float64
    np.testing.assert_allclose(found, expected, rtol=3e-5, atol=1e-9)


@pytest.mark.parametrize('place', [0, 3, 6])
def test_a_joined_gradient_that_is_not_finite_leaves_out_its_example_alone(place):
  arrays, given = _gradients()
  arrays[place][2, 0] = np.nan
  given[place].values = tf.constant(arrays[place], given[place].values.dtype)
  sums, _ = clipping.clip_and_sum(given, tf.constant(_CLIP), tf.fill([_ROWS], True))
  for found, expected in zip(sums, _clipped(arrays, [0] * 9)):
    np.testing.assert_allclose(found, expected, rtol=3e-5, atol=1e-9)


def test_small_gradients_of_one_group_and_dtype_are_joined():
  _, given = _gradients()
  places, made = forms.joined(given, [0, 0, 1, 1, 2, -1, 1, 2, 0])
  assert places == [[0, 1, 8], [2], [3], [4], [5], [6], [7]]
  assert made[0].shape == [3 + 10 + 6] and made[1] is given[2]


def test_large_gradients_are_summed_one_after_the_other(monkeypatch):
  """The sums are the same, and wait for each other where memory asks for it."""
  rng = np.random.default_rng(5)
  rows = [rng.normal(size=(4, 2000)).astype(np.float32) for _ in range(5)]

  def run():
    def clipped(*values):
      return clipping.clip_and_sum(
          [forms.Dense(each, [2000]) for each in values], tf.constant(1.0),
          tf.ones([4], tf.bool))[0]

    made = tf.function(clipped, autograph=False).get_concrete_function(
        *map(tf.constant, rows))
    waiting = [each for each in made.graph.get_operations() if each.type == 'Cast' and
               any(before.type == 'NoOp' for before in each.control_inputs)]
    return [each.numpy() for each in made(*map(tf.constant, rows))], len(waiting)

  want, waiting = run()
  assert not waiting
  monkeypatch.setattr(clipping, '_AT_ONCE', 17_000)
  found, waiting = run()
  assert waiting == 3
  np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize('form', [
    lambda tiny: forms.Dense(tiny, [4]),
    lambda tiny: forms.Outer(tiny, tf.ones([1, 3], tf.float64)),
    lambda tiny: forms.Outer(tiny, tiny)], ids=['dense', 'outer', 'small factors'])
def test_norms_whose_squares_vanish_in_float64_are_clipped(form):
  for size, clip in ((1e-170, 1e-200), (1e-100, 1e-250)):
    sums, _ = clipping.clip_and_sum(
        [form(tf.fill([1, 4], tf.constant(size, tf.float64)))],
        tf.constant(clip, tf.float64), tf.constant([True]))
    assert np.max(np.abs(sums[0])) <= clip
