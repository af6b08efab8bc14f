"""The noisy accuracy in logs: its law, stops by it, its account, card and files."""

import dataclasses
import json
import math

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from tests.keras.tiny import inner, MEAN, plan_of, poisson, privatized, X, Y
from tests.representatives import representatives
import tfcactus
from tfcactus import NoisyAccuracy
from tfcactus.keras import (
  callbacks_of_fit,
  EpsilonCallback,
  make_run_card,
  PoissonBatches,
  PrivateEarlyStopping,
  privatize,
  run_card,
)
from tfcactus.keras.ledger.journal import Journal

NAME, ERROR = 'noisy_accuracy', 'noisy_accuracy_error'


def plan(**changes):
  return plan_of(**{'noisy_accuracy': NoisyAccuracy(2.0), **changes})


def model_of(made=None, rate=0.1, **options):
  return privatized(made or plan(), inner(seed=1), tf.keras.optimizers.SGD(rate), MEAN,
                    **options)


def fitted(private, *callbacks, epochs=3, **options):
  return private.fit(poisson(**options), epochs=epochs, verbose=0,
                     callbacks=list(callbacks)).history


def true_accuracy(private):
  return np.mean(private.predict(X, verbose=0).argmax(1) == Y)


def test_the_log_is_the_accuracy_with_noise_and_drawing():
  private = model_of(plan(steps=400), rate=0.0, seed=3)
  history = fitted(private, epochs=100, seed=4)
  accuracy, (error, *others) = np.array(history[NAME]), history[ERROR]
  assert set(others) == {error}
  assert error == pytest.approx(math.sqrt((2.0**2 + 10 / 4) / 4) / 10)
  # Weights never move, so that the law of the log is known.
  deviation = math.sqrt((2.0**2 + 0.75 * 10 / 4) / 4) / 10
  assert deviation < error
  assert abs(np.mean(accuracy) - true_accuracy(private)) < 5 * deviation / 10

  def fits(scale):
    return stats.chi2.cdf(np.sum((accuracy - true_accuracy(private))**2) / scale**2,
                          100)

  assert 1e-3 < fits(deviation) < 1 - 1e-3
  # Another scale, or divisors of the sizes that were drawn, would show.
  assert fits(0.75 * deviation) > 1 - 1e-3 and fits(1.4 * deviation) < 1e-3


@pytest.mark.more
def test_a_count_of_hardly_any_noise_is_keras_own():
  private = privatized(
      plan(noise=tfcactus.Gaussian(1e-9), sampling_prob=1.0,
           noisy_accuracy=NoisyAccuracy(1e-7)), inner(seed=1), 'sgd', MEAN,
      physical_batch_size=7)
  private.compile('sgd', MEAN, metrics=['accuracy'])
  history = private.fit(PoissonBatches(X, Y, 1.0, steps_per_epoch=3), epochs=2,
                        verbose=0).history
  np.testing.assert_allclose(history[NAME], history['accuracy'], atol=1e-6)


@pytest.mark.more
def test_stops_schedules_and_checkpoints_read_the_log(tmp_path, monkeypatch):
  values = iter([0.3, 0.6, 0.5, 0.4, 0.9])
  own = callbacks_of_fit.NoisyAccuracyLog.on_epoch_end

  def logged(self, epoch, logs=None):
    own(self, epoch, logs)
    logs[NAME] = next(values)

  monkeypatch.setattr(callbacks_of_fit.NoisyAccuracyLog, 'on_epoch_end', logged)
  private, seen = model_of(), []
  history = fitted(
      private, PrivateEarlyStopping(NAME, patience=2), EpsilonCallback(),
      tf.keras.callbacks.ReduceLROnPlateau(NAME, mode='max', patience=1, min_delta=0),
      tf.keras.callbacks.ModelCheckpoint(
          str(tmp_path / 'best.weights.h5'), NAME, mode='max', save_best_only=True,
          save_weights_only=True),
      tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(
          private.inner.get_weights())), epochs=5)
  assert history[NAME] == [0.3, 0.6, 0.5, 0.4]
  for ours, best in zip(private.inner.get_weights(), seen[1]):
    np.testing.assert_array_equal(ours, best)
  assert float(private.optimizer.learning_rate) == pytest.approx(0.1 * 0.1**2, rel=1e-4)
  again = model_of()
  again.load_weights(tmp_path / 'best.weights.h5')
  np.testing.assert_array_equal(again.inner.get_weights()[0], seen[1][0])
  # The stop was chosen by what was released: all planned steps count.
  assert private.released_steps == 16
  assert history['epsilon'] == [private.plan.guarantee().upper] * 4
  found = private.guarantee()
  assert found.upper == private.plan.guarantee().upper
  assert 'Of these 100, 16 were released; all count, since metrics' in found.statement


def test_a_raw_log_of_that_name_is_refused():
  private = model_of()
  private.compile('sgd', MEAN, metrics=[
      tf.keras.metrics.SparseCategoricalAccuracy(name=NAME)])
  with pytest.raises(ValueError, match=f"Expected logs without '{NAME}'"):
    fitted(private)
  assert private.released_steps == 0


def test_without_the_option_nothing_is_logged_or_monitored():
  private = model_of(plan(noisy_accuracy=None))
  assert NAME not in fitted(private, epochs=1)
  with pytest.raises(ValueError, match='noisy_accuracy of its plan, one of'):
    fitted(private, PrivateEarlyStopping(NAME))
  assert private.guarantee().steps == 4


