"""Tests that no wrapping or restoring of a model lowers the count of its releases."""

import pickle
import warnings
import weakref

import dp_accounting
import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import inner, MEAN, NONE, plan_of, poisson, privatized, X, Y
from tests.representatives import representatives
from tfcactus import accounting, noise as noise_lib
from tfcactus.keras import (
  DPKerasSGDOptimizer,
  EpsilonCallback,
  privatize,
)
from tfcactus.keras.compat import optimizers
from tfcactus.keras.ledger import counts

pytestmark = pytest.mark.usefixtures('random_sums')


def _trained(plan, model=None):
  private = privatized(plan, model)
  private.fit(poisson(), verbose=0)
  return private


@representatives('change', [
    {'noise': noise_lib.Gaussian(2.0)}, {'l2_norm_clip': 2.0},
    {'sampling_prob': 0.5}, {'num_examples': 41}], 2)
def test_weights_of_another_plan_void_the_account(make_plan, tmp_path, change):
  _trained(make_plan()).save_weights(tmp_path / 'w.weights.h5')
  other = privatized(make_plan(**change))
  other.load_weights(tmp_path / 'w.weights.h5')
  assert other.ledger().sampling == counts.UNKNOWN
  with pytest.raises(ValueError, match='another noise'):
    other.guarantee()
  same = privatized(make_plan(delta=1e-6))
  same.load_weights(tmp_path / 'w.weights.h5')
  assert same.guarantee().steps == 4


def test_weights_of_another_plan_void_the_account_for_good(make_plan, tmp_path):
  _trained(make_plan()).save_weights(tmp_path / 'a.weights.h5')
  other = _trained(make_plan(noise_lib.Gaussian(2.0)))
  other.save_weights(tmp_path / 'b.weights.h5')
  other.load_weights(tmp_path / 'a.weights.h5')
  other.load_weights(tmp_path / 'b.weights.h5')
  with pytest.raises(ValueError, match='another noise'):
    other.guarantee()
  # Weights without any steps void nothing.
  fresh = privatized(make_plan(), inner(seed=91))
  fresh.fit(poisson(), verbose=0)
  fresh.set_weights(privatized(make_plan(l2_norm_clip=2.0)).get_weights())
  assert fresh.guarantee().steps == 4


def test_another_plan_does_not_forget_releases(tmp_path):
  private = _trained(plan_of(releases=[
      dp_accounting.GaussianDpEvent(np.float64(2.0)),
      dp_accounting.LaplaceDpEvent(9.0)]))
  private.save_weights(tmp_path / 'w.weights.h5')
  private.save(tmp_path / 'm.keras')
  again = tf.keras.models.load_model(tmp_path / 'm.keras')
  assert again.guarantee().upper == private.guarantee().upper
  for releases in [], [dp_accounting.GaussianDpEvent(3.0)]:
    with pytest.raises(ValueError, match='by another plan'):
      privatize(private.inner, plan_of(releases=releases))
    other = privatized(plan_of(releases=releases))
    other.load_weights(tmp_path / 'w.weights.h5')
    with pytest.raises(ValueError, match='noisy_accuracy or releases than this one'):
      other.guarantee()
  # Their order is none of the cost.
  turned = privatized(plan_of(releases=private.plan.releases[::-1]))
  turned.load_weights(tmp_path / 'w.weights.h5')
  assert turned.guarantee().upper == private.guarantee().upper


def test_a_second_private_model_inherits_the_ledger(make_plan, tmp_path):
  first = _trained(make_plan())
  second = _trained(make_plan(), first.inner)
  assert first.guarantee().steps == second.guarantee().steps == 8
  again = tf.keras.Model(first.inner.inputs, first.inner.outputs)
  assert privatized(make_plan(), again).guarantee().steps == 8
  for model in (first.inner, again):
    with pytest.raises(ValueError, match='clone_model'):
      privatize(model, make_plan(noise_lib.Gaussian(2.0)))


