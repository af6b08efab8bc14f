"""Trains a small model on MNIST under differential privacy, by default a CNN.

    python -m training.mnist
    python -m training.mnist --mechanism gaussian --target-epsilon 1
    python -m training.mnist --mechanism gaussian --sampling allocation
    python -m training.mnist --mechanism gaussian --target-epsilon 3 --bands auto
    python -m training.mnist --recipe best
    python -m training.mnist --recipe scattering --target-epsilon 1
    python -m training.mnist --help
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
import time
from typing import Any
from typing import Callable
from typing import Optional
from typing import Sequence

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import tensorflow as tf  # noqa: E402

import tfcactus  # noqa: E402
from tfcactus import correlated  # noqa: E402
from tfcactus import design  # noqa: E402
from tfcactus import keras as tfcactus_keras  # noqa: E402
from tfcactus import noise  # noqa: E402
from tfcactus import sampling  # noqa: E402
from tfcactus.noise import library  # noqa: E402
from training import datasets  # noqa: E402
from training import features  # noqa: E402
from training import networks  # noqa: E402
from training import recipes  # noqa: E402
from training import strategies  # noqa: E402

SAMPLINGS = {'poisson': sampling.PoissonSampling,
             'allocation': sampling.RandomAllocationSampling}
CYCLIC = {'poisson': sampling.CyclicPoissonSampling,
          'allocation': sampling.CyclicAllocationSampling}
MECHANISMS = ('isotropic', 'gaussian', 'cactus', 'monotone', 'laplace')


def parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
  """Reads the command line."""
  parser = _parser()
  recipe = parser.parse_args(argv).recipe
  if recipe:
    parser.set_defaults(learning_rate=None, **recipes.RECIPES[recipe])
  args = parser.parse_args(argv)
  args.sampling = args.sampling or ('poisson' if args.bands is None else 'allocation')
  if args.noise_multiplier is not None and args.target_epsilon is not None:
    parser.error('--noise-multiplier and --target-epsilon exclude each other')
  if args.noise_multiplier is not None and args.mechanism.endswith('.npz'):
    parser.error('--noise-multiplier does not go with a table, which has its '
                 'own; leave it out')
  if recipe:
    _complete(args)
  return args


def _complete(args: argparse.Namespace) -> None:
  """What a recipe says where nothing was given."""
  if args.noise_multiplier is args.target_epsilon is None:
    args.target_epsilon = recipes.TARGET_EPSILON
  if args.learning_rate is None:
    target = args.target_epsilon or 0
    args.learning_rate = recipes.learning_rate(
        target if 0 < target < math.inf else recipes.TARGET_EPSILON)


def _parser() -> argparse.ArgumentParser:
  """The options and their defaults."""
  parser = argparse.ArgumentParser(
      prog='python -m training.mnist', description=__doc__.splitlines()[0],
      formatter_class=argparse.ArgumentDefaultsHelpFormatter)
  parser.add_argument(
      '--recipe', choices=recipes.RECIPES, default=None,
      help='settings chosen together, within epsilon '
      f'{recipes.TARGET_EPSILON}; options given beside it have the last word')
  _add_noise(parser.add_argument_group('noise and sampling').add_argument)
  _add_training(parser.add_argument_group('training').add_argument)
  _add_data(parser.add_argument_group('data and results').add_argument)
  return parser


def _add_noise(add: Callable[..., Any]) -> None:
  add('--mechanism', default='isotropic', metavar='NAME',
      help=f'{", ".join(MECHANISMS)}, or the path of a table (.npz)')
  add('--noise-multiplier', type=float, default=None,
      help='standard deviation of the noise over the clip norm (default 1.3)')
  add('--target-epsilon', type=float, default=None,
      help='find the noise multiplier that spends this epsilon instead')
  add('--l2-norm-clip', type=float, default=1.0,
      help="bound on the norm of an example's gradient")
  add('--batch-size', type=int, default=250, help='expected batch size')
  add('--sampling', choices=SAMPLINGS, default=None,
      help='poisson (default): each example enters each batch by chance; allocation '
      '(default with --bands): each enters one of each epoch, with Gaussian noise')
  add('--bands', default=None, metavar='B',
      help='correlate Gaussian noise over so many steps, or as many as leave the '
      'least of it with auto, and take batches from as many groups of examples in turn')
  add('--delta', type=float, default=1e-5, help='of the guarantee')
  add('--accounting', choices=('proven', 'scalar-unproven'), default='proven',
      help='scalar-unproven accounts scalar noise as if on one number, exactly (paper '
      '000: by moments of the full shift); NOT a guarantee for training')


def _add_training(add: Callable[..., Any]) -> None:
  add('--epochs', type=int, default=15,
      help='passes over the data, in expectation')
  add('--learning-rate', type=float, default=0.5,
      help='of plain SGD in the first step; it falls to a twentieth')
  add('--features', choices=features.FEATURES, default='pixels',
      help='what the model is shown of an image: pixels, straightened ones, or '
      'scattering features of these, on which a linear model is trained')
  add('--augmentation-multiplicity', type=int, default=1, metavar='K',
      help="average each example's gradient over so many views of it, shifted at "
      'random, before it is clipped')
  add('--activation', choices=('tanh', 'relu'), default='tanh',
      help="of the CNN; the tutorial's is relu, tanh learns better here")
  add('--strategy', choices=strategies.STRATEGIES, default='none',
      help='mirrored: all GPUs, or two halves of the CPU; multi-worker: the machines '
      'of TF_CONFIG, on each of which this command runs')
  add('--seed', type=int, default=None,
      help='repeat a run exactly; for experiments, not for releases')


def _add_data(add: Callable[..., Any]) -> None:
  add('--dataset', choices=('auto', 'mnist', 'digits'), default='auto',
      help='auto is MNIST where it can be had, otherwise digits')
  add('--held-out', type=int, default=0, metavar='N',
      help='for choosing settings: do not train on so many training images, chosen at '
      'random, and evaluate on them in place of the test images')
  add('--data-dir', default=None, help='of tensorflow-datasets')
  add('--json', metavar='FILE', default=None, help='write the results here')
  add('--verbose', type=int, choices=(0, 1, 2), default=1,
      help='as in Keras: silent, progress bar, one line per epoch')


def make_noise(mechanism: str, noise_multiplier: float, dim: int) -> Any:
  """The noise of a mechanism, from the library of tables where it is there."""
  if mechanism.endswith('.npz'):
    return noise.load(mechanism)
  if mechanism == 'gaussian':
    return noise.Gaussian(noise_multiplier)
  if mechanism == 'laplace':
    return noise.Laplace(noise_multiplier / math.sqrt(2))
  if mechanism == 'isotropic':
    try:
      return library.find('isotropic', dim=dim,
                          noise_multiplier=noise_multiplier)
    except ValueError:
      return design.RadialGaussian(
          dim=dim, noise_multiplier=noise_multiplier).solve()
  solver = {'cactus': design.Cactus, 'monotone': design.Monotone}.get(mechanism)
  if solver is None:
    raise ValueError(
        f'Expected --mechanism {", ".join(MECHANISMS)} or a file ending in '
        f'.npz, got {mechanism!r}.')
  try:
    return library.find(mechanism, budget=noise_multiplier**2)
  except ValueError:
    return solver(budget=noise_multiplier**2).solve()


def build_model(args: argparse.Namespace) -> tf.keras.Sequential:
  """The model that is to be trained."""
  return networks.build(args.features, args.activation,
                        augmented=args.augmentation_multiplicity != 1)


def _dim(args: argparse.Namespace) -> int:
  return build_model(args).count_params()


def make_plan(args: argparse.Namespace, num_examples: int
              ) -> tfcactus.PrivacyPlan:
  """Settles noise, clipping, sampling, steps and delta."""
  for name in ('batch_size', 'epochs', 'learning_rate'):
    value = getattr(args, name)
    if not (value > 0 and math.isfinite(value)):
      raise ValueError(
          f'Expected --{name.replace("_", "-")} > 0, got {value}.')
  for name, wanted in (('--bands', args.bands is not None),
                       ('--sampling allocation', args.sampling == 'allocation')):
    if wanted and args.mechanism != 'gaussian':
      raise ValueError(
          f'Expected --mechanism gaussian with {name}, which has a proof for Gaussian '
          f'noise only, got {args.mechanism!r}.')
  if args.bands is not None:
    return make_correlated_plan(args, num_examples)
  kind = SAMPLINGS[args.sampling]
  scheme = kind.of_batch_size(args.batch_size, num_examples)
  settings = dict(
      l2_norm_clip=args.l2_norm_clip, num_examples=num_examples,
      sampling_prob=kind.prob_of_batch_size(args.batch_size, num_examples),
      steps=args.epochs * scheme.batches_per_epoch, delta=args.delta,
      dim=_dim(args), accounting=args.accounting)
  if args.target_epsilon is None:
    multiplier = 1.3 if args.noise_multiplier is None else args.noise_multiplier
    return tfcactus.PrivacyPlan(
        noise=make_noise(args.mechanism, multiplier, settings['dim']), **settings)
  if args.mechanism not in ('gaussian', 'isotropic'):
    raise ValueError(
        'Expected --mechanism gaussian or isotropic with --target-epsilon, got '
        f'{args.mechanism!r}: other tables have the noise they were solved '
        'for; use --noise-multiplier.')
  print(f'Looking for the least noise within epsilon {args.target_epsilon:g}.')
  return tfcactus.PrivacyPlan(
      noise=tfcactus.calibrate_noise_multiplier(
          args.target_epsilon,
          lambda multiplier: make_noise(args.mechanism, multiplier, settings['dim']),
          sampling=kind, **settings), **settings)


def make_correlated_plan(args: argparse.Namespace, num_examples: int
                        ) -> tfcactus.PrivacyPlan:
  """The same with noise correlated over steps."""
  if args.bands != 'auto' and not args.bands.isdecimal():
    raise ValueError(f'Expected --bands auto or a number, got {args.bands!r}.')
  noise_given = args.target_epsilon is None
  if noise_given and args.bands == 'auto':
    raise ValueError('Expected --target-epsilon with --bands auto, got none.')
  if not noise_given:
    print(f'Looking for the least noise within epsilon {args.target_epsilon:g}.')
  multiplier = 1.3 if args.noise_multiplier is None else args.noise_multiplier
  return tfcactus.PrivacyPlan.for_training(
      batch_size=args.batch_size, epochs=args.epochs, num_examples=num_examples,
      delta=args.delta, l2_norm_clip=args.l2_norm_clip, dim=_dim(args),
      accounting=args.accounting, target_epsilon=args.target_epsilon,
      noise=noise.Gaussian(multiplier) if noise_given else None,
      sampling=CYCLIC[args.sampling], correlation='auto' if args.bands == 'auto' else
      correlated.BandedStrategy(int(args.bands)))


def load_data(args: argparse.Namespace) -> datasets.Dataset:
  """Loads the images."""
  data = datasets.load(args.dataset, args.data_dir)
  return datasets.hold_out(data, args.held_out) if args.held_out else data


def seen(args: argparse.Namespace, data: datasets.Dataset) -> datasets.Dataset:
  """What the model is to see of them; minutes for scattering features."""
  if args.features != 'pixels':
    print(f'Computing features: {args.features}.')
  shown = features.FEATURES[args.features]
  return dataclasses.replace(
      data, **{part: (shown(images), labels) for part, (images, labels) in (
          ('train', data.train), ('test', data.test))})


def check_writable(path: Optional[str]) -> None:
  """Refuses a file that cannot be written, before hours of training."""
  if path is None:
    return
  existed = os.path.exists(path)
  try:
    with open(path, 'a', encoding='utf-8'):
      pass
  except OSError as error:
    raise ValueError(
        f'Expected --json to be a file that can be written, got {path}: '
        f'{error.strerror}.') from error
  if not existed:
    os.remove(path)


def announce(args: argparse.Namespace, data: datasets.Dataset,
             plan: tfcactus.PrivacyPlan) -> None:
  """Says what is about to happen."""
  print(f'Data: {data.description}.')
  print(f'Noise: {plan.noise.name} {plan.noise.digest}, noise multiplier '
        f'{plan.noise.noise_multiplier:.6g}.')
  if plan.strategy is not None and plan.groups > 1:
    left = plan.strategy.error(plan.steps) / math.sqrt((plan.steps + 1) / 2)
    print(f'  Correlated over {plan.groups} steps ({plan.strategy.digest}): at a '
          f'constant learning rate {100 * left:.1f} % of it would add up.')
  statement = getattr(plan.noise, 'info', {}).get('statement')
  if statement:
    print(f'  {statement}')
  if args.accounting != 'proven':
    print(f'WARNING: {plan.guarantee().statement}')
  if args.seed is not None:
    print('Seeded: an experiment that can be repeated, not a private release.')


def make_batches(args: argparse.Namespace, data: datasets.Dataset,
                 plan: tfcactus.PrivacyPlan) -> Any:
  """Batches that go with the plan."""
  if plan.strategy is not None:
    return tfcactus_keras.CyclicBatches(
        *data.train, plan=plan, sampling=CYCLIC[args.sampling], seed=args.seed)
  if args.sampling == 'allocation':
    return tfcactus_keras.AllocatedBatches(
        *data.train, num_batches=plan.steps // args.epochs, seed=args.seed)
  return tfcactus_keras.PoissonBatches(
      *data.train, sampling_prob=plan.sampling_prob,
      steps_per_epoch=plan.steps // args.epochs, seed=args.seed)


def accuracy_name(args: argparse.Namespace) -> str:
  """Of what images the accuracy is, as the JSON file calls it."""
  return 'held_out_accuracy' if args.held_out else 'test_accuracy'


def make_private_model(args: argparse.Namespace, plan: tfcactus.PrivacyPlan
                      ) -> tfcactus_keras.PrivateModel:
  """The model, compiled."""
  model = tfcactus_keras.privatize(
      build_model(args), plan, seed=args.seed,
      augmentation_multiplicity=args.augmentation_multiplicity)
  model.compile(
      # Small steps at the end average the noise of many.
      optimizer=tf.keras.optimizers.SGD(
          tf.keras.optimizers.schedules.CosineDecay(
              args.learning_rate, plan.steps, alpha=0.05)),
      loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      metrics=['accuracy'])
  return model


def train(args: argparse.Namespace, data: datasets.Dataset,
          plan: tfcactus.PrivacyPlan
          ) -> tuple[dict[str, Any], tfcactus.Guarantee]:
  """Trains; returns what the JSON file will say, and the guarantee."""
  if args.seed is not None:
    tf.keras.utils.set_random_seed(args.seed)
  with strategies.scope(args.strategy):
    model = make_private_model(args, plan)
  batches = make_batches(args, data, plan)
  start = time.time()
  history = model.fit(
      batches, epochs=args.epochs, validation_data=data.test,
      callbacks=[tfcactus_keras.EpsilonCallback()],
      verbose=args.verbose if strategies.is_chief(args.strategy) else 0)
  seconds = time.time() - start
  guarantee = model.guarantee()
  return {
      'dataset': data.name, 'dataset_description': data.description,
      'mechanism': args.mechanism, 'noise': plan.noise.name,
      'table_digest': plan.noise.digest,
      'parameters': {
          'noise_multiplier': plan.noise.noise_multiplier,
          'l2_norm_clip': plan.l2_norm_clip, 'batch_size': args.batch_size,
          'epochs': args.epochs, 'learning_rate': args.learning_rate,
          'sampling': args.sampling,
          'bands': None if plan.strategy is None else plan.strategy.bands,
          'activation': args.activation, 'features': args.features,
          'augmentation_multiplicity': args.augmentation_multiplicity,
          'held_out': args.held_out, 'strategy': args.strategy,
          'num_examples': plan.num_examples,
          'sampling_prob': plan.sampling_prob, 'seed': args.seed},
      'steps': model.releases,
      accuracy_name(args): history.history['val_accuracy'][-1],
      'epsilon': {'lower': guarantee.lower, 'estimate': guarantee.estimate,
                  'upper': guarantee.upper},
      'delta': guarantee.delta,
      'neighboring_relation': guarantee.neighboring_relation,
      'accountant': guarantee.accountant, 'proven': guarantee.proven,
      'seeded': guarantee.seeded, 'statement': guarantee.statement,
      'seconds': seconds}, guarantee


def main(argv: Optional[Sequence[str]] = None) -> int:
  """Runs the script; returns the exit code."""
  args = parse(argv)
  try:
    check_writable(args.json)
    strategies.opened(args.strategy)  # Before anything else of TensorFlow.
    data = load_data(args)
    plan = make_plan(args, num_examples=data.train[1].size)
    announce(args, data, plan)
    data = seen(args, data)
    result, guarantee = train(args, data, plan)
  except (ValueError, datasets.DatasetError, FileNotFoundError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  name = accuracy_name(args)
  print(f'{name.replace("_", " ").capitalize()} {result[name]:.4f} on {data.name} '
        f'after {result["steps"]} steps in {result["seconds"]:.0f} s.')
  print(guarantee)
  if guarantee.proven:
    print(guarantee.statement)
  if args.json and strategies.is_chief(args.strategy):
    with open(args.json, 'w', encoding='utf-8') as file:
      json.dump(result, file, indent=2)
      file.write('\n')
  return 0


if __name__ == '__main__':
  sys.exit(main())