def test_a_target_belongs_into_the_plan():
  with pytest.raises(ValueError, match='private validation or noisy_accuracy'):
    fitted(model_of(), EpsilonCallback(target_epsilon=50.0))
  short = tfcactus.PrivacyPlan.for_training(
      batch_size=10, epochs=5, num_examples=40, delta=1e-3, l2_norm_clip=1.0,
      target_epsilon=3.0, noisy_accuracy=NoisyAccuracy())
  private = model_of(short)
  fitted(private, epochs=2)
  assert private.guarantee().upper == short.guarantee().upper <= 3.0


def test_the_card_says_what_was_released_and_what_is_not_covered():
  card = make_run_card(model_of())
  assert card[NAME] == {'count_stddev': 2.0, 'output': None}
  assert any("1.032 times the plan's" in line for line in card['layers'])
  first, second, *rest = card['not_covered']
  assert first == 'metrics and losses without noise on training data, printed or logged'
  assert second.startswith('early stopping by anything but noisy_accuracy, and choices')
  assert any(line.startswith('gradients and right answers whose') for line in rest)
  plain = make_run_card(model_of(plan(noisy_accuracy=None)))
  assert plain[NAME] is None
  assert plain['not_covered'] == list(run_card.NOT_COVERED)


@pytest.mark.more
def test_files_and_journals_keep_the_field(tmp_path):
  private = model_of(plan(noisy_accuracy=NoisyAccuracy(2.0, 0)),
                     journal=tmp_path / 'j')
  fitted(private, epochs=1)
  private.save(tmp_path / 'm.keras')
  private._ledger.counter.journal.close()
  again = tf.keras.models.load_model(tmp_path / 'm.keras')
  assert again.plan == private.plan and again.guarantee() == private.guarantee()
  assert len(fitted(again)[NAME]) == 3
  assert again.released_steps == 16
  again._ledger.counter.journal.close()
  without = dataclasses.replace(private.plan, noisy_accuracy=None)
  with pytest.raises(ValueError, match='the journal of another'):
    Journal(tmp_path / 'j', without)
  header = json.loads((tmp_path / 'j').read_bytes().splitlines()[0][9:])
  assert header[NAME] == {'count_stddev': 2.0, 'output': 0}
  for other in without, dataclasses.replace(
      private.plan, noisy_accuracy=NoisyAccuracy(3.0)):
    with pytest.raises(ValueError, match='trained privately by another plan'):
      privatize(private.inner, other)
    with pytest.raises(ValueError, match=f'with {NAME}='):
      fitted(again, EpsilonCallback(other))


def test_steps_that_were_stopped_are_not_those_of_a_shorter_plan(tmp_path):
  private = model_of(journal=tmp_path / 'j')
  fitted(private, epochs=1)
  private.save_weights(tmp_path / 'w.weights.h5')
  private._ledger.counter.journal.close()
  for changes in {'steps': 4}, {'target_epsilon': 1.0}, {'delta': 1e-3}:
    other = dataclasses.replace(private.plan, **changes)
    with pytest.raises(ValueError, match='trained privately by another plan'):
      privatize(private.inner, other)
    resumed, again = model_of(other, journal=tmp_path / 'j'), model_of(other)
    resumed._ledger.counter.journal.close()
    again.load_weights(tmp_path / 'w.weights.h5')
    for model in resumed, again:
      with pytest.raises(ValueError, match='all planned steps count'):
        model.guarantee()


@representatives('size', [16, 8])
def test_passes_of_smaller_batches_count_each_example_once(size):
  # The last batch is smaller than planned; or all are.
  private = model_of(plan(
      noise=tfcactus.Gaussian(1e-9), sampling_prob=0.4,
      noisy_accuracy=NoisyAccuracy(1e-7)), rate=0.0)
  history = private.fit(X, Y, batch_size=size, epochs=2, verbose=0).history
  np.testing.assert_allclose(history[NAME], true_accuracy(private), atol=1e-6)
  assert history[ERROR][0] == pytest.approx(math.sqrt(40 / 4) / 40)


@pytest.mark.more
def test_averages_of_two_runs_have_no_epsilon():
  one, two = model_of(), model_of()
  fitted(one), fitted(two)
  weights = one.get_weights()
  for place, (ours, theirs) in enumerate(zip(weights, two.get_weights())):
    if ours.dtype.kind == 'f':
      weights[place] = (ours + theirs) / 2
  one.set_weights(weights)
  with pytest.raises(ValueError, match='No epsilon'):
    one.guarantee()


@pytest.mark.more
def test_a_model_of_two_outputs_names_one():
  y = {'digit': Y, 'size': np.zeros((40, 1), np.float32)}
  for output in 'digit', None:
    inputs = tf.keras.Input((6,))
    model = tf.keras.Model(inputs, {
        'digit': tf.keras.layers.Dense(3, name='digit')(inputs),
        'size': tf.keras.layers.Dense(1, name='size')(inputs)})
    private = privatize(model, plan(
        noise=tfcactus.Gaussian(1e-9), sampling_prob=1.0,
        noisy_accuracy=NoisyAccuracy(1e-7, output)))
    private.compile('sgd', {'digit': MEAN, 'size': 'mse'},
                    metrics={'digit': ['accuracy']})
    batches = PoissonBatches(X, y, 1.0, steps_per_epoch=2)
    if output is None:
      with pytest.raises(ValueError, match='name one output that has a loss'):
        private.fit(batches, verbose=0)
    else:
      history = private.fit(batches, verbose=0).history
      assert history[NAME][0] == pytest.approx(history['digit_accuracy'][0], abs=1e-6)