def test_private_models_of_two_plans_on_one_model_have_no_epsilon(make_plan):
  model = inner()
  models = [privatized(make_plan(l2_norm_clip=c), model) for c in (1.0, 2.0)]
  for private in models:
    private.fit(poisson(), verbose=0)
  for private in models:
    with pytest.raises(ValueError, match='same variables'):
      private.guarantee()


def _averaged(models, counters):
  """Returns the mean of all weights, with the counters of one model."""
  rows = zip(*(model.get_weights() for model in models), counters.get_weights())
  return [own if own.dtype.kind == 'i' else sum(parts) / len(parts)
          for *parts, own in rows]


def test_an_average_of_private_models_counts_all_of_them(make_plan):
  # Models of other tests may live, with other plans: begin with weights of our own.
  first, second, third = (privatized(make_plan(), inner(seed=96)) for _ in range(3))
  first.fit(poisson(), verbose=0)
  second.fit(poisson(), epochs=2, verbose=0)
  mean = _averaged((first, second), first)
  with pytest.raises(ValueError, match='Compute with the other weights alone'):
    third.set_weights([np.mean(each, 0) for each in zip(
        first.get_weights(), second.get_weights())])
  first.set_weights(mean)
  third.set_weights(mean)
  assert third.guarantee().steps == first.guarantee().steps == 12
  first.set_weights(mean)  # Counts nothing twice.
  assert first.guarantee().steps == 12


@pytest.fixture(name='alone')
def _alone(monkeypatch):
  """Forgets the private models that other tests made in this process."""
  monkeypatch.setattr(counts, '_records', weakref.WeakSet())


@pytest.mark.usefixtures('alone')
def test_an_average_with_own_counters_counts_the_copies_too(make_plan):
  first, second, fresh = (privatized(make_plan(), inner(seed=93)) for _ in range(3))
  for model in (first, second):
    model.fit(poisson(), verbose=0)
  fresh.set_weights(_averaged((first, second), fresh))
  assert fresh.guarantee().steps == 8


@pytest.mark.usefixtures('alone')
def test_an_average_of_loaded_copies_counts_all_of_them(tmp_path):
  for name in 'ab':
    model = privatized(plan_of(), inner(seed=92))
    model.fit(poisson(), verbose=0)
    model.save(tmp_path / f'{name}.keras')
    counts._records.discard(model._ledger.record)  # As if in another process.
  first, second = (tf.keras.models.load_model(tmp_path / f'{name}.keras')
                   for name in 'ab')
  first.set_weights(_averaged((first, second), first))
  assert first.guarantee().steps == 8


def _by_plain_fit(model):
  model.inner.compile('sgd', MEAN)
  model.inner.fit(X, Y, verbose=0)


def _by_assignment(model):
  model.inner.layers[0].kernel.assign_add(tf.ones_like(model.inner.layers[0].kernel))


def _moments(model):
  moments = optimizers.state(model.optimizer)
  moments[0].assign(moments[0] + 1)


@pytest.mark.parametrize('change, words', [
    (_by_plain_fit, 'changed outside'), (_by_assignment, 'changed outside'),
    (_moments, 'a new optimizer'), (None, '')])
@representatives('saved', ['keras', 'h5', 'checkpoint'])
def test_changes_between_loading_and_training_are_noticed(
    tmp_path, change, words, saved):
  model = privatized(plan_of(), optimizer=tf.keras.optimizers.Adam(0.01))
  model.fit(poisson(), verbose=0)
  if saved == 'keras':
    model.save(tmp_path / 'm.keras')
    loaded = tf.keras.models.load_model(tmp_path / 'm.keras')
  else:
    loaded = privatized(plan_of(), optimizer=tf.keras.optimizers.Adam(0.01))
    if saved == 'h5':
      model.save_weights(tmp_path / 'w.weights.h5')
      loaded.load_weights(tmp_path / 'w.weights.h5')
    else:
      optimizers.make_variables(loaded)
      path = tf.train.Checkpoint(model=model).save(tmp_path / 'c')
      tf.train.Checkpoint(model=loaded).restore(path)
  if change is None:
    loaded.fit(poisson(), verbose=0)
    assert loaded.guarantee().steps == 8
    return
  if change is _moments and saved == 'h5':
    optimizers.make_variables(loaded)
  change(loaded)
  with pytest.raises(ValueError, match=words):
    loaded.fit(poisson(), verbose=0)
    loaded.guarantee()


