"""Memory that physical batches take, beside what their size was chosen by.

    python -m benchmarks.step_memory

Each model takes steps in processes of their own, by the physical batch that is chosen
for a draw of 256 examples and by a quarter of it. The difference of the most memory
that they ever held, divided by that of their rows, is what a row takes; what they hold
without any row is no matter of rows.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

from benchmarks import _results  # noqa: E402

MODELS = ('CNN of the MNIST tutorial', 'VGG-like, dropout',
          'ResNet-20, GroupNormalization', 'WRN-16-4', 'DenseNet-like',
          'Vision transformer', 'LSTM of a text')

DRAW, STEPS = 256, 4

QUICK = ('--only', 'CNN of the MNIST tutorial')


def run(name, rows):
  """What steps of a model take, in this process; its own rows where none are given."""
  import tensorflow as tf

  from tests.keras import zoo
  from tests.keras.zoo.base import Size
  import tfcactus
  from tfcactus import keras as private_keras
  from tfcactus.keras.gradients import layer_routes, physical_batch

  case = zoo.ZOO[name].make(Size(DRAW, real=True))
  plan = tfcactus.PrivacyPlan(
      noise=tfcactus.Gaussian(1.0), l2_norm_clip=1.0, num_examples=DRAW,
      sampling_prob=1.0, steps=100, delta=1e-5)
  model = private_keras.privatize(case.model, plan, physical_batch_size=rows)
  model.compile(tf.keras.optimizers.SGD(0.01), case.loss)
  seconds = []

  class Clock(tf.keras.callbacks.Callback):

    def on_train_batch_begin(self, batch, logs=None):
      seconds.append(-time.process_time())

    def on_train_batch_end(self, batch, logs=None):
      seconds[-1] += time.process_time()

  model.fit(private_keras.FixedSizeBatches(case.x, case.y, DRAW, steps_per_epoch=STEPS),
            verbose=0, callbacks=[Clock()])
  return {
      'rows': model.physical_batch_size,
      'counted': 4 / 2**20 * physical_batch.numbers_per_example(
          case.model, layer_routes.routes(case.model)),
      'most': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
      'ms_an_example': 1e3 * min(seconds[1:]) / DRAW}


def measured(name, rows=None):
  """What a process of its own says of a model."""
  command = [sys.executable, '-m', 'benchmarks.step_memory', '--serve', name]
  out = subprocess.run(command + ([] if rows is None else ['--rows', str(rows)]),
                       check=True, capture_output=True, text=True).stdout
  return json.loads(out.splitlines()[-1])


def show(found):
  """Writes the table, from the results."""
  _results.show('step_memory', _results.markdown(
      ['model', 'rows at once', 'MB a row, counted', 'measured', 'MB at most',
       'CPU ms an example', 'by a quarter of the rows'],
      [[name, str(whole['rows']), f'{whole["counted"]:.2f}',
        f'{each["megabytes_a_row"]:.2f}', f'{whole["most"]:,.0f}',
        f'{whole["ms_an_example"]:.2f}', f'{each["quarter"]["ms_an_example"]:.2f}']
       for name, each in found.items() for whole in [each['chosen']]]))


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--serve', help='one model, in this process alone')
  parser.add_argument('--rows', type=int, default=None)
  parser.add_argument('--only', nargs='*', choices=MODELS,
                      help='models to measure, without writing anything')
  args = parser.parse_args()
  if args.serve:
    print(json.dumps(run(args.serve, args.rows)))
    return
  found = {}
  for name in args.only or MODELS:
    whole = measured(name)
    part = measured(name, max(1, whole['rows'] // 4))
    found[name] = {
        'chosen': whole, 'quarter': part,
        'megabytes_a_row': (whole['most'] - part['most']) / (
            whole['rows'] - part['rows'])}
    print(name, found[name], flush=True)
  if args.only:
    return
  _results.save('step_memory', found)
  show(found)


if __name__ == '__main__':
  main()
