"""Measures memory per example of a physical batch, against the estimate of tfcactus.

    python -m benchmarks.step_memory

tfcactus chooses the size of physical batches from an estimate of the memory per
example. Each model is trained in two child processes, on samples of 256 examples: with
the chosen physical batch size, and with a quarter of it. The memory per example is the
difference of their peak memories divided by the difference of the sizes, so that memory
which does not depend on the size cancels.
"""

from __future__ import annotations

import json
import os
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np  # noqa: E402

from benchmarks import _processes, _results  # noqa: E402

MODELS = ('CNN of the MNIST tutorial', 'VGG-like, dropout',
          'ResNet-20, GroupNormalization', 'WRN-16-4', 'DenseNet-like',
          'Vision transformer', 'LSTM of a text')

DRAW, STEPS = 256, 4

QUICK = ('--only', 'CNN of the MNIST tutorial')


def run(name, rows):
  """Trains a model in this process; returns memory and CPU time.

  `rows` is the physical batch size; None for the one that tfcactus chooses.
  """
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
  moments = []  # The begin and the end of each step, in turn.
  clock = lambda batch, logs: moments.append(time.process_time())
  model.fit(private_keras.FixedSizeBatches(case.x, case.y, DRAW, steps_per_epoch=STEPS),
            verbose=0, callbacks=[tf.keras.callbacks.LambdaCallback(
                on_train_batch_begin=clock, on_train_batch_end=clock)])
  return {
      'rows': model.physical_batch_size,
      'counted': 4 / 2**20 * physical_batch.numbers_per_example(
          case.model, layer_routes.routes(case.model)),
      'most': _processes.peak_megabytes(),
      'ms_an_example': 1e3 * min(np.diff(moments)[2::2]) / DRAW}


def show(found):
  """Writes the table from the results."""
  _results.show('step_memory', _results.markdown(
      ['model', 'physical batch size', 'MB per example, estimated', 'measured',
       'peak MB', 'CPU ms per example', 'with a quarter of the size'],
      [[name, str(whole['rows']), f'{whole["counted"]:.2f}',
        f'{each["megabytes_a_row"]:.2f}', f'{whole["most"]:,.0f}',
        f'{whole["ms_an_example"]:.2f}', f'{each["quarter"]["ms_an_example"]:.2f}']
       for name, each in found.items() for whole in [each['chosen']]]))


def main():
  """Measures the models; writes the results and the table."""
  parser = _results.parser('step_memory', __doc__)
  parser.add_argument('--serve', metavar='MODEL',
                      help='train one model in this process, and print JSON')
  parser.add_argument('--rows', type=int, default=None,
                      help='physical batch size with --serve; default as chosen')
  parser.add_argument('--only', nargs='*', choices=MODELS,
                      help='models to measure, without writing results')
  args = parser.parse_args()
  if args.serve:
    print(json.dumps(run(args.serve, args.rows)))
    return
  found = {}
  for name in args.only or MODELS:
    whole = _processes.measure('step_memory', '--serve', name)
    part = _processes.measure(
        'step_memory', '--serve', name, '--rows', str(max(1, whole['rows'] // 4)))
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