def test_weights_set_after_loading_leave_the_optimizer_known(tmp_path):
  model = privatized(plan_of(), optimizer=tf.keras.optimizers.Adam(0.01))
  model.fit(poisson(), verbose=0)
  model.set_weights(model.get_weights())
  path = tf.train.Checkpoint(model=model).save(tmp_path / 'c')
  model.save(tmp_path / 'm.keras')
  restored = privatized(plan_of(), optimizer=tf.keras.optimizers.Adam(0.01))
  optimizers.make_variables(restored)
  tf.train.Checkpoint(model=restored).restore(path)
  loaded = tf.keras.models.load_model(tmp_path / 'm.keras')
  loaded.set_weights(loaded.get_weights())
  for each in restored, loaded:
    each.fit(poisson(), verbose=0)
    assert each.guarantee().steps == 8


@representatives('when', [
    'on_train_batch_begin', 'on_epoch_begin', 'on_train_begin'])
def test_changes_of_loaded_weights_before_the_first_step_are_noticed(tmp_path, when):
  privatized(plan_of()).save(tmp_path / 'new.keras')
  model = privatized(plan_of())
  model.fit(poisson(), verbose=0)
  model.save(tmp_path / 'm.keras')

  def changed(name):
    loaded, todo = tf.keras.models.load_model(tmp_path / name), [_by_assignment]
    callback = tf.keras.callbacks.Callback()
    setattr(callback, when, lambda *_, **__: todo and todo.pop()(loaded))
    loaded.fit(poisson(), verbose=0, callbacks=[callback])
    assert not todo
    return loaded

  # Initial weights may be set: no steps were released from them.
  assert changed('new.keras').guarantee().steps == 4
  with pytest.raises(ValueError, match='changed outside'):
    changed('m.keras').guarantee()


def test_copied_weights_bring_the_steps_of_their_model(make_plan):
  first, second, third = (privatized(make_plan()) for _ in range(3))
  second.inner.set_weights(first.inner.get_weights())
  for model in (first, second):
    model.fit(poisson(), verbose=0)
  third.set_weights(second.get_weights())
  assert third.guarantee().steps == 4
  earlier = first.get_weights()
  first.fit(poisson(), verbose=0)
  first.set_weights(earlier)
  assert first.guarantee().steps == 8


def test_weights_that_a_file_has_of_another_run_add_its_steps(make_plan, tmp_path):
  first, second = (privatized(make_plan(), inner(seed=99)) for _ in range(2))
  for model, name in ((first, 'a.weights.h5'), (second, 'b.weights.h5')):
    model.fit(poisson(), verbose=0)
    model.save_weights(tmp_path / name)
  second.load_weights(tmp_path / 'b.weights.h5')  # Its own: nothing is added.
  assert second.guarantee().steps == 4
  for _ in range(2):  # The second time it knows the weights.
    second.load_weights(tmp_path / 'a.weights.h5')
    assert second.guarantee().steps == second.released_steps == 8
  second.fit(poisson(), verbose=0)
  assert second.guarantee().steps == 12


def test_files_of_several_runs_add_up_and_files_of_one_run_do_not(tmp_path):
  """No process has both runs: each model below comes from files alone."""
  start, paths = privatized(plan_of()), {}

  def trained(name, model):
    model.fit(poisson(), verbose=0)
    paths[name] = tmp_path / f'{name}.keras'
    model.save(paths[name])
    model.save_weights(tmp_path / f'{name}.weights.h5')

  def loaded(*names):
    model = tf.keras.models.load_model(paths[names[0]])
    for name in names[1:]:
      model.load_weights(tmp_path / f'{name}.weights.h5')
    return model

  trained('a', start)
  trained('later', start)
  trained('b', privatized(plan_of()))
  for name in 'one fork', 'another':
    trained(name, loaded('a'))
  for names, steps in {
      ('a', 'b'): 8, ('b', 'a'): 8, ('a', 'later'): 8, ('later', 'a'): 8,
      ('one fork', 'a'): 8, ('one fork', 'another'): 12, ('later', 'one fork'): 12,
      ('another', 'b', 'one fork', 'later'): 20}.items():
    model = loaded(*names)
    assert model.released_steps == model.guarantee().steps == steps
    model.load_weights(tmp_path / f'{names[0]}.weights.h5')
    assert model.released_steps == steps  # Counts nothing twice.


