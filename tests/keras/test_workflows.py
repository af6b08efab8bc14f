"""Tests of what users do around `fit`: steps are counted, or there is no epsilon.

A workflow is a function in a table. Each trains in some way, a hook records the steps
that ran, and the epsilon that is shown is never below their cost.
"""

import math
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import inner, NONE, plan_of, poisson, X, Y
from tests.representatives import representatives
import tfcactus
from tfcactus.keras import (
  DPKerasSGDOptimizer,
  EpsilonCallback,
  PoissonBatches,
  PrivateModel,
  ShuffledBatches,
)

pytestmark = pytest.mark.usefixtures('random_sums')
_PLAN = plan_of()


class Audited(PrivateModel):
  """Records the steps that run, by a hook in the private step."""

  def __init__(self, *args, **kwargs):
    super().__init__(*args, **kwargs)
    self.ran = []
    run = self._step.run

    def counted(x, y, weights, *rest):
      ran = tf.numpy_function(self._count, [tf.reduce_sum(weights)], tf.int64)
      with tf.control_dependencies([ran]):
        return run(x, y, weights, *rest)

    self._step.run = counted

  def _count(self, examples):
    self.ran.append(float(examples))
    return np.int64(0)


def _private(cls=Audited, **kwargs):
  private = cls(inner(tf.keras.layers.Dense(6)), _PLAN, **kwargs)
  private.compile(tf.keras.optimizers.SGD(0.1), NONE)
  return private


class Do(tf.keras.callbacks.Callback):
  """Calls a function at the first event of one kind."""

  def __init__(self, event, call):
    super().__init__()
    self._call = call
    self._done = False
    setattr(self, event, self._once)

  def _once(self, *args, **kwargs):
    if not self._done:
      self._done = True
      self._call(self.model)


def _during(call, event='on_train_batch_end', data=poisson, epochs=2):
  """Returns a workflow that calls a function in a callback of `fit`."""

  def run(private):
    private.fit(data(), epochs=epochs, verbose=0, callbacks=[Do(event, call)])

  return run


def _between(call):
  """Returns a workflow that calls a function between two calls of `fit`."""

  def run(private):
    private.fit(poisson(), verbose=0)
    call(private)
    private.fit(poisson(), verbose=0)

  return run


def _dataset():
  return tf.data.Dataset.from_tensors((X, Y))


def _assign(private):
  kernel = private.inner.layers[-1].kernel
  kernel.assign(kernel + 1.0)


def _train_inner(private):
  private.inner.compile('sgd', NONE)
  private.inner.fit(X, Y, verbose=0)


def _own_function(private):
  function = private.make_train_function(force=True)
  function = function or private.train_function
  function(iter(_dataset()))


def _in_a_thread(private):
  thread = threading.Thread(
      target=lambda: private.fit(poisson(), verbose=0))
  thread.start()
  thread.join()


def _save_and_restore(private, path):
  saved = tf.train.Checkpoint(model=private).save(path)
  private.fit(poisson(), verbose=0)
  tf.train.Checkpoint(model=private).restore(saved)


def _counters_to_zero(private):
  for name in ('segments', 'sampling', 'plan_number', 'seeded_parts'):
    getattr(private, name).assign(0 * getattr(private, name))


def _recompile(private):
  private.compile(tf.keras.optimizers.Adam(0.01), NONE)


def _freeze(private):
  private.inner.layers[0].trainable = False


def _average(private, set_weights):
  old = private.inner.get_weights()
  private.fit(poisson(), verbose=0)
  set_weights(private)(
      [(a + b) / 2 for a, b in zip(old, private.inner.get_weights())])


def _through_the_model(private):
  """Returns what sets inner weights by `PrivateModel.set_weights`."""
  def set_weights(weights):
    known = {id(v): w for v, w in zip(private.inner.weights, weights)}
    private.set_weights([known.get(id(v), v.numpy()) for v in private.weights])

  return set_weights


