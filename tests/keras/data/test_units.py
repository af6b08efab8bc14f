"""Tests of units (users): ids, the choice of rows, and the batches that hold them."""

import warnings

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from tests.representatives import representatives
from tfcactus import keras as ours
from tfcactus.keras import UnitData

IDS = np.array([7, 3, 7, 7, 9, 3, 7])
X = np.arange(7, dtype=np.float32)[:, None]


def data_of(ids=IDS, k=2, **kwargs):
  x = np.arange(len(ids), dtype=np.float32)[:, None]
  return UnitData(x, np.arange(len(ids)), units=ids, examples_per_unit=k, **kwargs)


def owners(data, index=None):
  """Returns the rows (their numbers) of each unit in a draw."""
  _, y, weights = data.rows(np.arange(data.num_examples) if index is None else
                            np.asarray(index, np.int64))
  return [sorted(rows[there > 0]) for rows, there in zip(y, weights)]


def test_a_unit_has_its_rows_and_no_others():
  data = data_of(k=5)
  assert data.num_examples == 3 and data.rows_of_units.tolist() == [2, 4, 1]
  assert owners(data) == [[1, 5], [0, 2, 3, 6], [4]]
  assert owners(data, [2, 0]) == [[4], [1, 5]]
  x, y, weights = data.rows(np.arange(3))
  assert x.shape == (3, 5, 1) and y.shape == weights.shape == (3, 5)
  np.testing.assert_array_equal(x[..., 0], y)
  # Copies fill up, since zeros may be no valid rows of a model.
  assert y[2].tolist() == [4] * 5 and weights[2].tolist() == [1, 0, 0, 0, 0]


@pytest.mark.parametrize('k', [1, 2, 3])
def test_a_draw_takes_different_rows_of_each_unit(k):
  data = data_of(k=k)
  for _ in range(20):
    for rows, own in zip(owners(data), ([1, 5], [0, 2, 3, 6], [4])):
      assert len(rows) == len(set(rows)) == min(k, len(own)) and set(rows) <= set(own)


def test_rows_are_a_uniform_choice_without_replacement():
  ids = np.repeat([5, 1, 8], [3, 6, 2])
  data = data_of(ids, 3).drawn_by(1)
  draws = [tuple(owners(data)[0]) for _ in range(4000)]
  found = np.unique(draws, axis=0, return_counts=True)[1]
  assert len(found) == 20  # 6 over 3.
  assert stats.chisquare(found).pvalue > 1e-3
  # A law in which one row comes 1.2 times as often is rejected by as many draws.
  rng = np.random.default_rng(0)
  wrong = [tuple(sorted(rng.choice(6, 3, False, np.array([1.2, 1, 1, 1, 1, 1]) / 6.2)))
           for _ in range(4000)]
  assert stats.chisquare(np.unique(wrong, axis=0, return_counts=True)[1]).pvalue < 1e-4


def test_units_choose_independently_and_afresh():
  data = data_of(np.repeat([0, 1], 4), 1).drawn_by(2)
  pairs = np.array([np.concatenate(owners(data)) for _ in range(3000)])
  table = np.histogram2d(pairs[:, 0], pairs[:, 1], 4)[0]
  assert stats.chi2_contingency(table).pvalue > 1e-3
  table = np.histogram2d(pairs[1:, 0], pairs[:-1, 0], 4)[0]
  assert stats.chi2_contingency(table).pvalue > 1e-3


def test_seeds_of_batches_repeat_rows_and_leave_other_batches_alone():
  def rows(seed, data):
    batches = ours.PoissonBatches(data, sampling_prob=1.0, seed=seed)
    return [batches[0][1].tolist() for _ in range(4)]

  data = data_of(np.repeat([0, 1], 50), 3)
  assert rows(1, data) == rows(1, data_of(np.repeat([0, 1], 50), 3))
  unseeded = ours.PoissonBatches(data, sampling_prob=1.0)
  found = []
  for _ in range(2):
    ours.PoissonBatches(data, sampling_prob=1.0, seed=1)
    found.append(unseeded[0][1].tolist())
  assert found[0] != found[1]


