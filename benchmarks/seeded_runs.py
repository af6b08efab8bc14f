"""One seeded training run, the same with every TensorFlow.

    python tests/matrix.py --each -m benchmarks.seeded_runs --record
    python -m benchmarks.seeded_runs

The first trains the tutorial CNN for 500 steps in each environment of the
matrix, from the same weights on the same samples, and records the clipped sums
of all steps and a digest of all noise. The second compares them with those of
the primary environment.

In float64, and in float32 for the first steps. The kernels of TensorFlow 2.21
round otherwise than those of 2.15, by 3e-6 of a sum in float32; but once such a
difference decides which entry is the maximum of a pool, a gradient goes another
way, and the runs part for a reason that is in neither this package nor Keras.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import platform

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np  # noqa: E402

from benchmarks import _results  # noqa: E402

STEPS, EXAMPLES, BATCH, SEED = 500, 2000, 64, 7
STEPS_FLOAT32 = 10
PRIMARY = 'py311-tf2.15'
RECORDS = pathlib.Path(os.environ.get(
    'SEEDED_RUNS', _results.RESULTS.parent.parent / 'runs' / 'seeded'))


def data():
  """Images with something in them to learn, from integers alone."""
  rng = np.random.default_rng(SEED)
  shapes = rng.integers(0, 2, (10, 7, 7))
  labels = rng.integers(0, 10, EXAMPLES)
  images = shapes[labels].repeat(4, axis=1).repeat(4, axis=2) * 2**15
  images += rng.integers(0, 2**15, images.shape)
  return (images[..., None] / 2**16).astype(np.float32), labels


def start(model):
  """Sets weights that do not depend on anybody's initialisers."""
  rng = np.random.default_rng(SEED)
  model.set_weights([
      (rng.integers(-1000, 1001, w.shape) / 1000 *
       (3 / np.prod(w.shape[:-1])) ** 0.5 * (w.ndim > 1)).astype(w.dtype)
      for w in model.get_weights()])


class Recorder:
  """Stands before a query, and records what goes through it.

  Attributes:
    sums: One flat float32 vector for each step.
    noise: Digest of all noise, in float64.
  """

  def __init__(self, query):
    self.sums = []
    self.noise = hashlib.sha256()
    self._release, self._draw = query.get_noised_result, query._sampler
    query.get_noised_result = self._released
    query._sampler = self._drawn

  def _released(self, sums, state):
    return self._release(self._kept(sums, self._add), state)

  def _drawn(self, *args, **kwargs):
    return self._kept(self._draw(*args, **kwargs), self._hash)

  def _add(self, *parts):
    self.sums.append(np.concatenate([part.ravel() for part in parts]))
    return np.int64(0)

  def _hash(self, *parts):
    for part in parts:
      self.noise.update(np.ascontiguousarray(part).tobytes())
    return np.int64(0)

  def _kept(self, parts, function):
    import tensorflow as tf
    with tf.control_dependencies([
        tf.numpy_function(function, list(parts), tf.int64)]):
      return [tf.identity(part) for part in parts]


def train(floatx, steps):
  """Trains; returns the model, what was recorded, and the accuracy."""
  import tensorflow as tf

  import tfcactus
  from tfcactus import keras as private
  from training import mnist
  tf.keras.backend.set_floatx(floatx)
  tf.keras.mixed_precision.set_global_policy(floatx)
  x, y = data()
  plan = tfcactus.PrivacyPlan(
      noise=tfcactus.Gaussian(1.0), l2_norm_clip=1.0, num_examples=EXAMPLES,
      sampling_prob=BATCH / EXAMPLES, steps=steps, delta=1e-5)
  inner = mnist.build_cnn('tanh')
  start(inner)
  model = private.privatize(inner, plan, seed=SEED)
  recorder = Recorder(model._step._query)
  model.compile(tf.keras.optimizers.SGD(0.25, momentum=0.5),
                tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=['accuracy'])
  batches = private.PoissonBatches(
      x, y, sampling_prob=plan.sampling_prob, steps_per_epoch=steps, seed=SEED)
  history = model.fit(batches, verbose=0).history
  return model, recorder, history['accuracy'][-1]


def record():
  """Trains, and writes what happened."""
  import keras
  import tensorflow as tf
  name = os.environ.get('MATRIX_ENVIRONMENT', PRIMARY)
  RECORDS.mkdir(parents=True, exist_ok=True)
  _, short, _ = train('float32', STEPS_FLOAT32)
  model, recorder, accuracy = train('float64', STEPS)
  np.savez(RECORDS / f'{name}.npz', float32=np.stack(short.sums),
           float64=np.stack(recorder.sums))
  result = {
      'python': platform.python_version(), 'tensorflow': tf.__version__,
      'keras': keras.__version__, 'numpy': np.__version__,
      'steps': len(recorder.sums), 'noise': recorder.noise.hexdigest(),
      'epsilon': float(model.guarantee().upper), 'accuracy': accuracy}
  (RECORDS / f'{name}.json').write_text(json.dumps(result))
  print(name, result)


def compare():
  """Compares all records with the primary one; saves and shows a table."""
  names = sorted(path.stem for path in RECORDS.glob('*.json'))
  found = {name: json.loads((RECORDS / f'{name}.json').read_text())
           for name in names}
  want = np.load(RECORDS / f'{PRIMARY}.npz')
  for name, result in found.items():
    got = np.load(RECORDS / f'{name}.npz')
    for kind in want:
      # In units of the clip norm, which is what one example may change.
      result[f'{kind}_sums_differ_by'] = float(
          np.linalg.norm(got[kind] - want[kind], axis=1).max())
    result['same_noise'] = result['noise'] == found[PRIMARY]['noise']
  _results.save('seeded_runs', {
      'steps': STEPS, 'steps_float32': STEPS_FLOAT32, 'batch': BATCH,
      'examples': EXAMPLES, 'seed': SEED,
      'sums_differ_by': 'largest l2 norm over the steps, of the difference to '
      f'{PRIMARY}, in units of the clip norm', 'environments': found})
  _results.show('seeded_runs', _results.markdown(
      ['Python', 'TensorFlow', 'Keras', 'numpy', 'sums, float64',
       f'float32, {STEPS_FLOAT32} steps', 'noise', 'epsilon'],
      [[r['python'], r['tensorflow'], r['keras'], r['numpy'],
        f'{r["float64_sums_differ_by"]:.1e}',
        f'{r["float32_sums_differ_by"]:.1e}',
        f'`{r["noise"][:8]}`' + ('' if r['same_noise'] else ' DIFFERS'),
        f'{r["epsilon"]:.10f}'] for r in found.values()]))


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--record', action='store_true',
                      help='train here; without, compare the records')
  args = parser.parse_args()
  if args.record:
    import importlib.util
    if importlib.util.find_spec('tensorflow'):
      record()
  else:
    compare()


if __name__ == '__main__':
  main()