class Swap(tf.keras.callbacks.Callback):
  """Sets other weights for a validation, and then those of training again."""

  def on_epoch_end(self, epoch, logs=None):
    kept = self.model.inner.get_weights()
    _assign(self.model)
    self.model.evaluate(X, Y, verbose=0)
    self.model.inner.set_weights(kept)


class Twice(Audited):
  """Trains on each batch twice."""

  def train_step(self, data):
    super().train_step(data)
    return super().train_step(data)


class Raw(Audited):
  """Trains without privacy."""

  def train_step(self, data):
    x, y, _ = tf.keras.utils.unpack_x_y_sample_weight(data)
    x = getattr(x, 'x', x)
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(NONE(y, self.inner(x)))
    variables = self.inner.trainable_variables
    self.optimizer.apply_gradients(zip(tape.gradient(loss, variables),
                                       variables))
    return {'loss': loss}


class Shared(PoissonBatches):
  """Takes all examples in each batch."""

  def _draw(self):
    return [np.arange(self.num_examples)]


def _fit(data, **kwargs):
  return lambda private: private.fit(data(), verbose=0, **kwargs)


def _shuffled():
  return ShuffledBatches(X, Y, 10)


_ONE_MORE = lambda private: private.train_on_batch(X, Y)

# Workflows, with the number of Poisson samples that they take; None if it varies.
_COUNTED = {
    'fit': (_fit(poisson, epochs=2), 8),
    'another fit in a callback': (
        _during(_fit(poisson), 'on_epoch_end'), 12),
    'a fit in a thread': (_between(_in_a_thread), 12),
    'best weights restored': (
        lambda private: private.fit(
            poisson(), epochs=3, validation_data=(X, Y), verbose=0,
            callbacks=[tf.keras.callbacks.EarlyStopping(
                'val_loss', mode='max', patience=1,
                restore_best_weights=True)]), None),
    'earlier weights set in a callback': (_during(
        lambda private: private.set_weights(private.get_weights())), 8),
    'an average of released weights set': (
        _between(lambda private: _average(private, _through_the_model)), 12),
    'weights that come and go': (_fit(poisson, epochs=2, callbacks=[Swap()]),
                                 8),
    'an optimizer that averages': (
        lambda private: (private.compile(tf.keras.optimizers.SGD(
            0.1, use_ema=True, ema_momentum=0.5), NONE),
                         _fit(poisson, epochs=2)(private)), 8),
    'evaluation in a callback': (_during(
        lambda private: private.evaluate(X, Y, verbose=0)), 8),
    'compile in the last callback': (_during(_recompile, 'on_train_end'), 8),
    'compile between': (_between(_recompile), 8),
    'a layer frozen between': (_between(lambda private: (
        _freeze(private), _recompile(private))), 8),
    'the optimizer swapped between': (_between(lambda private: setattr(
        private, 'optimizer', private.optimizer)), 8),
    'counters set to zero': (_between(_counters_to_zero), 8),
}

# Workflows after which there is no epsilon.
_WITHOUT_EPSILON = {
    'train_on_batch in a callback': _during(_ONE_MORE),
    'train_on_batch in a shuffled pass': _during(_ONE_MORE, data=_shuffled),
    'train_on_batch at the end': _during(_ONE_MORE, 'on_train_end'),
    'train_on_batch at the beginning': _during(_ONE_MORE, 'on_train_begin'),
    'train_step in a callback': _during(
        lambda private: private.train_step((tf.constant(X), tf.constant(Y)))),
    'a train function of ones own': _during(_own_function),
    'a train function kept': _between(
        lambda private: private.train_function(iter(_dataset()))),
    'passes in a callback': _during(
        lambda private: private.fit(X, Y, verbose=0), 'on_epoch_end'),
    'a dataset in a callback': _during(_fit(_dataset), 'on_epoch_end'),
    'plain training in a callback': _during(_train_inner),
    'plain training in the last callback': _during(
        _train_inner, 'on_train_end'),
    'plain training between': _between(_train_inner),
    'weights assigned in a callback': _during(_assign),
    'weights assigned at the end of an epoch': _during(_assign, 'on_epoch_end'),
    'weights assigned at the end': _during(_assign, 'on_train_end'),
    'weights assigned between': _between(_assign),
    'weights of the inner model set': _during(
        lambda private: private.inner.set_weights(
            [w + 1 for w in private.inner.get_weights()])),
    'an average assigned': _between(lambda private: _average(
        private, lambda p: p.inner.set_weights)),
    'each batch twice': (Twice, _fit(poisson)),
    'batches of ones own': _fit(lambda: Shared(X, Y, 0.25)),
    'arrays cut by steps_per_epoch': lambda private: private.fit(
        X, Y, steps_per_epoch=2, verbose=0),
    'a step, then training without privacy': (
        Raw, lambda private: (PrivateModel.train_step(
            private, (tf.constant(X), tf.constant(Y))),
                              _fit(poisson)(private))),
}


