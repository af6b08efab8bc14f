"""Tests that clipped sums of recurrent models are those of a loop over examples."""

from typing import Any, Callable

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import one_by_one
from tests.representatives import representatives
from tfcactus.keras.compat import versions

layers = tf.keras.layers
_ROWS, _STEPS, _WIDTH = 5, 4, 3
_RNG = np.random.default_rng(0)
_IDS = np.array([[1, 2, 3, 0], [0, 4, 0, 2], [3, 3, 1, 5], [0, 0, 0, 0],
                 [5, 0, 0, 1]], np.int32)
_SEQUENCES = _RNG.normal(size=(_ROWS, _STEPS, _WIDTH)).astype(np.float32)
_VIDEO = _RNG.normal(size=(_ROWS, 3, 5, 4, 2)).astype(np.float32)
_LABELS = _RNG.integers(0, 3, _ROWS)


def _loss(y, p):
  return tf.keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)


def _classifier(inputs: Any, x: Any) -> Any:
  if len(x.shape) > 2:
    x = layers.Flatten()(x)
  return tf.keras.Model(inputs, layers.Dense(3)(x))


def _text(*made: Callable[[], Any]) -> Callable[[], Any]:
  """Layers behind an embedding of ids with padding in all places."""

  def make() -> Any:
    inputs = tf.keras.Input((_STEPS,), dtype='int32')
    x = layers.Embedding(6, _WIDTH, mask_zero=True)(inputs)
    for each in made:
      x = each()(x)
    return _classifier(inputs, x)

  return make


def _of(kind: Any, *args: Any, **kwargs: Any) -> Callable[[], Any]:
  return lambda: kind(*args, **kwargs)


def _encoder_decoder() -> Any:
  """A decoder that begins with the states of an encoder, with masks."""
  source = tf.keras.Input((_STEPS,), dtype='int32')
  x = layers.Embedding(6, 3, mask_zero=True)(source)
  _, h, c = layers.LSTM(3, return_state=True)(x)
  x = layers.LSTM(3, return_sequences=True, use_bias=False)(
      x, initial_state=[layers.Dense(3)(h), c])
  x, last = layers.GRU(2, return_sequences=True, return_state=True)(x)
  x = layers.Concatenate()([layers.Flatten()(x), last])
  return _classifier(source, x)


def _merged(mode: Any) -> Callable[[], Any]:

  def make() -> Any:
    inputs = tf.keras.Input((_STEPS,), dtype='int32')
    x = layers.Embedding(6, 3, mask_zero=True)(inputs)
    x = layers.Bidirectional(layers.LSTM(2, return_sequences=True), merge_mode=mode)(x)
    if mode is None:
      x = layers.Concatenate()(x)
    return _classifier(inputs, x)

  return make


def _bidirectional_states() -> Any:
  inputs = tf.keras.Input((_STEPS, _WIDTH))
  x, *states = layers.Bidirectional(layers.LSTM(2, return_state=True))(inputs)
  y = layers.Bidirectional(layers.LSTM(2))(
      layers.Dense(3)(inputs), initial_state=[layers.Dense(2)(s) for s in states])
  return _classifier(inputs, layers.Concatenate()([x, y]))


def _video() -> Any:
  inputs = tf.keras.Input(_VIDEO.shape[1:])
  frame = tf.keras.Sequential([
      tf.keras.Input(_VIDEO.shape[2:]), layers.Conv2D(3, 2, activation='relu'),
      layers.Flatten(), layers.Dense(4)])
  x = layers.TimeDistributed(frame)(inputs)
  x = layers.LSTM(3, return_sequences=True)(x)
  return _classifier(inputs, layers.TimeDistributed(layers.Dense(2, 'tanh'))(x))


def _sequence(*made: Callable[[], Any], shape: Any = (_STEPS, _WIDTH)
             ) -> Callable[[], Any]:

  def make() -> Any:
    inputs = tf.keras.Input(shape)
    x = inputs
    for each in made:
      x = each()(x)
    return _classifier(inputs, x)

  return make