def test_arrays_of_another_process_bring_the_steps_of_their_counters(make_plan):
  model, other = (privatized(make_plan(), inner(seed=94)) for _ in range(2))
  for each in (model, other):
    each.fit(poisson(), verbose=0)
  arrays = pickle.loads(pickle.dumps(other.get_weights()))
  counts._records.discard(other._ledger.record)  # As if in another process.
  model.set_weights(arrays)
  assert model.guarantee().steps == 8


def test_runs_of_a_search_by_validations_are_not_added_up_after_loading(tmp_path):
  event = accounting.ValidationDpEvent(dp_accounting.GaussianDpEvent(30.0), 4)
  for name in 'ab':
    model = privatized(plan_of(releases=[event]))
    model.fit(poisson(), verbose=0)
    model.save(tmp_path / f'{name}.keras')
    model.save_weights(tmp_path / f'{name}.weights.h5')
  loaded = tf.keras.models.load_model(tmp_path / 'a.keras')
  loaded.load_weights(tmp_path / 'a.weights.h5')
  assert loaded.guarantee().upper == model.guarantee().upper
  loaded.load_weights(tmp_path / 'b.weights.h5')
  with pytest.raises(ValueError, match='No epsilon'):
    loaded.guarantee()


def test_a_file_of_more_steps_is_of_another_run_whatever_its_weights(
    make_plan, tmp_path):
  first, second = (privatized(make_plan(), inner(seed=95)) for _ in range(2))
  start = first.get_weights()
  first.fit(poisson(), epochs=2, verbose=0)
  first.set_weights(start)
  first.save_weights(tmp_path / 'w.weights.h5')
  second.fit(poisson(), verbose=0)
  second.load_weights(tmp_path / 'w.weights.h5')  # It began with these weights.
  assert second.guarantee().steps == 12


def test_runs_that_validations_may_have_ended_are_not_added_up(tmp_path):
  event = accounting.ValidationDpEvent(dp_accounting.GaussianDpEvent(30.0), 4)
  first, second, third = (privatized(plan_of(releases=[event])) for _ in range(3))
  for model in (first, second):  # Without the callback, as after a loaded model.
    model.fit(poisson(), verbose=0)
  path = tmp_path / 'w.weights.h5'
  first.save_weights(path)
  third.load_weights(path)
  assert third.guarantee().upper == first.guarantee().upper
  first.set_weights(second.get_weights())
  second.load_weights(path)
  for model in (first, second):
    with pytest.raises(ValueError, match='No epsilon'):
      model.guarantee()


def test_weights_of_a_step_bring_its_model_to_a_model_without_steps(make_plan):
  first, fresh = (privatized(make_plan(), inner(seed=97)) for _ in range(2))
  start = first.get_weights()
  first.fit(poisson(), verbose=0)
  own = fresh.get_weights()
  fresh.set_weights(_averaged((first,), fresh))  # With counters of its own.
  assert fresh.guarantee().steps == 4
  fresh.fit(poisson(), verbose=0)
  assert fresh.guarantee().steps == 8
  again = privatized(make_plan(), inner(seed=98))
  again.set_weights(start)
  again.set_weights(own)
  assert again.released_steps == 0


def test_training_outside_is_noticed(make_plan):
  private = _trained(make_plan())
  assert private.guarantee().steps == 4
  private.inner.compile('sgd', NONE)
  private.inner.fit(X, Y, verbose=0)
  with pytest.raises(ValueError, match='changed outside'):
    private.guarantee()
  private.fit(poisson(), verbose=0)
  with pytest.raises(ValueError, match='changed outside'):
    private.guarantee()


