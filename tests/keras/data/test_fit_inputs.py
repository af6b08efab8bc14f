"""Tests of the arguments of `fit`: sparse matrices, and tables of pandas."""

import importlib.util

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import plan_of, poisson, privatized, X, Y
from tests.representatives import representatives
from tfcactus.keras.data import data_sources, fit_inputs


def test_rows_of_a_sparse_matrix_become_dense_as_they_are_drawn():
  sparse = pytest.importorskip('scipy.sparse')
  few = np.where(np.abs(X) > 1, X, 0).astype(np.float32)
  data = data_sources.open_data(sparse.coo_matrix(few), Y, np.ones(40))
  x, y, weights = data.rows(np.array([3, 0, 3]))
  np.testing.assert_array_equal(x, few[[3, 0, 3]])
  np.testing.assert_array_equal(y, Y[[3, 0, 3]])
  assert weights.shape == (3,) and data.num_examples == 40
  with pytest.raises(ValueError, match='got 40 examples in x and 39 in y'):
    data_sources.open_data(sparse.csr_matrix(few), Y[1:])


@representatives('part', [0.2, 0])
def test_tables_of_pandas_are_accounted_as_arrays_are(part):
  pandas = pytest.importorskip('pandas')
  found = []
  for x, y in ((X, Y), (pandas.DataFrame(X), pandas.Series(Y))):
    private = privatized(plan_of(num_examples=40 - int(40 * part)))
    private.fit(x, y, batch_size=8, validation_split=part, verbose=0)
    found.append(private.guarantee())
  assert found[0] == found[1]


def test_columns_of_strings_are_refused_with_their_dtype():
  pandas = pytest.importorskip('pandas')
  table = pandas.DataFrame({'a': ['x'] * 40, 'b': range(40)})
  with pytest.raises(ValueError, match='Expected y to be a pandas DataFrame of number'):
    fit_inputs.split(plan_of(), X, table, None, None, 0.0)
  found = fit_inputs.split(plan_of(), table, Y, None, None, 0.0)[0]
  assert found['a'].dtype == tf.string and found['b'].shape == (40, 1)


def test_the_message_on_lengths_names_all_of_them():
  for x in ((X, X[:30]), (X[:30], X)):
    with pytest.raises(ValueError, match='=40 examples .*, got 30 and 40'):
      privatized(plan_of()).fit(x, Y, batch_size=8, verbose=0)


def test_the_message_on_a_split_names_the_numbers_to_write():
  with pytest.raises(ValueError) as error:
    fit_inputs.split(plan_of(), poisson(), None, None, None, 0.2)
  assert 'PoissonBatches(x[:32], y[:32], ...)' in str(error.value)
  assert 'validation_data=(x[32:], y[32:])' in str(error.value)


def test_tensorboard_that_is_missing_is_told_before_a_step_is_released(
    tmp_path, monkeypatch):
  private = privatized(plan_of())
  board = tf.keras.callbacks.TensorBoard(tmp_path)
  find = importlib.util.find_spec
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name, *rest: (
      None if name == 'tensorboard' else find(name, *rest)))
  with pytest.raises(ImportError, match=r'Expected TensorBoard .*tfcactus\[tensorb'):
    private.fit(poisson(), verbose=0, callbacks=[board])
  with pytest.raises(ValueError, match='No step was released yet'):
    private.guarantee()
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name, *rest: (
      True if name == 'tensorboard' else find(name, *rest)))
  assert fit_inputs.given(board) == [board]
