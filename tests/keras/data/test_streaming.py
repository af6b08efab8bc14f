"""Tests of examples on disk: read as written, and sampled like arrays."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.representatives import representatives
import tfcactus
from tfcactus import keras as private, sampling
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
  """Writes three shards; one has no records."""
  files = []
  for name, rows in (('a', range(20)), ('b', ()), ('c', range(20, COUNT))):
    files.append(tmp_path / f'{name}.tfrecord')
    with tf.io.TFRecordWriter(str(files[-1])) as writer:
      for i in rows:
        writer.write(serialized(i))
  return files


def test_records_of_all_files_are_read(files):
  data = private.TFRecordExamples(files, parse)
  assert data.num_examples == COUNT and len(data.specs) == 2
  index = np.random.default_rng(0).permutation(COUNT)
  x, y = data.rows(index)
  np.testing.assert_array_equal(x, X[index])
  np.testing.assert_array_equal(y, Y[index])
  assert [part.shape for part in data.rows(np.zeros(0, np.int64))] == [(0, 2, 3), (0,)]
  assert '53' in repr(data) and '3 files' in repr(data)


@pytest.mark.parametrize('batches', [
    lambda data: private.AllocatedBatches(data, num_batches=7, seed=3),
    lambda data: private.PoissonBatches(data, sampling_prob=0.2, seed=3)])
def test_batches_from_files_equal_batches_from_arrays(files, batches):
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


def test_each_record_is_parsed_alone(files):
  shapes = []

  def looking(record):
    shapes.append(record.shape)
    x, y = parse(record)
    return x + tf.random.uniform(()), y
  data = private.TFRecordExamples(files[0], looking)
  once, again = (data.rows(np.array([0, 0, 1]))[0] for _ in range(2))
  assert all(shape == () for shape in shapes)
  assert all(np.any(one != other) for one, other in zip(once, again))
  assert np.any(once[0] != once[1])


@pytest.mark.parametrize('function, words', [
    (lambda record: parse(record)[0], 'a pair'),
    (lambda record: (parse(record)[0], record), 'of numbers'),
    (lambda record: (tf.io.decode_raw(record, tf.uint8), parse(record)[1]),
     'known shapes')])
def test_parsers_that_return_no_examples_raise(files, function, words):
  with pytest.raises(ValueError, match=words):
    private.TFRecordExamples(files, function)


def test_files_without_whole_records_raise(files, tmp_path):
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


GENERATOR = tf.random.Generator.from_seed(1)
DRAWS = {
    'uniform': lambda x: x * tf.random.uniform(x.shape, seed=1),
    'normal': lambda x: x + tf.random.normal(x.shape, seed=1),
    'truncated normal': lambda x: x + tf.random.truncated_normal(x.shape, seed=1),
    'integers': lambda x: x + tf.cast(
        tf.random.uniform(x.shape, maxval=2**30, dtype=tf.int32, seed=1), tf.float32),
    'image': lambda x: tf.image.random_brightness(x, 0.5, seed=1),
    'generator': lambda x: x + GENERATOR.normal(x.shape),
    'seeds': lambda x: x + tf.random.stateless_normal(x.shape, tf.random.uniform(
        [2], maxval=2**31 - 1, dtype=tf.int32)),
    'tf.function': tf.function(lambda x: x + tf.random.normal(x.shape, seed=1))}


@representatives('name', list(DRAWS), 4)
def test_draws_of_parsers_follow_no_known_seed(files, name):
  """Draws of one record differ each time it is read, whatever seeds are set.

  Under a known seed, an example would depend on the examples read before it.
  """
  def draw(record):
    x, y = parse(record)
    return DRAWS[name](x), y
  def rows(*index):
    keras.utils.set_random_seed(7)
    GENERATOR.reset_from_seed(1)
    return private.TFRecordExamples(files[0], draw).rows(np.array(index))[0]
  # The first record begins with a zero, which rounds no draw.
  one = rows(0)
  assert np.any(one != rows(0))
  again, once_more = rows(0, 0)
  assert np.any(again != once_more)


def test_a_stateless_draw_of_a_known_seed_is_a_constant(files):
  data = private.TFRecordExamples(files[0], lambda record: (
      parse(record)[0] * 0 + tf.random.stateless_normal((2, 3), [1, 2]), 0))
  x, _ = data.rows(np.array([5, 0, 7]))
  assert np.all(x == x[0]) and np.all(x == data.rows(np.array([9]))[0])


COUNTER = tf.Variable(0.0)
TABLE = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, -1.0)
WAYS = {
    'counter': (lambda x: (COUNTER.assign_add(1.0), x * COUNTER)[1],
                'write no variables'),
    'variable that is set': (lambda x: x * COUNTER, 'no variables'),
    'table that changes': (lambda x: x * TABLE.lookup(tf.constant('a')), 'table'),
    'gamma': (lambda x: x * tf.random.gamma((), 1.0, seed=1), 'RandomGamma'),
    'shuffle': (lambda x: tf.random.shuffle(x, seed=1), 'RandomShuffle'),
    'categorical': (lambda x: x * tf.cast(tf.random.categorical(
        [[1.0, 2.0]], 1, seed=1)[0, 0], tf.float32), 'Multinomial'),
    'python': (lambda x: tf.ensure_shape(tf.numpy_function(
        lambda x: x, [x], tf.float32, stateful=False), (2, 3)), 'PyFuncStateless'),
    'tf.py_function': (lambda x: tf.ensure_shape(tf.py_function(
        lambda x: x, [x], tf.float32), (2, 3)), 'EagerPyFunc'),
    'file': (lambda x: x * tf.cast(tf.strings.length(
        tf.io.read_file(__file__)), tf.float32), 'ReadFile'),
    'clock': (lambda x: x * tf.cast(tf.timestamp(), tf.float32), 'Timestamp'),
    'stage': (lambda x: (tf.raw_ops.Stage(values=[x]), tf.ensure_shape(
        tf.raw_ops.Unstage(dtypes=[tf.float32])[0], (2, 3)))[1], 'Stage')}


@representatives('name', list(WAYS), 6)
def test_parsers_whose_outputs_depend_on_more_than_the_record_raise(files, name):
  change, words = WAYS[name]
  with pytest.raises(ValueError, match=f'depend on the record alone.*{words}'):
    private.TFRecordExamples(files[0], lambda record: (change(parse(record)[0]), 0))


def test_parsers_may_look_up_fixed_tables(files):
  table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(
      tf.range(3), tf.constant([5.0, 6.0, 7.0])), -1.0)

  def look_up(record):
    x, y = parse(record)
    tf.debugging.assert_non_negative(y)
    return tf.map_fn(lambda row: row + 1, x), table.lookup(tf.cast(y, tf.int32))
  x, y = private.TFRecordExamples(files[0], look_up).rows(np.array([2, 9]))
  np.testing.assert_array_equal(x, X[[2, 9]] + 1)
  np.testing.assert_array_equal(y, [7.0, -1.0])


def rotate(path):
  """Moves records of equal size by one place, in place."""
  size = len(serialized(0)) + 16
  whole = path.read_bytes()
  with open(path, 'r+b') as file:
    file.write(whole[-size:] + whole[:-size])


def keeping_time(change):
  """Returns a change of a file that keeps its modification time."""
  def changed(path):
    state = os.stat(path)
    change(path)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
  return changed


CHANGES = {
    'rotated': keeping_time(rotate),
    'one byte': keeping_time(lambda path: path.write_bytes(
        path.read_bytes()[:-5] + b'!' + path.read_bytes()[-4:])),
    'touched': lambda path: os.utime(path, (1, 1)),
    'shorter': lambda path: os.truncate(path, 100)}


def test_a_record_whose_length_looks_like_gzip_is_read(tmp_path):
  with tf.io.TFRecordWriter(str(tmp_path / 'a')) as writer:
    writer.write(bytes(0x8b1f))
  data = private.TFRecordExamples(tmp_path / 'a', lambda record: (
      tf.ensure_shape(tf.io.decode_raw(record, tf.uint8), 0x8b1f), 0))
  assert data.num_examples == 1


@pytest.mark.parametrize('name', list(CHANGES))
def test_files_that_change_raise(tmp_path, name):
  path = tmp_path / 'a.tfrecord'
  with tf.io.TFRecordWriter(str(path)) as writer:
    for i in range(1, 20):  # Records of equal size.
      writer.write(serialized(i))
  data = private.TFRecordExamples(path, parse)
  data.rows(np.array([18]))
  CHANGES[name](path)
  with pytest.raises(ValueError, match='has changed since'):
    data.rows(np.array([18]))


@pytest.mark.parametrize('name', ['one byte', 'touched', 'shorter'])
@pytest.mark.parametrize('part', ['part0.raw', 'part1.raw'])
def test_stored_files_that_change_raise(tmp_path, name, part):
  data = private.store_examples(zip(X, Y), tmp_path)
  CHANGES[name](tmp_path / part)
  with pytest.raises(ValueError, match='has changed since'):
    data.rows(np.array([COUNT - 1]))
  if name == 'one byte':  # A change between two openings is noticed as well.
    again = private.StoredExamples(tmp_path)
    again.rows(np.array([0]))
    with pytest.raises(ValueError, match='example 52 is another'):
      again.rows(np.array([0, COUNT - 1]))
  if name == 'shorter':
    with pytest.raises(ValueError, match='none that are whole'):
      private.StoredExamples(tmp_path)


def test_replaced_and_deleted_files_are_read_as_they_were(files, tmp_path):
  data = private.TFRecordExamples(files[0], parse)
  stored = private.store_examples(zip(X, Y), tmp_path / 'there')
  os.replace(files[2], files[0])
  for part in (tmp_path / 'there').iterdir():
    part.unlink()
  for each in (data, stored):
    np.testing.assert_array_equal(each.rows(np.array([7, 1]))[0], X[[7, 1]])


@pytest.mark.parametrize('cut', [3, 30, 120])
def test_damaged_records_raise(files, cut):
  """Damages the first record's length, its payload, or a checksum."""
  whole = bytearray(files[0].read_bytes())
  whole[cut] ^= 1
  files[0].write_bytes(whole)
  with pytest.raises(ValueError, match='is damaged'):
    private.TFRecordExamples(files, parse)


