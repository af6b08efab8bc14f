"""Tests of models of texts: their batches, their clipped sums and their epsilon."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import tiny
from tests.keras.zoo import oracle
from tests.keras.zoo.base import Case, Entry
from tests.representatives import representatives
from tfcactus import keras as private_keras
from tfcactus.keras import (
  AllocatedBatches,
  DPKerasSGDOptimizer,
  EpsilonCallback,
  FixedSizeBatches,
  PoissonBatches,
  privatize,
  TFRecordExamples,
)

layers, losses = tf.keras.layers, tf.keras.losses
_WORDS = ['red', 'green', 'blue', 'größer']
_RNG = np.random.default_rng(0)
COLOURS = np.array(_WORDS)[_RNG.integers(0, 4, 40)]
TEXTS = np.array([' '.join(_RNG.choice([*_WORDS, 'other'], n))
                  for n in _RNG.integers(0, 7, 40)])
NUMBERS = _RNG.normal(size=40)
LABELS = np.arange(40) % 2
_LOSS = losses.BinaryCrossentropy(from_logits=True)


def _ids(layer, shape=(1,)):
  """Returns a model that embeds the numbers which a layer gives to texts."""
  inputs = tf.keras.Input(shape, dtype='string')
  x = layers.Flatten()(layers.Embedding(9, 3)(layer(inputs)))
  return tf.keras.Model(inputs, layers.Dense(1)(x))


def _counts(layer):
  inputs = tf.keras.Input((1,), dtype='string')
  return tf.keras.Model(inputs, layers.Dense(1)(layer(inputs)))


def _space():
  """Returns a FeatureSpace, adapted, and a model that it is a part of."""
  kind = tf.keras.utils.FeatureSpace
  space = kind(features={
      'colour': kind.string_categorical(), 'text': kind.string_hashed(num_bins=5),
      'number': kind.float_normalized()},
               crosses=[kind.cross(('colour', 'text'), crossing_dim=4)],
               output_mode='concat')
  space.adapt(tf.data.Dataset.from_tensor_slices(_rows()))
  encoded = space.get_encoded_features()
  return space, tf.keras.Model(space.get_inputs(), layers.Dense(1)(encoded))


def _rows():
  return {'colour': COLOURS, 'text': TEXTS, 'number': NUMBERS}


MODELS = {
    'words': (lambda: _ids(layers.TextVectorization(
        vocabulary=_WORDS, output_sequence_length=3)), TEXTS),
    'space': (lambda: _space()[1], _rows()),
    'bag of words': (lambda: _counts(layers.TextVectorization(
        vocabulary=_WORDS, output_mode='multi_hot')), TEXTS),
    'tf-idf': (lambda: _counts(layers.TextVectorization(
        vocabulary=_WORDS, output_mode='tf_idf', idf_weights=[1.0, 2, 3, 4])), TEXTS),
    'pairs of words': (lambda: _counts(layers.TextVectorization(
        vocabulary=['red green', 'blue red'], ngrams=2, output_mode='count')), TEXTS),
    'lookup': (lambda: _ids(layers.StringLookup(vocabulary=_WORDS)), COLOURS),
    'lookup of scalars': (lambda: _ids(layers.StringLookup(vocabulary=_WORDS), ()),
                          COLOURS),
    'one-hot': (lambda: _counts(layers.StringLookup(
        vocabulary=_WORDS, output_mode='one_hot')), COLOURS),
    'hashing': (lambda: _ids(layers.Hashing(5)), COLOURS),
    'salted hashing': (lambda: _ids(layers.Hashing(5, salt=[3, 4])), COLOURS)}


def _case(name):

  def make(s):
    model, x = MODELS[name]
    x = tf.nest.map_structure(lambda part: tf.constant(part[:s.rows])[:, None], x)
    return Case(model(), x, s.labels(2, 1).astype(np.float32), _LOSS)

  return Entry(make, {}, {})


@representatives('name', MODELS)
@pytest.mark.more
def test_sums_equal_a_loop(name):
  assert oracle.error(_case(name)) <= 1e-5


@pytest.mark.more
@pytest.mark.parametrize('name', ['words', 'space', 'bag of words', 'hashing'])
def test_sums_of_a_vectorised_model_equal_a_loop(name):
  assert oracle.error(_case(name), engine='vectorized') <= 1e-5


def _trained(model, batches, **options):
  private = privatize(model, tiny.plan_of(), **options)
  private.compile('sgd', _LOSS)
  private.fit(batches, verbose=0)
  return private


@representatives('name', MODELS)
def test_training_has_an_epsilon(name):
  model, x = MODELS[name]
  with warnings.catch_warnings():
    warnings.filterwarnings('error', message='.*statistic over the batch')
    private = _trained(model(), PoissonBatches(x, LABELS, 0.25))
  assert private.guarantee().upper > 0
  if name in ('words', 'lookup', 'hashing', 'bag of words'):
    assert 'vectorised' not in private.privacy_summary()


def test_a_feature_space_before_the_model_has_an_epsilon():
  space, _ = _space()
  data = tf.data.Dataset.from_tensor_slices((_rows(), LABELS)).map(
      lambda x, y: (space(x), y))
  width = data.element_spec[0].shape[0]
  model = tf.keras.Sequential([layers.Input((width,)), layers.Dense(1)])
  assert _trained(model, PoissonBatches(data, sampling_prob=0.25)
                 ).guarantee().upper > 0


class _Source:

  def __len__(self):
    return 40

  def __getitem__(self, i):
    return COLOURS[i], LABELS[i]


@pytest.mark.parametrize('make', [
    lambda: (COLOURS, LABELS), lambda: (COLOURS.astype(object), LABELS),
    lambda: (np.array([text.encode() for text in COLOURS]), LABELS),
    lambda: (COLOURS.tolist(), LABELS), lambda: (tf.constant(COLOURS), LABELS),
    lambda: (_Source(),),
    lambda: (tf.data.Dataset.from_tensor_slices((COLOURS, LABELS)),),
    lambda: (tf.data.Dataset.from_tensor_slices((COLOURS, LABELS)).filter(
        lambda x, y: True),)])
def test_all_sources_of_texts_give_the_same_batches(make):
  batches = PoissonBatches(*make(), sampling_prob=0.25, seed=1)
  wanted = PoissonBatches(np.arange(40), LABELS, 0.25, seed=1)
  assert batches.fingerprint() == PoissonBatches(COLOURS, LABELS, 0.5).fingerprint()
  assert batches.fingerprint() != PoissonBatches(COLOURS[::-1], LABELS,
                                                 0.5).fingerprint()
  for (x, y, _), (index, labels, _) in zip(batches, wanted):
    assert [text.decode() for text in np.asarray(x)] == COLOURS[index].tolist()
    np.testing.assert_array_equal(y, labels)


def test_padding_is_empty_texts_and_empty_draws_are_padded():
  x, _, weights = PoissonBatches(COLOURS, LABELS, 0.25, physical_batch_size=64)[0]
  assert set(np.asarray(x)[weights == 0]) == {b''} and len(weights) == 64
  empty = PoissonBatches(COLOURS, LABELS, 1e-9, steps_per_epoch=1)
  x, _, weights = empty[0]
  assert np.asarray(x).tolist() == [b''] and weights == [0]
  assert _trained(_ids(layers.StringLookup(vocabulary=_WORDS)), PoissonBatches(
      COLOURS, LABELS, 0.25, physical_batch_size=16),
                  physical_batch_size=4).guarantee().upper > 0


def test_numbers_beside_texts_are_left_out_if_not_finite():
  numbers = np.where(np.arange(40) == 3, np.nan, NUMBERS)
  x, _, _ = PoissonBatches({'text': COLOURS, 'number': numbers}, LABELS, 1.0)[0]
  assert len(x['text']) == len(x['number']) == 39


def _lines(tmp_path):
  path = str(tmp_path / 'texts.tfrecord')
  with tf.io.TFRecordWriter(path) as writer:
    for text, label in zip(TEXTS, LABELS):
      writer.write(f'{label}{text}'.encode())
  return path


@pytest.mark.more
def test_texts_are_read_from_records(tmp_path):
  data = TFRecordExamples(_lines(tmp_path), lambda record: (
      tf.strings.substr(record, 1, -1), tf.strings.to_number(
          tf.strings.substr(record, 0, 1))))
  x, y = data.rows(np.array([3, 1]))
  assert [text.decode() for text in x] == TEXTS[[3, 1]].tolist()
  assert y.tolist() == [1, 1]
  model, _ = MODELS['words']
  assert _trained(model(), PoissonBatches(
      data, sampling_prob=0.25)).guarantee().upper > 0


@pytest.mark.more
def test_other_kinds_of_batches_and_arrays_take_texts():
  model = _ids(layers.StringLookup(vocabulary=_WORDS))
  for batches in (FixedSizeBatches(COLOURS, LABELS, 10),
                  AllocatedBatches(COLOURS, LABELS, 4)):
    assert sum(len(weights) for _, _, weights in batches) >= 40
  private = privatize(model, tiny.plan_of())
  private.compile('sgd', _LOSS)
  private.fit(COLOURS, LABELS, batch_size=10, verbose=0)
  assert private.guarantee('zero-out').upper > 0


@pytest.mark.more
def test_plain_models_take_the_batches():
  model = _ids(layers.StringLookup(vocabulary=_WORDS))
  model.compile('sgd', _LOSS)
  batches = PoissonBatches(COLOURS, LABELS, 0.25)
  model.fit(batches.for_plain_training(), verbose=0)
  assert np.isfinite(model.evaluate(batches, verbose=0))
  assert len(model.predict(batches, verbose=0)) > 4


@pytest.mark.more
def test_a_drop_in_optimizer_trains_lookups():
  model = _ids(layers.StringLookup(vocabulary=_WORDS))
  model.compile(DPKerasSGDOptimizer.from_plan(tiny.plan_of(), learning_rate=0.1),
                losses.BinaryCrossentropy(from_logits=True, reduction='none'))
  batches = PoissonBatches(COLOURS, LABELS, 0.25)
  history = model.fit(batches.dataset(), verbose=0,
                      callbacks=[EpsilonCallback(batches=batches)]).history
  assert history['epsilon'][0] > 0


@pytest.mark.usefixtures('random_sums')
def test_a_run_with_adapted_vocabularies_is_saved_and_goes_on(tmp_path):
  lookup = layers.StringLookup()
  lookup.adapt(COLOURS)
  private = _trained(_ids(lookup), PoissonBatches(COLOURS, LABELS, 0.25))
  private.save(tmp_path / 'run.keras')
  loaded = tf.keras.models.load_model(tmp_path / 'run.keras')
  x = tf.constant(COLOURS)[:, None]
  np.testing.assert_array_equal(loaded(x), private(x))
  loaded.fit(PoissonBatches(COLOURS, LABELS, 0.25), verbose=0)
  assert loaded.guarantee().steps == 8


@pytest.mark.parametrize('x, y, words', [
    (np.array(['a'] * 39 + [None], object), LABELS, r"1 of 40 .*column.fillna\(''\)"),
    (['a'] * 39 + [float('nan')], LABELS, 'without missing values'),
    ({'c': np.array(['a', np.nan] * 20, object)}, LABELS, r"x\['c'\].* 20 of 40"),
    (['a'] * 39 + [1.0], LABELS, r'objects \(float, str\).*dict\(frame\)'),
    (np.zeros((40, 2)), COLOURS, 'y to be an array of numbers.*list of classes'),
    ('abc', LABELS, 'examples along its first axis')])
def test_what_is_no_text_is_refused_in_words(x, y, words):
  with pytest.raises(ValueError, match=words):
    PoissonBatches(x, y, 0.25)


def test_stored_examples_refuse_texts(tmp_path):
  with pytest.raises(ValueError, match='TFRecordExamples'):
    private_keras.store_examples([('a', 0)], tmp_path)


@pytest.mark.usefixtures('random_sums')
@pytest.mark.more
def test_columns_of_pandas():
  pandas = pytest.importorskip('pandas')
  frame = pandas.DataFrame({**_rows(), 'label': LABELS})
  mixed, _, _ = PoissonBatches(frame[list(_rows())], LABELS, 1.0)[0]
  assert set(mixed) == set(_rows()) and mixed['text'].shape == (40, 1)
  for column in (frame['colour'], frame['colour'].astype('category'),
                 frame['colour'].astype('string'), frame[['colour']]):
    x, y, _ = PoissonBatches(column, frame['label'], 1.0)[0]
    assert x.shape == (40, 1) and x.dtype == tf.string and y.shape == (40,)
  numbers = PoissonBatches(frame[['number', 'label']].assign(b=True), LABELS, 1.0)
  assert numbers[0][0].shape == (40, 3)
  for make, x in ((MODELS['lookup'][0], frame['colour']),
                  (lambda: _space()[1], frame[list(_rows())])):
    private = privatize(make(), tiny.plan_of())
    private.compile('sgd', _LOSS)
    private.fit(x, frame['label'], batch_size=10, verbose=0)
    assert private.guarantee('zero-out').upper > 0
  frame.loc[3, 'colour'] = None
  for x in (frame[list(_rows())], dict(frame[['colour']]), frame['colour']):
    with pytest.raises(ValueError, match='1 of 40'):
      PoissonBatches(x, LABELS, 1.0)
  private = _trained(_space()[1], PoissonBatches(
      frame[list(_rows())].fillna({'colour': ''}), LABELS, 0.25))
  assert private.guarantee().upper > 0
