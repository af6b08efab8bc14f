"""Measures accuracy on MNIST against epsilon, for four ways of private training.

    python -m benchmarks.accuracy                              # all missing runs
    python -m benchmarks.accuracy --way privatize --epsilon 2
    python -m benchmarks.accuracy --show                       # table and picture only
    python -m benchmarks.accuracy --quick                      # digits, writes nothing

Three ways train the tutorial CNN (tanh) for two epochs with batches of 250, a learning
rate of 2 with cosine decay, clipping norm 1 and delta 1e-5. TensorFlow Privacy's
DPSequential trains on shuffled batches, with the noise multiplier of its own accountant
(RDP, as if batches were Poisson samples). The drop-in optimizer and `privatize` train
on Poisson samples. The fourth way is the most accurate recipe of training/recipes.py.
Runs in results/accuracy.json are not repeated.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

from benchmarks import _mnist, _results, recipes  # noqa: E402
from tfcactus import _format  # noqa: E402
from training import datasets  # noqa: E402

LONG = 'it trains sixteen models'
QUICK = ('--quick',)

EPSILONS = (0.5, 1.0, 2.0, 4.0)
BATCH, EPOCHS, RATE, DELTA, CLIP = 250, 2, 2.0, 1e-5, 1.0
RECIPE = 'scattering'
STYLES = {
    'tensorflow-privacy': (_results.GRAY, 's:'), 'drop-in': (_results.ORANGE, '^-.'),
    'privatize': (_results.BLUE, 'o-'), 'recipe': (_results.VERMILION, 'D--')}
WAYS = {'tensorflow-privacy': 'TensorFlow Privacy, its account',
        'drop-in': 'drop-in optimizer', 'privatize': '`privatize`',
        'recipe': f'recipe `{RECIPE}`'}


def theirs(data: datasets.Dataset, target: float, epochs: int) -> dict[str, Any]:
  """Trains TensorFlow Privacy's DPSequential; returns accuracy and its own epsilon."""
  import dp_accounting
  from dp_accounting import rdp
  import tensorflow as tf
  from tensorflow_privacy.privacy.keras_models import dp_keras_model

  from training import networks
  count = data.train[1].size
  steps = epochs * count // BATCH

  def event(noise_multiplier: float) -> dp_accounting.DpEvent:
    return dp_accounting.SelfComposedDpEvent(dp_accounting.PoissonSampledDpEvent(
        BATCH / count, dp_accounting.GaussianDpEvent(noise_multiplier)), steps)

  multiplier = dp_accounting.calibrate_dp_mechanism(
      rdp.RdpAccountant, event, target, DELTA)
  tf.keras.utils.set_random_seed(1)
  model = dp_keras_model.DPSequential(
      l2_norm_clip=CLIP, noise_multiplier=multiplier,
      layers=networks.cnn('tanh').layers)
  model.compile(
      tf.keras.optimizers.SGD(tf.keras.optimizers.schedules.CosineDecay(
          RATE, steps, alpha=0.05)),
      tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction='none'),
      metrics=['accuracy'], jit_compile=False)
  history = model.fit(*data.train, batch_size=BATCH, epochs=epochs, verbose=2,
                      validation_data=data.test).history
  return {'accuracy': history['val_accuracy'][-1], 'noise_multiplier': multiplier,
          'epsilon': rdp.RdpAccountant().compose(event(multiplier)).get_epsilon(DELTA)}


def ours(data: datasets.Dataset, way: str, target: float, epochs: int
         ) -> dict[str, Any]:
  """Trains by the training script, with the optimizer `way`."""
  return _mnist.train([
      '--mechanism', 'gaussian', '--optimizer', way, '--target-epsilon', str(target),
      '--epochs', str(epochs), '--batch-size', str(BATCH), '--learning-rate', str(RATE),
      '--l2-norm-clip', str(CLIP), '--delta', str(DELTA), '--seed', '1', '--verbose',
      '2'], data).summary