@pytest.mark.parametrize('copy, words', [
    (lambda path, other: path, 'are one file'),
    (lambda path, other: os.symlink(path, other), 'are one file'),
    (lambda path, other: os.link(path, other), 'are one file'),
    (shutil.copyfile, 'the same records')])
def test_a_file_given_twice_raises(files, tmp_path, copy, words):
  other = tmp_path / 'other'
  twice = [*files, copy(files[0], other) or other]
  with pytest.raises(ValueError, match=words):
    private.TFRecordExamples(twice, parse)
  empty = tmp_path / 'empty'
  empty.write_bytes(files[1].read_bytes())  # Holds no records, as files[1] does.
  assert private.TFRecordExamples([*files, empty], parse).num_examples == COUNT


@pytest.mark.usefixtures('random_sums')
def test_training_stops_when_records_move(tmp_path):
  """Otherwise one example would be in several sums of an epoch."""
  path = tmp_path / 'a.tfrecord'
  with tf.io.TFRecordWriter(str(path)) as writer:
    for i in range(1, COUNT):
      writer.write(serialized(i))
  plan = tfcactus.PrivacyPlan.for_training(
      batch_size=4, epochs=1, num_examples=COUNT - 1, delta=1e-3, l2_norm_clip=1.0,
      noise=tfcactus.Gaussian(1.0), sampling=sampling.RandomAllocationSampling)
  model = private.privatize(keras.Sequential([
      keras.layers.Input((2, 3)), keras.layers.Flatten(), keras.layers.Dense(1)]), plan)
  model.compile('sgd', 'mse')
  move = keras.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: rotate(path))
  with pytest.raises(tf.errors.OpError, match='has changed since'):
    model.fit(private.AllocatedBatches(private.TFRecordExamples(path, parse),
                                       batch_size=4), callbacks=[move], verbose=0)
  assert 1 <= model.released_steps < 13


