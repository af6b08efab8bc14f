"""How many files a reader follows, from what is asked to where it is done.

A path is the chain of calls that leads there, file by file, TensorFlow's and Keras'
frames left out. What a file on it asks of others beside it comes back as a result.
"""

import os
import pathlib
import sys

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import numpy as np
import pytest

pytest.importorskip('tensorflow')

import tensorflow as tf

import tfcactus
from tfcactus import keras as ours

ROOT = pathlib.Path(tfcactus.__file__).parent
PLAN = dict(l2_norm_clip=1.0, num_examples=40, sampling_prob=0.25, steps=8,
            delta=1e-5)


def file_of(frame):
  """A frame's file below tfcactus/, or None."""
  try:
    return pathlib.Path(frame.f_code.co_filename).relative_to(ROOT).as_posix()
  except ValueError:
    return None


def path_to(run, arrived):
  """The files on the first chain of calls of `run` that has arrived.

  Args:
    run: A function.
    arrived: (file, name of a function) -> whether it is where the path leads.
  """
  chains = []

  def look(frame, event, unused_arg):
    if event != 'call' or chains or not file_of(frame) or not arrived(
        file_of(frame), frame.f_code.co_name):
      return
    chain = []
    while frame is not None:
      file = file_of(frame)
      if file and chain[-1:] != [file]:
        chain.append(file)
      frame = frame.f_back
    chains.append(chain[::-1])

  sys.setprofile(look)
  try:
    run()
  finally:
    sys.setprofile(None)
  assert chains, 'the path leads nowhere'
  return chains[0]


def training(noise=None, callbacks=()):
  """A function that fits a small private model for an epoch."""
  model = ours.privatize(
      tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(2)]),
      tfcactus.PrivacyPlan(noise=noise or tfcactus.Gaussian(2.0), **PLAN))
  model.compile('sgd', tf.keras.losses.SparseCategoricalCrossentropy(
      from_logits=True, reduction='none'))
  batches = ours.PoissonBatches(
      np.zeros((40, 3), np.float32), np.zeros(40, np.int64), 0.25)
  return lambda: model.fit(batches, verbose=0, callbacks=list(callbacks))


def check(path, most):
  """A path of few files, none of which is come back to."""
  assert len(path) <= most and len(set(path)) == len(path), path


def test_fit_to_clipped_sum():
  path = path_to(training(), lambda file, name: (
      file == 'keras/gradients/clipping.py' and name.startswith('clip')))
  assert path[0] == 'keras/model.py'
  check(path, 12)


def test_budget_to_noise_in_a_step():
  plan = tfcactus.PrivacyPlan(noise=tfcactus.Gaussian(2.0), **PLAN)
  # A search for the noise multiplier asks this, and gets an epsilon back.
  settled = path_to(plan.guarantee, lambda file, name: name == 'epsilon_bounds')
  drawn = path_to(training(), lambda file, _: file == 'keras/noise/random_bits.py')
  assert settled[0] == 'plan.py' and 'keras/noise/noise_addition.py' in drawn
  check(settled + drawn, 10)


def test_table_to_epsilon_in_a_callback():
  table = tfcactus.RadialTable.normalized(
      8, 0.25, 0.25, [-0.8 * i for i in range(12)], -1.0)
  path = path_to(training(table, [ours.EpsilonCallback()]),
                 lambda file, _: file.startswith('pairs/'))
  check(path[path.index('keras/callbacks.py'):], 9)
