"""Tests that each sharp edge raises or warns in the words of docs/sharp_edges.md."""

import json
import pathlib
import re
import shutil
import warnings

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import inner, NONE, plan_of, poisson, privatized, X, Y
import tfcactus
from tfcactus import keras as private

PAGE = pathlib.Path(__file__).parents[2] / 'docs' / 'sharp_edges.md'
LAYERS = tf.keras.layers


def _plan(noise=None, **settings):
  return plan_of(noise=noise or tfcactus.Gaussian(2.0), **{'steps': 8, **settings})


def _private(model=None, plan=None, loss=NONE, **options):
  return privatized(plan or _plan(), model, loss=loss, **options)


def _fit(model=None, batches=None, epochs=1, callbacks=(), **options):
  model = model or _private()
  epsilon = private.EpsilonCallback(**options)
  model.fit(poisson() if batches is None else batches, epochs=epochs, verbose=0,
            callbacks=[*callbacks, epsilon])
  return model, epsilon


def _drop_in(optimizer=None, loss=NONE, given=True):
  batches = poisson()
  model = inner()
  model.compile(optimizer or private.DPKerasSGDOptimizer.from_plan(
      _plan(), learning_rate=0.1), loss)
  epsilon = private.EpsilonCallback(_plan(), batches=batches if given else None)
  model.fit(batches, verbose=0, callbacks=[epsilon])


def _account(folder):
  return tfcactus.DataAccount(folder / 'census.account', epsilon=4, delta=1e-6)


def _validation(split=None):
  return private.PrivateValidation(
      X, Y, noise=tfcactus.Gaussian(20.0), releases=2, split=split)


def _with_accuracy(metrics=None, outputs=1):
  inputs = tf.keras.Input((6,))
  model = private.privatize(
      tf.keras.Model(inputs, [LAYERS.Dense(3)(inputs) for _ in range(outputs)]),
      _plan(noisy_accuracy=tfcactus.NoisyAccuracy()))
  model.compile('sgd', [NONE] * outputs, metrics=metrics)
  model.fit(private.PoissonBatches(X, [Y] * outputs if outputs > 1 else Y, 0.25),
            verbose=0)


def _arrays():
  model = _private()
  model.fit(X, Y, batch_size=10, verbose=0)
  warnings.warn(model.guarantee().statement, stacklevel=1)


def _mixed():
  model, _ = _fit()
  _fit(model, private.FixedSizeBatches(X, Y, 10))


def _other_layers(folder):
  path, frozen = folder / 'm.weights.h5', inner(LAYERS.Dense(4))
  _private(inner(LAYERS.Dense(4))).save_weights(path)
  frozen.layers[0].trainable = False
  _private(frozen).load_weights(path)


def _several_steps():
  model = private.privatize(inner(), _plan())
  model.compile('sgd', NONE, steps_per_execution=4)
  _fit(model, target_epsilon=3)


def _records(folder, parse=lambda record: (tf.ones(2), 0), times=1):
  path = str(folder / 'a.tfrecord')
  with tf.io.TFRecordWriter(path) as writer:
    writer.write(b'record')
  return private.TFRecordExamples([path] * times, parse)


def _rewritten(folder):
  data = _records(folder)
  (folder / 'a.tfrecord').write_bytes(b'')
  private.PoissonBatches(data, sampling_prob=1.0)[0]


def _plain():
  model = inner()
  model.compile('sgd', NONE)
  _fit(model, poisson().for_plain_training())


def _dropped():
  model = inner()
  private.privatize(model, _plan())
  model.compile('sgd', 'sparse_categorical_crossentropy')
  model.fit(poisson(), verbose=0)


def _changed():
  class Changes(tf.keras.callbacks.Callback):
    """Sets weights outside of the steps."""

    def on_epoch_end(self, epoch, logs=None):
      weight = self.model.inner.trainable_variables[0]
      weight.assign(weight + 1)

  _fit(epochs=2, callbacks=[Changes()])


def _own_train_step():
  class Own(tf.keras.Model):
    """A model with its own train_step."""

    def __init__(self):
      super().__init__()
      self.dense = LAYERS.Dense(3)

    def call(self, inputs):
      return self.dense(inputs)

    def train_step(self, data):
      return super().train_step(data)

  private.privatize(Own(), _plan())


class _Applied(LAYERS.Layer):
  """Applies any function to its inputs."""

  def __init__(self, function):
    super().__init__()
    self.function = function

  def call(self, inputs):
    return tf.ensure_shape(self.function(inputs), inputs.shape)


