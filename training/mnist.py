"""Trains the tutorial CNN on MNIST under differential privacy.

    python -m training.mnist
    python -m training.mnist --mechanism gaussian --target-epsilon 1
    python -m training.mnist --mechanism gaussian --sampling allocation
    python -m training.mnist --mechanism gaussian --target-epsilon 3 --bands auto
    python -m training.mnist --help
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from typing import Any
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

PARAMETERS = 26_010
SAMPLINGS = {'poisson': sampling.PoissonSampling,
             'allocation': sampling.RandomAllocationSampling}
CYCLIC = {'poisson': sampling.CyclicPoissonSampling,
          'allocation': sampling.CyclicAllocationSampling}
MECHANISMS = ('isotropic', 'gaussian', 'cactus', 'monotone', 'laplace')


def parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
  """Reads the command line."""
  parser = argparse.ArgumentParser(
      prog='python -m training.mnist', description=__doc__.splitlines()[0],
      formatter_class=argparse.ArgumentDefaultsHelpFormatter)
  add = parser.add_argument
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
  add('--epochs', type=int, default=15,
      help='passes over the data, in expectation')
  add('--learning-rate', type=float, default=0.5,
      help='of plain SGD in the first step; it falls to a twentieth')
  add('--activation', choices=('tanh', 'relu'), default='tanh',
      help="of the CNN; the tutorial's is relu, tanh learns better here")
  add('--delta', type=float, default=1e-5, help='of the guarantee')
  add('--seed', type=int, default=None,
      help='repeat a run exactly; for experiments, not for releases')
  add('--dataset', choices=('auto', 'mnist', 'digits'), default='auto',
      help='auto is MNIST where it can be had, otherwise digits')
  add('--data-dir', default=None, help='of tensorflow-datasets')
  add('--accounting', choices=('proven', 'scalar-unproven'), default='proven',
      help='scalar-unproven reproduces a published account that is NOT a '
      'guarantee for training')
  add('--json', metavar='FILE', default=None, help='write the results here')
  add('--verbose', type=int, choices=(0, 1, 2), default=1,
      help='as in Keras: silent, progress bar, one line per epoch')
  args = parser.parse_args(argv)
  args.sampling = args.sampling or ('poisson' if args.bands is None else 'allocation')
  if args.noise_multiplier is not None and args.target_epsilon is not None:
    parser.error('--noise-multiplier and --target-epsilon exclude each other')
  if args.noise_multiplier is not None and args.mechanism.endswith('.npz'):
    parser.error('--noise-multiplier does not go with a table, which has its '
                 'own; leave it out')
  return args


def build_cnn(activation: str = 'relu') -> tf.keras.Sequential:
  """The CNN of TensorFlow Privacy's MNIST tutorial: 26,010 parameters.

  Args:
    activation: The tutorial has 'relu'; under clipping and noise the bounded
      'tanh' learns better (Papernot et al., "Tempered Sigmoid Activations for
      Deep Learning with Differential Privacy", 2021).
  """
  layers = tf.keras.layers
  return tf.keras.Sequential([
      layers.InputLayer((28, 28, 1)),
      layers.Conv2D(16, 8, strides=2, padding='same', activation=activation),
      layers.MaxPool2D(2, 1),
      layers.Conv2D(32, 4, strides=2, padding='valid', activation=activation),
      layers.MaxPool2D(2, 1),
      layers.Flatten(),
      layers.Dense(32, activation=activation),
      layers.Dense(10),
  ])


def make_noise(mechanism: str, noise_multiplier: float) -> Any:
  """The noise of a mechanism, from the library of tables where it is there."""
  if mechanism.endswith('.npz'):
    return noise.load(mechanism)
  if mechanism == 'gaussian':
    return noise.Gaussian(noise_multiplier)
  if mechanism == 'laplace':
    return noise.Laplace(noise_multiplier / math.sqrt(2))
  if mechanism == 'isotropic':
    try:
      return library.find('isotropic', dim=PARAMETERS,
                          noise_multiplier=noise_multiplier)
    except ValueError:
      return design.RadialGaussian(
          dim=PARAMETERS, noise_multiplier=noise_multiplier).solve()
  solver = {'cactus': design.Cactus, 'monotone': design.Monotone}.get(mechanism)
  if solver is None:
    raise ValueError(
        f'Expected --mechanism {", ".join(MECHANISMS)} or a file ending in '
        f'.npz, got {mechanism!r}.')
  try:
    return library.find(mechanism, budget=noise_multiplier**2)
  except ValueError:
    return solver(budget=noise_multiplier**2).solve()


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
      dim=PARAMETERS, accounting=args.accounting)
  if args.target_epsilon is None:
    multiplier = 1.3 if args.noise_multiplier is None else args.noise_multiplier
    return tfcactus.PrivacyPlan(
        noise=make_noise(args.mechanism, multiplier), **settings)
  if args.mechanism not in ('gaussian', 'isotropic'):
    raise ValueError(
        'Expected --mechanism gaussian or isotropic with --target-epsilon, got '
        f'{args.mechanism!r}: other tables have the noise they were solved '
        'for; use --noise-multiplier.')
  print(f'Looking for the least noise within epsilon {args.target_epsilon:g}.')
  return tfcactus.PrivacyPlan(
      noise=tfcactus.calibrate_noise_multiplier(
          args.target_epsilon,
          lambda multiplier: make_noise(args.mechanism, multiplier),
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
      delta=args.delta, l2_norm_clip=args.l2_norm_clip, dim=PARAMETERS,
      accounting=args.accounting, target_epsilon=args.target_epsilon,
      noise=noise.Gaussian(multiplier) if noise_given else None,
      sampling=CYCLIC[args.sampling], correlation='auto' if args.bands == 'auto' else
      correlated.BandedStrategy(int(args.bands)))


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


def train(args: argparse.Namespace, data: datasets.Dataset,
          plan: tfcactus.PrivacyPlan
          ) -> tuple[dict[str, Any], tfcactus.Guarantee]:
  """Trains; returns what the JSON file will say, and the guarantee."""
  if args.seed is not None:
    tf.keras.utils.set_random_seed(args.seed)
  model = tfcactus_keras.privatize(
      build_cnn(args.activation), plan, seed=args.seed)
  model.compile(
      # Small steps at the end average the noise of many.
      optimizer=tf.keras.optimizers.SGD(
          tf.keras.optimizers.schedules.CosineDecay(
              args.learning_rate, plan.steps, alpha=0.05)),
      loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      metrics=['accuracy'])
  batches = make_batches(args, data, plan)
  start = time.time()
  history = model.fit(
      batches, epochs=args.epochs, validation_data=data.test,
      callbacks=[tfcactus_keras.EpsilonCallback()], verbose=args.verbose)
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
          'activation': args.activation,
          'num_examples': plan.num_examples,
          'sampling_prob': plan.sampling_prob, 'seed': args.seed},
      'steps': int(model.released_steps),
      'test_accuracy': history.history['val_accuracy'][-1],
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
    data = datasets.load(args.dataset, args.data_dir)
    plan = make_plan(args, num_examples=data.train[1].size)
    announce(args, data, plan)
    result, guarantee = train(args, data, plan)
  except (ValueError, datasets.DatasetError, FileNotFoundError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  print(f'Test accuracy {result["test_accuracy"]:.4f} on {result["dataset"]} '
        f'after {result["steps"]} steps in {result["seconds"]:.0f} s.')
  print(guarantee)
  if guarantee.proven:
    print(guarantee.statement)
  if args.json:
    with open(args.json, 'w', encoding='utf-8') as file:
      json.dump(result, file, indent=2)
      file.write('\n')
  return 0


if __name__ == '__main__':
  sys.exit(main())
