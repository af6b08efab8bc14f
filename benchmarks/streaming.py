"""Measures time and memory of private training on data that do not fit into memory.

    python -m benchmarks.streaming --gigabytes 20 --directory /somewhere

Writes synthetic images to TFRecord files, trains on them for an epoch with random
allocation, and saves time, peak memory and epsilon. The files are deleted at the end.
"""

from __future__ import annotations

import os
import pathlib
import resource
import shutil
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np
import tensorflow as tf

from benchmarks import _results
import tfcactus
from tfcactus import _format, keras as private, sampling

LONG = 'it writes 20 GB'

SIDE = 256
FILES = 40
BATCH = 100


def write(directory: pathlib.Path, gigabytes: float) -> list:
  """Writes labelled images of noise, whose brightness depends on the label."""
  rng = np.random.default_rng(0)
  noise = rng.integers(0, 100, (64, SIDE, SIDE, 3), dtype=np.uint8)
  count = int(gigabytes * 1e9 / noise[0].size)
  files = [directory / f'{i:03}.tfrecord' for i in range(FILES)]
  for i, path in enumerate(files):
    with tf.io.TFRecordWriter(str(path)) as writer:
      for index in range(i, count, FILES):
        label = index % 10
        image = noise[index % 64] + np.uint8(15 * label)
        writer.write(bytes([label]) + image.tobytes())
  return files


def parse(record):
  """Returns the image and the label of a record."""
  data = tf.io.decode_raw(record, tf.uint8)
  data = tf.ensure_shape(data, (1 + SIDE * SIDE * 3,))
  return tf.reshape(data[1:], (SIDE, SIDE, 3)), tf.cast(data[0], tf.int64)


def train(examples: private.TFRecordExamples) -> dict:
  """Trains for an epoch; returns time, accuracy, and the guarantee."""
  layers = tf.keras.layers
  plan = tfcactus.PrivacyPlan.for_training(
      batch_size=BATCH, epochs=1, num_examples=examples.num_examples, delta=1e-6,
      l2_norm_clip=1.0, noise=tfcactus.Gaussian(1.0),
      sampling=sampling.RandomAllocationSampling)
  model = private.privatize(tf.keras.Sequential([
      layers.InputLayer((SIDE, SIDE, 3)), layers.Rescaling(1 / 255),
      layers.AveragePooling2D(32), layers.Flatten(), layers.Dense(10)]), plan)
  model.compile(tf.keras.optimizers.SGD(2.0),
                tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=['accuracy'])
  used = np.zeros(examples.num_examples, np.int8)
  rows = examples.rows

  def counted(index):
    used[index] += 1
    return rows(index)

  batches = private.AllocatedBatches(examples, batch_size=BATCH)
  examples.rows = counted
  start = time.time()
  history = model.fit(batches, verbose=2)
  seconds = time.time() - start
  guarantee = model.guarantee()
  assert guarantee == plan.guarantee(1, sampling=sampling.RandomAllocationSampling)
  return {'seconds': seconds, 'steps': model.released_steps,
          'accuracy': history.history['accuracy'][-1],
          'each_used_once': bool(np.all(used == 1)),
          'epsilon': guarantee.upper, 'statement': guarantee.statement}


def main() -> None:
  """Writes the data, trains, and writes the results and the table."""
  parser = _results.parser('streaming', __doc__)
  parser.add_argument('--gigabytes', type=float, default=20.0,
                      help='size of the images')
  parser.add_argument('--directory', default='runs/streaming',
                      help='folder of the files, which must not exist')
  args = parser.parse_args()
  directory = pathlib.Path(args.directory)
  directory.mkdir(parents=True)
  try:
    files = write(directory, args.gigabytes)
    size = sum(path.stat().st_size for path in files)
    start = time.time()
    examples = private.TFRecordExamples(files, parse)
    found = {'gigabytes': size / 1e9, 'num_examples': examples.num_examples,
             'seconds_to_find_records': time.time() - start, **train(examples),
             'peak_gigabytes': resource.getrusage(
                 resource.RUSAGE_SELF).ru_maxrss / 1e6}
  finally:
    shutil.rmtree(directory)
  _results.save('streaming', found)
  show(_results.load('streaming'))


def show(found: dict) -> None:
  """Writes the table from the results."""
  _results.show('streaming', _results.markdown(
      ['GB on disk', 'examples', 'steps', 'minutes', 'peak memory, GB',
       'each example used once', 'epsilon at delta 1e-6'],
      [[f'{found["gigabytes"]:.1f}', f'{found["num_examples"]:,}',
        str(found['steps']), f'{found["seconds"] / 60:.1f}',
        f'{found["peak_gigabytes"]:.2f}', 'yes' if found['each_used_once'] else 'no',
        _format.upper(found['epsilon'], 5)]]))


if __name__ == '__main__':
  main()
