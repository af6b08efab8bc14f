"""Measures LoRA of a BERT of 59 million weights, as KerasHub builds and adapts it.

    python -m benchmarks.lora_speed

Trains the factors with and without privacy, in child processes that alternate. The time
of a step is the median CPU time over all steps but the first, and the least over the
rounds; memory is the peak resident memory of the process. The private model is then
saved, loaded, merged and exported, and the outputs are compared.
"""

from __future__ import annotations

import json
import os
import tempfile
import time

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np  # noqa: E402

from benchmarks import _processes, _results  # noqa: E402

LONG = 'it needs KerasHub'
QUICK = ('--layers', '1', '--steps', '2', '--rounds', '1')

WORDS, WIDTH, HEADS, LENGTH, CLASSES, RANK = 30_000, 640, 8, 128, 4, 4


def adapted(layers):
  """Returns a BERT classifier that trains LoRA factors and its last layer."""
  import keras_hub
  backbone = keras_hub.models.BertBackbone(
      vocabulary_size=WORDS, num_layers=layers, num_heads=HEADS, hidden_dim=WIDTH,
      intermediate_dim=4 * WIDTH, max_sequence_length=LENGTH)
  model = keras_hub.models.BertTextClassifier(
      backbone, num_classes=CLASSES, preprocessor=None)
  backbone.enable_lora(RANK)
  return model


def run(private, batch_size, steps, layers):
  """Trains in this process; returns weights, CPU seconds, memory and differences."""
  import tensorflow as tf

  import tfcactus
  from tfcactus import keras as private_keras

  examples = 64 * batch_size
  rng = np.random.default_rng(0)
  x = {'token_ids': rng.integers(0, WORDS, (examples, LENGTH)).astype(np.int32),
       'segment_ids': np.zeros((examples, LENGTH), np.int32),
       'padding_mask': np.ones((examples, LENGTH), np.int32)}
  y = rng.integers(0, CLASSES, examples)
  model = adapted(layers)
  found = {'weights': model.count_params(), 'trained': int(sum(
      np.prod(each.shape) for each in model.trainable_variables))}
  data = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(batch_size)
  if private:
    plan = tfcactus.PrivacyPlan(
        noise=tfcactus.Gaussian(1.0), l2_norm_clip=1.0, num_examples=examples,
        sampling_prob=batch_size / examples, steps=100, delta=1e-5)
    model = private_keras.privatize(model, plan)
    data = private_keras.FixedSizeBatches(x, y, batch_size, steps_per_epoch=steps + 1)
  model.compile(tf.keras.optimizers.Adam(1e-3),
                tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
  moments = [time.process_time()]
  model.fit(data, steps_per_epoch=steps + 1, verbose=0,
            callbacks=[_processes.step_clock(moments)])
  first, *others = np.diff(moments)
  found.update(first_step=float(first), step=float(np.median(others)),
               megabytes=_processes.peak_megabytes())
  if private:
    found['differences'] = differences(
        model, {name: part[:batch_size] for name, part in x.items()})
  return found


def differences(model, x):
  """Returns the largest differences of outputs once saved, merged and exported."""
  import tensorflow as tf

  from tfcactus.keras import fine_tuning
  want = model.predict(x, verbose=0)
  with tempfile.TemporaryDirectory() as folder:
    model.save(f'{folder}/model.keras')
    loaded = tf.keras.models.load_model(f'{folder}/model.keras')
    assert len(loaded.inner.trainable_variables) == len(model.inner.trainable_variables)
    merged = fine_tuning.merged(loaded.inner)
    merged.export(f'{folder}/export', verbose=False)
    exported = tf.saved_model.load(f'{folder}/export')
    got = {'loaded': loaded.predict(x, verbose=0),
           'merged': merged.predict(x, verbose=0),
           'exported': exported.serve(x).numpy()}
  return {name: float(np.max(np.abs(each - want))) for name, each in got.items()}


def main():
  """Measures both trainings by turns; writes the results and the table."""
  parser = _results.parser('lora_speed', __doc__)
  parser.add_argument('--batch-size', type=int, default=8,
                      help='number of texts in a batch')
  parser.add_argument('--steps', type=int, default=6, help='number of timed steps')
  parser.add_argument('--layers', type=int, default=8, help='number of layers')
  parser.add_argument('--rounds', type=int, default=2, help='number of processes each')
  parser.add_argument('--run', choices=('plain', 'private'), default=None,
                      help='train once in this process, and print JSON')
  args = parser.parse_args()
  if args.run:
    print(json.dumps(run(args.run == 'private', args.batch_size, args.steps,
                         args.layers)))
    return
  rounds = [{name: _processes.measure(
      'lora_speed', '--batch-size', str(args.batch_size), '--steps', str(args.steps),
      '--layers', str(args.layers), '--run', name) for name in ('plain', 'private')}
            for _ in range(args.rounds)]
  best = {name: {**rounds[0][name], **{
      key: min(each[name][key] for each in rounds)
      for key in ('first_step', 'step', 'megabytes')}} for name in rounds[0]}
  _results.save('lora_speed', {
      'batch_size': args.batch_size, 'cores': len(os.sched_getaffinity(0)), **best})
  show(_results.load('lora_speed'))


def show(found: dict) -> None:
  """Writes the table from the results."""
  plain = found['plain']

  def over(each, key):
    """Returns a number and its ratio to plain training's."""
    return f'{each[key]:,.2f} ({each[key] / plain[key]:.2f})'

  _results.show('lora_speed', _results.markdown(
      ['LoRA', 'weights', 'trained', 'CPU seconds per step (over plain)',
       'first step (over plain)', 'peak MB (over plain)'],
      [[name, f'{each["weights"]:,}', f'{each["trained"]:,}', over(each, 'step'),
        over(each, 'first_step'), over(each, 'megabytes')]
       for name, each in ((name, found[name]) for name in ('plain', 'private'))]))


if __name__ == '__main__':
  main()