def _counted():
  counter = tf.Variable(0.0)
  return lambda x: x + counter.assign_add(1.0)


def _read():
  outside = tf.Variable(0.0)
  return lambda x: x + outside


def _spent():
  model, _ = _fit(target_epsilon=1.5, epochs=3)
  _fit(model, target_epsilon=1.5)


def _lost_journal(folder):
  model = _private(journal=folder / 'run.journal')
  _fit(model)
  model.save(str(folder / 'm.keras'))
  (folder / 'run.journal').unlink()
  _fit(tf.keras.models.load_model(str(folder / 'm.keras')))


def _card_of_seeded(folder):
  _fit(_private(seed=1), run_card=folder / 'card.json')
  warnings.warn(json.loads((folder / 'card.json').read_text())['randomness'],
                stacklevel=1)


def _compiled_before():
  model = inner()
  model.compile('sgd', NONE)
  private.privatize(model, _plan()).fit(poisson(), verbose=0)


class _Listing(LAYERS.Layer):
  """Adds up the positive numbers of an example, which a one-argument `where` lists."""

  def build(self, shape):
    self.scale = self.add_weight(shape=(shape[-1],), name='scale')

  def call(self, inputs):
    scaled = inputs * self.scale
    found = tf.gather_nd(inputs, tf.where(inputs > 0))
    return scaled + tf.reduce_sum(found)


class _InPlace(LAYERS.Layer):
  """Adds the CTC loss of dense labels."""

  def call(self, inputs):
    count = tf.ones(tf.shape(inputs)[:1], tf.int32)
    logits = tf.stack([inputs, inputs], 1)
    self.add_loss(tf.nn.ctc_loss(
        tf.ones_like(inputs[:, :1], tf.int32), logits, count, 2 * count,
        logits_time_major=False, blank_index=0))
    return inputs


def _rewritten_graphs():
  options = tf.config.optimizer
  options.set_experimental_options({'auto_mixed_precision': True})
  try:
    _fit()
  finally:
    options.set_experimental_options({'auto_mixed_precision': False})


def _units(units=(), plan=True, arrays=False):
  model = _private(plan=_plan(**({'unit': 'user'} if plan else {})))
  model.fit(*((X, Y) if arrays else [private.PoissonBatches(
      X, Y, 0.25, units=np.arange(40) if units is None else units,
      examples_per_unit=2)]), verbose=0)


def _trained_before():
  model = inner()
  model.compile('adam', NONE)
  model.fit(X, Y, verbose=0)
  _fit(_private(model, optimizer=model.optimizer))


def _adapted():
  layer = LAYERS.Discretization(num_bins=3, output_mode='multi_hot')
  layer.adapt(X)
  model, _ = _fit(_private(inner(layer)))
  layer.adapt(X + 1)
  model.guarantee()


def _adapted_for_rows():
  result = private.adapt(LAYERS.Normalization(), X, noise=tfcactus.Gaussian(5.0),
                         bounds=(-4, 4))
  _plan(unit='user', releases=[result])


def _mutable():
  table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
  return lambda x: x + tf.ensure_shape(table.lookup(tf.cast(x, tf.int64)), x.shape)