_STACK = lambda: layers.RNN(  # noqa: E731
    [layers.LSTMCell(3), layers.GRUCell(2, reset_after=False),
     layers.SimpleRNNCell(3)], return_sequences=True)

QUICK: dict[str, Callable[[], Any]] = {
    'two directions': _merged('concat'),
    'frames': _video,
    'convolutions': _sequence(
        _of(layers.ConvLSTM2D, 2, (3, 2), strides=(2, 1), return_sequences=True),
        shape=_VIDEO.shape[1:]),
}
SLOW: dict[str, Callable[[], Any]] = {
    'encoder and decoder': _encoder_decoder,
    'lstm backwards': _text(
        _of(layers.LSTM, 3, return_sequences=True, go_backwards=True),
        _of(layers.LSTM, 3, use_bias=False)),
    'gru': _text(_of(layers.GRU, 3, return_sequences=True),
                 _of(layers.GRU, 3, reset_after=False, go_backwards=True)),
    'gru without bias': _text(
        _of(layers.GRU, 3, return_sequences=True, use_bias=False),
        _of(layers.GRU, 3, reset_after=False, use_bias=False)),
    'simple': _text(
        _of(layers.SimpleRNN, 3, 'relu', return_sequences=True),
        _of(layers.SimpleRNN, 2, 'softplus', use_bias=False, go_backwards=True)),
    'activations': _text(
        _of(layers.LSTM, 3, 'softsign', 'hard_sigmoid', return_sequences=True),
        _of(layers.GRU, 3, 'elu', 'softmax')),
    'an activation of ours': _text(
        _of(layers.LSTM, 3, lambda x: x * tf.sigmoid(x))),
    'masked values': _sequence(
        _of(layers.Masking, -1.0), _of(layers.LSTM, 3, return_sequences=True),
        _of(layers.Dense, 3), _of(layers.GRU, 2)),
    'cells': _text(_STACK, lambda: layers.RNN(layers.LSTMCell(3))),
    'unrolled': _text(_of(layers.LSTM, 3, unroll=True)),
    'zeros where masked': _text(
        lambda: layers.RNN(layers.GRUCell(3), return_sequences=True,
                           zero_output_for_mask=True)),
    'sum': _merged('sum'), 'ave': _merged('ave'), 'mul': _merged('mul'),
    'apart': _merged(None), 'states of two directions': _bidirectional_states,
    'two kinds of direction': _text(lambda: layers.Bidirectional(
        layers.LSTM(2, return_sequences=True), backward_layer=layers.GRU(
            2, return_sequences=True, go_backwards=True))),
    'one after another': _sequence(
        _of(layers.ConvLSTM2D, 2, 2, padding='same', return_sequences=True),
        _of(layers.ConvLSTM2D, 2, 2), shape=_VIDEO.shape[1:]),
    'two directions of gru': _text(lambda: layers.Bidirectional(layers.GRU(2))),
    'sequences of convolutions': _sequence(
        _of(layers.ConvLSTM1D, 3, 3, dilation_rate=2, padding='same',
            return_sequences=True), _of(layers.ConvLSTM1D, 2, 2, strides=2),
        shape=(3, 7, 2)),
    'convolutions of volumes': _sequence(
        _of(layers.ConvLSTM3D, 2, 2, strides=(2, 1, 1)), shape=(2, 4, 3, 4, 2)),
    'convolutions in two directions': _sequence(
        lambda: layers.Bidirectional(layers.ConvLSTM2D(2, 2)),
        shape=_VIDEO.shape[1:]),
    'sequences of sequences': _sequence(
        lambda: layers.TimeDistributed(layers.Bidirectional(layers.GRU(2))),
        _of(layers.LSTM, 3), shape=(3, 4, 2)),
}