def _shown(private):
  """Returns the epsilon of `guarantee`, or None if there is none."""
  try:
    return private.guarantee().upper
  except ValueError as reason:
    assert str(reason).startswith('No epsilon: ')
    return None


@representatives('name', _COUNTED, 3)
def test_epsilon_is_that_of_the_steps_that_ran(name):
  run, steps = _COUNTED[name]
  private = _private()
  run(private)
  assert private.ledger().steps == len(private.ran)
  assert steps in (None, len(private.ran))
  truth = _PLAN.guarantee(len(private.ran)).upper
  assert _shown(private) == truth


@representatives('name', _WITHOUT_EPSILON, 3)
def test_other_training_has_no_epsilon(name):
  run = _WITHOUT_EPSILON[name]
  cls, run = run if isinstance(run, tuple) else (Audited, run)
  private = _private(cls)
  run(private)
  assert private.ledger().steps >= len(private.ran)
  assert _shown(private) is None
  # Later training as accounted brings none back.
  epsilon = EpsilonCallback()
  with pytest.warns(UserWarning, match='No epsilon'):
    history = private.fit(poisson(), verbose=0, callbacks=[epsilon]).history
  assert not [key for key in history if 'epsilon' in key]
  assert epsilon.guarantee is None and _shown(private) is None


def test_a_checkpoint_restored_in_a_callback_lowers_no_count(tmp_path):
  private = _private()
  _during(lambda p: _save_and_restore(p, tmp_path / 'c'), 'on_epoch_end')(
      private)
  assert len(private.ran) == private.ledger().steps == 12
  assert _shown(private) == _PLAN.guarantee(12).upper


def test_epochs_over_arrays_are_counted_at_any_batch_size_and_end():
  private = _private()

  def stop(model):
    model.stop_training = True

  private.fit(X, Y, batch_size=15, verbose=0)
  private.fit(X, Y, batch_size=10, epochs=2, verbose=0,
              callbacks=[Do('on_train_batch_end', stop)])
  private.fit(X, Y, batch_size=40, epochs=2, verbose=0)
  assert private.ledger().epochs == 4
  assert len(private.ran) == private.ledger().steps == 3 + 1 + 2


_SET = [
    (lambda private, _: setattr(private, 'plan', plan_of(
        noise=tfcactus.Gaussian(4.0))), 'plan of a Audited.*fresh'),
    (lambda private, _: setattr(private, 'inner', inner()), 'other model'),
    (lambda _, batches: setattr(batches, 'sampling_prob', 0.5),
     'sampling_prob of a PoissonBatches'),
    (lambda _, batches: setattr(batches, 'num_examples', 80), 'num_examples'),
    (lambda _, batches: setattr(batches, 'seeded', True), 'seeded'),
    (lambda private, _: setattr(private, 'seeded', True), "seeded"),
    (lambda _, batches: setattr(batches, 'draws', 10**9), 'draws'),
]


def test_attributes_of_the_account_cannot_be_set():
  private, batches = _private(), poisson()
  private.fit(batches, verbose=0)
  before = private.guarantee()
  for change, words in _SET:
    with pytest.raises(AttributeError, match=words):
      change(private, batches)
    assert private.guarantee() == before == _PLAN.guarantee(4)


