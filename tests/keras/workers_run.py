"""One worker of several, as a script: trains a small model, and tells what it has.

    python tests/keras/workers_run.py '{"case": "poisson", ...}'

with TF_CONFIG in the environment; without it, on one device.
"""

import json
import os
import sys

os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'

import numpy as np
import tensorflow as tf

import tfcactus
from tfcactus import correlated
from tfcactus import keras as private_keras
from tfcactus.keras import privatize
from tfcactus.keras import replicas

N = 60
X = np.random.default_rng(0).normal(size=(N, 6)).astype(np.float32)
Y = np.arange(N) % 3


def plan_of(noise=1e-3, prob=0.1, bands=None):
  return tfcactus.PrivacyPlan(
      noise=tfcactus.Gaussian(noise), l2_norm_clip=0.5, num_examples=N,
      sampling_prob=prob, steps=30, delta=1e-5,
      correlation=None if bands is None else correlated.BandedStrategy(bands).solve(24))


def batches_of(kind, plan, worker, workers, seed):
  if kind == 'parts':
    return private_keras.PoissonBatches(X[worker::workers], Y[worker::workers], 0.1,
                                        part_of=N)
  if kind == 'same parts':
    return private_keras.PoissonBatches(X[:N // 2], Y[:N // 2], 0.1, part_of=N)
  if kind == 'other data':
    return private_keras.PoissonBatches(X + worker, Y, 0.1)
  if kind == 'other kind':
    return (private_keras.PoissonBatches(X, Y, 0.1, steps_per_epoch=10) if worker else
            private_keras.FixedSizeBatches(X, Y, 6))
  return {
      'poisson': lambda: private_keras.PoissonBatches(X, Y, 0.1, seed=seed),
      'fixed': lambda: private_keras.FixedSizeBatches(X, Y, 6, seed=seed),
      'shuffled': lambda: private_keras.ShuffledBatches(X, Y, 6, seed=seed),
      'allocated': lambda: private_keras.AllocatedBatches(X, Y, 10, seed=seed),
      'cyclic': lambda: private_keras.CyclicBatches(X, Y, plan=plan, seed=seed)}[kind]()


class Announce(tf.keras.callbacks.Callback):
  """Tells of each step once it was released."""

  def on_train_batch_end(self, batch, logs=None):
    sys.stdout.write(f'released {self.model.releases}\n')
    sys.stdout.flush()


class Disturb(tf.keras.callbacks.Callback):
  """Does to a run what the case says, at its fourth step."""

  def __init__(self, how, journal, worker):
    super().__init__()
    self._how, self._journal, self._worker = how, journal, worker

  def on_train_batch_begin(self, batch, logs=None):
    if batch != 3:
      return
    if self._how == 'journal' and self._worker == 0:
      os.remove(self._journal)
    if self._how == 'weights' and self._worker == 1:
      model = self.model.inner
      model.set_weights([w + 1 for w in model.get_weights()])


def run(case):
  config = os.environ.get('TF_CONFIG')
  strategy = (tf.distribute.MultiWorkerMirroredStrategy() if config else
              tf.distribute.get_strategy())
  worker, workers = replicas.worker(strategy), replicas.workers(strategy)
  kind, seed = case.get('case', 'poisson'), case.get('seed')
  plan = plan_of(case.get('noise', 1e-3), case.get('prob', 0.1), case.get('bands'))
  tf.keras.utils.set_random_seed(1)
  with strategy.scope():
    model = privatize(
        tf.keras.Sequential([tf.keras.layers.Input((6,)),
                             tf.keras.layers.Dense(case.get('width', 5), 'relu'),
                             tf.keras.layers.Dense(3)]),
        plan, seed=seed, journal=case.get('journal'))
    model.compile(
        tf.keras.optimizers.SGD(0.3, 0.9),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True,
                                                      reduction='none'),
        metrics=['accuracy'])
  if case.get('load') and os.path.exists(case['load']):
    model.load_weights(case['load'])
  epsilon = private_keras.EpsilonCallback(target_epsilon=case.get('target'))
  callbacks = [epsilon, Disturb(case.get('disturb'), case.get('journal'), worker)]
  if case.get('announce'):
    callbacks.append(Announce())
  epochs = case.get('epochs', 2)
  history = model.fit(batches_of(kind, plan, worker, workers, seed), epochs=epochs,
                      verbose=0, callbacks=callbacks)
  return {'steps': model.releases, 'epochs': model.ledger().epochs,
          'sampling': model.ledger().sampling, 'worker': worker, 'workers': workers,
          'logs': {k: list(map(float, v)) for k, v in history.history.items()},
          'weights': [w.ravel().tolist() for w in model.inner.get_weights()]}


if __name__ == '__main__':
  try:
    found = run(json.loads(sys.argv[1]))
  except Exception as error:  # pylint: disable=broad-except
    found = {'error': f'{type(error).__name__}: {error}'}
  sys.stdout.write('\n' + json.dumps(found) + '\n')
  sys.stdout.flush()
  os._exit(0)  # What waits for others at exit has been told enough.
