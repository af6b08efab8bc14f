"""Command-line options of `training.mnist`, and the privacy plan of given options."""

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
"""Sampling schemes by value of --sampling, for independent noise."""

CYCLIC = {'poisson': sampling.CyclicPoissonSampling,
          'allocation': sampling.CyclicAllocationSampling}
"""Sampling schemes by value of --sampling, with --bands."""

OPTIMIZERS = ('privatize', 'drop-in', 'tensorflow-privacy')
MECHANISMS = ('isotropic', 'gaussian', 'cactus', 'monotone', 'laplace')
"""Values of --mechanism, beside paths of tables."""

ASKED_ANEW = ('epochs', 'target_epsilon', 'data_dir', 'run_card', 'json', 'verbose')
"""Options that may differ in a resumed run: model, data and noise may not."""


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
  """Shows the defaults of options in the help, except None."""

  def _get_help_string(self, action: argparse.Action) -> str | None:
    """Returns the help of an option, with its default unless that is None."""
    return action.help if action.default is None else super()._get_help_string(action)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
  """Returns the options; ValueError if the run to resume is missing or differs.

  A recipe sets the defaults of its options. Other wrong options end the process.
  """
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
  """Sets the recipe's epsilon and learning rate if the options give none."""
  if args.noise_multiplier is None and args.target_epsilon is None:
    args.target_epsilon = recipes.TARGET_EPSILON
  if args.learning_rate is None:
    target = args.target_epsilon or 0
    args.learning_rate = recipes.learning_rate(
        target if 0 < target < math.inf else recipes.TARGET_EPSILON)


def _parser() -> argparse.ArgumentParser:
  """Returns the parser of all options."""
  parser = argparse.ArgumentParser(
      prog='python -m training.mnist',
      description='Trains a small model, by default a CNN, on MNIST with differential '
      'privacy.',
      formatter_class=HelpFormatter)
  parser.add_argument(
      '--recipe', choices=recipes.RECIPES, default=None,
      help='settings that were chosen together, for epsilon '
      f'{recipes.TARGET_EPSILON}; other options override them')
  _add_noise(parser.add_argument_group('noise and sampling').add_argument)
  _add_training(parser.add_argument_group('training').add_argument)
  _add_data(parser.add_argument_group('data and results').add_argument)
  return parser


def _add_noise(add: Callable[..., Any]) -> None:
  """Adds the options of noise, clipping, sampling and accounting."""
  add('--mechanism', default='isotropic', metavar='NAME',
      help=f'noise: {", ".join(MECHANISMS)}, or the path of a noise table (.npz)')
  add('--noise-multiplier', type=float, default=None,
      help='standard deviation of the noise divided by the clipping norm (default 1.3)')
  add('--target-epsilon', type=float, default=None,
      help='use the least noise multiplier with which epsilon is at most this')
  add('--l2-norm-clip', type=float, default=1.0,
      help="clipping norm of an example's gradient")
  add('--batch-size', type=int, default=250, help='expected batch size')
  add('--sampling', choices=SAMPLINGS, default=None,
      help='poisson (default): each example enters each batch at random; allocation '
      '(default with --bands): each example enters one random batch of each epoch, '
      'with Gaussian noise only')
  add('--bands', default=None, metavar='B',
      help='correlate Gaussian noise over B steps (BandMF), and take batches from B '
      'groups of examples in turn; auto takes the B of least total noise')
  add('--delta', type=float, default=1e-5, help='delta of the guarantee')
  add('--accounting', choices=('proven', 'scalar-unproven'), default='proven',
      help='scalar-unproven accounts for scalar noise on each weight as if one number '
      'were released, exactly (the paper on cactus noise takes moments of the full '
      'shift); this is NOT a guarantee for training')


