"""Tests of several outputs, added losses and regularizers, against a loop."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.conftest import FakePlan
from tfcactus import noise as noise_lib
from tfcactus.keras import PoissonBatches, privatize
from tfcactus.keras.compat import models, versions

layers = tf.keras.layers
ROWS = 10
CLIP = 0.3
_RNG = np.random.default_rng(5)
X = _RNG.normal(size=(ROWS, 6)).astype(np.float32)
DIGITS = _RNG.integers(0, 3, ROWS)
SIZE = _RNG.normal(size=(ROWS, 1)).astype(np.float32)
WEIGHTS = {'digits': _RNG.exponential(1, ROWS).astype(np.float32),
           'size': _RNG.exponential(1, ROWS).astype(np.float32)}
WEIGHTS['size'][3] = 0
CE = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
ZERO = tf.UnconnectedGradients.ZERO
MSE = tf.keras.losses.MeanSquaredError()


def two(wrap, **kwargs):
  """Returns a model of two outputs, in a structure that `wrap` makes."""
  tf.keras.utils.set_random_seed(1)
  inputs = tf.keras.Input((6,))
  x = layers.Dense(5, 'tanh', **kwargs)(inputs)
  digits = layers.Dense(3, name='digits')(x)
  size = layers.Dense(1, name='size')(x)
  return tf.keras.Model(inputs, wrap(digits, size))


def by_list(digits, size):
  return [digits, size]


def by_dict(digits, size):
  return {'size': size, 'digits': digits}


def nested(digits, size):
  return {'heads': [digits, {'size': size}]}


def clipped(model, loss_of, rows=ROWS, penalty=None, clip=CLIP):
  """Returns the sum of clipped gradients divided by `rows`, and losses, by a loop."""
  total, losses = 0.0, []
  for i in range(ROWS):
    with tf.GradientTape() as tape:
      loss = loss_of(model(X[i:i + 1], training=True), i)
    losses.append(float(loss))
    found = vector(tape.gradient(loss, models.tf_variables(model),
                                 unconnected_gradients=ZERO))
    norm = np.linalg.norm(found)
    total += found * min(1, clip * (1 - 1e-5) / norm) if norm else 0
  if penalty is None:
    return total / rows, losses
  with tf.GradientTape() as tape:
    loss = penalty()
  found = tape.gradient(loss, models.tf_variables(model), unconnected_gradients=ZERO)
  return total / rows + vector(found), np.array(losses) + float(loss)


def vector(parts):
  return np.concatenate([np.ravel(tf.convert_to_tensor(part)) for part in parts]
                       ).astype(np.float64)


def plan(**kwargs):
  return FakePlan(noise_lib.Gaussian(1e-9), CLIP, ROWS, 1.0, **kwargs)


def updated(model, x, y, loss, engine='auto', rows=4, fit=None, **kwargs):
  """Returns what a step of gradient descent subtracts, and the logs."""
  private = privatize(model, plan(), engine=engine, physical_batch_size=rows)
  private.compile(tf.keras.optimizers.SGD(1.0), loss, **kwargs)
  before = vector(model.trainable_variables)
  history = private.fit(x, y, batch_size=ROWS, verbose=0, shuffle=False,
                        **(fit or {}))
  return before - vector(model.trainable_variables), {
      name: values[0] for name, values in history.history.items()}


def assert_close(found, want, tolerance=1e-5):
  """Asserts that vectors agree up to a relative tolerance and the weights' rounding."""
  assert np.linalg.norm(found - want) <= tolerance * np.linalg.norm(want) + 1e-7


def weighted_loss(pick, factors=(1.0, 1.0), weights=None):
  """Returns the loss of an example of `two`, a function of (outputs, row)."""

  def loss_of(outputs, i):
    digits, size = pick(outputs)
    w = (1.0, 1.0) if weights is None else (
        weights['digits'][i], weights['size'][i])
    return (factors[0] * w[0] * CE(DIGITS[i:i + 1], digits) +
            factors[1] * w[1] * MSE(SIZE[i:i + 1], size))

  return loss_of


PICK = {by_list: lambda out: out, by_dict: lambda out: (out['digits'], out['size']),
        nested: lambda out: (out['heads'][0], out['heads'][1]['size'])}
LOSSES = {by_list: [CE, MSE], by_dict: {'digits': CE, 'size': 'mse'},
          nested: {'heads': [CE, {'size': MSE}]}}
