"""Command-line options of `training.mnist`, and the privacy plan that they describe."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import dataclasses
import math
from typing import Any, Callable

import tensorflow as tf

import tfcactus
from tfcactus import correlated, design, noise, sampling
from tfcactus.noise import library
from training import checkpoints, features, networks, recipes, strategies

SAMPLINGS = {'poisson': sampling.PoissonSampling,
             'allocation': sampling.RandomAllocationSampling}
CYCLIC = {'poisson': sampling.CyclicPoissonSampling,
          'allocation': sampling.CyclicAllocationSampling}
OPTIMIZERS = ('privatize', 'drop-in', 'tensorflow-privacy')
MECHANISMS = ('isotropic', 'gaussian', 'cactus', 'monotone', 'laplace')


ASKED_ANEW = ('epochs', 'target_epsilon', 'data_dir', 'run_card', 'json', 'verbose')
"""Options that a resumed run may change; model, data and noise of a step stay."""


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
  """Parses the command line; ValueError if the run to resume is missing or differs."""
  parser = _parser()
  args = parser.parse_args(argv)
  if args.resume is not None:
    return _resumed(parser, argv, args)
  recipe = args.recipe
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


def _resumed(parser: argparse.ArgumentParser, argv: Sequence[str] | None,
             given: argparse.Namespace) -> argparse.Namespace:
  """Returns the options of the run to resume, with new values of `ASKED_ANEW`."""
  if given.checkpoint is not None:
    parser.error('--checkpoint and --resume exclude each other; a run that is resumed '
                 'goes on in its own folder')
  asked = checkpoints.Run(given.resume).options()
  parser.set_defaults(**asked)
  args = parser.parse_args(argv)
  for name, before in asked.items():
    now = getattr(args, name)
    if name not in ASKED_ANEW and now != before:
      option = f'--{name.replace("_", "-")}'
      wanted = f'no {option}' if before is None else f'{option} {before}'
      raise ValueError(
          f'Expected {wanted}, as the run in {given.resume} was begun, got {now}; '
          'leave it out, or begin a run of its own with --checkpoint.')
  return args


def _complete(args: argparse.Namespace) -> None:
  """Sets the recipe's epsilon and learning rate where none is given."""
  if args.noise_multiplier is args.target_epsilon is None:
    args.target_epsilon = recipes.TARGET_EPSILON
  if args.learning_rate is None:
    target = args.target_epsilon or 0
    args.learning_rate = recipes.learning_rate(
        target if 0 < target < math.inf else recipes.TARGET_EPSILON)


