"""Examples on disk: each read as it was written, and drawn as arrays are."""

import os

import numpy as np
import pytest
import tensorflow as tf

import tfcactus
from tfcactus import keras as private
from tfcactus import sampling
from tfcactus.keras.compat.versions import keras

COUNT = 53
X = np.arange(COUNT * 6, dtype=np.float32).reshape(COUNT, 2, 3)
Y = np.arange(COUNT, dtype=np.int64)


def serialized(i):
  feature = lambda values, kind, name: tf.train.Feature(**{
      name: kind(value=np.ravel(values))})
  return tf.train.Example(features=tf.train.Features(feature={
      'x': feature(X[i], tf.train.FloatList, 'float_list'),
      'y': feature(Y[i], tf.train.Int64List, 'int64_list')})).SerializeToString()


def parse(record):
  found = tf.io.parse_single_example(record, {
      'x': tf.io.FixedLenFeature((2, 3), tf.float32),
      'y': tf.io.FixedLenFeature((), tf.int64)})
  return found['x'], found['y']


@pytest.fixture(name='files')
def write_files(tmp_path):
  """Three shards; one has no records."""
  files = []
  for name, rows in (('a', range(20)), ('b', ()), ('c', range(20, COUNT))):
    files.append(tmp_path / f'{name}.tfrecord')
    with tf.io.TFRecordWriter(str(files[-1])) as writer:
      for i in rows:
        writer.write(serialized(i))
  return files


def test_records_are_found_in_all_files(files):
  data = private.TFRecordExamples(files, parse)
  assert data.num_examples == COUNT and not data.weighted
  index = np.random.default_rng(0).permutation(COUNT)
  x, y = data.rows(index)
  np.testing.assert_array_equal(x, X[index])
  np.testing.assert_array_equal(y, Y[index])
  assert [part.shape for part in data.rows(np.zeros(0, np.int64))] == [(0, 2, 3), (0,)]
  assert '53' in repr(data) and '3 files' in repr(data)


@pytest.mark.parametrize('batches', [
    lambda data: private.AllocatedBatches(data, num_batches=7, seed=3),
    lambda data: private.PoissonBatches(data, sampling_prob=0.2, seed=3)])
def test_what_is_drawn_is_what_arrays_give(files, batches):
  from_files = batches(private.TFRecordExamples(files, parse))
  from_arrays = private.AllocatedBatches(X, Y, 7, seed=3) if isinstance(
      from_files, private.AllocatedBatches) else private.PoissonBatches(
          X, Y, 0.2, seed=3)
  for one, other in zip(from_files, from_arrays):
    for part, same in zip(one, other):
      np.testing.assert_array_equal(part, same)


def test_an_epoch_uses_each_example_once(files):
  batches = private.AllocatedBatches(
      private.TFRecordExamples(files, parse), batch_size=8)
  for _ in range(2):
    seen = np.concatenate([y[weight > 0] for _, y, weight in batches])
    assert sorted(seen) == list(Y)
  assert batches.num_batches == 7 and batches.draws == 2


def test_each_record_is_parsed_by_itself(files):
  shapes = []

  def looking(record):
    shapes.append(record.shape)
    x, y = parse(record)
    # What is drawn at random is drawn for each example whenever it is.
    return x + tf.random.uniform(()), y
  data = private.TFRecordExamples(files[0], looking)
  once, again = (data.rows(np.array([0, 0, 1]))[0] for _ in range(2))
  assert all(shape == () for shape in shapes)
  assert np.all(once != again) and np.all(once[0] != once[1])


@pytest.mark.parametrize('function, words', [
    (lambda record: parse(record)[0], 'a pair'),
    (lambda record: (record, parse(record)[1]), 'of numbers'),
    (lambda record: (tf.io.decode_raw(record, tf.uint8), parse(record)[1]),
     'known shapes')])
def test_parsers_that_give_no_examples(files, function, words):
  with pytest.raises(ValueError, match=words):
    private.TFRecordExamples(files, function)


