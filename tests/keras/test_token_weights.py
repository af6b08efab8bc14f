"""Tests of sample weights for each token, against plain Keras on batches of one."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import tiny
from tests.keras.zoo import oracle
from tests.keras.zoo.base import Case, Entry
from tests.representatives import representatives
from tfcactus.keras import DPKerasSGDOptimizer, PoissonBatches, privatize
from tfcactus.keras.compat.versions import KERAS_3

layers, losses = tf.keras.layers, tf.keras.losses
_TOKENS, _VOCABULARY, _CLASSES = 4, 7, 3


def _weights(rng, rows, tokens=_TOKENS):
  """Returns weights with zeros, with a row of zeros, and with large ones."""
  weights = rng.exponential(1.0, (rows, tokens)).astype(np.float32)
  weights[0, 1:] = 0
  weights[1] = 0
  weights[2, 0] = 1e4
  return weights


def _tagger(s, masked=False, loss=None, one_hot=False, weights=None):
  inputs = tf.keras.Input((_TOKENS,), dtype='int32')
  x = layers.Embedding(_VOCABULARY, 3, mask_zero=masked)(inputs)
  x = layers.Dense(_CLASSES)(x)
  y = s.labels(_CLASSES, _TOKENS)
  found = _weights(s.rng, s.rows) if weights is None else weights(s)
  return Case(tf.keras.Model(inputs, x), s.tokens(_TOKENS, _VOCABULARY),
              np.eye(_CLASSES, dtype=np.float32)[y] if one_hot else y,
              loss or losses.SparseCategoricalCrossentropy(from_logits=True),
              sample_weight=found)


def _pixels(s):
  inputs = tf.keras.Input((4, 3, 2))
  model = tf.keras.Model(inputs, layers.Conv2D(2, 1)(inputs))
  weights = np.stack([_weights(s.rng, s.rows, 3)] * 4, 1)
  return Case(model, s.floats(4, 3, 2), s.floats(4, 3, 2), losses.MeanSquaredError(),
              sample_weight=weights)


def _two(wrap):
  """Returns a maker of a case of two outputs, of which only one has token weights."""

  def make(s):
    inputs = tf.keras.Input((_TOKENS,), dtype='int32')
    x = layers.Embedding(_VOCABULARY, 3)(inputs)
    tags = layers.Dense(_CLASSES, name='tags')(x)
    size = layers.Dense(1, name='size')(layers.GlobalAveragePooling1D()(x))
    own = s.rng.exponential(1.0, s.rows).astype(np.float32)
    own[1] = 0
    values = {'tags': _weights(s.rng, s.rows), 'size': own}
    y = {'tags': s.labels(_CLASSES, _TOKENS), 'size': s.floats(1)}
    loss = {'tags': losses.SparseCategoricalCrossentropy(from_logits=True),
            'size': losses.MeanSquaredError()}
    names = ('tags', 'size')
    if wrap is dict:
      return Case(tf.keras.Model(inputs, {'tags': tags, 'size': size}),
                  s.tokens(_TOKENS, _VOCABULARY), y, loss,
                  loss_weights={'tags': 0.5, 'size': 2.0}, sample_weight=values)
    return Case(tf.keras.Model(inputs, [tags, size]), s.tokens(_TOKENS, _VOCABULARY),
                *([each[name] for name in names] for each in (y, loss)),
                loss_weights=[0.5, 2.0], sample_weight=[values[n] for n in names])

  return make


def _own_loss(y, p):
  """Has an operation that is not known to the proof, so it runs one by one."""
  return tf.keras.losses.sparse_categorical_crossentropy(
      y, p, from_logits=True) + 0 * tf.math.special.bessel_j0(p[..., 0])


CASES = {
    'masked': lambda s: _tagger(s, masked=True),
    'not masked': _tagger,
    'one-hot': lambda s: _tagger(s, loss=losses.CategoricalCrossentropy(
        from_logits=True), one_hot=True),
    # Keras 2 divides by zero where no position counts.
    'ignored class': lambda s: _tagger(s, masked=KERAS_3, loss=(
        losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=1))),
    'hinge': lambda s: _tagger(s, loss=losses.Hinge(), one_hot=True),
    'one by one': lambda s: _tagger(s, loss=_own_loss),
    'by name': lambda s: _tagger(s, loss='mse', one_hot=True),
    'with an axis of one': lambda s: _tagger(
        s, weights=lambda s: _weights(s.rng, s.rows)[..., None]),
    'pixels': _pixels, 'dict': _two(dict), 'list': _two(list)}


@representatives('name', {'ignored class': 0, **CASES})
def test_sums_equal_plain_keras_on_each_example_alone(name):
  assert oracle.error(Entry(CASES[name], {}, {})) <= 1e-5


@representatives('name', ['masked', 'ignored class', 'one by one', 'list'])
@pytest.mark.more
def test_sums_of_a_vectorised_model_equal_it_too(name):
  assert oracle.error(Entry(CASES[name], {}, {}), engine='vectorized') <= 1e-5


@pytest.mark.more
def test_sums_of_several_views_equal_it_too():
  entry = Entry(CASES['masked'], {}, {})
  assert oracle.error(entry, augmentation_multiplicity=2) <= 1e-5


def _data(rows=40):
  rng = np.random.default_rng(2)
  return (rng.integers(1, _VOCABULARY, (rows, _TOKENS)),
          rng.integers(0, _CLASSES, (rows, _TOKENS)), _weights(rng, rows))


def _model():
  return tf.keras.Sequential([
      layers.Input((_TOKENS,), dtype='int32'), layers.Embedding(_VOCABULARY, 3),
      layers.Dense(_CLASSES)])


def test_fit_on_batches_has_an_epsilon_and_leaves_out_rows_that_are_not_finite():
  x, y, weights = _data()
  weights[3, 2] = np.nan
  weights[4, 2] = np.inf
  private = privatize(_model(), tiny.plan_of())
  private.compile('sgd', tiny.MEAN, weighted_metrics=['sparse_categorical_accuracy'])
  batches = PoissonBatches(x, y, 0.25, sample_weight=weights, physical_batch_size=8)
  logs = private.fit(batches, epochs=2, verbose=0,
                     class_weight={0: 2.0, 1: 0.5}).history
  assert private.guarantee().upper > 0
  assert np.isfinite(logs['loss']).all()
  assert all(np.isfinite(each).all() for each in private.get_weights())
  assert not any(np.isnan(batches[0][2]).any() for _ in range(20))


@pytest.mark.more
def test_logs_are_those_of_plain_keras():
  """Compares a loss and a metric of equal examples: the mean over examples is one."""
  x, y, weights = (np.repeat(part[2:3], 40, 0) for part in _data())
  weights = np.minimum(weights, 2)
  plain, private = _model(), privatize(_model(), tiny.plan_of(sampling_prob=1.0))
  private.inner.set_weights(plain.get_weights())
  for model in (plain, private):
    model.compile('sgd', tiny.MEAN, weighted_metrics=['sparse_categorical_accuracy'])
  want = plain.evaluate(x, y, sample_weight=weights, verbose=0, return_dict=True)
  got = private.fit(x, y, sample_weight=weights, batch_size=40, verbose=0).history
  for name, value in want.items():
    np.testing.assert_allclose(got[name], [value], rtol=1e-5)


@pytest.mark.more
def test_class_weights_multiply_the_weights_of_tokens():
  x, y, weights = _data()
  found = []
  for given, by_class in ((weights, {0: 3.0, 2: 0.0}), (
      weights * np.select([y == 0, y == 2], [3.0, 0.0], 1.0), None)):
    tf.keras.utils.set_random_seed(0)
    private = privatize(_model(), tiny.plan_of(), seed=1)
    private.compile('sgd', tiny.MEAN)
    private.fit(PoissonBatches(x, y, 0.25, sample_weight=given, seed=1), verbose=0,
                class_weight=by_class)
    found.append(private.inner.get_weights())
  for a, b in zip(*found):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.more
def test_a_drop_in_optimizer_takes_token_weights():
  x, y, weights = _data()
  model = _model()
  model.compile(DPKerasSGDOptimizer.from_plan(tiny.plan_of(), learning_rate=0.1),
                tiny.NONE)
  model.fit(PoissonBatches(x, y, 0.25, sample_weight=weights).dataset(), verbose=0)
  assert all(np.isfinite(each).all() for each in model.get_weights())


@pytest.mark.parametrize('y, shape, words', [
    (np.zeros((40, 5)), (40, 4), r'got .40, 4.: targets have shape .40, 5.'),
    (np.zeros(40), (40, 4), r'sample_weight of shape .40,., one number'),
    (np.zeros((40, 4)), (40, 4, 2), r'sample_weight of shape'),
    (None, (40, 4), 'there are no targets'),
    ({'a': np.zeros((40, 4)), 'b': np.zeros(40)}, (40, 4), 'targets have'),
])
def test_weights_of_no_part_of_the_targets_are_refused_at_the_batches(y, shape, words):
  with pytest.raises(ValueError, match=words):
    PoissonBatches(np.zeros((40, 4)), y, 0.25, sample_weight=np.ones(shape))


@pytest.mark.more
def test_rows_of_units_take_weights_of_tokens_or_none():
  x, y, weights = _data()
  ids = np.arange(40) % 12
  plan = tiny.plan_of(num_examples=12, unit='user')
  private = privatize(_model(), plan)
  private.compile('sgd', tiny.MEAN)
  private.fit(PoissonBatches(x, y, 0.25, sample_weight=weights, units=ids,
                             examples_per_unit=3), verbose=0)
  assert private.guarantee().upper > 0
  assert PoissonBatches(x, None, 0.25, units=ids, examples_per_unit=3)[0]


def test_weights_that_the_loss_has_no_parts_for_are_refused_in_words():
  private = privatize(tf.keras.Sequential([layers.Input((4,)), layers.Dense(5)]),
                      tiny.plan_of())
  private.compile('sgd', 'mse')
  batches = PoissonBatches(np.zeros((40, 4)), np.zeros((40, 5)), 0.25,
                           sample_weight=np.ones((40, 5)))
  with pytest.raises(ValueError, match=r'shape of the losses before their mean'):
    private.fit(batches, verbose=0)