TARGETS = {by_list: [DIGITS, SIZE], by_dict: {'digits': DIGITS, 'size': SIZE},
           nested: {'heads': [DIGITS, {'size': SIZE}]}}


SLOW = pytest.mark.slow


@pytest.mark.parametrize('wrap, engine', [
    pytest.param(wrap, engine, id=f'{wrap.__name__} {engine}', marks=(
        () if (wrap, engine) == (by_dict, 'auto') else SLOW))
    for wrap in PICK for engine in ('auto', 'vectorized')])
def test_the_gradient_of_all_outputs_losses_is_clipped(wrap, engine):
  model = two(wrap)
  want, losses = clipped(model, weighted_loss(PICK[wrap]))
  found, logs = updated(model, X, TARGETS[wrap], LOSSES[wrap], engine)
  assert_close(found, want)
  assert logs['loss'] == pytest.approx(np.mean(losses), rel=1e-5)


@SLOW
def test_weights_of_losses_and_examples_by_name():
  model = two(by_list)
  want, losses = clipped(model, weighted_loss(PICK[by_list], (0.3, 2.0), WEIGHTS))
  names = {'digits': CE, 'size': MSE}
  found, logs = updated(
      model, X, TARGETS[by_dict] if not versions.KERAS_3 else TARGETS[by_list], names,
      loss_weights={'digits': 0.3, 'size': 2.0},
      metrics={'digits': ['accuracy']}, weighted_metrics={'size': ['mse']},
      fit={'sample_weight': [WEIGHTS['digits'], WEIGHTS['size']]})
  assert_close(found, want)
  assert logs['loss'] == pytest.approx(np.mean(losses), rel=1e-5)
  assert {'digits_loss', 'size_loss', 'digits_accuracy'} < set(logs)


@SLOW
def test_logs_are_those_of_plain_keras():
  wanted = ('loss', 'digits_loss', 'size_loss', 'digits_accuracy', 'size_mae')
  logs = []
  for private in (False, True):
    model = two(by_dict)
    kwargs = {'loss_weights': {'digits': 0.3, 'size': 2.0},
              'metrics': {'digits': ['accuracy'], 'size': ['mae']}}
    if private:
      logs.append(updated(model, X, TARGETS[by_dict], LOSSES[by_dict], **kwargs)[1])
    else:
      model.compile('sgd', LOSSES[by_dict], **kwargs)
      logs.append({name: values[0] for name, values in model.fit(
          X, TARGETS[by_dict], batch_size=ROWS, verbose=0).history.items()})
  for name in wanted:
    assert logs[0][name] == pytest.approx(logs[1][name], rel=1e-5), name


@SLOW
def test_an_output_without_a_loss():
  model = two(by_list)
  want, _ = clipped(model, lambda out, i: CE(DIGITS[i:i + 1], out[0]))
  for loss in ([CE, None], [CE, MSE]):
    found, _ = updated(two(by_list), X, [DIGITS, SIZE], loss,
                       loss_weights=None if None in loss else [1.0, 0.0])
    assert_close(found, want)


@SLOW
def test_an_optional_loss_of_weight_zero_is_still_logged():
  _, logs = updated(two(by_list), X, [DIGITS, SIZE], [CE, MSE],
                    loss_weights=[1.0, 0.0])
  _, plain = updated(two(by_list), X, [DIGITS, SIZE], [CE, MSE])
  assert logs['size_loss'] == pytest.approx(plain['size_loss'], rel=1e-6)
  assert logs['loss'] == pytest.approx(plain['digits_loss'], rel=1e-5)


class Added(layers.Layer):
  """Adds a mean loss over the batch, with a weight of the layer."""

  def build(self, shape):
    self.scale = self.add_weight(name='scale', shape=(shape[-1],))

  def call(self, inputs):
    self.add_loss(0.7 * tf.reduce_mean(tf.reduce_sum(
        tf.square(inputs * tf.convert_to_tensor(self.scale)), -1)))
    return inputs * tf.convert_to_tensor(self.scale)


class Rowwise(Added):
  """Adds a loss of shape (batch,), with a weight of the layer."""

  def call(self, inputs):
    outputs = inputs * tf.convert_to_tensor(self.scale)
    self.add_loss(0.7 * tf.reduce_sum(tf.square(outputs), -1))
    return outputs