@representatives('ids', [
    np.array(['b', 'a', 'b', 'b', 'cc', 'a', 'b']),
    np.array([b'b', b'a', b'b', b'b', b'cc', b'a', b'b'], object),
    tf.constant(['b', 'a', 'b', 'b', 'cc', 'a', 'b']),
    ['b', 'a', 'b', 'b', 'cc', 'a', 'b'], IDS.tolist(), IDS[:, None],
    IDS.astype(np.uint8), tf.constant(IDS), (IDS - 2**62).tolist(),
    [int(each) + 2**80 for each in IDS],
    np.ma.masked_array(IDS, [False] * 7)], number=3)
def test_ids_of_many_kinds_make_the_same_units(ids):
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    found = sorted(owners(UnitData(X, np.arange(7), units=ids, examples_per_unit=4)))
  assert found == [[0, 2, 3, 6], [1, 5], [4]]


def test_ids_of_pandas_are_columns():
  pandas = pytest.importorskip('pandas')
  for kind in ('int64', 'Int64', 'string', 'category', 'object'):
    column = pandas.Series(IDS).astype(kind)
    assert sorted(map(len, owners(data_of(column, 4)))) == [1, 2, 4]
  for column in (pandas.Series([1, 2, None] * 2), pandas.Series(['a', None] * 3),
                 pandas.Series([1, None] * 3, dtype='Int64'),
                 pandas.Series(['a', None] * 3, dtype='string'),
                 pandas.Series(['a', None] * 3, dtype='category')):
    with pytest.raises(ValueError, match='Expected units to be all integers or all st'):
      data_of(column)
  frame = pandas.DataFrame({'user': IDS, 'day': IDS})
  with pytest.raises(ValueError, match=r'two owners'):
    data_of(frame)


@representatives('ids, words', [
    (IDS.astype(float), 'float64: a rounded or missing id'),
    ([7, 3, 7, 7, float('nan'), 3, 7], 'float, int'),
    (['a', 'b', float('nan')], 'float, str'),
    ([1, 2, None], 'NoneType'), ([1, '1', 2], 'int, str'),
    ([b'a', 'a', b'b'], 'bytes, str'), ([True, False], 'bool'),
    (np.array([True, False]), 'bool'),
    (np.ma.masked_array([1, 2, 3], [0, 1, 0]), 'NoneType'),
    (np.array(['2020-01-01', '2020-01-02'], 'datetime64[D]'), 'datetime64'),
    ([1, -1, 2], "got '-1', which stands for a missing one"),
    (['a', '', 'b'], "got ''"), (['a', 'NaN', 'b'], "got 'nan'"),
    ([b'a', b'None', b'b'], "got 'none'"), (['a', ' <NA> '], "got '<na>'"),
    (np.array([[1, 2], [3, 4]]), r'got shape \(2, 2\). A row of two owners'),
    ([[1, 2], [3, 4]], 'two owners'), (5, r'got shape \(\)')], number=4)
def test_ids_that_name_no_owner_raise(ids, words):
  with pytest.raises(ValueError, match=words):
    x = np.zeros((np.size(ids) if np.ndim(ids) < 2 else len(ids), 1))
    UnitData(x, units=ids, examples_per_unit=1)


@pytest.mark.parametrize('kwargs, words', [
    ({'units': IDS[:-1], 'examples_per_unit': 1}, r'shape \(7,\)'),
    ({'units': IDS}, 'both units, the id of the owner'),
    ({'examples_per_unit': 2}, 'got units=None and examples_per_unit=2'),
    ({'units': IDS, 'examples_per_unit': 0}, 'examples_per_unit >= 1'),
    ({'units': IDS, 'examples_per_unit': 1.5}, 'integer'),
    ({'units': IDS, 'examples_per_unit': True}, 'integer'),
    ({'units': 'user', 'examples_per_unit': 1}, 'to name a part of x')])
def test_invalid_settings_raise(kwargs, words):
  with pytest.raises(ValueError, match=words):
    ours.PoissonBatches(X, np.arange(7), 0.5, **kwargs)


def test_grouped_data_are_not_grouped_again():
  with pytest.raises(ValueError, match='whose rows are grouped'):
    ours.PoissonBatches(data_of(), sampling_prob=0.5, units=IDS, examples_per_unit=1)


