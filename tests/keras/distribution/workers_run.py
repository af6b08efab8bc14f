"""Script of one worker: trains a small model, and prints a report.

    python tests/keras/workers_run.py '{"case": "poisson", ...}'

TF_CONFIG in the environment names the workers; without it the run is on one device.
"""

import hashlib
import json
import os
import resource
import sys

os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'

import numpy as np
import tensorflow as tf

import tfcactus
from tfcactus import correlated, keras as private_keras
from tfcactus.keras import privatize
from tfcactus.keras.distribution import replicas

N = 60
X = np.random.default_rng(0).normal(size=(N, 6)).astype(np.float32)
Y = np.arange(N) % 3


OPTIMIZERS = {
    'momentum': lambda: tf.keras.optimizers.SGD(0.3, 0.9),
    'plain': lambda: tf.keras.optimizers.SGD(1.0),
    'adam': lambda: tf.keras.optimizers.Adam(0.01, clipnorm=1.0),
    'rmsprop': lambda: tf.keras.optimizers.RMSprop(0.01)}


def plan_of(case):
  bands = case.get('bands')
  return tfcactus.PrivacyPlan(
      noise=tfcactus.Gaussian(case.get('noise', 1e-3)), l2_norm_clip=0.5,
      num_examples=N, sampling_prob=case.get('prob', 0.1), steps=case.get('steps', 30),
      delta=1e-5, arithmetic='integer' if case.get('whole') else 'float',
      correlation=None if bands is None else correlated.BandedStrategy(bands).solve(24),
      **(dict(adaptive_clipping=tfcactus.AdaptiveClipping(),
              noisy_accuracy=tfcactus.NoisyAccuracy()) if case.get('adaptive') else {}))


def model_of(case):
  tf.keras.utils.set_random_seed(1)
  dtype = case.get('dtype')
  return tf.keras.Sequential([
      tf.keras.layers.Input((6,)),
      tf.keras.layers.Dense(case.get('width', 5), 'relu', dtype=dtype),
      tf.keras.layers.LayerNormalization(dtype=dtype),
      tf.keras.layers.Dense(3, dtype='float32')])


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
  """Prints the number of steps after each release."""

  def on_train_batch_end(self, batch, logs=None):
    sys.stdout.write(f'released {self.model.released_steps}\n')
    sys.stdout.flush()


class Disturb(tf.keras.callbacks.Callback):
  """Disturbs a run at its fourth step, as the case says."""

  def __init__(self, how, journal, worker):
    super().__init__()
    self._how, self._journal, self._worker = how, journal, worker

  def on_train_batch_begin(self, batch, logs=None):
    if batch != 3:
      return
    if self._how == 'journal' and self._worker == 0:
      os.remove(self._journal)
    if self._how == 'full' and self._worker == 0:
      size = os.path.getsize(self._journal)  # No file may be longer from here on.
      resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    if self._how == 'weights' and self._worker == 1:
      model = self.model.inner
      model.set_weights([w + 1 for w in model.get_weights()])


def callbacks_of(case, worker):
  found = [private_keras.EpsilonCallback(target_epsilon=case.get('target')),
           Disturb(case.get('disturb'), case.get('journal'), worker)]
  if case.get('announce'):
    found.append(Announce())
  if case.get('backup'):
    found.append(tf.keras.callbacks.BackupAndRestore(case['backup']))
  return found


def run(case):
  config = os.environ.get('TF_CONFIG')
  strategy = (tf.distribute.MultiWorkerMirroredStrategy() if config else
              tf.distribute.get_strategy())
  worker, workers = replicas.worker(strategy), replicas.workers(strategy)
  kind, seed, plan = case.get('case', 'poisson'), case.get('seed'), plan_of(case)
  split = case.get('split', False)
  with strategy.scope():
    model = privatize(
        model_of(case), plan, seed=seed, journal=case.get('journal'),
        clipping=case.get('clipping', 'flat'),
        physical_batch_size=(case['rows'][worker] if 'rows' in case else None),
        split_noise=split if isinstance(split, bool) else worker in split)
    model.compile(
        OPTIMIZERS[case.get('optimizer', 'momentum')](),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True,
                                                      reduction='none'),
        metrics=['accuracy'])
  before = np.concatenate([w.ravel() for w in model.inner.get_weights()])
  history = model.fit(batches_of(kind, plan, worker, workers, seed),
                      epochs=case.get('epochs', 2), verbose=0,
                      steps_per_epoch=case.get('steps_per_epoch'),
                      callbacks=callbacks_of(case, worker))
  weights = [w.ravel() for w in model.inner.get_weights()]
  moved = plan.expected_batch_size / 0.5 * (np.concatenate(weights) - before)
  return {'steps': model.released_steps, 'epochs': model.ledger().epochs,
          'sampling': model.ledger().sampling, 'worker': worker, 'workers': workers,
          'logs': {k: list(map(float, v)) for k, v in history.history.items()},
          'moved': float(moved.std()),
          'digest': hashlib.sha256(np.concatenate(weights).tobytes()).hexdigest(),
          'condition': model.ledger().condition,
          'weights': [] if moved.size > 1000 else [w.tolist() for w in weights]}


if __name__ == '__main__':
  try:
    found = run(json.loads(sys.argv[1]))
  except Exception as error:  # pylint: disable=broad-except
    found = {'error': f'{type(error).__name__}: {error}'}
  sys.stdout.write('\n' + json.dumps(found) + '\n')
  sys.stdout.flush()
  os._exit(0)  # Does not wait for other workers at exit.
