"""Tests of files: they hold all of a private model but its randomness."""

import fcntl
import inspect
import json
import os
import pickle
import zipfile

import dp_accounting
import h5py
import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import inner, MEAN, NONE, plan_of, poisson, privatized, X, Y
from tests.representatives import representatives
import tfcactus
from tfcactus import noise as noise_lib
from tfcactus.accounting import (
  DominatingPair,
  DominatingPairDpEvent,
  event_configs,
  exponential,
  PairBounds,
  run_laws,
  tuning,
)
from tfcactus.keras import (
  DPKerasAdamOptimizer,
  DPKerasSGDOptimizer,
  EpsilonCallback,
  make_run_card,
  privatize,
  serialization,
)
from tfcactus.keras.compat import versions
from tfcactus.keras.ledger import counts

pytestmark = pytest.mark.usefixtures('random_sums')
_load = tf.keras.models.load_model


def _inner():
  return inner(tf.keras.layers.Dense(4, 'tanh'))


def _private(plan, **kwargs):
  private = privatize(_inner(), plan, **kwargs)
  private.compile('adam', MEAN, metrics=['accuracy'])
  return private


def _trained(plan, path, **kwargs):
  private = _private(plan, **kwargs)
  private.fit(poisson(), verbose=0)
  private.save(path)
  return private


_PAIR = DominatingPair.from_masses([0.6, 0.4], [0.5, 0.5])
_GAUSSIAN = dp_accounting.GaussianDpEvent(8.0)
_EVENTS = [
    _GAUSSIAN, dp_accounting.LaplaceDpEvent(9.0), dp_accounting.NoOpDpEvent(),
    dp_accounting.SelfComposedDpEvent(_GAUSSIAN, 7),
    dp_accounting.ComposedDpEvent([_GAUSSIAN, dp_accounting.PoissonSampledDpEvent(
        0.25, dp_accounting.LaplaceDpEvent(3.0))]),
    dp_accounting.SampledWithoutReplacementDpEvent(10, 3, _GAUSSIAN),
    tfcactus.NoiseTableDpEvent(tfcactus.SinhNormal(8.0, 40.0)),
    tfcactus.NoiseTableDpEvent(tfcactus.library.get('monotone-budget1')),
    exponential.ExponentialMechanismDpEvent(0.01),
    tuning.SearchDpEvent(run_laws.LogarithmicRuns(3.0), [
        [0.5, dp_accounting.GaussianDpEvent(80.0)],
        [0.5, dp_accounting.GaussianDpEvent(90.0)]], score='released'),
    tuning.SearchDpEvent(run_laws.ListedRuns((0.0, 0.5, 0.5)),
                         dp_accounting.GaussianDpEvent(80.0), score='public')]


@pytest.mark.parametrize('plan', [
    plan_of(noise=tfcactus.SinhNormal(2.0, 5.0)),
    pytest.param(plan_of(releases=_EVENTS), marks=pytest.mark.more),
    *(plan_of(releases=[DominatingPairDpEvent(pair)]) for pair in (
        _PAIR, PairBounds.exact(_PAIR), PairBounds(
            _PAIR, DominatingPair.from_masses([0.7, 0.3], [0.5, 0.5]))))])
def test_the_config_of_a_plan_holds_its_noise_and_releases(plan):
  config = json.loads(json.dumps(serialization.plan_config(plan)))
  again = serialization.plan_from(config)
  assert again.noise == plan.noise
  assert list(map(repr, again.releases)) == list(map(repr, plan.releases))
  assert again.guarantee() == plan.guarantee()
  with pytest.raises(ValueError, match='Expected an event'):
    event_configs.event_from({'kind': 'DpEvent', 'fields': {}})
  with pytest.raises(ValueError, match='an event of a plan'):
    event_configs.event_from({'kind': ['DpEvent'], 'fields': {}})


def test_events_that_cannot_be_loaded_again_are_refused_when_they_are_saved():
  def kinds(of):
    return [of, *(each for below in of.__subclasses__() for each in kinds(below))]
  own = {each.__name__ for each in kinds(dp_accounting.DpEvent)
         if each.__module__.startswith('tfcactus') and not inspect.isabstract(each)}
  assert own - set(event_configs._CLASSES) == {'TCDPDpEvent'}  # No plan takes it.

  class ExponentialMechanismDpEvent(exponential.ExponentialMechanismDpEvent):
    pass

  with pytest.raises(ValueError, match='Expected an event that can be saved'):
    event_configs.event_config(ExponentialMechanismDpEvent(0.1))