def _data(model: Any) -> Any:
  shape = model.input_shape[1:]
  if len(shape) == 1:
    return _IDS, _LABELS
  x = np.random.default_rng(4).normal(size=(_ROWS, *shape)).astype(np.float32)
  x[1, 1:3] = x[2, 0] = -1.0  # Masked, where anything masks.
  return x, _LABELS


def _made(make: Callable[[], Any], policy: str = 'float32') -> Any:
  tf.keras.utils.set_random_seed(1)
  tf.keras.mixed_precision.set_global_policy(policy)
  try:
    return one_by_one.shake(make())
  finally:
    tf.keras.mixed_precision.set_global_policy('float32')


def _check(model: Any, tolerance: float = 1e-5) -> None:
  x, y = _data(model)
  got = one_by_one.engine_sums(model, _loss, x, y)
  assert not got.routes.whole, got.routes.summary()
  assert not any(route.vectorized for route in got.routes.layers)
  one_by_one.assert_same(got, one_by_one.loop_sums(model, _loss, x, y), tolerance)


@representatives('name', QUICK)
def test_clipped_sums_equal_a_loop(name):
  _check(_made(QUICK[name]))


@pytest.mark.slow
@pytest.mark.parametrize('name', SLOW)
def test_clipped_sums_of_other_settings_equal_a_loop(name):
  _check(_made(SLOW[name]))


@pytest.mark.slow
@pytest.mark.parametrize('name', [*QUICK, 'cells', 'gru', 'simple'])
def test_clipped_sums_in_float64_equal_a_loop_to_nine_digits(name):
  _check(_made({**QUICK, **SLOW}[name], 'float64'), 1e-9)


@representatives('name, policy', [
    ('simple', 'mixed_bfloat16'), ('two directions', 'mixed_bfloat16'),
    ('two directions', 'mixed_float16'), ('convolutions', 'mixed_bfloat16'),
    ('frames', 'mixed_float16'), ('gru', 'mixed_bfloat16'), ('gru', 'mixed_float16'),
    ('cells', 'mixed_float16')])
@pytest.mark.more
def test_clipped_sums_in_half_precision_are_near_those_in_float32(name, policy):
  """The tolerance is that of the forward pass; gradients still scaled would be off."""
  made = {**QUICK, **SLOW}[name]
  model, exact = _made(made, policy), _made(made)
  x, y = _data(model)
  got = one_by_one.engine_sums(model, _loss, x, y)
  assert not any(route.vectorized for route in got.routes.layers)
  want = one_by_one.loop_sums(exact, _loss, x, y)
  assert np.linalg.norm(got.sums - want.sums) < 0.05 * np.linalg.norm(want.sums)


@pytest.fixture
def dropout_by_place(monkeypatch):
  """Replaces dropout masks by fixed ones, so that a loop has the same masks."""
  mixin = next(cls for cls in layers.LSTMCell.__mro__
               if cls.__name__.startswith('DropoutRNNCell'))

  def mask(cell, inputs, *args, count=1, **kwargs):
    del args, kwargs
    count = getattr(cell, 'dropout_mask_count', None) or count
    places = np.arange(np.prod(inputs.shape[1:])).reshape(inputs.shape[1:])
    made = [tf.ones_like(inputs) * np.cos(places + i) for i in range(count)]
    return made if count > 1 else made[0]

  for name in ('_create_dropout_mask', '_create_recurrent_dropout_mask'):
    if hasattr(mixin, name):
      monkeypatch.setattr(mixin, name, mask)