def test_files_that_are_none(files, tmp_path):
  with pytest.raises(ValueError, match='at least one record, got 1 files with none'):
    private.TFRecordExamples(files[1], parse)
  packed = tmp_path / 'packed.tfrecord'
  with tf.io.TFRecordWriter(str(packed), 'GZIP') as writer:
    writer.write(serialized(0))
  with pytest.raises(ValueError, match='gzipped'):
    private.TFRecordExamples(packed, parse)
  whole = files[0].read_bytes()
  for cut in (5, len(whole) - 3):
    (tmp_path / 'cut').write_bytes(whole[:cut])
    with pytest.raises(ValueError, match='cut off'):
      private.TFRecordExamples(tmp_path / 'cut', parse)
  with pytest.raises(OSError):
    private.TFRecordExamples(tmp_path / 'none', parse)


def test_a_file_that_shrinks_is_noticed(files):
  data = private.TFRecordExamples(files[0], parse)
  os.truncate(files[0], 100)
  with pytest.raises(ValueError, match='has changed since'):
    data.rows(np.array([19]))


class Batches(keras.utils.Sequence):
  """As Keras users write them."""

  def __len__(self):
    return 6

  def __getitem__(self, index):
    rows = slice(9 * index, 9 * index + 9)
    return X[rows], Y[rows]


STREAMS = {
    'dataset': lambda: tf.data.Dataset.from_tensor_slices((X, Y)),
    'pipeline of unknown length': lambda: tf.data.Dataset.from_tensor_slices(
        (X, Y)).filter(lambda x, y: y >= 0),
    'generator': lambda: ((X[i], int(Y[i])) for i in range(COUNT)),
    'sequence of batches': Batches}


@pytest.mark.parametrize('name', list(STREAMS))
def test_streams_are_stored_once(name, tmp_path):
  stored = private.store_examples(STREAMS[name](), tmp_path / 'there')
  again = private.StoredExamples(tmp_path / 'there')
  for data in (stored, again):
    assert data.num_examples == COUNT
    x, y = data.rows(np.array([52, 0, 7]))
    np.testing.assert_array_equal(x, X[[52, 0, 7]])
    np.testing.assert_array_equal(y, Y[[52, 0, 7]])
  with pytest.raises(ValueError, match='StoredExamples'):
    private.store_examples(STREAMS[name](), tmp_path / 'there')


def test_structures_and_weights_are_kept(tmp_path):
  rows = [({'a': X[i], 'b': (np.asarray(Y[i]), X[i, 0])}, Y[i], np.float32(0.5))
          for i in range(COUNT)]
  stored = private.store_examples(iter(rows), tmp_path)
  assert stored.weighted
  x, y, weight = stored.rows(np.array([3, 1]))
  np.testing.assert_array_equal(x['b'][1], X[[3, 1], 0])
  np.testing.assert_array_equal(y, [3, 1])
  np.testing.assert_array_equal(weight, [0.5, 0.5])


@pytest.mark.parametrize('stream, words', [
    ([], 'none'), ([(1.0,)], 'pairs'), ([3.0], 'pairs'),
    ([(X[0], 'cat')], 'strings'),
    ([(X[0], 0)] * 256 + [(X[0, 0], 0)], 'one structure')])
def test_streams_of_nothing_to_draw(stream, words, tmp_path):
  with pytest.raises(ValueError, match=words):
    private.store_examples(stream, tmp_path)
  with pytest.raises(ValueError, match='none that are whole'):
    private.StoredExamples(tmp_path)


def test_training_from_disk(files, tmp_path):
  plan = tfcactus.PrivacyPlan.for_training(
      batch_size=8, epochs=2, num_examples=COUNT, delta=1e-3, l2_norm_clip=1.0,
      noise=tfcactus.Gaussian(1.0), sampling=sampling.RandomAllocationSampling)
  for data in (private.TFRecordExamples(files, parse),
               private.store_examples(zip(X, Y), tmp_path / 'there')):
    model = private.privatize(keras.Sequential([
        keras.layers.Input((2, 3)), keras.layers.Flatten(), keras.layers.Dense(1)]),
                              plan)
    model.compile('sgd', 'mse')
    model.fit(private.AllocatedBatches(data, batch_size=8), epochs=2, verbose=0)
    assert model.guarantee() == plan.guarantee(
        2, sampling=sampling.RandomAllocationSampling)
