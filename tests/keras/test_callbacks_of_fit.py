"""Tests that `fit` stops before a plan's target epsilon, and warns past its steps."""

import dataclasses
import warnings

import pytest
import tensorflow as tf

from tests.keras.tiny import inner, NONE, privatized, X, Y
from tests.representatives import representatives
import tfcactus
from tfcactus import keras as private
from tfcactus.keras import run_card, serialization
from tfcactus.keras.compat.versions import KERAS_3

pytestmark = pytest.mark.usefixtures('random_sums')
STOPPED = 'Stopped fit after 8 steps'


def _plan(**settings):
  return tfcactus.PrivacyPlan.for_training(**{**dict(
      batch_size=10, epochs=2, num_examples=40, delta=1e-5, l2_norm_clip=1.0,
      target_epsilon=3.0), **settings})


def _private(plan=None, model=None, **options):
  return privatized(plan or _plan(), model, **options)


def _batches(**options):
  return private.PoissonBatches(X, Y, batch_size=10, **options)


def test_fit_stops_before_the_target_and_tells_the_remedy():
  model = _private()
  with pytest.warns(UserWarning, match=STOPPED) as said:
    history = model.fit(_batches(), epochs=5, verbose=0)
  text, = {str(each.message) for each in said if 'Stopped' in str(each.message)}
  assert 'epsilon <= ' in text and 'dataclasses.replace' in text
  assert len(history.history['loss']) == 2 and model.released_steps == 8
  assert model.guarantee().upper <= 3.0 < model.plan.guarantee(9).upper
  with pytest.raises(ValueError, match='to allow a step more'):
    model.fit(_batches(), verbose=0)
  assert model.released_steps == 8


@pytest.mark.parametrize('model', [
    inner(), tf.keras.Sequential([tf.keras.layers.Dense(3)])], ids=['built', 'unbuilt'])
def test_fit_stops_within_an_epoch(model):
  model = _private(model=model)
  with pytest.warns(UserWarning, match=STOPPED):
    model.fit(_batches(steps_per_epoch=5), epochs=2, verbose=0)
  assert model.released_steps == 8


@pytest.mark.parametrize('epochs', [[2], [1, 1]])
def test_training_as_planned_gives_no_warning(epochs):
  model = _private()
  with warnings.catch_warnings():
    warnings.simplefilter('error', UserWarning)
    for each in epochs:
      model.fit(_batches(), epochs=each, verbose=0)
  assert model.released_steps == 8


def test_fit_stops_also_if_callbacks_reset_stop_training():
  reset = tf.keras.callbacks.LambdaCallback(
      on_train_batch_end=lambda batch, logs: setattr(model, 'stop_training', False),
      on_epoch_end=lambda epoch, logs: setattr(model, 'stop_training', False))

  model = _private()
  with pytest.warns(UserWarning, match=STOPPED):
    model.fit(_batches(), epochs=5, verbose=0, callbacks=[reset])
  assert model.released_steps == 8


def test_a_callback_or_another_plan_sets_another_target():
  model = _private(dataclasses.replace(_plan(), steps=40))
  smaller = model.plan.guarantee(3).upper
  model.fit(_batches(), epochs=5, verbose=0, callbacks=[
      private.EpsilonCallback(target_epsilon=smaller)])
  assert model.released_steps == 3
  model.fit(_batches(), epochs=3, verbose=0, callbacks=[
      private.EpsilonCallback(target_epsilon=5.0)])
  assert model.released_steps == 15 and model.guarantee().upper > 3.0
  free = _private(dataclasses.replace(model.plan, target_epsilon=None), model.inner)
  free.fit(_batches(), epochs=5, verbose=0)
  assert free.released_steps == 35


def test_an_epoch_beyond_the_target_raises_if_callbacks_reset_stop_training():
  model = _private(_plan(sampling=tfcactus.sampling.RandomAllocationSampling))
  reset = tf.keras.callbacks.LambdaCallback(
      on_epoch_end=lambda epoch, logs: setattr(model, 'stop_training', False))
  with pytest.raises(ValueError, match='stop before epoch 3, which would pass target'):
    model.fit(private.AllocatedBatches(X, Y, num_batches=4), epochs=5, verbose=0,
              callbacks=[private.EpsilonCallback(target_epsilon=3.0), reset])
  assert model.released_steps == 8