CASES = {
    'Expected a new optimizer': lambda folder: _trained_before(),
    'or a vocabulary or bins of a layer': lambda folder: _adapted(),
    'Neither covers the other': lambda folder: _adapted_for_rows(),
    'Expected public bounds=(low, high)': lambda folder: private.adapt(
        LAYERS.Normalization(), X, noise=tfcactus.Gaussian(5.0)),
    'that read tables of fixed entries':
        lambda folder: _private(inner(_Applied(_mutable()))),
    'Expected batches of the unit of the plan':
        lambda folder: _units(None, plan=False),
    'Expected batches that draw units': lambda folder: _units(arrays=True),
    'a rounded or missing id does not tell whose row it is':
        lambda folder: _units([None, *range(39)]),
    'such a row may belong to anybody': lambda folder: _units([-1, *range(39)]),
    'A row of two owners has no guarantee for either':
        lambda folder: _units([[i, i + 1] for i in range(40)]),
    'Expected compile(...) of the private model before fit':
        lambda folder: _compiled_before(),
    'Expected run_card in a folder that exists': lambda folder: _fit(
        run_card=folder / 'none' / 'card.json'),
    'Expected validation_split=0 with PoissonBatches': lambda folder: _private().fit(
        poisson(), validation_split=0.2, verbose=0),
    'a sparse matrix; draw batches': lambda folder: _private().fit(
        pytest.importorskip('scipy.sparse').csr_matrix(X), Y, verbose=0),
    'For integer labels use SparseCategoricalCrossentropy': lambda folder: _fit(
        _private(loss='categorical_crossentropy')),
    'For one-hot targets use CategoricalCrossentropy': lambda folder: _fit(
        batches=private.PoissonBatches(X, np.eye(3)[Y], 0.25)),
    'got a linear activation, whose outputs are logits': lambda folder: _private(
        loss='sparse_categorical_crossentropy'),
    'which the loss normalises again': lambda folder: _private(
        tf.keras.Sequential([LAYERS.Input((6,)), LAYERS.Dense(3, 'softmax')])),
    'Expected delta far below one over the number of examples':
        lambda folder: _plan(delta=0.1),
    'For batches cut from a shuffled pass':
        lambda folder: private.compute_dp_sgd_privacy(40, 10, 2.0, 1, 1e-5),
    'belong into a PrivacyPlan':
        lambda folder: private.privatize(inner(), noise_multiplier=1.1),
    'computes a statistic over the batch': lambda folder: _private(inner(_Applied(
        lambda x: x - tf.reduce_mean(x, 0)))),
    'that return as many numbers for each example':
        lambda folder: _fit(_private(inner(_Listing()))),
    'For CTC use tf.keras.backend.ctc_batch_cost':
        lambda folder: _private(inner(_InPlace())),
    'Nothing was entered; release nothing': lambda folder: _account(folder).spend(
        _plan().step_event, 10**6),
    'to be the file that the account was begun in, got a copy': lambda folder: (
        tfcactus.DataAccount(shutil.copy(_account(folder).path, folder / 'copy'))),
    'whose cost the account could not hold': lambda folder: _private(
        account=_account(folder)).fit(
            tf.data.Dataset.from_tensor_slices((X, Y)).batch(10), verbose=0),
    'this training is not private by tfcactus': lambda folder: _plain(),
    'Expected a private model in fit(batches)': lambda folder: _dropped(),
    'no amplification by sampling': lambda folder: _arrays(),
    'batches came from a source whose sampling is unknown':
        lambda folder: _fit(batches=tf.data.Dataset.from_tensor_slices(
            (X, Y)).shuffle(40).batch(10)),
    'some steps chose their batches in one way and some in another':
        lambda folder: _mixed(),
    'Expected batches with sampling_prob=':
        lambda folder: _fit(batches=private.PoissonBatches(X, Y, 0.5)),
    'Expected layers that treat each example alone':
        lambda folder: _fit(_private(inner(LAYERS.BatchNormalization()))),
    'Expected a loss in which each example is by itself':
        lambda folder: _fit(_private(
            loss=lambda y, p: tf.reduce_mean(p) * NONE(y, p))),
    'what it draws for an example would depend on the place':
        lambda folder: _private(inner(_Applied(
            lambda x: x * tf.random.gamma(tf.shape(x), 2.0)))),
    'that read weights of the model alone':
        lambda folder: _private(inner(_Applied(_read()))),
    'that write no variables in training':
        lambda folder: _private(inner(_Applied(_counted()))),
    'outputs depend on the record alone': lambda folder: _records(
        folder, lambda record: (tf.random.gamma((2,), 1.0), 0)),
    'each of its examples would count twice': lambda folder: _records(folder, times=2),
    'which has changed since it was opened or stored':
        lambda folder: _rewritten(folder),
    'which a private step does not call': lambda folder: _own_train_step(),
    'the weights changed outside of the steps of fit': lambda folder: _changed(),
    'has no valid one-dimensional account for a vector':
        lambda folder: _fit(_private(plan=_plan(tfcactus.Laplace(2.0)))),
    'its guarantee holds in its own dimension only':
        lambda folder: _fit(_private(plan=_plan(
            tfcactus.library.get('isotropic-dim3-sigma0.5')))),
    'hide canaries among the examples': lambda _: (
        private.DPKerasSGDOptimizer.from_plan(_plan(), audit=private.Audit())),
    'plant canaries of your own': lambda _: _private(
        plan=_plan(tfcactus.Laplace(1.0), accounting='scalar-unproven'),
        audit=private.Audit()),
    'without that no bound holds': lambda _: private.black_box_audit(
        _private(), (X, Y), (X, Y), by_fair_coins=False),
    'an experiment that can be repeated, not a private release':
        lambda folder: _card_of_seeded(folder),
    'of the plan. To go on, privatize(model.inner': lambda folder: _fit(
        _private(plan=_plan(target_epsilon=1.5)), epochs=3),
    'of the plan: epsilon is above what plan.guarantee() says': lambda folder: _fit(
        epochs=3),
    'Expected to monitor what a PrivateValidation of this fit releases':
        lambda folder: _fit(callbacks=[
            private.PrivateEarlyStopping('val_loss', mode='min')]),
    'Expected callbacks that act by logs with noise': lambda folder: _fit(
        callbacks=[tf.keras.callbacks.ReduceLROnPlateau('loss')]),
    'got one that repeats examples': lambda folder: private.PoissonBatches(
        tf.data.Dataset.from_tensor_slices((X, Y)).repeat(2), sampling_prob=0.25),
    'got a value that may have no noise': lambda folder: _with_accuracy(metrics=[
        tf.keras.metrics.SparseCategoricalAccuracy(name='noisy_accuracy')]),
    'Expected noisy_accuracy to name one output': lambda folder: _with_accuracy(
        outputs=2),
    'once among its releases': lambda folder: _fit(callbacks=[_validation()]),
    'an added record moves others to other positions': lambda folder: _plan(
        releases=[_validation(private.Split(
            by='position', rule=lambda place: place > 30))]).guarantee(
                None, 'add-or-remove'),
    'Expected batches of the training side of the split': lambda folder: _fit(
        _private(plan=_plan(releases=[_validation(private.Split(0.5))]))),
    'to allow a step more': lambda folder: _spent(),
    'Expected compile(steps_per_execution=1) with target_epsilon':
        lambda folder: _several_steps(),
    'The weights are of a run that trained': lambda folder: _other_layers(folder),
    'of this model is not there': lambda folder: _lost_journal(folder),
    'other formats do not hold the plan and what was released':
        lambda folder: _fit()[0].save(str(folder / 'm.h5')),
    'rounds gradients between the norm and the sum': lambda folder: _rewritten_graphs(),
    'a private model adds the noise itself':
        lambda folder: private.privatize(inner(), _plan()).compile(
            private.DPKerasSGDOptimizer.from_plan(_plan()), NONE),
    'the callback cannot see how batches are chosen':
        lambda folder: _drop_in(given=False),
    'Expected batches of one size from an optimizer without': lambda folder: _drop_in(
        private.DPKerasSGDOptimizer(1.0, 2.0)),
    'Expected a loss per example, got one number': lambda folder: _drop_in(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)),
    'an example can be in several of the samples': lambda folder: _drop_in(
        private.DPKerasSGDOptimizer(1.0, 2.0, gradient_accumulation_steps=2,
                                    expected_batch_size=10)),
    'gradients of a tape are neither clipped nor noisy':
        lambda folder: private.DPKerasSGDOptimizer.from_plan(_plan()).apply_gradients(
            [(tf.zeros(2), tf.Variable(tf.zeros(2)))]),
}