def test_a_checkpoint_of_the_beginning_lowers_no_counter(make_plan, tmp_path):
  private = privatized(make_plan())
  path = tf.train.Checkpoint(model=private).save(tmp_path / 'c')
  private.fit(poisson(), verbose=0)
  tf.train.Checkpoint(model=private).restore(path)
  private.fit(poisson(), verbose=0)
  # The weights are those that the account began with; both trainings count.
  assert private.guarantee().steps == private.released_steps == 8


def test_a_checkpoint_of_other_weights_is_noticed(make_plan, tmp_path):
  private, other = privatized(make_plan()), privatized(make_plan())
  path = tf.train.Checkpoint(inner=other.inner).save(tmp_path / 'c')
  private.fit(poisson(), verbose=0)
  tf.train.Checkpoint(inner=private.inner).restore(path)
  private.fit(poisson(), verbose=0)
  with pytest.raises(ValueError, match='changed outside'):
    private.guarantee()


class _Each(tf.keras.callbacks.Callback):
  """Calls a function after each epoch."""

  def __init__(self, call):
    super().__init__()
    self._call = call

  def on_epoch_end(self, epoch, logs=None):
    self._call()


def test_checkpoints_restored_within_fit_lower_nothing(make_plan, tmp_path):
  private = privatized(make_plan())
  checkpoint = tf.train.Checkpoint(model=private)
  path = checkpoint.save(tmp_path / 'c')
  seen = []
  private.fit(poisson(), epochs=3, verbose=0, callbacks=[
      _Each(lambda: checkpoint.restore(path)),
      _Each(lambda: seen.append((private.released_steps, private.ledger().steps)))])
  assert seen == [(4, 4), (8, 8), (12, 12)]
  assert private.guarantee().steps == private.released_steps == 12


def test_checkpoints_restored_after_a_crash_lower_no_journal(
    make_plan, tmp_path):
  journal = tmp_path / 'run.journal'

  def private():
    return privatized(make_plan(), journal=journal)

  first = private()
  first.fit(poisson(), verbose=0)
  path = tf.train.Checkpoint(model=first).save(tmp_path / 'c')
  first.fit(poisson(), verbose=0)
  first._ledger.counter.journal.close()  # The end of a process closes it as well.
  second = private()
  tf.train.Checkpoint(model=second).restore(path)
  second.fit(poisson(), verbose=0)
  assert second.guarantee().steps == 12
  assert second._ledger.counter.journal.entry.released_steps == 12


def test_a_backup_restored_by_fit_lowers_nothing(make_plan, tmp_path):
  private = privatized(make_plan())

  class Stop(tf.keras.callbacks.Callback):

    def on_train_batch_end(self, batch, logs=None):
      if private.released_steps == 7:
        raise KeyboardInterrupt

  backup = lambda: tf.keras.callbacks.BackupAndRestore(tmp_path / 'backup')
  with pytest.raises(KeyboardInterrupt):
    private.fit(poisson(), epochs=3, verbose=0, callbacks=[backup(), Stop()])
  private.fit(poisson(), epochs=3, verbose=0, callbacks=[backup()])
  # Seven steps, and two epochs of four that follow the saved first one.
  assert private.guarantee().steps == 15


@representatives('order', [1, -1])
def test_checkpoints_of_another_plan_void_the_account(
    make_plan, tmp_path, order):
  one, other = [
      _trained(make_plan(l2_norm_clip=clip)) for clip in (1.0, 2.0)][::order]
  paths = [tf.train.Checkpoint(model=model).save(tmp_path / str(i))
           for i, model in enumerate((one, other))]
  fresh = privatized(one.plan)
  for steps, path in zip((4, 8), paths[::-1]):  # That of its own plan is last.
    tf.train.Checkpoint(model=fresh).restore(path)
    assert fresh.released_steps == steps
    with pytest.raises(ValueError, match='another noise'):
      fresh.guarantee()