class Mean(layers.Layer):
  """Adds a mean loss over the batch; has no weights."""

  def call(self, inputs):
    self.add_loss(0.7 * tf.reduce_mean(tf.square(inputs)))
    return tf.sin(inputs)


class Both(tf.keras.Model):
  """A subclassed model that adds a loss."""

  def __init__(self):
    super().__init__()
    self.one, self.two = layers.Dense(5, 'tanh'), layers.Dense(3)

  def call(self, inputs):
    x = self.one(inputs)
    self.add_loss(tf.reduce_mean(tf.square(x)))
    return self.two(x)


def stack(*parts):
  tf.keras.utils.set_random_seed(1)
  model = tf.keras.Sequential([layers.Input((6,)), layers.Dense(5, 'tanh'), *parts,
                               layers.Dense(3)])
  rng = np.random.default_rng(3)
  model.set_weights([w + 0.3 * rng.normal(size=w.shape) for w in model.get_weights()])
  return model


def own():
  tf.keras.utils.set_random_seed(1)
  model = Both()
  model(X[:1])
  return model


ADDING = {
    'a layer': lambda: stack(Added()),
    'a layer, by rows': lambda: stack(Rowwise()),
    'a layer in a model': lambda: stack(
        tf.keras.Sequential([Added(), layers.Dense(5)])),
    'a layer without weights': lambda: stack(Mean()),
    'a layer without weights in a model': lambda: stack(
        tf.keras.Sequential([Mean(), layers.Dense(5), Mean()])),
    'a model': own,
    'activity': lambda: stack(layers.Dense(5, 'tanh', activity_regularizer='l2')),
    'activity of a frozen layer': lambda: stack(
        layers.Dense(5, activity_regularizer='l1', trainable=False)),
    'activity by a function': lambda: stack(layers.Dense(
        5, activity_regularizer=lambda x: tf.reduce_sum(tf.abs(x)**1.5))),
    'activity of a layer of one\'s own': lambda: stack(
        Added(activity_regularizer='l2')),
    'activity alone': lambda: stack(layers.ActivityRegularization(l1=0.1, l2=0.2)),
}


FAST = {('a layer', 'auto')}


@pytest.mark.parametrize('make, engine', [
    pytest.param(make, engine, id=f'{name} {engine}', marks=(
        () if (name, engine) in FAST else SLOW))
    for name, make in ADDING.items() for engine in ('auto', 'vectorized')])
def test_added_losses_are_clipped_with_their_example(make, engine):
  model = make()

  def loss_of(output, i):
    return CE(DIGITS[i:i + 1], output) + tf.add_n(
        [tf.reduce_sum(each) for each in model.losses])

  want, losses = clipped(model, loss_of)
  found, logs = updated(model, X, DIGITS, CE, engine)
  assert_close(found, want)
  assert logs['loss'] == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.more
def test_only_the_layer_that_adds_a_mean_is_vectorised(make_plan):
  private = privatize(stack(Mean()), make_plan(num_examples=ROWS))
  private.compile('sgd', CE)
  private.train_on_batch(X, DIGITS)
  lines = private.privacy_summary().splitlines()[:-1]
  apart = [line for line in lines if 'vectorised' in line]
  assert len(apart) == 1 and '(Mean)' in apart[0] and 'for each example' in apart[0]
  assert sum('batched' in line for line in lines) == 2


@SLOW
def test_an_added_scalar_is_per_example_at_any_physical_batch_size():
  model = stack(Added())
  want, _ = clipped(model, lambda out, i: CE(DIGITS[i:i + 1], out) + sum(model.losses))
  for rows in (1, 3, ROWS):
    model = stack(Added())
    assert_close(updated(model, X, DIGITS, CE, rows=rows)[0], want)


class Cubes(tf.keras.regularizers.Regularizer):
  """A custom regularizer."""

  def __call__(self, x):
    return 0.2 * tf.reduce_sum(tf.abs(x)**3)


def penalties(**kwargs):
  tf.keras.utils.set_random_seed(1)
  return tf.keras.Sequential([layers.Input((6,)), layers.Dense(5, 'tanh', **kwargs),
                              layers.Dense(3, kernel_regularizer='l1')])


@pytest.mark.parametrize('kwargs', [
    pytest.param({'kernel_regularizer': 'l2'}, id='kernel', marks=SLOW),
    pytest.param({'bias_regularizer': tf.keras.regularizers.L1L2(0.3, 0.2)},
                 id='bias', marks=SLOW),
    pytest.param({'kernel_regularizer': Cubes(), 'activity_regularizer': 'l2'},
                 id='own')])