def test_passes_over_arrays_are_limited_by_the_epoch():
  plan = _plan(sampling=tfcactus.sampling.RandomAllocationSampling)
  model = _private(plan)
  with pytest.warns(UserWarning, match=STOPPED):
    model.fit(private.AllocatedBatches(X, Y, num_batches=4), epochs=5, verbose=0)
  assert model.released_steps == 8
  with pytest.raises(ValueError, match='the next would bring epsilon'):
    _private().fit(X, Y, batch_size=10, verbose=0)  # A pass costs more than the plan.


def test_batches_without_an_account_give_a_warning():
  data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(10)
  with pytest.warns(UserWarning, match='Nothing keeps target_epsilon=3'):
    _private().fit(data, verbose=0)


def test_steps_beyond_a_plan_without_a_target_give_one_warning():
  model = _private(dataclasses.replace(_plan(), target_epsilon=None))
  with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter('always')
    model.fit(_batches(), epochs=2, verbose=0)
    assert not [each for each in said if 'beyond steps' in str(each.message)]
    for _ in range(2):
      model.fit(_batches(), epochs=2, verbose=0)
  assert len([each for each in said if 'beyond steps=8' in str(each.message)]) == 1
  assert model.released_steps == 24


def test_fit_stops_after_whole_executions_of_several_steps():
  model = private.privatize(inner(), _plan(epochs=5))
  model.compile('sgd', NONE, steps_per_execution=3)
  with pytest.warns(UserWarning, match='Stopped fit after'):
    model.fit(_batches(), epochs=9, verbose=0)
  # Keras 3 takes six steps for an epoch of four.
  assert model.released_steps == (18 if KERAS_3 else 20)


def test_the_limit_is_added_to_a_callback_list():
  model, seen = _private(), []
  callbacks = tf.keras.callbacks.CallbackList(
      [tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: seen.append(1))],
      add_history=True, model=model)
  with pytest.warns(UserWarning, match=STOPPED):
    model.fit(_batches(), epochs=5, verbose=0, callbacks=callbacks)
  assert len(seen) == 2 and model.released_steps == 8


def test_files_and_run_cards_hold_the_target_and_journals_do_not(tmp_path):
  model = _private(journal=tmp_path / 'run.journal')
  model.fit(_batches(), verbose=0)
  model.save(tmp_path / 'm.keras')
  again = tf.keras.models.load_model(tmp_path / 'm.keras')
  assert again.plan == model.plan and again.plan.target_epsilon == 3.0
  assert run_card.make_run_card(again)['target_epsilon'] == 3.0
  with pytest.warns(UserWarning, match=STOPPED):
    again.fit(_batches(), epochs=5, verbose=0)
  config = serialization.plan_config(model.plan)
  del config['target_epsilon']  # As in files of older versions.
  free = serialization.plan_from(config)
  assert free.target_epsilon is None
  # The target changes no step's cost, so that the journal is taken.
  resumed = private.privatize(inner(), free, journal=tmp_path / 'run.journal')
  assert resumed.released_steps == 8


@pytest.mark.filterwarnings('ignore:Each example takes')
@representatives('model', [
    inner(), tf.keras.Sequential([tf.keras.layers.Dense(3)])], ids=['built', 'unbuilt'])
def test_a_drop_in_optimizer_keeps_the_target_by_the_callback(model):
  plan, batches = _plan(), _batches()
  model.compile(private.DPKerasSGDOptimizer.from_plan(plan), NONE)
  with pytest.warns(UserWarning, match=STOPPED):
    model.fit(batches.dataset(), epochs=5, verbose=0,
              callbacks=[private.EpsilonCallback(batches=batches)])
  assert model.optimizer.released_steps == 8