def run(way: str, target: float, quick: bool) -> dict[str, Any]:
  """Trains in one way within one epsilon; on digits if `quick`."""
  if way == 'recipe':
    return {**by_recipe(target), 'way': way, 'target': target}
  data = datasets.digits() if quick else datasets.mnist()
  found = (theirs(data, target, EPOCHS) if way == 'tensorflow-privacy' else
           ours(data, way, target, EPOCHS))
  return {'way': way, 'target': target, 'epochs': EPOCHS, **found}


def by_recipe(target: float) -> dict[str, Any]:
  """Returns the saved run of the recipe within this epsilon, or else trains."""
  saved = [each for each in recipes.kept() if (each['recipe'], each['target']) == (
      RECIPE, target)]
  found = saved[0] if saved else recipes.run(RECIPE, target, 1)
  return {'accuracy': found['accuracy'], 'epsilon': found['epsilon'],
          'noise_multiplier': found['parameters']['noise_multiplier'],
          'epochs': found['parameters']['epochs']}


def table(found: list[dict[str, Any]]) -> str:
  """Returns a Markdown table of accuracies, with a dash for each missing run."""
  cells = {(each['way'], each['target']): each for each in found}
  rows = []
  for way, name in WAYS.items():
    row = [name]
    for target in EPSILONS:
      one = cells.get((way, target))
      row.append('-' if one is None else f'{one["accuracy"]:.4f} (noise '
                 f'{one["noise_multiplier"]:.3f}, epsilon '
                 f'{_format.upper(one["epsilon"], 4)})')
    rows.append(row)
  return _results.markdown(
      ['trained by', *(f'epsilon {target:g}' for target in EPSILONS)], rows)


def show(found: list[dict[str, Any]]) -> None:
  """Writes the table from the results."""
  _results.show('accuracy', table(found))


def draw(found: list[dict[str, Any]]) -> None:
  """Draws accuracy against epsilon."""
  figure, axis = _results.pyplot().subplots(figsize=(6.5, 4))
  for way, name in WAYS.items():
    mine = sorted((each['target'], each['accuracy']) for each in found
                  if each['way'] == way)
    if mine:
      color, style = STYLES[way]
      axis.plot(*zip(*mine), style, label=name.replace('`', ''), color=color)
  axis.set_xscale('log')
  axis.set_xticks(EPSILONS, [f'{target:g}' for target in EPSILONS])
  axis.minorticks_off()
  axis.set(xlabel='epsilon at delta 1e-5', ylabel='test accuracy',
           title='MNIST: two epochs of the tutorial\'s CNN; the recipe takes twenty')
  axis.grid(alpha=0.3)
  axis.legend()
  _results.save_figure(figure, 'accuracy')


def main() -> None:
  """Makes the missing runs; writes the table and the picture."""
  parser = _results.parser('accuracy', __doc__)
  parser.add_argument('--way', choices=WAYS, default=None,
                      help='way to train; default all')
  parser.add_argument('--epsilon', type=float, choices=EPSILONS, default=None,
                      help='target epsilon; default all')
  parser.add_argument('--show', action='store_true',
                      help='train nothing; write the table and the picture')
  parser.add_argument('--quick', action='store_true',
                      help='train on digits within one epsilon, without the recipe, '
                      'and write nothing')
  args = parser.parse_args()
  targets = EPSILONS if args.epsilon is None else (args.epsilon,)
  ways = WAYS if args.way is None else (args.way,)
  if args.quick:
    print(table([run(way, targets[-1], True) for way in ways if way != 'recipe']))
    return
  found = _results.load('accuracy', [])
  for way in () if args.show else ways:
    for target in targets:
      if not any((each['way'], each['target']) == (way, target) for each in found):
        found.append(run(way, target, False))
        _results.save('accuracy', found)
  draw(found)
  show(found)


if __name__ == '__main__':
  main()
