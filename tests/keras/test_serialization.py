"""`.keras` files: all of a private model but its randomness, forgetting no step."""

import fcntl
import json
import os

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import NONE as _NONE, X as _X, Y as _Y
import tfcactus
from tfcactus import noise as noise_lib
from tfcactus.keras import (
  DPKerasAdamOptimizer,
  DPKerasSGDOptimizer,
  EpsilonCallback,
  make_run_card,
  PoissonBatches,
  privatize,
  serialization,
)
from tfcactus.keras.compat import versions
from tfcactus.keras.ledger import counts

_LOSS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
_load = tf.keras.models.load_model


def _plan(**changes):
  return tfcactus.PrivacyPlan(**{**dict(
      noise=tfcactus.Gaussian(1.0), l2_norm_clip=1.0, num_examples=40,
      sampling_prob=0.25, steps=100, delta=1e-5), **changes})


def _inner():
  return tf.keras.Sequential([tf.keras.layers.Input((6,)),
                              tf.keras.layers.Dense(4, 'tanh'),
                              tf.keras.layers.Dense(3)])


def _batches():
  return PoissonBatches(_X, _Y, 0.25)


def _private(plan, **kwargs):
  private = privatize(_inner(), plan, **kwargs)
  private.compile('adam', _LOSS, metrics=['accuracy'])
  return private


def _trained(plan, path, **kwargs):
  private = _private(plan, **kwargs)
  private.fit(_batches(), verbose=0)
  private.save(path)
  return private


_GAUSSIAN = dp_accounting.GaussianDpEvent(8.0)
_EVENTS = [
    _GAUSSIAN, dp_accounting.LaplaceDpEvent(9.0), dp_accounting.NoOpDpEvent(),
    dp_accounting.SelfComposedDpEvent(_GAUSSIAN, 7),
    dp_accounting.ComposedDpEvent([_GAUSSIAN, dp_accounting.PoissonSampledDpEvent(
        0.25, dp_accounting.LaplaceDpEvent(3.0))]),
    dp_accounting.SampledWithoutReplacementDpEvent(10, 3, _GAUSSIAN),
    tfcactus.NoiseTableDpEvent(tfcactus.SinhNormal(8.0, 40.0)),
    tfcactus.NoiseTableDpEvent(tfcactus.library.get('monotone-budget1'))]


@pytest.mark.parametrize('plan', [
    _plan(releases=_EVENTS), _plan(noise=tfcactus.SinhNormal(2.0, 5.0)),
    _plan(releases=[tfcactus.accounting.DominatingPairDpEvent(
        tfcactus.accounting.DominatingPair.from_masses([0.6, 0.4], [0.5, 0.5]))])])
def test_a_config_holds_every_noise_and_every_release(plan):
  config = json.loads(json.dumps(serialization.plan_config(plan)))
  again = serialization.plan_from(config)
  assert again.noise == plan.noise
  assert list(map(repr, again.releases)) == list(map(repr, plan.releases))
  assert again.guarantee() == plan.guarantee()
  with pytest.raises(ValueError, match='Expected an event'):
    serialization.event_from({'kind': 'DpEvent', 'fields': {}})


def test_a_file_of_before_had_no_releases():
  config = serialization.plan_config(_plan())
  del config['releases']
  assert serialization.plan_from(config) == _plan()


@pytest.mark.parametrize('changes', [
    {}, {'releases': (_EVENTS[3], _EVENTS[6])},
    {'adaptive_clipping': tfcactus.AdaptiveClipping(0.7)},
    {'noise': noise_lib.RadialTable.normalized(
        43, 0.25, 0.25, [-0.8 * i for i in range(12)], -1.0)}])
