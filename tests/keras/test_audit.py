"""Audits of whole training steps by membership inference on canaries.

A canary's gradient points along one weight. An attacker who knows all else sees that
weight move by noise alone, or by noise plus the clipping norm. The likelihood-ratio
test between the two is a threshold. Its error rates, bounded by Clopper and Pearson,
refute every noise multiplier whose trade-off curve (that of two normal distributions)
lies above them. This bounds the epsilon of Gaussian noise from below. An audit can
refute a claim and never prove one.
"""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tiny import plan_of, privatized
import tfcactus
from tfcactus import accounting, audit, correlated
from tfcactus.accounting import views
from tfcactus.keras import AllocatedBatches, CyclicBatches, DPKerasSGDOptimizer
from tfcactus.keras.step import private_step

_DELTA = 1e-3
_TRIALS = 1500
_CLIP = 0.7


def _lower_bound(without, with_canary):
  """Returns an epsilon of Gaussian noise that is refuted at 99.99 % confidence."""
  threshold = 0.5 * _CLIP / 3  # Half of the canary's move, known beforehand.
  alarms = np.sum(without > threshold)
  misses = np.sum(with_canary <= threshold)
  return _plan(audit.gaussian_noise_upper_bound(
      alarms, misses, _TRIALS, significance=1e-4)).guarantee().lower


def _plan(noise_multiplier):
  return plan_of(noise=tfcactus.Gaussian(noise_multiplier), l2_norm_clip=_CLIP,
                 num_examples=3, sampling_prob=1.0, steps=1, delta=_DELTA)


def _moves(step, model):
  """Returns how far the canary's weight moves in each of many single steps."""
  moved = []
  for _ in range(_TRIALS):
    model.layers[-1].kernel.assign(tf.zeros((4, 1)))
    step()
    moved.append(-float(model.layers[-1].kernel[0, 0]))
  return np.array(moved)


def _model():
  return tf.keras.Sequential([
      tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1, use_bias=False)])


def _loss(y, prediction):
  return 50.0 * (y[:, 0] - prediction[:, 0])


def _data():
  x = np.zeros((3, 4), np.float32)
  x[0, 0] = -1.0  # The canary; the others have no gradient there.
  x[1, 1] = x[2, 2] = 1.0
  return tf.constant(x), tf.zeros((3, 1))


def _private_steps(plan, x, y):
  model = _model()
  private = privatized(plan, model, tf.keras.optimizers.SGD(1.0), _loss)

  def moves(present):
    step = tf.function(lambda: private.train_step(
        (x, y, tf.constant([present, 1.0, 1.0]))))
    return _moves(step, model)

  return moves


def _drop_in_steps(plan, x, y):
  model = _model()
  optimizer = DPKerasSGDOptimizer.from_plan(plan, learning_rate=1.0)

  def moves(present):

    @tf.function
    def step():
      with tf.GradientTape() as tape:
        loss = _loss(y, model(x)) * tf.constant([present, 1.0, 1.0])
      optimizer.minimize(loss, model.trainable_variables, tape=tape)

    return _moves(step, model)

  return moves


@pytest.mark.parametrize('steps_of', [
    pytest.param(_private_steps, marks=pytest.mark.slow),
    pytest.param(_drop_in_steps, marks=pytest.mark.more)])
def test_an_audit_of_single_steps_refutes_halved_noise_and_not_the_claim(steps_of):
  claim = _plan(1.5).guarantee().upper
  honest, halved = (
      _lower_bound(moves(0.0), moves(1.0))
      for moves in (steps_of(_plan(sigma), *_data()) for sigma in (1.5, 0.75)))
  assert 0.3 * claim < honest <= claim
  assert halved > 1.2 * claim


_CANARIES = 2400
_BATCHES = 4