@pytest.mark.skipif(KERAS_3, reason='Keras 3 builds a model before the first step')
@pytest.mark.filterwarnings('ignore:Each example takes')
def test_a_drop_in_optimizer_keeps_the_target_where_one_execution_takes_all_steps():
  def trained(steps, **compiled):
    model = tf.keras.Sequential([tf.keras.layers.Dense(3)])
    plan = dataclasses.replace(_plan(), steps=steps)
    model.compile(private.DPKerasSGDOptimizer.from_plan(plan), NONE, **compiled)
    batches = _batches()
    model.fit(batches.dataset(), epochs=5, verbose=0,
              callbacks=[private.EpsilonCallback(batches=batches)])
    return model.optimizer.released_steps

  with pytest.warns(UserWarning, match='Stopped fit after 1 steps'):
    assert trained(1) == 1
  with pytest.raises(ValueError, match='Expected a built model with target_epsilon'):
    trained(4, steps_per_execution=4)


@pytest.mark.skipif(KERAS_3, reason='Keras 3 builds a model before the first step')
def test_a_drop_in_optimizer_makes_no_step_that_a_target_forbids():
  model, batches = tf.keras.Sequential([tf.keras.layers.Dense(3)]), _batches()
  model.compile(private.DPKerasSGDOptimizer.from_plan(
      dataclasses.replace(_plan(), target_epsilon=0.01)), NONE)
  with pytest.raises(ValueError, match='to allow a step, got a plan whose first'):
    model.fit(batches.dataset(), verbose=0,
              callbacks=[private.EpsilonCallback(batches=batches)])
  assert model.optimizer.released_steps == 0


def test_a_target_of_the_plan_needs_a_known_number_of_steps_in_an_execution():
  model, batches = inner(), _batches()
  model.compile(private.DPKerasSGDOptimizer.from_plan(_plan()), NONE,
                steps_per_execution='auto')
  with pytest.raises(ValueError, match="stop in time, got 'auto'"):
    model.fit(batches.dataset(), verbose=0,
              callbacks=[private.EpsilonCallback(batches=batches)])
  assert model.optimizer.released_steps == 0


@pytest.mark.parametrize('bad', [0, -1.0, 'small'])
def test_invalid_targets_raise(bad):
  with pytest.raises(ValueError, match='target_epsilon'):
    tfcactus.PrivacyPlan(noise=tfcactus.Gaussian(1.0), l2_norm_clip=1.0, delta=1e-5,
                         num_examples=40, sampling_prob=0.25, steps=8,
                         target_epsilon=bad)


@pytest.mark.parametrize('callback, held_out, named', [
    (tf.keras.callbacks.EarlyStopping('loss'), False, "EarlyStopping by 'loss'"),
    (tf.keras.callbacks.ReduceLROnPlateau('loss'), False, "Plateau by 'loss'"),
    (tf.keras.callbacks.ModelCheckpoint('{epoch}.keras', 'loss', save_best_only=True),
     False, "ModelCheckpoint by 'loss'"),
    (tf.keras.callbacks.EarlyStopping('val_loss'), True, "EarlyStopping by 'val_loss'"),
    (tf.keras.callbacks.EarlyStopping('val_loss'), False, ''),
    (tf.keras.callbacks.EarlyStopping('val_private_accuracy', mode='max'), True, ''),
    (tf.keras.callbacks.EarlyStopping('epsilon', mode='min'), False, ''),
    (tf.keras.callbacks.ModelCheckpoint('{epoch}.keras', 'loss'), False, ''),
])
def test_callbacks_that_act_by_logs_without_noise_give_one_warning(
    callback, held_out, named, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  validation = private.PrivateValidation(
      X, Y, noise=tfcactus.Gaussian(20.0), releases=2, num_examples=40)
  plan = _plan(target_epsilon=None, noise=tfcactus.Gaussian(2.0),
               releases=[validation] * held_out)
  with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter('always', UserWarning)
    model = _private(plan)
    model.fit(
        _batches(), epochs=2, verbose=0, validation_data=(X, Y),
        callbacks=[private.EpsilonCallback(), callback] + [validation] * held_out)
  found = [each for each in said if 'without noise' in str(each.message)]
  assert len(found) == bool(named)
  for each in found:
    assert named in str(each.message) and each.filename == __file__
  model.save('m.keras')
  for each in (model, tf.keras.models.load_model('m.keras')):
    assert ('logs of private examples' in each.guarantee().statement) == bool(named)