class Batches(keras.utils.Sequence):
  """Batches in a Keras Sequence."""

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


def test_stored_examples_keep_structures_and_weights(tmp_path):
  rows = [({'a': X[i], 'b': (np.asarray(Y[i]), X[i, 0])}, Y[i], np.float32(0.5))
          for i in range(COUNT)]
  stored = private.store_examples(iter(rows), tmp_path)
  assert len(stored.specs) == 3
  x, y, weight = stored.rows(np.array([3, 1]))
  np.testing.assert_array_equal(x['b'][1], X[[3, 1], 0])
  np.testing.assert_array_equal(y, [3, 1])
  np.testing.assert_array_equal(weight, [0.5, 0.5])


@pytest.mark.parametrize('stream, words', [
    ([], 'none'), ([(1.0,)], 'pairs'), ([3.0], 'pairs'), (3.0, 'an iterable of pairs'),
    ([(X[0], 'cat')], 'got texts'), ([('cat', 0)], 'TFRecordExamples'),
    ([(X[0], 0)] * 256 + [(X[0, 0], 0)], 'one structure')])
def test_streams_without_examples_raise(stream, words, tmp_path):
  with pytest.raises(ValueError, match=words):
    private.store_examples(stream, tmp_path)
  with pytest.raises(ValueError, match='none that are whole'):
    private.StoredExamples(tmp_path)


@pytest.mark.usefixtures('random_sums')
def test_training_from_disk_has_the_epsilon_of_its_plan(files, tmp_path):
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
