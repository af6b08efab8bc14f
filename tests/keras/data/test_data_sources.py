"""Tests of examples from arrays, datasets and random access sources."""

import os

import numpy as np
import pytest
import tensorflow as tf

from tfcactus.keras import FixedSizeBatches, PoissonBatches, privatize
from tfcactus.sampling import PoissonSampling

_X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
_Y = np.arange(40)


class _Pairs:
  """Stands in for a `tfds.data_source` of pairs; records what is read."""

  def __init__(self, many=False):
    self.read = []
    if many:
      self.__getitems__ = lambda wanted: [self[i] for i in wanted]

  def __len__(self):
    return 40

  def __getitem__(self, i):
    self.read.append(i)
    return _X[i], _Y[i]


def _dataset(count=True):
  dataset = tf.data.Dataset.from_tensor_slices((_X, _Y))
  return dataset if count else dataset.filter(lambda x, y: True)


@pytest.mark.parametrize('make', [
    lambda: (_dataset(),), lambda: (_dataset(count=False),),
    lambda: (_Pairs(),), lambda: (_Pairs(many=True),),
    lambda: (tf.constant(_X), tf.constant(_Y)),
])
def test_all_sources_give_the_same_batches(make):
  expected = PoissonBatches(_X, _Y, 0.25, seed=1)
  batches = PoissonBatches(*make(), sampling_prob=0.25, seed=1)
  assert batches.num_examples == 40 and len(batches) == 4
  for one, other in zip(expected, batches):
    for part, same in zip(one, other):
      np.testing.assert_array_equal(part, same)
      assert part.dtype == same.dtype
  for one, other in zip(expected.two_examples(), batches.two_examples()):
    np.testing.assert_array_equal(one, other)


def test_arrays_are_not_copied():
  tensor = tf.random.normal([1000, 6])
  for x in (_X, tensor):
    batches = PoissonBatches(x, np.arange(len(x)), 0.5)
    assert np.shares_memory(batches._data._arrays[0], np.asarray(x))


def test_random_access_reads_only_the_sampled_examples():
  source = _Pairs()
  batches = FixedSizeBatches(source, batch_size=5)
  source.read.clear()
  _, y, _ = batches[0]
  assert source.read == y.tolist()
  empty = PoissonBatches(_Pairs(), sampling_prob=1e-12)
  x, _, weights = empty[0]
  assert x.shape == (1, 6) and weights.tolist() == [0]


def test_no_weight_is_lost_beside_an_example_without_one():
  class Mixed(_Pairs):

    def __getitem__(self, i):
      return (*super().__getitem__(i), 3.0)[:2 if i == 7 else 3]

  batches = PoissonBatches(Mixed(), sampling_prob=1.0)
  for index in (np.arange(40), np.array([7])):
    with pytest.raises(ValueError, match='triples .* for all, got some of each'):
      batches._data.rows(index)


@pytest.mark.usefixtures('random_sums')
def test_training_on_a_dataset_has_the_epsilon_of_poisson_sampling(make_plan):
  private = privatize(tf.keras.Sequential(
      [tf.keras.layers.Input((6,)), tf.keras.layers.Dense(40)]), make_plan())
  private.compile('sgd', tf.keras.losses.SparseCategoricalCrossentropy(True))
  for source in (_dataset(), _Pairs()):
    private.fit(PoissonBatches(source, sampling_prob=0.25), verbose=0)
  assert private.ledger().sampling == PoissonSampling.code
  assert private.guarantee().steps == 8
  private.fit(_dataset().batch(10), verbose=0)
  with pytest.raises(ValueError, match='source whose sampling is unknown'):
    private.guarantee()


@pytest.mark.parametrize('scale', [True, False])
@pytest.mark.parametrize('engine', ['auto', 'vectorized'])
@pytest.mark.slow
def test_integer_images_train_as_floats(make_plan, scale, engine):
  x = np.random.default_rng(1).integers(0, 255, (40, 6), np.uint8)
  weights = []
  for kind in (np.uint8, np.float32):
    tf.keras.utils.set_random_seed(1)
    private = privatize(tf.keras.Sequential(
        [tf.keras.layers.Input((6,)),
         *([tf.keras.layers.Rescaling(1 / 255)] if scale else []),
         tf.keras.layers.Dense(40)]), make_plan(), engine=engine)
    private.compile('sgd', tf.keras.losses.SparseCategoricalCrossentropy(True))
    private.fit(PoissonBatches(x.astype(kind), _Y, 0.25, seed=1), verbose=0)
    weights.append(private.inner.get_weights())
  for one, other in zip(*weights):
    np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.skipif(
    not os.path.isdir(os.path.join(os.environ.get('TFDS_DATA_DIR', ''), 'mnist')),
    reason='TFDS_DATA_DIR holds no MNIST')
@pytest.mark.more
def test_batches_take_mnist_from_tensorflow_datasets():
  import tensorflow_datasets as tfds
  dataset = tfds.load('mnist', split='test', as_supervised=True)
  batches = PoissonBatches(dataset, sampling_prob=0.01)
  assert batches.num_examples == 10_000
  x, y, _ = batches[0]
  assert x.dtype == np.uint8 and x.shape[1:] == (28, 28, 1) and y.max() == 9
  whole = tfds.load('mnist', split='test', as_supervised=True, batch_size=-1)
  assert np.shares_memory(
      PoissonBatches(*whole, 0.01)._data._arrays[0], np.asarray(whole[0]))


@pytest.mark.parametrize('args, words', [
    ((_dataset(), _Y), 'y=None with a dataset'),
    ((_dataset().batch(4),), r'unbatch\(\)'),
    ((_dataset().map(lambda x, y: x),), 'as_supervised=True'),
    ((_dataset().repeat(),), 'leave out repeat'),
    ((_dataset().take(0),), 'at least one'),
    ((_dataset(count=False).filter(lambda x, y: False),), 'at least one'),
    ((range(5),), r'pairs \(x, y\), got int'),
    (({},), 'at least one'),
    (({}, _Y), '0 examples in x and'),
    ((None, _Y), 'got NoneType of shape'),
    ((iter([1]),), 'array of numbers.*; store_examples takes a generator'),
    (([[2**70]], [0]), r'objects \(int\)'),
    (([],), 'at least one|array of numbers'),
])
def test_other_sources_raise(args, words):
  with pytest.raises(ValueError, match=words):
    PoissonBatches(*args, sampling_prob=0.5)


class _Ragged(_Pairs):
  """Stands in for a source whose examples have several shapes."""

  def __getitem__(self, i):
    return _X[i][:i + 1], _Y[i]


@pytest.mark.parametrize('x', [[np.zeros(3), np.zeros(4)], [[1.0, 2.0], [3.0]]])
def test_arrays_of_several_shapes_are_refused_by_name(x):
  with pytest.raises(ValueError, match='Expected x to hold examples of one shape'):
    PoissonBatches(x, np.zeros(2), 0.5)


def test_a_source_of_several_shapes_is_refused():
  with pytest.raises(ValueError, match='the source to hold examples of one shape'):
    list(PoissonBatches(_Ragged(), None, 1.0))


@pytest.mark.parametrize('x', [np.array(5.0), tf.constant(5.0), 5.0])
def test_one_number_is_no_data(x):
  with pytest.raises(ValueError, match='Expected x to be an array of numbers with'):
    PoissonBatches(x, None, 0.5)