def test_a_private_model_comes_back_whole(tmp_path, changes):
  private = _trained(_plan(**changes), tmp_path / 'm.keras', clipping='flat',
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
  np.testing.assert_array_equal(again.predict(_X, verbose=0),
                                private.predict(_X, verbose=0))
  again.fit(_batches(), verbose=0, callbacks=[EpsilonCallback()])
  assert again.guarantee().steps == 8
  assert int(again.optimizer.iterations) == 8


def test_loaded_models_draw_fresh_noise(tmp_path):
  _trained(_plan(), tmp_path / 'm.keras')
  first, second = (_load(tmp_path / 'm.keras') for _ in range(2))
  for private in (first, second):
    private.train_on_batch(_X, _Y)
  assert not np.allclose(first.inner.get_weights()[0],
                         second.inner.get_weights()[0])


def test_a_seed_is_owned_up_to_and_not_repeated(tmp_path):
  _trained(_plan(), tmp_path / 'm.keras', seed=3)
  again = _load(tmp_path / 'm.keras')
  assert 'SEEDED (noise)' in make_run_card(again)['randomness']


def test_loading_never_forgets_what_the_journal_counts(tmp_path):
  path = tmp_path / 'run.journal'
  private = _trained(_plan(), tmp_path / 'm.keras', journal=path)
  private.fit(_batches(), verbose=0)  # Released after the file was written.
  again = _load(tmp_path / 'm.keras')
  assert again.releases == 8
  assert again.guarantee().steps == 8
  again.predict(_X, verbose=0)
  with open(path, 'rb') as other:  # As another process does.
    private._ledger.counter.journal.close()
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(ValueError, match='another run has open'):
      again.fit(_batches(), verbose=0)
  again.train_on_batch(_X, _Y)
  assert int(again.released_steps) == 9
  assert again.ledger().sampling == counts.UNKNOWN
  again._ledger.counter.journal.close()
  # The block of 32 that was reserved for the step, and never settled.
  assert _load(tmp_path / 'm.keras').ledger().steps == 40
  os.remove(path)
  lost = _load(tmp_path / 'm.keras')
  with pytest.raises(ValueError, match='is not there'):
    lost.guarantee()
  with pytest.raises(ValueError, match='is not there'):
    lost.fit(_batches(), verbose=0)


def test_a_journal_never_lowers_what_was_counted_before(tmp_path):
  private = _private(_plan())
  private.fit(_batches(), verbose=0)
  again = privatize(private.inner, _plan(), journal=tmp_path / 'new')
  assert again.guarantee().steps == 4


def test_weights_of_keras_files_keep_counts(tmp_path):
  private = _trained(_plan(), tmp_path / 'm.keras')
  private.save_weights(tmp_path / 'old.weights.h5')
  private.fit(_batches(), verbose=0)
  private.load_weights(tmp_path / 'old.weights.h5')
  assert private.guarantee().steps == 8
  other = _private(_plan(l2_norm_clip=2.0))
  other.load_weights(tmp_path / 'old.weights.h5')
  with pytest.raises(ValueError, match='another noise'):
    other.guarantee()


@pytest.mark.parametrize('make', [
    lambda plan: DPKerasSGDOptimizer.from_plan(plan, momentum=0.9),
    pytest.param(lambda plan: DPKerasAdamOptimizer.from_plan(plan),
                 marks=pytest.mark.slow),
])
@pytest.mark.parametrize('noise', [
    None, noise_lib.RadialTable.normalized(
        43, 0.25, 0.25, [-0.8 * i for i in range(12)], -1.0)])
def test_drop_in_optimizers_come_back_whole(tmp_path, make, noise):
  plan = _plan() if noise is None else _plan(noise=noise)
  model, batches = _inner(), _batches()
  model.compile(make(plan), _NONE)
  model.fit(batches, verbose=0)
  model.save(tmp_path / 'm.keras')
  again = _load(tmp_path / 'm.keras')
  assert type(again.optimizer) is type(model.optimizer)
  assert (serialization.plan_config(again.optimizer.plan) ==
          serialization.plan_config(plan))
  assert again.optimizer.released_steps == 4
  again.save(tmp_path / 'again.keras')
  for path in ('m.keras', 'again.keras'):
    again, later = _load(tmp_path / path), _batches()
    history = again.fit(later, verbose=0, epochs=2, callbacks=[
        EpsilonCallback(batches=later)]).history
    assert again.optimizer.released_steps == 12
    assert history['epsilon'][-1] == plan.guarantee(12).upper
    assert int(again.optimizer.iterations) == 12


@pytest.mark.parametrize('name', ['m.keras', 'm.weights.h5', 'm.h5'])
def test_weights_trained_outside_do_not_come_back_clean(tmp_path, name):
  if versions.KERAS_3 and name == 'm.h5':
    pytest.skip('a format of Keras 2')
  private = _private(_plan())
  private.fit(_batches(), verbose=0)
  private.inner.compile('sgd', _LOSS)
  private.inner.fit(_X, _Y, verbose=0)
  if name == 'm.keras':
    private.save(tmp_path / name)
    again = _load(tmp_path / name)
  else:
    private.save_weights(tmp_path / name)
    again = _private(_plan())
    again.load_weights(tmp_path / name)
  assert int(again.released_steps) == 4
  with pytest.raises(ValueError, match='No epsilon'):
    again.guarantee()


def test_a_loaded_drop_in_training_counts_for_private_models(tmp_path):
  model = _inner()
  model.compile(DPKerasSGDOptimizer.from_plan(_plan()), _NONE)
  model.fit(_batches(), verbose=0)
  model.save(tmp_path / 'm.keras')
  with pytest.raises(ValueError, match='4 steps were released'):
    privatize(_load(tmp_path / 'm.keras'), _plan())


def test_momentum_goes_on_where_it_was(tmp_path):
  """Without noise, a saved and loaded run is the run that was not."""
  def fit(model):
    model.fit(_X, _Y, batch_size=10, shuffle=False, verbose=0)

  tf.keras.utils.set_random_seed(1)
  model = _inner()
  model.compile(DPKerasSGDOptimizer(1.0, 0.0, expected_batch_size=10,
                                    learning_rate=0.1, momentum=0.9), _NONE)
  fit(model)
  model.save(tmp_path / 'm.keras')
  again = _load(tmp_path / 'm.keras')
  for part in (model, again):
    fit(part)
  for ours, theirs in zip(again.get_weights(), model.get_weights()):
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_files_are_refused_in_words(tmp_path):
  private = _private(_plan())
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
  private = _private(_plan())
  with pytest.raises(ValueError, match=r'save\(.m.keras.\).*export'):
    private.save(os.path.join(str(tmp_path), name), **kwargs)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('built', [False, True])
def test_an_export_is_the_plain_model(tmp_path, built):
  inner = _inner() if built else (
      tf.keras.Sequential([tf.keras.layers.Dense(3)]))
  private = privatize(inner, _plan())
  private.compile('sgd', _LOSS)
  private.fit(_batches(), verbose=0)
  private.export(str(tmp_path))
  served = tf.saved_model.load(str(tmp_path))
  np.testing.assert_allclose(
      served.serve(tf.constant(_X)), private.predict(_X, verbose=0), atol=1e-6)
  assert not hasattr(served, 'released_steps')


def test_tensorflow_saves_a_trained_model(tmp_path):
  private = _private(_plan())
  private.fit(_batches(), verbose=0)
  tf.saved_model.save(private, str(tmp_path))
  found = tf.saved_model.load(str(tmp_path))
  assert int(found.released_steps.numpy()) == 4


def test_a_callback_takes_no_plan_that_leaves_releases_out():
  """It would have reported less than the model's own plan."""
  private = _private(_plan(releases=[_GAUSSIAN]))
  with pytest.raises(ValueError, match='releases'):
    private.fit(_batches(), verbose=0, callbacks=[EpsilonCallback(_plan())])