def test_a_config_of_older_versions_lacks_newer_fields():
  config = serialization.plan_config(plan_of())
  del config['releases'], config['noisy_accuracy']
  assert serialization.plan_from(config) == plan_of()


@representatives('changes', [
    {'adaptive_clipping': tfcactus.AdaptiveClipping(0.7),
     'noisy_accuracy': tfcactus.NoisyAccuracy(output=0)},
    {}, {'releases': (_EVENTS[3], _EVENTS[6])},
    {'noise': noise_lib.RadialTable.normalized(
        43, 0.25, 0.25, [-0.8 * i for i in range(12)], -1.0)}])
def test_a_loaded_private_model_equals_the_saved_one(tmp_path, changes):
  private = _trained(plan_of(**changes), tmp_path / 'm.keras', clipping='flat',
                     physical_batch_size=7)
  again = _load(tmp_path / 'm.keras')
  assert (serialization.plan_config(again.plan) ==
          serialization.plan_config(private.plan))
  assert again.guarantee() == private.guarantee()
  assert again.ledger() == private.ledger()
  assert again.physical_batch_size == 7
  for ours, theirs in zip(again.get_weights(), private.get_weights()):
    np.testing.assert_array_equal(ours, theirs)
  for ours, theirs in zip(again.optimizer.variables,
                          private.optimizer.variables):
    np.testing.assert_array_equal(ours, theirs)
  assert int(again.optimizer.iterations) == 4
  if changes.get('adaptive_clipping'):
    assert float(again.clip_norm) == float(private.clip_norm) != 1.0
  np.testing.assert_array_equal(again.predict(X, verbose=0),
                                private.predict(X, verbose=0))
  again.fit(poisson(), verbose=0, callbacks=[EpsilonCallback()])
  assert again.ledger().steps == 8
  counted = again.plan.steps if again.plan.counts_planned else 8
  assert again.guarantee().steps == counted
  assert int(again.optimizer.iterations) == 8


@pytest.mark.more
def test_loaded_models_draw_fresh_noise(tmp_path, zero_sums):
  _trained(plan_of(), tmp_path / 'm.keras')
  first, second = (_load(tmp_path / 'm.keras') for _ in range(2))
  for private in (first, second):
    private.train_on_batch(X, Y)
  assert not np.allclose(first.inner.get_weights()[0],
                         second.inner.get_weights()[0])


@pytest.mark.more
def test_a_loaded_model_names_the_seed_of_its_noise(tmp_path):
  _trained(plan_of(), tmp_path / 'm.keras', seed=3)
  again = _load(tmp_path / 'm.keras')
  assert 'SEEDED (noise)' in make_run_card(again)['randomness']


@pytest.mark.more
def test_loading_counts_all_steps_of_the_journal(tmp_path):
  path = tmp_path / 'run.journal'
  private = _trained(plan_of(), tmp_path / 'm.keras', journal=path)
  private.fit(poisson(), verbose=0)  # Steps after the file was written.
  again = _load(tmp_path / 'm.keras')
  assert again.released_steps == 8
  assert again.guarantee().steps == 8
  again.predict(X, verbose=0)
  with open(path, 'rb') as other:  # As another process does.
    private._ledger.counter.journal.close()
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(ValueError, match='another run has open'):
      again.fit(poisson(), verbose=0)
  again.train_on_batch(X, Y)
  assert again.released_steps == 9
  assert again.ledger().sampling == counts.UNKNOWN
  again._ledger.counter.journal.close()
  # The journal counts the whole block of 32 that was reserved for the step.
  assert _load(tmp_path / 'm.keras').ledger().steps == 40
  os.remove(path)
  lost = _load(tmp_path / 'm.keras')
  with pytest.raises(ValueError, match='is not there'):
    lost.guarantee()
  with pytest.raises(ValueError, match='is not there'):
    lost.fit(poisson(), verbose=0)


def test_a_journal_never_lowers_what_was_counted_before(tmp_path):
  private = _private(plan_of())
  private.fit(poisson(), verbose=0)
  again = privatize(private.inner, plan_of(), journal=tmp_path / 'new')
  assert again.guarantee().steps == 4