def _moved(noise_multiplier, epochs, correlation=None, rows=1):
  """Returns the moves of canaries' weights in each step, over the clipping norm.

  Each canary points along a weight of its own. Weights move independently, so that one
  run is as many trials as there are canaries. The first half of them take part. With
  several `rows`, each canary is a user of so many.
  """
  plan = plan_of(
      noise=tfcactus.Gaussian(noise_multiplier), l2_norm_clip=_CLIP,
      num_examples=_CANARIES, sampling_prob=1 / _BATCHES, steps=_BATCHES * epochs,
      delta=_DELTA, correlation=correlation, unit='example' if rows == 1 else 'user')
  model = tf.keras.Sequential([tf.keras.layers.Input((_CANARIES,)),
                               tf.keras.layers.Dense(1, use_bias=False)])
  private = privatized(
      plan, model, tf.keras.optimizers.SGD(plan.expected_batch_size / _CLIP), _loss)
  weights = [np.copy(model.get_weights()[0][:, 0])]

  class Watch(tf.keras.callbacks.Callback):

    def on_train_batch_end(self, batch, logs=None):
      weights.append(np.copy(model.get_weights()[0][:, 0]))

  data = (np.repeat(-np.eye(_CANARIES, dtype=np.float32), rows, 0),
          np.zeros((_CANARIES * rows, 1), np.float32))
  given = {'sample_weight': np.repeat([1.0, 0.0], _CANARIES // 2 * rows)}
  if rows > 1:
    given |= {'units': np.repeat(np.arange(_CANARIES), rows), 'examples_per_unit': rows}
  batches = (AllocatedBatches(*data, _BATCHES, **given) if correlation is None else
             CyclicBatches(*data, plan=plan, **given))
  private.fit(batches, epochs=epochs, verbose=0, callbacks=[Watch()])
  return -np.diff(weights, axis=0)


def _ratios(noise_multiplier, epochs=3, rows=1):
  """Returns the log likelihood ratio of each epoch and canary.

  The attacker knows everything but the canary's batch.
  """
  moved = _moved(noise_multiplier, epochs, rows=rows).reshape(
      epochs, _BATCHES, _CANARIES)
  mu = 1 / noise_multiplier
  return np.log(np.mean(np.exp(mu * moved * mu - 0.5 * mu**2), axis=1))


def _ratios_of_runs(noise_multiplier, correlation, epochs=3, rows=1):
  """Returns the log likelihood ratio of a whole run for each canary.

  The attacker inverts the correlation: C times the moves is independent noise plus the
  canary's column. The ratio is averaged over the groups and the batches of each epoch,
  and multiplied over the epochs.
  """
  matrix = correlation.matrix(_BATCHES * epochs)
  white = matrix @ _moved(noise_multiplier, epochs, correlation, rows)
  mu = 1 / noise_multiplier
  ratio = np.exp(mu**2 * (matrix.T @ white - 0.5 * np.sum(matrix**2, 0)[:, None]))
  visits = ratio.reshape(epochs, -1, correlation.bands, _CANARIES)
  return np.log(np.mean(np.prod(np.mean(visits, axis=1), axis=0), axis=0))


def _error_rates(ratio, threshold=0.25):
  """Returns upper bounds on the attack's error rates, at 99.99 % confidence."""
  half = _CANARIES // 2
  with_it, without = ratio[..., :half].ravel(), ratio[..., half:].ravel()
  return [audit.clopper_pearson(int(np.sum(wrong)), wrong.size,
                                   significance=2e-4).upper
          for wrong in (without > threshold, with_it <= threshold)]


def _claim(batches, noise_multiplier, epochs):
  """Returns the pair of epochs of random allocation."""
  accountant = accounting.PhiAccountant().compose(accounting.RandomAllocationDpEvent(
      batches, tfcactus.Gaussian(noise_multiplier).dp_event), epochs)
  return views.composed_pair(accountant, np.linspace(0, 4, 41))


def test_an_audit_of_allocated_batches_refutes_halved_noise_and_not_the_claim():
  claim = _claim(_BATCHES, 1.0, 1)
  # With the claimed noise no attack errs less than the trade-off function says. With
  # half of the noise this attack does.
  alarms, misses = _error_rates(_ratios(1.0))
  assert misses > views.tradeoff(claim, alarms)
  assert misses < 0.3 + views.tradeoff(claim, alarms)
  alarms, misses = _error_rates(_ratios(0.5))
  assert misses < 0.85 * views.tradeoff(claim, alarms)


def test_an_audit_of_correlated_runs_refutes_halved_noise_and_not_the_claim():
  strategy = correlated.BandedStrategy(2).solve(3 * _BATCHES)
  claim = _claim(_BATCHES // 2, 1.5, 3)
  alarms, misses = _error_rates(_ratios_of_runs(1.5, strategy), threshold=0.1)
  assert misses > views.tradeoff(claim, alarms)
  assert misses < 0.35 + views.tradeoff(claim, alarms)
  alarms, misses = _error_rates(_ratios_of_runs(0.75, strategy), threshold=0.1)
  assert misses < 0.85 * views.tradeoff(claim, alarms)


def _rows_as_units(monkeypatch):
  """Plants a fault: the rows of a user are clipped one by one, and summed."""
  run = private_step.Step.run
  monkeypatch.setattr(private_step.Step, 'run',
                      lambda self, *args, each=1: run(self, *args[:5]))


def test_an_audit_of_users_refutes_halved_noise_and_clipped_rows(monkeypatch):
  claim = _claim(_BATCHES, 1.0, 1)
  alarms, misses = _error_rates(_ratios(1.0, rows=2))
  assert views.tradeoff(claim, alarms) < misses < 0.3 + views.tradeoff(claim, alarms)
  alarms, misses = _error_rates(_ratios(0.5, rows=2))
  assert misses < 0.85 * views.tradeoff(claim, alarms)
  _rows_as_units(monkeypatch)
  alarms, misses = _error_rates(_ratios(1.0, rows=2))
  assert misses < 0.85 * views.tradeoff(claim, alarms)


@pytest.mark.more
def test_an_audit_of_users_under_correlated_noise(monkeypatch):
  strategy = correlated.BandedStrategy(2).solve(3 * _BATCHES)
  claim = _claim(_BATCHES // 2, 1.5, 3)

  def rates(sigma):
    return _error_rates(_ratios_of_runs(sigma, strategy, rows=2), threshold=0.1)

  alarms, misses = rates(1.5)
  assert views.tradeoff(claim, alarms) < misses < 0.35 + views.tradeoff(claim, alarms)
  alarms, misses = rates(0.75)
  assert misses < 0.85 * views.tradeoff(claim, alarms)
  _rows_as_units(monkeypatch)
  alarms, misses = rates(1.5)
  assert misses < 0.85 * views.tradeoff(claim, alarms)