@pytest.mark.parametrize('name, value', [
    ('noise', tfcactus.Gaussian(4.0)), ('l2_norm_clip', 0.1), ('plan', _PLAN),
    ('expected_batch_size', 1.0), ('parts_per_step', 2), ('loaded_steps', 99)])
def test_attributes_of_a_drop_in_optimizer_cannot_be_set(name, value):
  optimizer = DPKerasSGDOptimizer.from_plan(plan_of())
  with pytest.raises(AttributeError, match=name):
    setattr(optimizer, name, value)


def test_a_forked_process_takes_no_steps():
  private = _private()
  private.fit(poisson(), verbose=0)
  private._ledger.counter._pid += 1
  with pytest.raises(Exception, match='got a fork'):
    private.train_on_batch(X, Y)
  assert private.ledger().steps == len(private.ran) == 4


def test_concurrent_steps_are_all_counted():
  private = _private()
  private.train_on_batch(X, Y)  # Traces the step.
  threads = [threading.Thread(target=lambda: [
      private.train_on_batch(X, Y) for _ in range(20)]) for _ in range(3)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert private.ledger().steps >= len(private.ran) > 20


def test_a_callback_with_another_plan_is_refused():
  with pytest.raises(ValueError, match='releases='):
    _private().fit(poisson(), verbose=0, callbacks=[
        EpsilonCallback(plan_of(releases=[_PLAN.step_event]))])


def test_a_drop_in_optimizer_replaced_in_a_callback_gives_a_warning():
  model, batches = inner(), poisson()
  model.compile(DPKerasSGDOptimizer.from_plan(_PLAN), NONE)
  swap = Do('on_epoch_end', lambda m: m.compile('sgd', NONE))
  with pytest.warns(UserWarning, match='not the one that fit began with'):
    history = model.fit(batches, verbose=0, callbacks=[
        swap, EpsilonCallback(batches=batches)]).history
  assert 'epsilon' not in history


@representatives('seeds, words', [
    ((1, None), 'SEEDED (noise)'), ((None, 1), 'SEEDED (batches)'),
    ((1, 1), 'SEEDED (noise and batches)')])
def test_every_place_that_shows_epsilon_names_a_seed(
    tmp_path, capsys, seeds, words):
  private = _private(seed=seeds[0])
  card = tmp_path / 'card.json'
  history = private.fit(
      poisson(seed=seeds[1]), verbose=0, callbacks=[EpsilonCallback(
          run_card=card, verbose=1, every=1)]).history
  assert 'epsilon' not in history
  assert history['epsilon_seeded'] == [_PLAN.guarantee(4).upper]
  guarantee = private.guarantee()
  assert guarantee.seeded and words in guarantee.statement
  assert 'SEEDED' in str(guarantee)
  assert words in capsys.readouterr().out and words in card.read_text()
  # Weight files, and other private models of the variables, keep the mention.
  private.save_weights(tmp_path / 'w.weights.h5')
  fresh = _private()
  fresh.load_weights(tmp_path / 'w.weights.h5')
  assert words in fresh.guarantee().statement
  again = PrivateModel(private.inner, _PLAN)
  assert words in again.guarantee().statement


@pytest.mark.parametrize('seeds, words', [
    ((1, None), 'SEEDED (noise)'), ((None, 1), 'SEEDED (batches)')])
def test_a_drop_in_optimizer_names_a_seed(seeds, words):
  model, batches = inner(), poisson(seed=seeds[1])
  model.compile(DPKerasSGDOptimizer.from_plan(_PLAN, seed=seeds[0]), NONE)
  epsilon = EpsilonCallback(batches=batches)
  history = model.fit(batches, verbose=0, callbacks=[epsilon]).history
  assert 'epsilon' not in history and len(history['epsilon_seeded']) == 1
  assert words in epsilon.guarantee.statement
  assert 'the word of who trained' in epsilon.guarantee.statement
  assert math.isfinite(epsilon.guarantee.upper)