def test_regularizers_of_weights_are_added_after_the_noise(kwargs):
  model = penalties(**kwargs)
  first, last = model.layers[-2:]

  def penalty():
    found = tf.keras.regularizers.get('l1')(tf.convert_to_tensor(last.kernel))
    for layer, name in ((first, 'kernel'), (first, 'bias')):
      regularizer = tf.keras.regularizers.get(kwargs.get(f'{name}_regularizer'))
      if regularizer is not None:
        found += regularizer(tf.convert_to_tensor(getattr(layer, name)))
    return found

  def loss_of(output, i):
    loss = CE(DIGITS[i:i + 1], output)
    if 'activity_regularizer' in kwargs:
      hidden = first(X[i:i + 1])
      loss += tf.keras.regularizers.get('l2')(hidden)
    return loss

  want, losses = clipped(model, loss_of, penalty=penalty)
  found, logs = updated(model, X, DIGITS, CE)
  assert_close(found, want)
  assert logs['loss'] == pytest.approx(np.mean(losses), rel=1e-5)


@SLOW
def test_a_regularizer_that_reads_data_is_refused():
  data = tf.Variable(X)
  model = penalties(kernel_regularizer=lambda w: tf.reduce_sum(data @ w))
  with pytest.raises(ValueError, match='weights of the model alone'):
    updated(model, X, DIGITS, CE)


@SLOW
def test_targets_and_losses_of_no_output_raise():
  for y, loss, words in (
      ([DIGITS], [CE, MSE], 'y for the outputs'),
      ({'digits': DIGITS}, {'digits': CE, 'size': MSE}, "output 'size', which has a"),
      (TARGETS[by_dict], {'digits': CE, 'other': MSE}, r"loss for the outputs.*other"),
      (TARGETS[by_dict], None, 'one loss in compile')):
    wrap = by_dict if isinstance(y, dict) else by_list
    with pytest.raises((ValueError, KeyError), match=words):
      updated(two(wrap), X, y, loss)


class Sampled(layers.Layer):
  """The codes of a variational autoencoder, and their Kullback-Leibler term."""

  def call(self, inputs):
    mean, log_variance = tf.split(inputs, 2, -1)
    self.add_loss(-0.5 * tf.reduce_mean(tf.reduce_sum(
        1 + log_variance - mean**2 - tf.exp(log_variance), -1)))
    return mean + 0 * tf.exp(log_variance / 2) * tf.random.normal(tf.shape(mean))


@SLOW
def test_a_variational_autoencoder_without_targets():
  tf.keras.utils.set_random_seed(1)
  inputs = tf.keras.Input((6,))
  codes = Sampled()(layers.Dense(4)(layers.Dense(8, 'relu')(inputs)))
  model = tf.keras.Model(inputs, layers.Dense(6)(codes))

  def loss_of(output, i):
    return MSE(X[i:i + 1], output) + sum(model.losses)

  want, losses = clipped(model, loss_of)
  found, logs = updated(model, X, X, MSE)
  assert_close(found, want)
  assert logs['loss'] == pytest.approx(np.mean(losses), rel=1e-5)


class Loss(layers.Layer):
  """Adds all of the loss by `add_loss`."""

  def call(self, inputs):
    given, made = inputs
    self.add_loss(tf.reduce_mean(tf.reduce_mean((given - made)**2, -1)))
    return made


@SLOW
@pytest.mark.parametrize('data', ['arrays', 'batches'])
def test_a_model_may_have_no_loss_but_an_added_one(data):
  tf.keras.utils.set_random_seed(1)
  inputs = tf.keras.Input((6,))
  made = layers.Dense(6)(layers.Dense(3)(inputs))
  model = tf.keras.Model(inputs, Loss()([inputs, made]))
  want, _ = clipped(model, lambda output, i: sum(model.losses))
  if data == 'arrays':
    found, _ = updated(model, X, None, None)
  else:
    private = privatize(model, plan())
    private.compile(tf.keras.optimizers.SGD(1.0))
    before = vector(model.trainable_variables)
    private.fit(PoissonBatches(X, sampling_prob=1.0), verbose=0)
    found = before - vector(model.trainable_variables)
  assert_close(found, want)