def test_units_without_rows_count():
  data = data_of(num_units=5)
  assert data.num_examples == 5 and owners(data)[3:] == [[], []]
  batches = ours.PoissonBatches(data, batch_size=5)
  x, _, weights = batches[0]
  assert len(x) == 10 and np.sum(weights) == 5 and batches.num_examples == 5
  with pytest.raises(ValueError, match='num_units >= 3'):
    data_of(num_units=2)


def test_ids_are_copied():
  ids = IDS.copy()
  data = data_of(ids, 5)
  ids[:] = 1
  assert owners(data) == [[1, 5], [0, 2, 3, 6], [4]]


def test_rows_that_are_not_finite_take_no_part():
  x = X.copy()
  x[0], x[4] = np.nan, np.inf
  data = UnitData(x, np.arange(7), units=IDS, examples_per_unit=4)
  assert owners(data) == [[1, 5], [2, 3, 6], []]
  assert all(np.all(np.isfinite(part)) for part in data.rows(np.arange(3)))


def test_a_choice_falls_on_rows_that_are_not_finite_too():
  """Whether a row is usable decides nothing of the choice: k counts rows drawn."""
  x = np.where(np.arange(10) < 9, np.nan, 1.0)[:, None]
  data = UnitData(x, np.arange(10), units=['a'] * 10, examples_per_unit=1).drawn_by(0)
  assert 0 < sum(owners(data) == [[9]] for _ in range(100)) < 30


def test_a_unit_of_very_many_rows():
  ids = np.zeros(10**5 + 3, np.int64)
  ids[-3:] = 1, 2, 3
  data = data_of(ids, 4)
  assert [len(rows) for rows in owners(data)] == [4, 1, 1, 1]


def test_weights_of_rows_stay_with_them():
  weights = np.arange(7) / 2
  data = data_of(k=4, sample_weight=weights)
  _, y, found = data.rows(np.arange(3))
  np.testing.assert_array_equal(found[found > 0], y[found > 0] / 2)
  by_output = data_of(k=4, sample_weight={'a': weights, 'b': weights + 1})
  _, y, found = by_output.rows(np.arange(3))
  np.testing.assert_array_equal(
      found['b'][found['b'] > 0], y[found['b'] > 0] / 2 + 1)


def test_ids_may_be_a_part_of_the_inputs():
  x = {'text': X, 'user': IDS}
  data = UnitData(x, np.arange(7), units='user', examples_per_unit=4)
  assert owners(data) == [[1, 5], [0, 2, 3, 6], [4]]
  assert list(data.specs[0]) == list(data.rows(np.arange(2))[0]) == ['text']
  for wrong in ('User', 'text'):
    with pytest.raises(ValueError, match='to name a part|integers or all strings'):
      UnitData(x, np.arange(7), units=wrong, examples_per_unit=4)
  with pytest.raises(ValueError, match='with parts for the model beside it'):
    UnitData({'user': IDS}, units='user', examples_per_unit=4)


def test_ids_may_be_a_column_of_a_table():
  pandas = pytest.importorskip('pandas')
  frame = pandas.DataFrame({'a': X[:, 0], 'user': IDS, 'b': X[:, 0]})
  for ids in (IDS, IDS.astype(str)):
    data = UnitData(frame.assign(user=ids), np.arange(7), units='user',
                    examples_per_unit=4)
    assert sorted(owners(data)) == [[0, 2, 3, 6], [1, 5], [4]]
    assert data.rows(np.arange(3))[0].shape == (3, 4, 2)
  assert list(frame) == ['a', 'user', 'b']
  with pytest.raises(ValueError, match="units='User' to name a part of x"):
    UnitData(frame, np.arange(7), units='User', examples_per_unit=4)
  with pytest.raises(ValueError, match='float32: a rounded or missing id'):
    UnitData(frame.assign(user=X[:, 0]), np.arange(7), units='user',
             examples_per_unit=4)


def test_texts_are_filled_with_texts():
  """A unit without rows, and one of fewer rows than others."""
  data = UnitData({'text': np.array(list('abcdefg')), 'user': IDS}, units='user',
                  examples_per_unit=4, num_units=4)
  text = data.rows(np.arange(4))[0]['text']
  assert sorted(set(text[1])) == [b'a', b'c', b'd', b'g'] and set(text[2]) == {b'e'}
  assert set(text[3]) == {b''}


def test_batches_of_units_say_so():
  assert repr(ours.PoissonBatches(data_of(), sampling_prob=0.5)).startswith(
      '<PoissonBatches of 3 units: ')


