"""Tests that masks and other arguments of layers are those of plain Keras."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import one_by_one
from tests.representatives import representatives
from tfcactus.keras import privatize

layers = tf.keras.layers
_RNG = np.random.default_rng(0)
_IDS = _RNG.integers(1, 7, (6, 5)).astype(np.int32)
for _row, _length in enumerate((5, 3, 1, 4, 2, 5)):
  _IDS[_row, _length:] = 0
_SEQUENCES = np.where(_IDS[..., None] > 0, _RNG.normal(size=(6, 5, 4)), 0).astype(
    np.float32)
_LABELS = _RNG.integers(0, 3, 6)
_TOKENS = _RNG.integers(0, 3, (6, 5))
_LOSS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Block(layers.Layer):
  """Attention with a residual connection, as in transformers."""

  def __init__(self, **kwargs):
    super().__init__(**kwargs)
    self.supports_masking = True
    self._attention = layers.MultiHeadAttention(2, 3)
    self._norm = layers.LayerNormalization()

  def build(self, shape):
    self._attention(tf.zeros((1, *shape[1:])), tf.zeros((1, *shape[1:])))
    self._norm.build(shape)
    super().build(shape)

  def call(self, inputs):
    return self._norm(inputs + self._attention(inputs, inputs))


class TakesMask(layers.Layer):
  """A custom layer whose call takes the mask."""

  def build(self, shape):
    self.w = self.add_weight(name='w', shape=(shape[-1],), initializer='ones')

  def call(self, inputs, mask=None, training=None):
    if mask is not None:
      inputs *= tf.cast(mask, inputs.dtype)[..., None]
    return tf.reduce_sum(inputs * self.w, 1) * (2.0 if training else 1.0)


class MakesMask(layers.Layer):
  """A custom layer that attaches a mask to its output."""

  def build(self, shape):
    self._inner = layers.Masking()
    self.w = self.add_weight(name='w', shape=(shape[-1],), initializer='ones')

  def call(self, inputs):
    return self._inner(inputs * self.w)


def _attend(x):
  return layers.MultiHeadAttention(2, 3)(x, x)


def _scored(x):
  out, scores = layers.MultiHeadAttention(2, 3)(
      x, x, return_attention_scores=True)
  return layers.Concatenate()([out, layers.Permute((2, 3, 1))(scores)[:, :, 0]])


def _by_name(x):
  attention = layers.MultiHeadAttention(2, 3)
  return attention(query=x, value=x, key=x, use_causal_mask=True)


def _given_mask(x):
  mask = layers.Lambda(lambda v: v[..., 0] > 0)(layers.Dense(1)(x))
  return TakesMask()(x, mask=mask)


def _residual(x):
  return layers.GlobalAveragePooling1D()(layers.Add()([x, _attend(x)]))


def _joined(x):
  return layers.GlobalAveragePooling1D()(
      layers.Concatenate(axis=1)([x, layers.Dense(4)(x)]))


def _nested(x):
  inner = tf.keras.Input((5, 4))
  return tf.keras.Model(inner, Block()(layers.Dense(4)(inner)))(x)


HEADS = {
    'attention': _attend,
    'attention scores': _scored,
    'attention by name': _by_name,
    'residual': _residual,
    'block': lambda x: Block()(x),
    'two blocks': lambda x: Block()(Block()(x)),
    'pooled': lambda x: layers.GlobalAveragePooling1D()(Block()(x)),
    'takes mask': lambda x: TakesMask()(x),
    'given mask': _given_mask,
    'concatenated': _joined,
    'nested': _nested,
    'dense, pooled': lambda x: layers.GlobalAveragePooling1D()(layers.Dense(4)(x)),
    'dropped': lambda x: layers.GlobalAveragePooling1D()(
        Block()(layers.Dropout(0.0)(x))),
}


def _model(head, ids=True, tokens=False):
  tf.keras.utils.set_random_seed(1)
  if ids:
    inputs = tf.keras.Input((5,), dtype='int32')
    x = layers.Embedding(7, 4, mask_zero=True)(inputs)
  else:
    inputs = tf.keras.Input((5, 4))
    x = layers.Masking()(inputs)
  x = head(x)
  if len(x.shape) > 2 and not tokens:
    x = layers.Flatten()(x)
  return one_by_one.shake(tf.keras.Model(inputs, layers.Dense(3)(x)))


def _check(model, x, y, vectorize=False):
  got = one_by_one.engine_sums(model, _LOSS, x, y, vectorize)
  one_by_one.assert_same(got, one_by_one.loop_sums(model, _LOSS, x, y))
  return got.routes


@pytest.mark.parametrize('vectorize', [False, pytest.param(
    True, marks=pytest.mark.slow)])
@pytest.mark.parametrize('name', [
    name if name == 'block' else pytest.param(name, marks=(
        pytest.mark.more if name == 'attention' else pytest.mark.slow))
    for name in HEADS])
def test_sums_under_masks_of_embeddings_equal_a_loop(name, vectorize):
  _check(_model(HEADS[name]), _IDS, _LABELS, vectorize)


@pytest.mark.slow
@pytest.mark.parametrize('name', HEADS)
def test_sums_under_masks_of_features_equal_a_loop(name):
  _check(_model(HEADS[name], ids=False), _SEQUENCES, _LABELS)


TOKENS = {
    'dense': layers.Dense(4, 'tanh'), 'block': Block(), 'masks': MakesMask()}


@pytest.mark.parametrize('vectorize', [False, pytest.param(
    True, marks=pytest.mark.slow)])
@pytest.mark.parametrize('name', [
    name if name == 'block' else pytest.param(name, marks=pytest.mark.slow)
    for name in TOKENS])
def test_sums_of_masked_token_losses_equal_a_loop(name, vectorize):
  head = type(TOKENS[name]).from_config(TOKENS[name].get_config())
  _check(_model(head, tokens=True), _IDS, _TOKENS, vectorize)


@representatives('engine, rows', [('auto', 4), ('auto', 6), ('vectorized', 4)])
@pytest.mark.more
def test_metrics_of_fit_respect_masks_as_evaluate_does(make_plan, engine, rows):
  inputs = layers.Input((5,), dtype='int32')
  tokens = layers.Embedding(7, 4, mask_zero=True)(inputs)
  model = privatize(tf.keras.Model(inputs, layers.Dense(3)(tokens)),
                    make_plan(num_examples=6), engine=engine, physical_batch_size=rows)
  model.compile(tf.keras.optimizers.SGD(0.0), _LOSS, metrics=['accuracy'],
                weighted_metrics=['sparse_categorical_crossentropy'])
  logs = model.fit(_IDS, _TOKENS, batch_size=6, verbose=0).history
  expected = model.evaluate(_IDS, _TOKENS, batch_size=6, verbose=0, return_dict=True,
                            sample_weight=np.ones((6, 5)))
  assert set(expected) == {'loss', 'accuracy', 'sparse_categorical_crossentropy'}
  for name in set(expected) - {'loss'}:
    assert logs[name][0] == pytest.approx(expected[name], rel=1e-5), name
