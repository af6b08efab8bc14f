"""Tests of `PrivateModel` against a loop over single examples, and of its refusals."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import MEAN, poisson, privatized
from tests.representatives import representatives
from tfcactus import noise as noise_lib
from tfcactus.keras import (
  DPKerasSGDOptimizer,
  EpsilonCallback,
  PoissonBatches,
  PrivateModel,
  privatize,
)
from tfcactus.keras.checks import refused_models
from tfcactus.keras.compat import versions
from tfcactus.keras.gradients import physical_batch
from tfcactus.keras.ledger import counts
from tfcactus.sampling import OnePassSampling, PoissonSampling

layers = tf.keras.layers


def _dense():
  tf.keras.utils.set_random_seed(1)
  return tf.keras.Sequential([layers.Input((6,)), layers.Dense(5, 'tanh'),
                              layers.Dense(3)])


def _conv():
  tf.keras.utils.set_random_seed(1)
  inputs = tf.keras.Input((6, 6, 1))
  x = layers.Conv2D(3, 3, strides=2, padding='same', activation='relu')(inputs)
  x = layers.GroupNormalization(3)(layers.MaxPool2D(2, 1)(x))
  return tf.keras.Model(inputs, layers.Dense(3)(layers.Flatten()(x)))


def _data(rows=40, shape=(6,)):
  rng = np.random.default_rng(0)
  x = 3 * rng.normal(size=(rows,) + shape).astype(np.float32)
  return x, rng.integers(0, 3, rows)


def _private(plan, model=None, rate=0.5, **kwargs):
  return privatized(
      plan, model or _dense(), tf.keras.optimizers.SGD(rate), MEAN, **kwargs)


def _reference(model, x, y, clip, batch, rate, weights=None):
  """Returns weights after one step, and the mean loss, by a loop over examples."""
  total = [np.zeros(v.shape) for v in model.trainable_variables]
  losses = []
  for i, (xi, yi) in enumerate(zip(x, y)):
    with tf.GradientTape() as tape:
      loss = MEAN(yi[None], model(xi[None]))
      losses.append(float(loss))
      loss *= 1.0 if weights is None else weights[i]
    gradient = [g.numpy().astype(float) for g in
                tape.gradient(loss, model.trainable_variables)]
    norm = np.sqrt(sum(np.sum(g**2) for g in gradient))
    if np.isfinite(norm):
      factor = min(1, clip * (1 - 1e-5) / max(norm, 1e-30))
      total = [t + factor * g for t, g in zip(total, gradient)]
  stepped = [v.numpy() - rate * t / batch
             for v, t in zip(model.trainable_variables, total)]
  return stepped, np.mean([v for v in losses if np.isfinite(v)])


def _assert_close(model, expected):
  for variable, value in zip(model.trainable_variables, expected):
    np.testing.assert_allclose(variable.numpy(), value, atol=2e-6)


@representatives('make, shape, rows', [
    (_conv, (6, 6, 1), 16), (_dense, (6,), 7), (_dense, (6,), 64)])
def test_a_step_equals_the_reference_at_any_physical_batch_size(
    make_plan, make, shape, rows):
  x, y = _data(shape=shape)
  expected, loss = _reference(make(), x, y, 0.3, 10.0, 0.5)
  private = _private(make_plan(l2_norm_clip=0.3), make(),
                     physical_batch_size=rows)
  history = private.fit(x, y, batch_size=40, verbose=0).history
  _assert_close(private, expected)
  np.testing.assert_allclose(history['loss'][0], loss, rtol=1e-5)


@pytest.mark.more
def test_poisson_draws_larger_than_the_physical_batch_are_split(make_plan):
  x, y = _data()
  plan = make_plan(l2_norm_clip=0.3)
  models = [_private(plan, physical_batch_size=rows) for rows in (3, 512)]
  for private in models:
    private.fit(PoissonBatches(x, y, 0.25, seed=5), verbose=0)
  _assert_close(models[0], [v.numpy() for v in models[1].trainable_variables])
  batches = PoissonBatches(x, y, 0.25, seed=5)
  model = _dense()
  for xs, ys, weights in batches:
    stepped, _ = _reference(model, xs[weights == 1], ys[weights == 1], 0.3,
                            10.0, 0.5)
    for variable, value in zip(model.trainable_variables, stepped):
      variable.assign(value)
  _assert_close(models[0], [v.numpy() for v in model.trainable_variables])


@representatives('make, shape, bad', [
    (_dense, (6,), 3e38), (_dense, (6,), np.nan), (_conv, (6, 6, 1), np.nan),
    (_dense, (6,), np.inf)])
def test_an_example_whose_gradient_is_not_finite_is_dropped_alone(
    make_plan, make, shape, bad):
  x, y = _data(shape=shape)
  x[3].fill(bad)
  expected, _ = _reference(make(), x, y, 0.3, 10.0, 0.5)
  private = _private(make_plan(l2_norm_clip=0.3), make())
  history = private.fit(x, y, batch_size=40, verbose=0).history
  _assert_close(private, expected)
  assert np.isfinite(history['loss'][0])


def test_weights_of_zero_contribute_exactly_zero(make_plan):
  x, y = _data()
  weights = np.ones(40, np.float32)
  weights[:20] = 0
  weights[20] = 0.01
  x[0] = np.nan
  expected, _ = _reference(_dense(), x, y, 0.3, 10.0, 0.5, weights)
  private = _private(make_plan(l2_norm_clip=0.3))
  private.fit(x, y, batch_size=40, sample_weight=weights, verbose=0)
  _assert_close(private, expected)


@representatives('shape', ['one-hot', 'labels', 'column'])
def test_class_weights_multiply_losses_before_clipping(make_plan, shape):
  x, labels = _data()
  classes = {0: 2.0, 2: 0.25}  # Class 1 has weight one.
  weights = np.array([2, 1, 0.25], np.float32)[labels]
  expected, _ = _reference(_dense(), x, labels, 0.3, 10.0, 0.5, weights)
  y = {'labels': labels, 'column': labels[:, None],
       'one-hot': np.eye(3, dtype=np.float32)[labels]}[shape]
  private = privatize(_dense(), make_plan(
      l2_norm_clip=0.3, sampling_prob=1.0, num_examples=40))
  loss = tf.keras.losses.CategoricalCrossentropy if shape == 'one-hot' else (
      tf.keras.losses.SparseCategoricalCrossentropy)
  # The reference divides by 10; the expected batch size is 40.
  private.compile(tf.keras.optimizers.SGD(2.0), loss(from_logits=True))
  private.fit(PoissonBatches(x, y, 1.0), class_weight=classes, verbose=0)
  _assert_close(private, expected)


@pytest.mark.parametrize('classes', [{0: -1.0}, {0: float('nan')}, [1, 2], 2,
                                     {'a': 1.0}])
def test_invalid_class_weights_raise(make_plan, classes):
  x, y = _data()
  private = _private(make_plan())
  with pytest.raises(ValueError, match='Expected class_weight'):
    private.fit(PoissonBatches(x, y, 0.25), class_weight=classes, verbose=0)


def test_empty_draws_release_noise_and_are_counted(make_plan):
  x, y = _data()
  plan = make_plan(noise_lib.Gaussian(1.0), sampling_prob=1e-12)
  private = _private(plan, rate=1e-12, seed=1)
  before = [v.numpy() for v in private.trainable_variables]
  history = private.fit(PoissonBatches(x, y, 1e-12, steps_per_epoch=3),
                        verbose=0).history
  assert history['loss'] == [0.0]
  assert private.released_steps == 3
  for a, b in zip(before, private.trainable_variables):
    assert np.all(np.isfinite(b)) and np.all(a != b)


def test_a_dataset_of_empty_batches_releases_noise(make_plan):
  private = _private(make_plan(noise_lib.Gaussian(1.0)), _conv())
  empty = tf.data.Dataset.from_tensors(
      (tf.zeros([0, 6, 6, 1]), tf.zeros([0], tf.int64)))
  private.fit(empty, verbose=0)
  assert private.released_steps == 1


def test_noise_is_added_once_for_all_physical_batches(make_plan):
  model = tf.keras.Sequential([layers.Input((100,)), layers.Dense(50)])
  plan = make_plan(noise_lib.Gaussian(0.5), l2_norm_clip=2.0)
  private = _private(plan, model, rate=1.0, seed=1, physical_batch_size=4)
  before = model.get_weights()[0]
  private.fit(np.zeros((40, 100), np.float32), np.zeros(40, np.int64),
              batch_size=40, verbose=0)
  step = (before - model.get_weights()[0]).ravel()
  assert abs(step.std() / (2.0 * 0.5 / 10) - 1) < 0.04


@pytest.mark.slow
def test_only_seeded_training_repeats(make_plan):
  x, y = _data()
  plan = make_plan(noise_lib.Gaussian(1.0))

  def train(seed):
    private = _private(plan, seed=seed)
    private.fit(PoissonBatches(x, y, 0.25, seed=3), verbose=0)
    return private.trainable_variables[0].numpy()

  np.testing.assert_array_equal(train(1), train(1))
  assert np.all(train(None) != train(None))


def test_logs_leave_padding_out_and_evaluate_is_that_of_keras(make_plan):
  x, y = _data()
  plan = make_plan(sampling_prob=1.0)
  plain = _dense()
  plain.compile('sgd', MEAN, metrics=['accuracy'])
  expected = plain.evaluate(x, y, verbose=0)
  private = privatize(_dense(), plan, physical_batch_size=64)
  private.compile(tf.keras.optimizers.SGD(1e-9), MEAN, metrics=['accuracy'])
  batches = PoissonBatches(x, y, 1.0, physical_batch_size=7)
  history = private.fit(batches, verbose=0, validation_data=(x, y)).history
  for prefix in ('', 'val_'):
    np.testing.assert_allclose(
        [history[prefix + 'loss'][0], history[prefix + 'accuracy'][0]],
        expected, rtol=1e-5)
  np.testing.assert_allclose(private.predict(x, verbose=0),
                             plain.predict(x, verbose=0), rtol=1e-5)


def _counted(plan):
  """Returns a private model, and a list that grows when its step is traced."""
  traces = []

  class Counted(PrivateModel):

    def train_step(self, data):
      traces.append(1)
      return super().train_step(data)

  return Counted(_dense(), plan, physical_batch_size=4), traces


@pytest.mark.usefixtures('random_sums')
def test_a_shorter_last_batch_is_not_traced_again(make_plan):
  x, y = _data()
  private, traces = _counted(make_plan(num_examples=len(x)))
  private.compile('adam', MEAN, metrics=['accuracy'])
  private.fit(x, y, batch_size=len(x) // 2 - 1, epochs=2, verbose=0)
  assert len(traces) == 1 and private.released_steps == 6


@pytest.mark.usefixtures('random_sums')
@representatives('optimizer', ['adam', 'sgd'])
def test_draws_of_all_sizes_share_one_trace(make_plan, optimizer):
  x, y = _data()
  private, traces = _counted(make_plan())
  private.compile(optimizer, MEAN, metrics=['accuracy'])
  private.fit(PoissonBatches(x, y, 0.25, steps_per_epoch=20), epochs=2,
              verbose=0)
  assert len(traces) == 1 and private.released_steps == 40


@pytest.mark.slow
def test_recurrent_layers_train_with_other_losses_before_they_are_built(make_plan):
  rng = np.random.default_rng(0)
  ids = rng.integers(0, 9, (40, 5))
  model = tf.keras.Sequential([
      layers.Embedding(9, 4, input_length=5), layers.LSTM(3, unroll=True),
      layers.Dropout(0.5), layers.LayerNormalization(), layers.Dense(1)])
  private = privatize(model, make_plan())
  y = rng.normal(size=40)
  for targets in (y, y[:, None]):
    private.compile('adam', 'mse', metrics=['mae'])
    history = private.fit(PoissonBatches(ids, targets, 0.25), verbose=0).history
    assert np.isfinite(history['loss'][0])
  assert private.predict(ids, verbose=0).shape == (40, 1)


def test_dropout_differs_between_examples(make_plan):
  model = tf.keras.Sequential([layers.Input((8,)), layers.Dropout(0.5),
                               layers.Dense(1, use_bias=False)])
  private = _private(make_plan(l2_norm_clip=1e6), model)

  def loss(y, p):
    return tf.reduce_sum(p, axis=-1)

  private.compile(tf.keras.optimizers.SGD(1.0), loss)
  before = model.get_weights()[0]
  private.fit(np.ones((40, 8), np.float32), np.zeros(40), batch_size=40,
              verbose=0)
  seen = (before - model.get_weights()[0]).ravel() * 10
  # One mask for all examples would give 0 or 80 everywhere.
  assert np.all((seen > 4) & (seen < 76))


@pytest.mark.usefixtures('random_sums')
@representatives('name', ['w.weights.h5', 'w.h5'])
def test_counts_are_saved_with_weights_and_never_fall(make_plan, tmp_path, name):
  if versions.KERAS_3 and name == 'w.h5':
    pytest.skip('Keras 3 knows one kind of file')
  x, y = _data()
  private = _private(make_plan())
  old = private.get_weights()
  private.fit(PoissonBatches(x, y, 0.25), epochs=2, verbose=0)
  private.save_weights(tmp_path / name)
  private.set_weights(old)
  assert private.ledger().steps == 8
  assert private.ledger().sampling == PoissonSampling.code
  fresh = _private(make_plan())
  fresh.load_weights(tmp_path / name)
  assert fresh.ledger() == private.ledger()
  fresh.train_on_batch(x, y)
  assert fresh.ledger().sampling == counts.UNKNOWN


def _kinds(private, x, y):
  return {
      'poisson': lambda: private.fit(PoissonBatches(x, y, 0.25), verbose=0),
      'once': lambda: private.fit(x, y, batch_size=20, verbose=0),
      'steps': lambda: private.fit(x, y, steps_per_epoch=1, verbose=0),
      'dataset': lambda: private.fit(
          tf.data.Dataset.from_tensors((x, y)), verbose=0),
      'by hand': lambda: private.train_on_batch(x, y),
      'its dataset': lambda: private.fit(
          PoissonBatches(x, y, 0.25).dataset(), verbose=0),
  }


@pytest.mark.usefixtures('random_sums')
@representatives('fits, sampling', [
    (['poisson', 'poisson'], PoissonSampling.code),
    (['once', 'once'], OnePassSampling.code),
    (['poisson', 'once'], counts.MIXED),
    (['steps'], counts.UNKNOWN),
    (['dataset', 'poisson'], counts.UNKNOWN),
    (['poisson', 'by hand', 'poisson'], counts.UNKNOWN),
    (['its dataset'], counts.UNKNOWN),
], 3)
def test_the_ledger_records_how_batches_were_chosen(make_plan, fits, sampling):
  x, y = _data()
  private = _private(make_plan())
  for kind in fits:
    _kinds(private, x, y)[kind]()
  assert private.ledger().sampling == sampling
  if sampling in (counts.MIXED, counts.UNKNOWN):
    with pytest.raises(ValueError, match='No epsilon'):
      private.guarantee()
  elif sampling == PoissonSampling.code:
    assert private.guarantee().steps == 8
  else:
    assert private.guarantee().steps == 2


def test_a_fresh_model_has_no_guarantee_yet(make_plan):
  with pytest.raises(ValueError, match='No step'):
    _private(make_plan()).guarantee()


@pytest.mark.parametrize('layer, words', [
    (layers.BatchNormalization(), 'GroupNormalization'),
    (layers.TimeDistributed(layers.BatchNormalization()), 'GroupNorm'),
    (layers.GRU(2, stateful=True, unroll=True), 'stateful=False'),
])
def test_layers_without_gradients_per_example_are_refused(
    make_plan, layer, words):
  model = tf.keras.Sequential([layers.Input((3, 6), batch_size=1),
                               layers.Dense(4), layer])
  with pytest.raises(ValueError, match=words):
    privatize(model, make_plan())


def test_frozen_normalization_is_allowed(make_plan):
  frozen = layers.BatchNormalization(trainable=False)
  model = tf.keras.Sequential([layers.Input((6,)), frozen, layers.Dense(3)])
  private = _private(make_plan(), model)
  private.fit(*_data(), batch_size=40, verbose=0)
  np.testing.assert_array_equal(frozen.moving_mean, np.zeros(6))


def test_a_layer_may_be_refused_once_it_is_built(make_plan):
  model = tf.keras.Sequential([layers.Dense(3), layers.BatchNormalization()])
  private = privatize(model, make_plan())
  private.compile('sgd', MEAN)
  with pytest.raises(ValueError, match='GroupNormalization'):
    private.fit(*_data(), verbose=0)


def test_noise_of_another_dimension_is_refused(make_plan, radial, scalar):
  for noise in (radial, scalar):
    with pytest.raises(ValueError, match='dim='):
      privatize(_dense(), make_plan(noise))
  private = privatize(tf.keras.Sequential([layers.Dense(3)]), make_plan(radial))
  private.compile('sgd', MEAN)
  with pytest.raises(ValueError, match='dim=3'):
    private.fit(*_data(), verbose=0)


@pytest.mark.parametrize('kwargs, words', [
    ({'loss': [MEAN, MEAN]}, 'one loss'),
    ({'loss_weights': ['a']}, 'loss_weights'),
    ({'steps_per_execution': 'auto'}, 'steps_per_execution'),
    ({'jit_compile': True}, 'jit_compile=False'),
    ({'optimizer': DPKerasSGDOptimizer(1.0, 1.0, expected_batch_size=2)},
     'added twice'),
])
def test_compile_raises_for_arguments_it_does_not_take(make_plan, kwargs, words):
  with pytest.raises(ValueError, match=words):
    privatize(_dense(), make_plan()).compile(
        **{'optimizer': 'sgd', 'loss': MEAN, **kwargs})


def test_a_loss_that_the_private_model_itself_adds_is_refused(make_plan):
  with pytest.raises(ValueError, match='Expected add_loss of a layer or model inside'):
    _private(make_plan()).add_loss(lambda: 1.0)


def test_a_loss_over_the_batch_is_refused(make_plan):
  private = privatize(_dense(), make_plan())
  private.compile('sgd', lambda y, p: tf.reduce_mean(p))
  with pytest.raises(ValueError, match='without reduce_mean'):
    private.fit(*_data(), verbose=0)


@pytest.mark.parametrize('call, words', [
    (lambda m, x, y: m.fit(x, y, validation_split=0.1), 'validation_data'),
    (lambda m, x, y: m.fit(x[:30], y[:30]), 'num_examples=40'),
    (lambda m, x, y: m.fit(PoissonBatches(x, y, 0.3)), 'sampling_prob=0.25'),
    (lambda m, x, y: m.fit(PoissonBatches(x[1:], y[1:], 0.25)),
     'num_examples=40'),
    (lambda m, x, y: m.fit(PoissonBatches(x, y, 0.25), y), 'to be None'),
    (lambda m, x, y: m.fit(PoissonBatches(x, y, 0.25), batch_size=8),
     'to be None'),
])
def test_fit_raises_for_data_other_than_those_of_the_plan(make_plan, call, words):
  private = _private(make_plan())
  with pytest.raises(ValueError, match=words):
    call(private, *_data())
  assert private.ledger().steps == 0


@pytest.mark.parametrize('call, words', [
    (lambda p: privatize('model', p), 'Keras model'),
    (lambda p: privatize(privatize(_dense(), p), p), 'not private yet'),
    (lambda p: privatize(_dense(), noise_lib.Gaussian(1.0)), 'PrivacyPlan'),
    (lambda p: privatize(_dense(), p, physical_batch_size=0), '>= 1'),
    (lambda p: privatize(tf.keras.Sequential(
        [layers.Input((3,)), layers.Flatten()]), p), 'trainable'),
])
def test_privatize_raises_for_invalid_arguments(make_plan, call, words):
  with pytest.raises(ValueError, match=words):
    call(make_plan())


class Scale(layers.Layer):
  """A layer with a weight and without a gradient rule."""

  def build(self, shape):
    self.w = self.add_weight(name='w', shape=(shape[-1],))

  def call(self, inputs):
    return inputs * self.w


def test_summaries_and_counts_of_weights_list_no_counters(make_plan, capsys):
  private = privatized(make_plan())
  private.summary()
  printed = capsys.readouterr().out
  private.inner.summary()
  assert printed == capsys.readouterr().out and '21' in printed
  assert private.count_params() == private.inner.count_params() == 21


def test_the_summary_names_the_route_of_each_layer(make_plan):
  inputs = tf.keras.Input((4, 3))
  x = Scale()(layers.Dense(3)(inputs))
  private = privatize(tf.keras.Model(inputs, layers.Dense(3)(x)), make_plan())
  lines = private.privacy_summary().splitlines()
  assert sum('batched' in line for line in lines) == 3
  assert any('Scale' in line and line.endswith('  batched') for line in lines)
  slow = privatize(_dense(), make_plan(), engine='vectorized')
  assert 'batched' not in slow.privacy_summary()
  assert 'asked for' in slow.privacy_summary()
  with pytest.raises(ValueError, match='Input layer'):
    privatize(tf.keras.Sequential([layers.Dense(3)]),
              make_plan()).privacy_summary()
  with pytest.raises(ValueError, match="engine='fast'"):
    privatize(_dense(), make_plan(), engine='fast')


def test_the_physical_batch_holds_most_draws_as_far_as_memory_allows(
    make_plan, monkeypatch):
  monkeypatch.setattr(physical_batch, 'memory_for_steps', lambda: 2**30)
  plan = make_plan(num_examples=60_000, sampling_prob=250 / 60_000)
  assert privatize(_dense(), plan).physical_batch_size == 288
  wide = tf.keras.Sequential([layers.Input((1000,)), layers.Dense(1000),
                              layers.Dense(1000)])
  # Large examples: fewer rows of padding are worth a rare second physical batch.
  assert privatize(wide, plan).physical_batch_size == 280
  # Two gradients of 2,002,000 numbers each, and half as much again.
  assert privatize(wide, plan, engine='vectorized').physical_batch_size == 40
  assert privatize(_dense(), make_plan()).physical_batch_size == 16


@representatives('policy, engine', [
    ('mixed_float16', 'auto'), ('mixed_float16', 'vectorized'),
    ('mixed_bfloat16', 'vectorized'), ('mixed_bfloat16', 'auto')])
def test_mixed_precision_clips_unscaled_gradients(make_plan, policy, engine):
  x, y = _data()
  tf.keras.mixed_precision.set_global_policy(policy)
  try:
    private = _private(make_plan(l2_norm_clip=0.3), _dense(), engine=engine)
    private.fit(x, y, batch_size=40, verbose=0)
  finally:
    tf.keras.mixed_precision.set_global_policy('float32')
  before = _dense().get_weights()
  expected, _ = _reference(_dense(), x, y, 0.3, 10.0, 0.5)
  for variable, start, value in zip(private.trainable_variables, before,
                                    expected):
    assert variable.dtype == tf.float32
    step, want = variable.numpy() - start, value - start
    # The tolerance is that of the forward pass. Clipping gradients that are still
    # scaled would give other lengths.
    assert np.linalg.norm(step - want) < 0.05 * np.linalg.norm(want)


def test_float16_behind_a_drop_in_optimizer_is_refused():
  model = tf.keras.Sequential([layers.Input((6,)),
                               layers.Dense(2, dtype='mixed_float16')])
  with pytest.raises(ValueError, match='bfloat16'):
    refused_models.check_model(model)


class _KeepsInputs(layers.Layer):
  """Keeps its inputs whenever it does not train, as a layer with statistics may."""

  def build(self, shape):
    self.kernel = self.add_weight(name='kernel', shape=(6, 3))
    self.kept = self.add_weight(name='kept', shape=(6,), trainable=False)

  def call(self, x, training=False):
    if not training:
      self.kept.assign(x[0])
    return x @ self.kernel


def test_no_example_is_seen_where_fit_builds_a_model(make_plan):
  private = privatize(tf.keras.Sequential([_KeepsInputs()]), make_plan())
  private.compile('sgd', MEAN, run_eagerly=True)
  private.fit(PoissonBatches(*_data(), 0.25, steps_per_epoch=1), verbose=0)
  assert private.guarantee().steps == 1
  assert not np.any(private.inner.layers[0].kept)


@pytest.mark.more
def test_a_model_without_an_input_layer_trains_eagerly(make_plan):
  private = privatize(tf.keras.Sequential([layers.Dense(3)]), make_plan())
  private.compile('sgd', MEAN, run_eagerly=True)
  private.fit(PoissonBatches(*_data(), 0.25), verbose=0)
  private.fit(*_data(), batch_size=40, verbose=0)
  assert private.ledger().steps == 5


def test_outputs_are_those_of_the_wrapped_model():
  private = privatized()
  assert [tuple(out.shape) for out in private.outputs] == [(None, 3)]


def test_a_run_card_without_a_folder_is_told_before_any_step(tmp_path):
  private = privatized()
  with pytest.raises(ValueError, match='in a folder that exists'):
    private.fit(poisson(), verbose=0, callbacks=[
        EpsilonCallback(run_card=tmp_path / 'none' / 'card.json')])
  assert private.released_steps == 0