def said(case, folder):
  """Returns the error or the warnings of a case, as text."""
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    try:
      CASES[case](folder)
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
      return f'{type(error).__name__}: {error}'
  return ' '.join(str(each.message) for each in caught)


def quoted():
  """Returns the quotations in the tables of the page."""
  return re.findall(r'^\| [^|]* \| `([^`|]*)` \|', PAGE.read_text('utf-8'), re.M)


def test_the_page_quotes_the_tested_cases():
  assert sorted(quoted()) == sorted(CASES)


SLOW = (
    'no amplification by sampling', 'to allow a step more',
    'of this model is not there',
    'batches came from a source whose sampling is unknown',
    'an example can be in several of the samples',
    'an experiment that can be repeated, not a private release',
    'some steps chose their batches in one way and some in another',
    'other formats do not hold the plan and what was released')


TRACED = (
    'For integer labels use SparseCategoricalCrossentropy',
    'For one-hot targets use CategoricalCrossentropy',
    'that return as many numbers for each example',
    'Expected a loss in which each example is by itself')
"""Cases whose words come from traced gradients; the others run without gradients."""


@pytest.mark.parametrize('words', [
    pytest.param(words, marks=[pytest.mark.slow] * (words in SLOW)) for words in CASES])
def test_careless_use_raises_or_warns_in_the_words_of_the_page(
    words, tmp_path, request):
  if words not in TRACED:
    request.getfixturevalue('random_sums')
  assert words in said(words, tmp_path)