def _add_training(add: Callable[..., Any]) -> None:
  """Adds the options of model, optimizer and devices."""
  add('--epochs', type=int, default=15,
      help='expected number of passes over the data')
  add('--learning-rate', type=float, default=0.5,
      help='learning rate of SGD in the first step; cosine decay ends at a twentieth')
  add('--features', choices=features.FEATURES, default='pixels',
      help='input of the model: pixels, pixels of straightened images, or scattering '
      'features of straightened images, on which a linear model is trained')
  add('--augmentation-multiplicity', type=int, default=1, metavar='K',
      help="average each example's gradient over K randomly shifted views of the "
      'image before it is clipped')
  add('--activation', choices=('tanh', 'relu'), default='tanh',
      help='activation of the CNN; relu is that of the tutorial, tanh is more '
      'accurate here')
  add('--optimizer', choices=OPTIMIZERS, default='privatize',
      help='privatize: wrap the model; drop-in: compile a plain Keras model with '
      'DPKerasSGDOptimizer of tfcactus; tensorflow-privacy: compile it with the '
      'optimizer of make_keras_generic_optimizer_class, with TableNoiseQuery. '
      'privatize is the fastest')
  add('--strategy', choices=strategies.STRATEGIES, default='none',
      help='mirrored: all GPUs, or two logical CPU devices; multi-worker: the '
      'machines of TF_CONFIG, on each of which this command runs')
  add('--seed', type=int, default=None,
      help='make the run repeatable, for experiments; do not release a seeded run')


def _add_data(add: Callable[..., Any]) -> None:
  """Adds the options of data, checkpoints and results."""
  add('--dataset', choices=('auto', 'mnist', 'digits'), default='auto',
      help='auto: MNIST if it is on disk or can be downloaded, otherwise digits')
  add('--held-out', type=int, default=0, metavar='N',
      help='hold N random training images out of training, and evaluate on them '
      'instead of the test images, to choose settings')
  add('--data-dir', default=None, help='folder of tensorflow-datasets')
  add('--checkpoint', metavar='FOLDER', default=None,
      help='save in FOLDER what --resume needs: a journal of the steps, and the model '
      'after each epoch; with --optimizer privatize')
  add('--resume', metavar='FOLDER', default=None,
      help='continue the run of --checkpoint FOLDER with its options up to --epochs, '
      'or until --target-epsilon would be exceeded; all earlier steps count')
  add('--run-card', metavar='FILE', default=None,
      help='write a run card (settings and guarantee) to FILE after each epoch; with '
      '--optimizer privatize')
  add('--json', metavar='FILE', default=None, help='write the results to FILE')
  add('--verbose', type=int, choices=(0, 1, 2), default=1,
      help='output during training: 0 none, 1 progress bar, 2 one line per epoch')


def build_model(args: argparse.Namespace) -> tf.keras.Sequential:
  """Returns the model to train."""
  return networks.build(args.features, args.activation,
                        augmented=args.augmentation_multiplicity != 1)


def make_noise(mechanism: str, noise_multiplier: float, dim: int) -> Any:
  """Returns the noise of a mechanism, from the shipped tables or designed now.

  A table from a file has its own noise multiplier. `dim` is for 'isotropic', which is a
  `RadialGaussian` where none is shipped. Raises ValueError for another mechanism.
  """
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
  """Returns the plan of the options; ValueError if one is wrong or two do not agree."""
  for name in ('batch_size', 'epochs', 'learning_rate'):
    value = getattr(args, name)
    if not (value > 0 and math.isfinite(value)):
      raise ValueError(
          f'Expected --{name.replace("_", "-")} > 0, got {value}.')
  _check_optimizer(args)
  _check_checkpoint(args)
  if args.bands is not None:
    if args.mechanism != 'gaussian':
      raise ValueError(
          'Expected --mechanism gaussian with --bands, which has a proof for Gaussian '
          f'noise only, got {args.mechanism!r}.')
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
  """Returns the plan of a resumed run, with steps for all epochs of the options.

  Noise, clipping, sampling and the cost of a step do not change. A plan that has these
  steps is returned unchanged, and so is one with correlated noise, whose strategy was
  solved for its steps and whose guarantee counts whole epochs.
  """
  steps = args.epochs * steps_per_epoch(args, plan.num_examples)
  if plan.strategy is not None or steps <= plan.steps:
    return plan
  return dataclasses.replace(plan, steps=steps)


def steps_per_epoch(args: argparse.Namespace, num_examples: int) -> int:
  """Returns the number of steps per epoch without correlated noise."""
  return SAMPLINGS[args.sampling].of_batch_size(
      args.batch_size, num_examples).batches_per_epoch


def _check_optimizer(args: argparse.Namespace) -> None:
  """Raises ValueError for options that only --optimizer privatize takes."""
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
  """Returns the plan of the options with noise correlated over steps (BandMF)."""
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