_DROPPED = {
    'lstm': _of(layers.LSTM, 3, dropout=0.5),
    'lstm, states too': _of(layers.LSTM, 3, dropout=0.5, recurrent_dropout=0.3),
    'gru': _of(layers.GRU, 3, dropout=0.5),
    'gru, states too': _of(
        layers.GRU, 3, dropout=0.5, recurrent_dropout=0.3, use_bias=False),
    'gru, reset before': _of(
        layers.GRU, 3, recurrent_dropout=0.5, reset_after=False),
    'simple': _of(layers.SimpleRNN, 3, dropout=0.5, recurrent_dropout=0.3),
    'cell': lambda: layers.RNN(layers.LSTMCell(3, dropout=0.5)),
    'convolutions': _of(
        layers.ConvLSTM1D, 2, 2, dropout=0.5, recurrent_dropout=0.3),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', _DROPPED)
def test_dropout_is_applied_where_keras_applies_it(dropout_by_place, name):
  del dropout_by_place
  shape = (3, 5, 2) if name == 'convolutions' else (_STEPS, _WIDTH)
  _check(_made(_sequence(_DROPPED[name], shape=shape)))


@pytest.mark.more
def test_each_example_has_its_own_dropout():
  model = _made(_sequence(_of(layers.LSTM, 8, dropout=0.5, recurrent_dropout=0.5)))
  x = np.tile(_SEQUENCES[:1], (_ROWS, 1, 1))
  losses = one_by_one.engine_sums(model, _loss, x, 0 * _LABELS).losses
  assert len(np.unique(losses)) == _ROWS


@pytest.mark.slow
def test_frozen_layers_take_no_part():
  model = _made(_text(_of(layers.LSTM, 3, return_sequences=True), _of(layers.GRU, 2)))
  for frozen in (2, 3):
    model.layers[frozen].trainable = False
    _check(model)


@pytest.mark.slow
def test_loops_are_unrolled_where_the_whole_model_is_vectorised():
  model = _made(_text(_of(layers.LSTM, 2)))
  x, y = _data(model)
  got = one_by_one.engine_sums(model, _loss, x, y, vectorize=True)
  assert got.routes.whole
  one_by_one.assert_same(got, one_by_one.loop_sums(model, _loss, x, y))


def test_a_weight_that_an_activation_uses_is_not_forgotten():
  inputs = tf.keras.Input((_STEPS,), dtype='int32')
  embedding = layers.Embedding(6, _WIDTH)
  scaled = lambda x: tf.tanh(x) * tf.reduce_sum(  # noqa: E731
      tf.convert_to_tensor(embedding.embeddings))
  model = _made(lambda: _classifier(
      inputs, layers.SimpleRNN(2, scaled)(embedding(inputs))))
  got = one_by_one.engine_sums(model, _loss, _IDS, _LABELS)
  one_by_one.assert_same(got, one_by_one.loop_sums(model, _loss, _IDS, _LABELS))


def test_convolutions_that_keras_does_not_unroll_are_refused():
  if not versions.choose(keras_2=True, keras_3=False):
    pytest.skip('Keras 3 unrolls them')
  model = _made(_sequence(_of(layers.ConvLSTM1D, 2, 2), shape=(3, 5, 2)))
  x, y = _data(model)
  with pytest.raises(ValueError, match="engine 'auto'"):
    one_by_one.engine_sums(model, _loss, x, y, vectorize=True)


@pytest.mark.parametrize('kind', [
    layers.SimpleRNN, pytest.param(layers.LSTM, marks=pytest.mark.more)])
def test_ragged_sequences_are_refused(kind):
  if not versions.choose(keras_2=True, keras_3=False):
    pytest.skip('Keras 3 has none')

  class Ragged(layers.Layer):
    """Takes the last step off."""

    def call(self, inputs):
      return tf.RaggedTensor.from_tensor(
          inputs, lengths=tf.fill(tf.shape(inputs)[:1], _STEPS - 1))

  inputs = tf.keras.Input((_STEPS, _WIDTH))
  model = tf.keras.Model(inputs, layers.Dense(3)(kind(2, name='r')(Ragged()(inputs))))
  with pytest.raises(ValueError, match="dense tensor for 'r'.*to_tensor"):
    one_by_one.engine_sums(model, _loss, _SEQUENCES, _LABELS)