@pytest.mark.more
def test_weight_files_hold_counts_and_lower_none(tmp_path):
  private = _trained(plan_of(), tmp_path / 'm.keras')
  private.save_weights(tmp_path / 'old.weights.h5')
  private.fit(poisson(), verbose=0)
  private.load_weights(tmp_path / 'old.weights.h5')
  assert private.guarantee().steps == 8
  other = _private(plan_of(l2_norm_clip=2.0))
  other.load_weights(tmp_path / 'old.weights.h5')
  with pytest.raises(ValueError, match='another noise'):
    other.guarantee()


@pytest.mark.parametrize('make', [
    lambda plan: DPKerasSGDOptimizer.from_plan(plan, momentum=0.9),
    pytest.param(lambda plan: DPKerasAdamOptimizer.from_plan(plan),
                 marks=pytest.mark.slow),
])
@representatives('noise', [
    noise_lib.RadialTable.normalized(
        43, 0.25, 0.25, [-0.8 * i for i in range(12)], -1.0), None])
def test_a_loaded_drop_in_optimizer_equals_the_saved_one(tmp_path, make, noise):
  plan = plan_of() if noise is None else plan_of(noise=noise)
  model, batches = _inner(), poisson()
  model.compile(make(plan), NONE)
  model.fit(batches, verbose=0)
  model.save(tmp_path / 'm.keras')
  again = _load(tmp_path / 'm.keras')
  assert type(again.optimizer) is type(model.optimizer)
  assert (serialization.plan_config(again.optimizer.plan) ==
          serialization.plan_config(plan))
  assert again.optimizer.released_steps == 4
  again.save(tmp_path / 'again.keras')
  for path in ('m.keras', 'again.keras'):
    again, later = _load(tmp_path / path), poisson()
    history = again.fit(later, verbose=0, epochs=2, callbacks=[
        EpsilonCallback(batches=later)]).history
    assert again.optimizer.released_steps == 12
    assert history['epsilon'][-1] == plan.guarantee(12).upper
    assert int(again.optimizer.iterations) == 12


def test_files_hold_no_sums_over_examples(tmp_path):
  """Keras 2 saves the sums of metrics: exact losses, and how many examples ran."""
  private = _trained(plan_of(), tmp_path / 'm.keras')
  total = private.metrics[0].variables[0]
  total.assign(0.123)
  private.save(tmp_path / 'm.keras')
  private.save_weights(tmp_path / 'm.weights.h5')
  assert float(total) == np.float32(0.123)  # The log goes on.
  tf.keras.models.save_model(private, tmp_path / 'n.keras')  # Skips the model's `save`.
  total.assign(0.123)
  for name in ('m.keras', 'n.keras', 'm.weights.h5'):
    if name.endswith('.keras'):
      zipfile.ZipFile(tmp_path / name).extract('model.weights.h5', tmp_path)
      name = 'model.weights.h5'
    with h5py.File(tmp_path / name) as file:
      assert file.visititems(lambda path, part: path if hasattr(part, 'shape') and (
          np.any(np.asarray(part) == np.float32(0.123))) else None) is None
  pickled = pickle.loads(pickle.dumps(private))
  assert not any(np.any(each) for metric in pickled.metrics
                 for each in metric.variables)


def test_a_wrapped_model_may_make_its_metrics_where_it_is_compiled(tmp_path):
  class Compiled(tf.keras.Sequential):
    """Has no metrics before its `compile`."""

    @property
    def metrics(self):
      return [self.tracker]

  private = privatized(model=Compiled(
      [tf.keras.layers.Input((6,)), tf.keras.layers.Dense(3)]))
  private.save_weights(tmp_path / 'm.weights.h5')
  assert os.path.exists(tmp_path / 'm.weights.h5')


@representatives('name', ['m.keras', 'm.weights.h5', 'm.h5'])
def test_files_of_weights_trained_outside_have_no_epsilon(tmp_path, name):
  if versions.KERAS_3 and name == 'm.h5':
    pytest.skip('Keras 3 does not write this format')
  private = _private(plan_of())
  private.fit(poisson(), verbose=0)
  private.inner.compile('sgd', MEAN)
  private.inner.fit(X, Y, verbose=0)
  if name == 'm.keras':
    private.save(tmp_path / name)
    again = _load(tmp_path / name)
  else:
    private.save_weights(tmp_path / name)
    again = _private(plan_of())
    again.load_weights(tmp_path / name)
  assert again.released_steps == 4
  with pytest.raises(ValueError, match='No epsilon'):
    again.guarantee()