def _parser() -> argparse.ArgumentParser:
  """Returns the parser of all options."""
  parser = argparse.ArgumentParser(
      prog='python -m training.mnist',
      description='Trains a small model on MNIST under differential privacy, by '
      'default a CNN.',
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
  add('--optimizer', choices=OPTIMIZERS, default='privatize',
      help='privatize wraps the model; drop-in: DPKerasSGDOptimizer of tfcactus in a '
      'plain Keras model; tensorflow-privacy: the optimizer that its '
      'make_keras_generic_optimizer_class makes, with TableNoiseQuery. The latter two '
      'are slower')
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
  add('--checkpoint', metavar='FOLDER', default=None,
      help='keep there what --resume needs: a journal of the steps, and the model '
      'after each epoch; with --optimizer privatize')
  add('--resume', metavar='FOLDER', default=None,
      help='go on with the run of a --checkpoint, as it was begun, up to --epochs; '
      '--target-epsilon, if there is one, now ends it. All that was released counts')
  add('--run-card', metavar='FILE', default=None,
      help='write what ran and what it cost here, after each epoch, with --optimizer '
      'privatize')
  add('--json', metavar='FILE', default=None, help='write the results here')
  add('--verbose', type=int, choices=(0, 1, 2), default=1,
      help='as in Keras: silent, progress bar, one line per epoch')


def build_model(args: argparse.Namespace) -> tf.keras.Sequential:
  """Returns the model to train."""
  return networks.build(args.features, args.activation,
                        augmented=args.augmentation_multiplicity != 1)


def make_noise(mechanism: str, noise_multiplier: float, dim: int) -> Any:
  """Returns the noise of a mechanism: a table of the library, else one solved now."""
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


def make_plan(args: argparse.Namespace, num_examples: int
              ) -> tfcactus.PrivacyPlan:
  """Returns the plan of the options: noise, clipping, sampling, steps and delta."""
  for name in ('batch_size', 'epochs', 'learning_rate'):
    value = getattr(args, name)
    if not (value > 0 and math.isfinite(value)):
      raise ValueError(
          f'Expected --{name.replace("_", "-")} > 0, got {value}.')
  _check_optimizer(args)
  _check_checkpoint(args)
  for name, wanted in (('--bands', args.bands is not None),
                       ('--sampling allocation', args.sampling == 'allocation')):
    if wanted and args.mechanism != 'gaussian':
      raise ValueError(
          f'Expected --mechanism gaussian with {name}, which has a proof for Gaussian '
          f'noise only, got {args.mechanism!r}.')
  if args.bands is not None:
    return make_correlated_plan(args, num_examples)
  kind = SAMPLINGS[args.sampling]
  settings = dict(
      l2_norm_clip=args.l2_norm_clip, num_examples=num_examples,
      sampling_prob=kind.prob_of_batch_size(args.batch_size, num_examples),
      steps=args.epochs * steps_per_epoch(args, num_examples), delta=args.delta,
      dim=build_model(args).count_params(), accounting=args.accounting)
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


def longer_plan(args: argparse.Namespace, plan: tfcactus.PrivacyPlan
               ) -> tfcactus.PrivacyPlan:
  """Returns the plan of a resumed run, with at least the number of steps now asked for.

  Noise, clipping and sampling stay, and so does the cost of a step. Plans of correlated
  noise are returned as they are: each epoch counts as a whole.
  """
  steps = args.epochs * steps_per_epoch(args, plan.num_examples)
  if plan.strategy is not None or steps <= plan.steps:
    return plan
  return dataclasses.replace(plan, steps=steps)


def steps_per_epoch(args: argparse.Namespace, num_examples: int) -> int:
  """Returns the number of steps per epoch where noise is not correlated."""
  return SAMPLINGS[args.sampling].of_batch_size(
      args.batch_size, num_examples).batches_per_epoch


def _check_optimizer(args: argparse.Namespace) -> None:
  """Raises ValueError for options that need a wrapped model."""
  if args.optimizer == 'privatize':
    return
  for name, given, wanted in (
      ('--sampling', args.sampling, 'poisson'), ('--bands', args.bands, None),
      ('--augmentation-multiplicity', args.augmentation_multiplicity, 1),
      ('--run-card', args.run_card, None), ('--checkpoint', args.checkpoint, None),
      ('--strategy', args.strategy, 'none')):
    if given != wanted:
      only = f'no {name}' if wanted is None else f'{name} {wanted}'
      raise ValueError(
          f'Expected {only} with --optimizer {args.optimizer}, got {given!r}; '
          '--optimizer privatize takes it.')


def _check_checkpoint(args: argparse.Namespace) -> None:
  """Raises ValueError for options with which no run can be resumed."""
  if args.checkpoint is None:
    return
  if args.seed is not None:
    raise ValueError(
        f'Expected no --seed with --checkpoint, got {args.seed}: the resumed run would '
        'draw the noise of the first again.')
  if args.strategy == 'multi-worker':
    raise ValueError(
        'Expected --strategy none or mirrored with --checkpoint, got multi-worker; '
        'docs/distribution.md says how several workers go on.')


def make_correlated_plan(args: argparse.Namespace, num_examples: int
                        ) -> tfcactus.PrivacyPlan:
  """Returns the plan of the options, with noise correlated over steps (BandMF)."""
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
      delta=args.delta, l2_norm_clip=args.l2_norm_clip,
      dim=build_model(args).count_params(), accounting=args.accounting,
      target_epsilon=args.target_epsilon,
      noise=noise.Gaussian(multiplier) if noise_given else None,
      sampling=CYCLIC[args.sampling], correlation='auto' if args.bands == 'auto' else
      correlated.BandedStrategy(int(args.bands)))


