"""An audit of whole training steps: a canary's gradient, in or out.

The canary points along one weight. Whoever knows all else sees its weight move
by noise alone, or by noise and the clip norm. The likelihood-ratio test between
the two is a threshold. Its error rates, bounded by Clopper and Pearson, refute
every noise multiplier whose trade-off curve (that of two normals) lies above
them, and so bound from below the epsilon of Gaussian noise. An audit can refute
a claim and never prove one.
"""

import numpy as np
import pytest
import tensorflow as tf

import tfcactus
from tfcactus import accounting, correlated
from tfcactus.accounting import auditing, views
from tfcactus.keras import (
  AllocatedBatches,
  CyclicBatches,
  DPKerasSGDOptimizer,
  privatize,
)

_DELTA = 1e-3
_TRIALS = 1500
_CLIP = 0.7


def _lower_bound(without, with_canary):
  """Epsilon of Gaussian noise that is refuted at 99.99 % confidence."""
  threshold = 0.5 * _CLIP / 3  # Known before: halfway to where it would move.
  alarms = np.sum(without > threshold)
  misses = np.sum(with_canary <= threshold)
  return _plan(auditing.gaussian_noise_upper_bound(
      alarms, misses, _TRIALS, significance=1e-4)).guarantee().lower


def _plan(noise_multiplier):
  return tfcactus.PrivacyPlan(
      noise=tfcactus.Gaussian(noise_multiplier), l2_norm_clip=_CLIP,
      num_examples=3, sampling_prob=1.0, steps=1, delta=_DELTA)


def _moves(step, model):
  """How far the canary's weight moves in one step, over and over."""
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
  private = privatize(model, plan)
  private.compile(tf.keras.optimizers.SGD(1.0), _loss)

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
    pytest.param(_private_steps, marks=pytest.mark.slow), _drop_in_steps])
def test_a_canary_is_as_hidden_as_claimed_and_halved_noise_is_caught(steps_of):
  claim = _plan(1.5).guarantee().upper
  honest, halved = (
      _lower_bound(moves(0.0), moves(1.0))
      for moves in (steps_of(_plan(sigma), *_data()) for sigma in (1.5, 0.75)))
  assert 0.3 * claim < honest <= claim
  assert halved > 1.2 * claim


_CANARIES = 2400
_BATCHES = 4


def _moved(noise_multiplier, epochs, correlation=None):
  """How far the weights of canaries move in each step of a run, over the clip norm.

  Each canary points along a weight of its own, so that what its weight does is
  independent of all others: one run is as many trials as there are canaries. The
  first half of them take part.
  """
  plan = tfcactus.PrivacyPlan(
      noise=tfcactus.Gaussian(noise_multiplier), l2_norm_clip=_CLIP,
      num_examples=_CANARIES, sampling_prob=1 / _BATCHES, steps=_BATCHES * epochs,
      delta=_DELTA, correlation=correlation)
  model = tf.keras.Sequential([tf.keras.layers.Input((_CANARIES,)),
                               tf.keras.layers.Dense(1, use_bias=False)])
  private = privatize(model, plan)
  private.compile(tf.keras.optimizers.SGD(plan.expected_batch_size / _CLIP), _loss)
  weights = [np.copy(model.get_weights()[0][:, 0])]

  class Watch(tf.keras.callbacks.Callback):

    def on_train_batch_end(self, batch, logs=None):
      weights.append(np.copy(model.get_weights()[0][:, 0]))

  data = (-np.eye(_CANARIES, dtype=np.float32),
          np.zeros((_CANARIES, 1), np.float32))
  weighted = {'sample_weight': np.repeat([1.0, 0.0], _CANARIES // 2)}
  batches = (AllocatedBatches(*data, _BATCHES, **weighted) if correlation is None else
             CyclicBatches(*data, plan=plan, **weighted))
  private.fit(batches, epochs=epochs, verbose=0, callbacks=[Watch()])
  return -np.diff(weights, axis=0)


def _ratios(noise_multiplier, epochs=3):
  """log likelihood ratios of each epoch; the attack knows all but a canary's batch."""
  moved = _moved(noise_multiplier, epochs).reshape(epochs, _BATCHES, _CANARIES)
  mu = 1 / noise_multiplier
  return np.log(np.mean(np.exp(mu * moved * mu - 0.5 * mu**2), axis=1))


def _ratios_of_runs(noise_multiplier, correlation, epochs=3):
  """log likelihood ratios of whole runs, all that a canary takes part in together.

  The attack takes the correlation back: C times what moved is what the canary's
  column adds to independent noise. It averages over the groups, over the batches of
  each epoch, and multiplies over the epochs.
  """
  matrix = correlation.matrix(_BATCHES * epochs)
  white = matrix @ _moved(noise_multiplier, epochs, correlation)
  mu = 1 / noise_multiplier
  ratio = np.exp(mu**2 * (matrix.T @ white - 0.5 * np.sum(matrix**2, 0)[:, None]))
  visits = ratio.reshape(epochs, -1, correlation.bands, _CANARIES)
  return np.log(np.mean(np.prod(np.mean(visits, axis=1), axis=0), axis=0))


def _error_rates(ratio, threshold=0.25):
  """Upper ends of the rates at which the attack errs, at 99.99 % confidence."""
  half = _CANARIES // 2
  with_it, without = ratio[..., :half].ravel(), ratio[..., half:].ravel()
  return [auditing.clopper_pearson(int(np.sum(wrong)), wrong.size,
                                   significance=2e-4).upper
          for wrong in (without > threshold, with_it <= threshold)]


def test_canaries_in_allocated_batches_are_as_hidden_as_claimed():
  accountant = accounting.PhiAccountant().compose(accounting.RandomAllocationDpEvent(
      _BATCHES, tfcactus.Gaussian(1.0).dp_event))
  claim = views.composed_pair(accountant, np.linspace(0, 4, 41))
  # With the noise that is claimed no attack errs less than the trade-off says, and
  # with half of it this one does.
  alarms, misses = _error_rates(_ratios(1.0))
  assert misses > views.tradeoff(claim, alarms)
  assert misses < 0.3 + views.tradeoff(claim, alarms)
  alarms, misses = _error_rates(_ratios(0.5))
  assert misses < 0.85 * views.tradeoff(claim, alarms)


def test_canaries_of_whole_correlated_runs_are_as_hidden_as_claimed():
  strategy = correlated.BandedStrategy(2).solve(3 * _BATCHES)
  accountant = accounting.PhiAccountant().compose(accounting.RandomAllocationDpEvent(
      _BATCHES // 2, tfcactus.Gaussian(1.5).dp_event), 3)
  claim = views.composed_pair(accountant, np.linspace(0, 4, 41))
  alarms, misses = _error_rates(_ratios_of_runs(1.5, strategy), threshold=0.1)
  assert misses > views.tradeoff(claim, alarms)
  assert misses < 0.35 + views.tradeoff(claim, alarms)
  alarms, misses = _error_rates(_ratios_of_runs(0.75, strategy), threshold=0.1)
  assert misses < 0.85 * views.tradeoff(claim, alarms)
