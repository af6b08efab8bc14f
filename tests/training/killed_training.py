"""A training run to kill: python -m tests.training.killed_training LOG LINES OPTIONS.

Trains a linear model in place of the CNN. Writes a line to the log for each released
update, and a line with a digest of the weights for each saved epoch. Waits to be killed
at an update, once the log has so many lines.
"""

import hashlib
import itertools
import os
import sys
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import tensorflow as tf

from training import checkpoints, mnist, networks


def linear(*args, **kwargs):
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.InputLayer((28, 28, 1)), layers.AveragePooling2D(7), layers.Flatten(),
      layers.Dense(10)])


def digest(model):
  """Returns a digest of the weights of a private model."""
  return hashlib.sha256(b''.join(
      weights.tobytes() for weights in model.inner.get_weights())).hexdigest()


def main(path, lines, *arguments):
  log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
  written = itertools.count(1)

  class Logged(checkpoints.Saving):

    def on_train_batch_end(self, batch, logs=None):
      os.write(log, b'released\n')
      if next(written) >= int(lines):
        time.sleep(300)

    def on_epoch_end(self, epoch, logs=None):
      super().on_epoch_end(epoch, logs)
      os.write(log, f'saved {digest(self.model)}\n'.encode())
      next(written)

  checkpoints.Saving, networks.build = Logged, linear
  sys.exit(mnist.main(arguments))


if __name__ == '__main__':
  main(*sys.argv[1:])