def test_steps_of_a_drop_in_optimizer_count_for_private_models(make_plan):
  plan, model = make_plan(), inner()
  model.compile(DPKerasSGDOptimizer.from_plan(plan), NONE)
  model.fit(poisson(), verbose=0)
  with pytest.raises(ValueError, match='4 steps were released'):
    privatize(model, plan)


def test_restoring_a_drop_in_optimizer_lowers_nothing(make_plan, tmp_path):
  model, batches = inner(), poisson()
  model.compile(DPKerasSGDOptimizer.from_plan(make_plan()), NONE)
  model.fit(batches, verbose=0)
  checkpoint = tf.train.Checkpoint(optimizer=model.optimizer)
  path = checkpoint.save(tmp_path / 'c')
  model.fit(batches, verbose=0)
  checkpoint.restore(path)
  assert model.optimizer.released_steps == 8
  model.fit(batches, verbose=0)
  assert model.optimizer.released_steps == 12
  other = DPKerasSGDOptimizer.from_plan(make_plan())
  tf.train.Checkpoint(optimizer=other).restore(path)
  assert other.released_steps == 4


def _drop_in(**kwargs):
  return DPKerasSGDOptimizer(**{
      'l2_norm_clip': 1.0, 'noise_multiplier': 1.0, 'expected_batch_size': 2.0,
      **kwargs})


def _dropped_in(model, optimizer, batches, plan=None, steps=None):
  """Trains by a drop-in optimizer; returns the guarantee or None, and the reason."""
  if getattr(model, 'optimizer', None) is not optimizer:
    model.compile(optimizer, NONE)
  callback = EpsilonCallback(plan, batches=batches)
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    model.fit(batches, verbose=0, steps_per_epoch=steps, callbacks=[callback])
  return callback.guarantee, callback.reason


_DEAR = [dp_accounting.GaussianDpEvent(0.5)]


@representatives('make_first, releases, steps', [
    (lambda plan: (DPKerasSGDOptimizer.from_plan(plan), None), _DEAR, 2),
    (lambda plan: (_drop_in(), plan), _DEAR, 2),
    (lambda plan: (_drop_in(expected_batch_size=None), plan), [], 1),
    (lambda plan: (_drop_in(gradient_accumulation_steps=2), plan), [], 2)], 2)
def test_a_new_drop_in_optimizer_takes_over_no_dearer_steps(
    make_first, releases, steps):
  model, batches = inner(), poisson()
  first, told = make_first(plan_of(releases=releases))
  found = _dropped_in(model, first, batches, told, steps)[0]
  assert first.released_steps
  assert (found is not None and found.upper > 4) if releases else found is None
  cheap = DPKerasSGDOptimizer.from_plan(plan_of())
  assert _dropped_in(model, cheap, batches)[0] is None


def test_one_drop_in_optimizer_is_counted_by_one_plan():
  model, batches, optimizer = inner(), poisson(), _drop_in()
  for _ in range(2):
    found, _ = _dropped_in(model, optimizer, batches, plan_of(releases=_DEAR))
    assert found.upper > 4
  found, reason = _dropped_in(model, optimizer, batches, plan_of())
  assert found is None and 'by another plan' in reason


def test_a_new_drop_in_optimizer_keeps_the_count_of_its_model(make_plan):
  model, batches, plan = inner(), poisson(), make_plan()
  spent = []
  for _ in range(3):
    model.compile(DPKerasSGDOptimizer.from_plan(plan), NONE)
    callback = EpsilonCallback(batches=batches)
    spent += model.fit(batches, verbose=0,
                       callbacks=[callback]).history['epsilon']
    model.fit(batches, verbose=0)  # Steps without the callback count too.
  assert spent == [0.04, 0.12, 0.2]
  with pytest.raises(ValueError, match='raise the budget'):
    model.fit(batches, verbose=0, callbacks=[
        EpsilonCallback(batches=batches, target_epsilon=0.2)])
  model.compile(DPKerasSGDOptimizer.from_plan(make_plan(l2_norm_clip=2.0)),
                NONE)
  with pytest.warns(UserWarning, match='by another plan'):
    model.fit(batches, verbose=0,
              callbacks=[EpsilonCallback(batches=batches)])
