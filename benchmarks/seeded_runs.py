"""Compares a seeded training run between all supported versions of TensorFlow.

    python tests/matrix.py --each -m benchmarks.seeded_runs --record
    python -m benchmarks.seeded_runs

The first command trains for 500 steps in each environment of the matrix, with equal
initial weights and samples. It records the clipped sums of all steps and a digest of
all noise. The second command compares the records with the primary environment's.

The tutorial CNN is trained in float64 and in float32, and in float32 with average
pooling in place of max pooling. Kernels of different TensorFlow versions round the last
digits of float32 differently. If such a difference decides which entry is the maximum
of a pool, a whole gradient takes another path. The run with max pooling therefore
diverges at some step, and the run with average pooling does not. A control shows that
neither Keras nor tfcactus is the cause: the primary environment against itself with
other kernels (without oneDNN).
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import pathlib
import platform
import subprocess
import sys

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np  # noqa: E402

from benchmarks import _results  # noqa: E402
from tfcactus import _format  # noqa: E402

LONG = 'it compares what several environments recorded'

STEPS, EXAMPLES, BATCH, SEED = 500, 2000, 64, 7
PRIMARY = 'py311-tf2.15'
CONTROL = f'{PRIMARY}-other-kernels'
TOLERANCE = 1e-5
RUNS = {
    'float64': ('float64', 'MaxPooling2D'),
    'float32': ('float32', 'MaxPooling2D'),
    'float32_averages': ('float32', 'AveragePooling2D'),
}
"""Float type and class of pooling layers, by name of the run."""

RECORDS = pathlib.Path(os.environ.get(
    'SEEDED_RUNS', _results.KEPT.parent.parent / 'runs' / 'seeded'))


def data():
  """Returns images and labels to learn from, computed exactly from integers."""
  rng = np.random.default_rng(SEED)
  shapes = rng.integers(0, 2, (10, 7, 7))
  labels = rng.integers(0, 10, EXAMPLES)
  images = shapes[labels].repeat(4, axis=1).repeat(4, axis=2) * 2**15
  images += rng.integers(0, 2**15, images.shape)
  return (images[..., None] / 2**16).astype(np.float32), labels


def start(model):
  """Sets initial weights that do not depend on the initializers of Keras."""
  rng = np.random.default_rng(SEED)
  model.set_weights([
      (rng.integers(-1000, 1001, w.shape) / 1000 *
       (3 / np.prod(w.shape[:-1])) ** 0.5 * (w.ndim > 1)).astype(w.dtype)
      for w in model.get_weights()])


class Recorder:
  """Records the clipped sums and the noise that pass through a `NoiseSampler`.

  Attributes:
    sums: The clipped sum of each step, as a flat vector.
    noise: Digest of all float64 noise.
  """

  def __init__(self, sampler):
    self.sums = []
    self.noise = hashlib.sha256()
    self._sample, self._noisy = sampler._sample, sampler._noisy
    sampler._sample = self._drawn
    sampler._noisy = self._added

  def _drawn(self, *args):
    noise = self._sample(*args)
    self.noise.update(noise.tobytes())
    return noise

  def _added(self, dtypes, draw, sums, *args):
    self.sums.append(np.concatenate([part.ravel() for part in sums]))
    return self._noisy(dtypes, draw, sums, *args)


def build(pools):
  """Returns the tutorial CNN with pooling layers of the class named `pools`."""
  import tensorflow as tf

  from training import networks
  layers = [
      getattr(tf.keras.layers, pools)(layer.pool_size, layer.strides)
      if isinstance(layer, tf.keras.layers.MaxPooling2D) else layer
      for layer in networks.cnn('tanh').layers]
  model = tf.keras.Sequential([tf.keras.layers.InputLayer((28, 28, 1)), *layers])
  start(model)
  return model


def train(floatx, pools):
  """Trains; returns the model, its recorder and the accuracy."""
  import tensorflow as tf

  import tfcactus
  from tfcactus import keras as private
  tf.keras.backend.set_floatx(floatx)
  tf.keras.mixed_precision.set_global_policy(floatx)
  x, y = data()
  plan = tfcactus.PrivacyPlan(
      noise=tfcactus.Gaussian(1.0), l2_norm_clip=1.0, num_examples=EXAMPLES,
      sampling_prob=BATCH / EXAMPLES, steps=STEPS, delta=1e-5)
  model = private.privatize(build(pools), plan, seed=SEED)
  recorder = Recorder(model._step._sampler)
  model.compile(tf.keras.optimizers.SGD(0.25, momentum=0.5),
                tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=['accuracy'])
  batches = private.PoissonBatches(
      x, y, sampling_prob=plan.sampling_prob, steps_per_epoch=STEPS, seed=SEED)
  history = model.fit(batches, verbose=0).history
  return model, recorder, history['accuracy'][-1]


def record():
  """Trains all runs, and writes their records; does nothing without TensorFlow."""
  if importlib.util.find_spec('tensorflow') is None:
    return
  import tensorflow as tf

  from tfcactus.keras.compat import versions
  name = os.environ.get('MATRIX_ENVIRONMENT', PRIMARY)
  RECORDS.mkdir(parents=True, exist_ok=True)
  sums, runs = {}, {}
  for run, (floatx, pools) in RUNS.items():
    model, recorder, accuracy = train(floatx, pools)
    sums[run] = np.stack(recorder.sums)
    runs[run] = {'noise': recorder.noise.hexdigest(), 'accuracy': accuracy,
                 'epsilon': float(model.guarantee().upper)}
  np.savez(RECORDS / f'{name}.npz', **sums)
  result = {
      'python': platform.python_version(), 'tensorflow': tf.__version__,
      'keras': versions.KERAS_VERSION, 'numpy': np.__version__, 'runs': runs}
  (RECORDS / f'{name}.json').write_text(json.dumps(result))
  print(name, result)
  if name == PRIMARY:
    subprocess.run(
        [sys.executable, '-m', 'benchmarks.seeded_runs', '--record'], check=True,
        env={**os.environ, 'MATRIX_ENVIRONMENT': CONTROL,
             'TF_ENABLE_ONEDNN_OPTS': '0'})


def parted(differences):
  """Returns the number of steps for which two runs agree, as text."""
  steps = np.flatnonzero(differences > TOLERANCE)
  if not len(steps):
    return 'all steps'
  return f'{steps[0]} steps (then up to {differences.max():.0e})'


def compare():
  """Compares all records with the primary one; saves and shows a table."""
  found = {path.stem: json.loads(path.read_text())
           for path in RECORDS.glob('*.json')}
  by_version = lambda name: [int(part) for key in ('tensorflow', 'python')
                             for part in found[name][key].split('.')]
  found = {name: found[name] for name in sorted(found, key=lambda name: (
      not name.startswith(PRIMARY), by_version(name), name))}
  want = np.load(RECORDS / f'{PRIMARY}.npz')
  rows = []
  for name, result in found.items():
    got = np.load(RECORDS / f'{name}.npz')
    by = {kind: np.linalg.norm(got[kind] - want[kind], axis=1) /
          np.linalg.norm(want[kind], axis=1) for kind in RUNS}
    for kind, run in result['runs'].items():
      run['steps_alike'] = int(np.sum(np.cumsum(by[kind] > TOLERANCE) == 0))
      run['sums_differ_by'] = float(by[kind].max())
    noise = {run['noise'] for run in result['runs'].values()}
    same = noise == {found[PRIMARY]['runs']['float64']['noise']}
    rows.append([
        result['python'], result['tensorflow'] + (
            ' without oneDNN' if name == CONTROL else ''),
        result['keras'], result['numpy'],
        *(f'{by[kind].max():.0e}' if by[kind].any() else '0'
          for kind in ('float64', 'float32_averages')),
        parted(by['float32']),
        f'`{min(noise)[:8]}`' + ('' if same else ' DIFFERS'),
        _format.upper(result["runs"]["float32"]["epsilon"], 11)])
  _results.save('seeded_runs', {
      'steps': STEPS, 'batch': BATCH, 'examples': EXAMPLES, 'seed': SEED,
      'tolerance': TOLERANCE,
      'sums_differ_by': 'largest over the steps, of the l2 norm of the '
      f'difference to {PRIMARY}, divided by the l2 norm of the sum',
      'steps_alike': 'before the first that differs by more than the tolerance',
      'environments': found})
  _results.show('seeded_runs', _results.markdown(
      ['Python', 'TensorFlow', 'Keras', 'numpy', 'float64',
       'float32, average pools', 'float32, max pools, within 1e-5 for', 'noise',
       'epsilon'], rows))


def main():
  """Records the runs of this environment, or compares all records."""
  parser = _results.parser('seeded_runs', __doc__)
  parser.add_argument('--record', action='store_true',
                      help='train and record in this environment; without this option '
                      'all records are compared')
  if parser.parse_args().record:
    record()
  else:
    compare()


if __name__ == '__main__':
  main()
