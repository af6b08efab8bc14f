"""Tests that each model of the zoo gives the clipped sums of a loop, or is refused."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import model_zoo
from tests.keras import zoo
from tests.keras.zoo import oracle
from tests.keras.zoo.base import Case, Entry

_VERSION = oracle.version()


def _cases(float64: bool = False) -> list:
  """Entries of this Keras; a dozen are fast, of which `make test` runs every fourth."""
  found, fast = [], 0
  for name, entry in zoo.ZOO.items():
    if not (entry.float64 if float64 else entry.float32):
      continue
    missing = entry.missing()
    if missing == 'Keras 3':
      continue
    if entry.fast and not float64:
      marks = [pytest.mark.more] if fast % 4 else []
      fast += 1
    else:
      marks = [pytest.mark.slow]
    if missing:
      marks.append(pytest.mark.skip(reason=f'needs {missing}'))
    if entry.wrong[_VERSION]:
      marks.append(pytest.mark.xfail(
          reason=f'known: {entry.wrong[_VERSION]}', strict=True))
    found.append(pytest.param(entry, id=name, marks=marks))
  return found


def _check(entry: Entry, policy: str, tolerance: float) -> None:
  words = entry.refused[_VERSION]
  if words:
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=words):
      oracle.run(entry, policy)
    return
  assert oracle.error(entry, policy) <= tolerance


@pytest.mark.parametrize('entry', _cases())
def test_clipped_sums_equal_a_loop(entry):
  _check(entry, '', entry.tolerance)


@pytest.mark.parametrize('entry', _cases(float64=True))
def test_clipped_sums_in_float64(entry):
  _check(entry, 'float64', 1e-9)


def _check_users(entry: Entry, policy: str, tolerance: float) -> None:
  if entry.refused[_VERSION]:
    pytest.skip('the model is refused, as the tests above check')
  assert oracle.error_of_users(entry, policy) <= tolerance


@pytest.mark.more
@pytest.mark.parametrize('entry', _cases())
def test_clipped_sums_over_users_equal_a_loop(entry):
  _check_users(entry, '', entry.tolerance)


@pytest.mark.parametrize('entry', _cases(float64=True))
def test_clipped_sums_over_users_in_float64(entry):
  _check_users(entry, 'float64', 1e-9)


def test_the_zoo_is_large():
  assert len(zoo.ZOO) >= 210
  assert sum(entry.fast for entry in zoo.ZOO.values()) <= 12
  assert sum(entry.hub for entry in zoo.ZOO.values()) >= 15


def test_the_tables_have_a_heading_for_each_topic():
  assert {entry.topic() for entry in zoo.ZOO.values()} == {*model_zoo.TOPICS}


def test_the_oracle_sees_a_wrong_gradient():
  """Gives the private step another loss than the loop."""
  entry = zoo.ZOO['Logistic regression']
  wrong = entry._replace(make=lambda size: _doubled(entry.make(size)))
  assert oracle.error(wrong) > 0.01


def _doubled(case: Case) -> Case:
  return case._replace(objective=lambda model, x, y: tf.reduce_mean(
      tf.keras.losses.binary_crossentropy(
          tf.cast(tf.reshape(y, [-1, 1]), tf.float32), 0.9 * model(x))))


def test_a_clipped_sum_is_clipped():
  found = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
  np.testing.assert_allclose(oracle.clipped_sum(found, 1.0), [0.9, 1.2], rtol=2e-5)


def test_only_the_rounding_to_the_grid_is_allowed():
  step = 2.0**-29  # Of the clip norm 3, below 2^-30 times four.
  left = oracle.unrounded(np.array([0.5, -0.5, 0.75, -2.0, 0.0]) * step, 3.0)
  np.testing.assert_array_equal(left, np.array([0, 0, 0.25, -1.5, 0]) * step)