class Source:
  """A random access source whose inputs hold the ids."""

  def __init__(self, inputs=True):
    self._inputs = inputs

  def __len__(self):
    return 7

  def __getitem__(self, i):
    return ({'a': X[i], 'user': IDS[i]} if self._inputs else X[i]), i


def _records(tmp_path):
  """Returns the rows as TFRecords with the id in the inputs."""
  path = tmp_path / 'a.tfrecord'
  with tf.io.TFRecordWriter(str(path)) as writer:
    for i in range(7):
      writer.write(tf.io.serialize_tensor(np.array([i, IDS[i]])).numpy())

  def parse(record):
    found = tf.ensure_shape(tf.io.parse_tensor(record, tf.int64), [2])
    return {'a': tf.cast(found[:1], tf.float32), 'user': found[1]}, found[0]

  return ours.TFRecordExamples(path, parse)


def _stored(tmp_path):
  """Returns the rows as stored examples with the id in the inputs."""
  ours.store_examples(tf.data.Dataset.from_tensor_slices(
      ({'a': X, 'user': IDS}, np.arange(7))), tmp_path / 'stored')
  return ours.StoredExamples(tmp_path / 'stored')


@pytest.mark.parametrize('make, units', [
    (lambda path: Source(), 'user'), (lambda path: Source(False), IDS),
    (_records, 'user'), (_records, IDS), (_stored, 'user'), (_stored, IDS),
    (lambda path: tf.data.Dataset.from_tensor_slices((X, np.arange(7))), IDS)])
def test_sources_of_all_kinds_hold_units(tmp_path, make, units):
  data = UnitData(make(tmp_path), units=units, examples_per_unit=4)
  assert owners(data) == [[1, 5], [0, 2, 3, 6], [4]]
  assert owners(data, []) == []
  batches = ours.AllocatedBatches(data, num_batches=2)
  seen = np.concatenate([y[weights > 0] for _, y, weights in batches])
  assert sorted(seen) == list(range(7))


def test_batches_show_rows_and_count_units():
  batches = ours.PoissonBatches(X, np.arange(7), 1.0, units=IDS, examples_per_unit=4,
                                physical_batch_size=2)
  x, y, weights = batches[0]
  assert x.shape == (16, 1) and y.shape == weights.shape == (16,)  # 4 units of 4.
  assert sorted(y[weights > 0]) == list(range(7))
  for again in (next(iter(batches)), next(batches.dataset().as_numpy_iterator()),
                batches.for_plain_training()[0]):
    assert again[0].shape == (16, 1)
    assert sorted(again[1][again[2] > 0]) == list(range(7))
  assert batches.dataset().element_spec[0].shape.as_list() == [None, 1]
  assert batches.num_examples == batches.size == 3 and batches.examples_per_unit == 4
  assert ours.PoissonBatches(X, None, 1.0).examples_per_unit is None


@pytest.mark.parametrize('make', [
    lambda **units: ours.PoissonBatches(X, np.arange(7), batch_size=1, **units),
    lambda **units: ours.FixedSizeBatches(X, np.arange(7), 1, **units),
    lambda **units: ours.AllocatedBatches(X, np.arange(7), 3, **units),
    lambda **units: ours.ShuffledBatches(X, np.arange(7), 1, **units),
    lambda **units: ours.PoissonBatches(X, np.arange(7), 1 / 4, part_of=4, **units)])
def test_all_schemes_draw_units(make):
  batches = make(units=IDS, examples_per_unit=4)
  assert batches.num_examples == (4 if batches.part_of else 3)
  for _ in range(3):
    for _, y, weights in batches:
      drawn = IDS[y[weights > 0]]
      counts = {unit: np.sum(drawn == unit) for unit in drawn}
      assert all(count == np.sum(IDS == unit) for unit, count in counts.items())


def test_checksums_tell_other_owners():
  one, other = (ours.PoissonBatches(X, None, 0.5, units=ids, examples_per_unit=1)
                for ids in (IDS, np.roll(IDS, 1)))
  assert one.fingerprint() != other.fingerprint()
  assert one.fingerprint() == ours.PoissonBatches(
      X, None, 0.5, units=IDS, examples_per_unit=1).fingerprint()
