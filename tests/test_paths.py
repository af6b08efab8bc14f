"""Paths through the code are short: the files from a user's call to where it is done.

A path is a chain of calls, file by file, without the frames of TensorFlow and Keras.
Calls beside it that come back with a result do not count.
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
  """Returns a frame's file below tfcactus/, or None."""
  try:
    return pathlib.Path(frame.f_code.co_filename).relative_to(ROOT).as_posix()
  except ValueError:
    return None


def paths_to(run, arrivals):
  """Returns, for each arrival, the files on the first chain of calls that leads there.

  Args:
    run: A function.
    arrivals: A mapping from names of paths to functions (file, name of a function) ->
      whether the path ends there.
  """
  chains = {}

  def look(frame, event, unused_arg):
    file = file_of(frame) if event == 'call' else None
    if not file:
      return
    for name, arrived in arrivals.items():
      if name not in chains and arrived(file, frame.f_code.co_name):
        chains[name] = files_of_callers(frame)

  sys.setprofile(look)
  try:
    run()
  finally:
    sys.setprofile(None)
  assert chains.keys() == arrivals.keys(), 'a path leads nowhere'
  return chains


def files_of_callers(frame):
  """Returns the files of a frame and its callers, the outermost first."""
  chain = []
  while frame is not None:
    file = file_of(frame)
    if file and chain[-1:] != [file]:
      chain.append(file)
    frame = frame.f_back
  return chain[::-1]


def _paths_of_fit():
  """Returns the paths of one epoch of `fit` with noise from a table and a callback."""
  table = tfcactus.RadialTable.normalized(
      8, 0.25, 0.25, [-0.8 * i for i in range(12)], -1.0)
  model = ours.privatize(
      tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(2)]),
      tfcactus.PrivacyPlan(noise=table, **PLAN))
  model.compile('sgd', tf.keras.losses.SparseCategoricalCrossentropy(
      from_logits=True, reduction='none'))
  batches = ours.PoissonBatches(
      np.zeros((40, 3), np.float32), np.zeros(40, np.int64), 0.25)
  return paths_to(
      lambda: model.fit(batches, verbose=0, callbacks=[ours.EpsilonCallback()]), {
          'clipped sum': lambda file, name: (
              file == 'keras/gradients/clipping.py' and name.startswith('clip')),
          'noise': lambda file, _: file == 'keras/noise/random_bits.py',
          'pairs': lambda file, _: file.startswith('pairs/')})


def check(path, most):
  """Checks that a path has few files and enters each of them once."""
  assert len(path) <= most and len(set(path)) == len(path), path


@pytest.mark.more
def test_the_paths_of_a_fit_are_short():
  paths = _paths_of_fit()
  path = paths['clipped sum']
  assert path[0] == 'keras/model.py'
  check(path, 12)

  path = paths['pairs']
  check(path[path.index('keras/callbacks.py'):], 9)

  plan = tfcactus.PrivacyPlan(noise=tfcactus.Gaussian(2.0), **PLAN)
  # A search for the noise multiplier calls this, and gets an epsilon back.
  settled = paths_to(plan.guarantee, {
      'budget': lambda file, name: name == 'epsilon_bounds'})['budget']
  drawn = paths['noise']
  assert settled[0] == 'plan.py' and 'keras/noise/noise_addition.py' in drawn
  check(settled + drawn, 10)