def test_steps_of_a_loaded_drop_in_optimizer_count_for_private_models(tmp_path):
  model = _inner()
  model.compile(DPKerasSGDOptimizer.from_plan(plan_of()), NONE)
  model.fit(poisson(), verbose=0)
  model.save(tmp_path / 'm.keras')
  with pytest.raises(ValueError, match='4 steps were released'):
    privatize(_load(tmp_path / 'm.keras'), plan_of())


def test_an_optimizer_that_replaces_a_loaded_one_counts_the_steps_of_both(tmp_path):
  model, batches = _inner(), poisson()
  model.compile(DPKerasSGDOptimizer.from_plan(plan_of()), NONE)
  model.fit(batches, verbose=0)
  # Keras 2 makes no variables for the optimizer of a .keras file.
  path = tmp_path / ('m.keras' if versions.KERAS_3 else 'm.h5')
  model.save(path)
  again = _load(path)
  again.compile(DPKerasSGDOptimizer.from_plan(plan_of()), NONE)
  callback = EpsilonCallback(batches=batches)
  again.fit(batches, verbose=0, callbacks=[callback])
  assert callback.guarantee.steps == 8


@pytest.mark.more
@pytest.mark.usefixtures('clipped_sums')
def test_a_loaded_drop_in_optimizer_keeps_its_momentum(tmp_path):
  def fit(model):
    model.fit(X, Y, batch_size=10, shuffle=False, verbose=0)

  tf.keras.utils.set_random_seed(1)
  model = _inner()
  model.compile(DPKerasSGDOptimizer(1.0, 0.0, expected_batch_size=10,
                                    learning_rate=0.1, momentum=0.9), NONE)
  fit(model)
  model.save(tmp_path / 'm.keras')
  again = _load(tmp_path / 'm.keras')
  for part in (model, again):
    fit(part)
  for ours, theirs in zip(again.get_weights(), model.get_weights()):
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_files_of_other_models_are_refused(tmp_path):
  private = _private(plan_of())
  _inner().save_weights(tmp_path / 'plain.weights.h5')
  with pytest.raises(Exception, match='PrivateModel|layer'):
    private.load_weights(tmp_path / 'plain.weights.h5')
  config = private.get_config()
  config['plan'] = {**config['plan'], 'noise': {'kind': 'scalar', 'npz': 'aaaa'}}
  with pytest.raises(ValueError, match='noise table'):
    type(private).from_config(config)


@pytest.mark.parametrize('name, kwargs', [
    ('m.h5', {}), ('m', {}), ('m', {'save_format': 'tf'}),
    ('m.keras', {'save_format': 'h5'})])
def test_formats_that_forget_the_ledger_are_refused(tmp_path, name, kwargs):
  private = _private(plan_of())
  with pytest.raises(ValueError, match=r'save\(.m.keras.\).*export'):
    private.save(os.path.join(str(tmp_path), name), **kwargs)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('built', [False, True])
def test_an_export_holds_the_plain_model(tmp_path, built):
  model = _inner() if built else (
      tf.keras.Sequential([tf.keras.layers.Dense(3)]))
  private = privatized(plan_of(), model, loss=MEAN)
  private.fit(poisson(), verbose=0)
  private.export(str(tmp_path))
  served = tf.saved_model.load(str(tmp_path))
  np.testing.assert_allclose(
      served.serve(tf.constant(X)), private.predict(X, verbose=0), atol=1e-6)
  assert not hasattr(served, 'released_steps')


@pytest.mark.more
def test_tensorflow_saves_a_trained_model(tmp_path):
  private = _private(plan_of())
  private.fit(poisson(), verbose=0)
  tf.saved_model.save(private, str(tmp_path))
  found = tf.saved_model.load(str(tmp_path))
  assert found.segments.numpy()[:, 1].sum() == 4
  path = str(tmp_path / 'variables' / 'variables')
  assert not any(np.any(tf.train.load_variable(path, name))
                 for name, _ in tf.train.list_variables(path) if 'metrics' in name)


def test_a_callback_takes_no_plan_without_the_models_releases():
  """That plan would report a smaller epsilon than the model's own."""
  private = _private(plan_of(releases=[_GAUSSIAN]))
  with pytest.raises(ValueError, match='releases'):
    private.fit(poisson(), verbose=0, callbacks=[EpsilonCallback(plan_of())])
