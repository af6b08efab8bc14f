"""Tests that every change of weights outside of private steps is noticed."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import plan_of, poisson, privatized, X, Y
from tests.representatives import representatives
from tfcactus.keras import PoissonBatches
from tfcactus.keras.compat import optimizers, training
from tfcactus.keras.ledger import weight_watch

pytestmark = pytest.mark.usefixtures('random_sums')


def _inner():
  """Returns a model with two kernels and two biases of equal shapes."""
  return tf.keras.Sequential([tf.keras.layers.Input((6,)), tf.keras.layers.Dense(6),
                              tf.keras.layers.Dense(6)])


def _digest(watch, model):
  return int(watch.digest(model.weights))


class _Each(tf.keras.callbacks.Callback):
  """Calls a function of the private model after each step."""

  def __init__(self, call):
    super().__init__()
    self._call = call

  def on_train_batch_end(self, batch, logs=None):
    self._call(self.model)


def _swap(model):
  first, second = (layer.kernel.numpy() for layer in model.layers)
  model.layers[0].kernel.assign(second)
  model.layers[1].kernel.assign(first)


def test_kernels_that_a_callback_exchanges_are_noticed(make_plan):
  private = privatized(make_plan(), _inner())
  private.fit(poisson(), verbose=0, callbacks=[
      _Each(lambda private: _swap(private.inner))])
  with pytest.raises(ValueError, match='changed outside'):
    private.guarantee()


def test_freezing_and_thawing_between_fits_changes_nothing(make_plan):
  inner = _inner()
  private = privatized(make_plan(), inner)
  for frozen in (False, True, False):
    inner.layers[0].trainable = not frozen
    private = privatized(make_plan(), inner)
    private.fit(poisson(), verbose=0)
  assert private.guarantee().steps == 12


def test_a_digest_depends_on_values_and_not_on_the_order_of_a_list():
  model = _inner()
  watch = weight_watch.Watch()
  before = _digest(watch, model)
  assert int(watch.digest(model.weights[::-1])) == before
  model.layers[0].trainable = False  # Keras 2 then lists it last.
  assert _digest(watch, model) == before
  again = tf.keras.Model(model.inputs, model.outputs)
  assert _digest(watch, again) == before
  _swap(model)
  assert _digest(watch, model) != before
  _swap(model)
  assert _digest(watch, model) == before


def test_digests_of_different_values_differ():
  variables = [training.counter(0.0, f'v{i}', 'float32') for i in range(4)]
  seen = set()
  for values in np.ndindex(2, 2, 2, 2):
    for variable, value in zip(variables, values):
      variable.assign(float(value))
    seen.add(int(weight_watch.Watch().digest(variables)))
  assert len(seen) == 16


def test_an_empty_variable_has_no_part_in_a_digest():
  empty, full = (training.counter(value, 'v', 'float32')
                 for value in (np.zeros((0, 3)), [1.0]))
  assert weight_watch.unordered_digest([empty, full]) == (
      weight_watch.unordered_digest([full]))


def test_processes_that_list_variables_alike_get_equal_digests():
  digests = set()
  for extra in (0, 3):  # Variables that a process made before do not matter.
    made = [training.counter(float(i), f'v{i}', 'float32') for i in range(extra + 2)]
    for i, variable in enumerate(made[extra:]):
      variable.assign(float(i))
    digests.add(int(weight_watch.Watch().digest(made[extra:])))
  assert len(digests) == 1


def _averages(private):
  """Returns the moving averages that the optimizer of a model keeps."""
  return private.optimizer._model_variables_moving_average  # pylint: disable=protected-access


class _EachEpoch(tf.keras.callbacks.Callback):
  """Calls a function of the private model after each epoch."""

  def __init__(self, call):
    super().__init__()
    self._call = call

  def on_epoch_end(self, epoch, logs=None):
    self._call(self.model)


def _shift(variables):
  variables[0].assign(variables[0] + 1)


def _averaging(make_plan, **options):
  return privatized(make_plan(), _inner(), tf.keras.optimizers.SGD(
      0.1, use_ema=True, **options))


def _swaps(*args, **kwargs):
  if not hasattr(tf.keras.callbacks, 'SwapEMAWeights'):
    pytest.skip('Keras 2 has no SwapEMAWeights.')
  return tf.keras.callbacks.SwapEMAWeights(*args, **kwargs)


@pytest.mark.parametrize('validated', [True, False])
def test_averages_that_keras_swaps_in_keep_the_account(make_plan, validated):
  private, swap = _averaging(make_plan), _swaps(swap_on_epoch=True)
  private.fit(poisson(), epochs=2, verbose=0, callbacks=[swap],
              validation_data=(X, Y) if validated else None)
  private.evaluate(X, Y, verbose=0, callbacks=[_swaps()])
  private.fit(poisson(), verbose=0)
  assert private.guarantee().steps == 12


@pytest.mark.parametrize('changed', [
    lambda private: _averages(private), lambda private: private.inner.weights])
@pytest.mark.parametrize('first', [True, False])
def test_what_a_callback_assigns_beside_swaps_voids_the_account(
    make_plan, changed, first):
  callbacks = [_EachEpoch(lambda private: _shift(changed(private))),
               _swaps(swap_on_epoch=True)]
  private = _averaging(make_plan)
  private.fit(poisson(), epochs=2, verbose=0,
              callbacks=callbacks if first else callbacks[::-1])
  with pytest.raises(ValueError, match='changed outside'):
    private.guarantee()


def test_a_subclass_that_assigns_more_than_averages_voids_the_account(make_plan):
  kind = type(_swaps())

  class Own(kind):
    """Shifts a weight after each swap."""

    def _swap_variables(self):
      super()._swap_variables()
      _shift(self.model.inner.weights)

  private = _averaging(make_plan)
  private.fit(poisson(), verbose=0, callbacks=[Own(swap_on_epoch=True)])
  with pytest.raises(ValueError, match='changed outside'):
    private.guarantee()


@representatives('assigned', [True, False])
def test_averages_of_another_optimizer_begin_at_zeros_or_weights(make_plan, assigned):
  private = _averaging(make_plan)
  private.fit(poisson(), verbose=0)
  other = tf.keras.optimizers.SGD(0.1, use_ema=True)
  other.build(private.inner.trainable_variables)
  private.compile(other, 'mse')
  if assigned:
    _shift(other._model_variables_moving_average)  # pylint: disable=protected-access
    with pytest.raises(ValueError, match='Expected a new optimizer, got SGD'):
      private.fit(poisson(), verbose=0)
  else:
    private.fit(poisson(), verbose=0)
  assert private.guarantee().steps == (4 if assigned else 8)


def _optimizers():
  """Returns functions that make optimizers, by name."""
  kinds = tf.keras.optimizers
  made = {'Adam': lambda: kinds.Adam(0.1), 'momentum': lambda: kinds.SGD(0.1, 0.9)}
  for name in ('Adagrad', 'Adafactor', 'Ftrl', 'Nadam', 'ScheduleFreeAdamW', 'Muon'):
    if hasattr(kinds, name):
      made[name] = getattr(kinds, name)
  if hasattr(kinds.legacy, 'Nadam'):
    made['legacy'] = kinds.legacy.Nadam
  return made


OPTIMIZERS = _optimizers()


@representatives('name', OPTIMIZERS)
def test_an_optimizer_that_trained_before_is_refused(make_plan, name):
  model, optimizer = _inner(), OPTIMIZERS[name]()
  before = model.get_weights()
  model.compile(optimizer, 'mse')
  model.fit(X, X, verbose=0)
  model.set_weights(before)
  private = privatized(make_plan(), model, optimizer)
  with pytest.raises(ValueError, match='Expected a new optimizer, got'):
    private.fit(poisson(), verbose=0)
  assert private.released_steps == 0
  private.compile(OPTIMIZERS[name](), 'mse')
  private.fit(poisson(), epochs=2, verbose=0)
  assert private.guarantee().steps == 8


def _moments(private):
  return optimizers.state(private.optimizer)


def _moving(make_plan, model=None):
  return privatized(make_plan(), model or _inner(), tf.keras.optimizers.SGD(0.1, 0.9))


def test_moments_that_a_callback_assigns_void_the_account(make_plan):
  private = _moving(make_plan)
  private.fit(poisson(), epochs=2, verbose=0, callbacks=[
      _EachEpoch(lambda private: _shift(_moments(private)))])
  with pytest.raises(ValueError, match='or moments and averages in the optimizer did'):
    private.guarantee()


def test_moments_that_the_first_trace_makes_are_watched(make_plan):
  shifts = iter([lambda private: _shift(_moments(private))])
  private = _moving(make_plan, tf.keras.Sequential([tf.keras.layers.Dense(6)]))
  private.fit(poisson(), verbose=0, callbacks=[
      _Each(lambda private: next(shifts, lambda _: None)(private))])
  with pytest.raises(ValueError, match='changed outside'):
    private.guarantee()


def test_moments_of_an_earlier_step_are_known(make_plan):
  private, kept = _moving(make_plan), []
  private.fit(poisson(), verbose=0, callbacks=[_Each(
      lambda private: kept.append([each.numpy() for each in _moments(private)]))])
  for variable, value in zip(_moments(private), kept[1]):
    variable.assign(value)
  private.fit(poisson(), verbose=0)
  assert private.guarantee().steps == 8


@representatives('way', ['load_model', 'load_weights', 'backup', 'checkpoint'])
def test_moments_that_a_file_restores_are_known(way, tmp_path):
  private, other = _moving(plan_of), _moving(plan_of)
  path = str(tmp_path / ('m.keras' if way == 'load_model' else 'm.weights.h5'))
  backup = [tf.keras.callbacks.BackupAndRestore(str(tmp_path / 'b'))
            ] if way == 'backup' else []
  if backup:
    stop = _EachEpoch(lambda private: 1 / 0)
    with pytest.raises(ZeroDivisionError):
      private.fit(poisson(), epochs=2, verbose=0, callbacks=[*backup, stop])
  else:
    private.fit(poisson(), verbose=0)
  if way == 'load_model':
    private.save(path)
    other = tf.keras.models.load_model(path)
  elif way == 'load_weights':
    private.save_weights(path)
    other.fit(poisson(), verbose=0)
    other.load_weights(path)
  elif way == 'checkpoint':
    saved = tf.train.Checkpoint(private).save(str(tmp_path / 'c'))
    tf.train.Checkpoint(other).restore(saved)
  other.fit(poisson(), epochs=2, verbose=0, callbacks=backup)
  assert other.guarantee().steps == other.released_steps >= 8


@pytest.mark.parametrize('frequency', [None, 3])
def test_averages_of_an_optimizer_keep_the_account_unless_assigned(
    make_plan, frequency):
  private = _averaging(make_plan, ema_overwrite_frequency=frequency)
  private.fit(poisson(), epochs=2, verbose=0)
  assert private.guarantee().steps == 8
  _shift(_averages(private))
  private.fit(poisson(), verbose=0)
  with pytest.raises(ValueError, match='or moments and averages in the optimizer'):
    private.guarantee()


_KINDS = tf.keras.layers
ADAPTED = {
    'words': (lambda: _KINDS.StringLookup(
        max_tokens=6, output_mode='count', pad_to_max_tokens=True),
              np.array(['a', 'b', 'c', 'd'] * 10)[:, None]),
    'bins': (lambda: _KINDS.Discretization(num_bins=4, output_mode='multi_hot'), X),
    'scale': (_KINDS.Normalization, X)}


@representatives('name', ADAPTED)
def test_what_is_adapted_between_fits_voids_the_account(make_plan, name):
  make, x = ADAPTED[name]
  layer = make()
  layer.adapt(x)
  model = tf.keras.Sequential([
      tf.keras.Input(x.shape[1:], dtype='float32' if x is X else 'string'), layer,
      _KINDS.Dense(3)])
  private = privatized(make_plan(), model)
  batches = PoissonBatches(x, Y, 0.25)
  private.fit(batches, verbose=0)
  layer.adapt(x)  # Adapted again to equal data.
  private.compile('sgd', 'mse')
  private.fit(batches, verbose=0)
  assert private.guarantee().steps == 8
  layer.adapt(x[:2])
  with pytest.raises(ValueError, match='or a vocabulary or bins of a layer'):
    private.guarantee()
  layer.adapt(x)
  assert private.guarantee().steps == 8
  layer.adapt(x[:2])
  private.compile('sgd', 'mse')
  private.fit(batches, verbose=0)
  layer.adapt(x)
  with pytest.raises(ValueError, match='or a vocabulary or bins of a layer'):
    private.guarantee()
