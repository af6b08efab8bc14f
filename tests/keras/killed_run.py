"""Script of a run to be killed.

    python -m tests.keras.killed_run DIRECTORY [poisson | allocated | cyclic]

It writes a line to DIRECTORY/log for each epoch, for each draw of noise, and for each
released update.
"""

import hashlib
import os
import pathlib
import sys
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np
import tensorflow as tf

from tests.keras.tiny import inner, MEAN, plan_of, X, Y
from tfcactus import correlated, keras as private
from tfcactus.randomness import KeyStream


def plan(kind='poisson'):
  return plan_of(
      steps=100_000,
      correlation=correlated.BandedStrategy(2) if kind == 'cyclic' else None)


def main(directory, kind='poisson'):
  folder = pathlib.Path(directory)
  log = os.open(folder / 'log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
  normals = KeyStream.normals

  def watched(self, count):
    values = normals(self, count)
    digest = hashlib.sha256(values.tobytes()).hexdigest()
    os.write(log, f'noise {digest}\n'.encode())
    return values

  KeyStream.normals = watched
  model = private.privatize(inner(), plan(kind), journal=folder / 'journal')
  os.write(log, f'counted {model.released_steps}\n'.encode())

  class Log(tf.keras.callbacks.Callback):

    def on_epoch_begin(self, epoch, logs=None):
      os.write(log, b'epoch\n')

    def on_train_batch_end(self, batch, logs=None):
      weights = self.model.inner.get_weights()
      assert all(np.all(np.isfinite(w)) for w in weights)
      os.write(log, b'released\n')
      time.sleep(0.002)

  model.compile('sgd', MEAN)
  batches = {
      'poisson': lambda: private.PoissonBatches(X, Y, 0.25, steps_per_epoch=50),
      'allocated': lambda: private.AllocatedBatches(X, Y, num_batches=4),
      'cyclic': lambda: private.CyclicBatches(X, Y, plan=model.plan)}
  model.fit(batches[kind](), epochs=10_000, verbose=0, callbacks=[Log()])


if __name__ == '__main__':
  main(*sys.argv[1:])
