"""Trains a small model, by default a CNN, on MNIST with differential privacy.

    python -m training.mnist
    python -m training.mnist --mechanism gaussian --target-epsilon 1
    python -m training.mnist --mechanism gaussian --sampling allocation
    python -m training.mnist --mechanism gaussian --target-epsilon 3 --bands auto
    python -m training.mnist --recipe best
    python -m training.mnist --recipe scattering --target-epsilon 1
    python -m training.mnist --mechanism gaussian --optimizer drop-in
    python -m training.mnist --mechanism gaussian --target-epsilon 2 --checkpoint run
    python -m training.mnist --resume run
    python -m training.mnist --help
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import dataclasses
import json
import math
import os
import sys
import time
from typing import Any

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import tensorflow as tf  # noqa: E402

import tfcactus  # noqa: E402
from tfcactus import _format  # noqa: E402
from training import checkpoints, datasets, features, optimizers, strategies  # noqa: E402
from training.options import build_model, longer_plan, make_plan, parse  # noqa: E402


def load_data(args: argparse.Namespace) -> datasets.Dataset:
  """Returns the images; with --held-out, training images replace the test images."""
  data = datasets.load(args.dataset, args.data_dir)
  return datasets.hold_out(data, args.held_out) if args.held_out else data


def seen(args: argparse.Namespace, data: datasets.Dataset) -> datasets.Dataset:
  """Returns the data with --features in place of images; scattering takes minutes."""
  if args.features != 'pixels':
    print(f'Computing features: {args.features}.')
  transform = features.FEATURES[args.features]
  return dataclasses.replace(
      data, **{part: (transform(images), labels) for part, (images, labels) in (
          ('train', data.train), ('test', data.test))})


def check_writable(path: str | None, option: str = '--json') -> None:
  """Raises ValueError if a file cannot be written, so that no training is wasted."""
  if path is None:
    return
  existed = os.path.exists(path)
  try:
    with open(path, 'a', encoding='utf-8'):
      pass
  except OSError as error:
    raise ValueError(
        f'Expected {option} to be a file that can be written, got {path}: '
        f'{error.strerror}.') from error
  if not existed:
    os.remove(path)


def announce(args: argparse.Namespace, data: datasets.Dataset,
             plan: tfcactus.PrivacyPlan) -> None:
  """Prints data, noise and warnings before training."""
  print(f'Data: {data.description}.')
  print(f'Noise: {plan.noise.name} {plan.noise.digest}, noise multiplier '
        f'{_format.lower(plan.noise.noise_multiplier)}.')
  if plan.strategy is not None and plan.groups > 1:
    # The denominator is the root mean square error of independent noise.
    left = plan.strategy.error(plan.steps) / math.sqrt((plan.steps + 1) / 2)
    print(f'  Correlated over {plan.groups} steps ({plan.strategy.digest}): at a '
          f'constant learning rate the weights get {100 * left:.1f} % of the noise '
          'that independent draws would add up to.')
  statement = getattr(plan.noise, 'info', {}).get('statement')
  if statement:
    print(f'  {statement}')
  if args.accounting != 'proven':
    print(f'WARNING: {plan.guarantee().statement}')
  if args.seed is not None:
    print('Seeded: an experiment that can be repeated, not a private release.')


def accuracy_name(args: argparse.Namespace) -> str:
  """Returns the key of the accuracy in the JSON file."""
  return 'held_out_accuracy' if args.held_out else 'test_accuracy'


def resumed(args: argparse.Namespace) -> tf.keras.Model | None:
  """Returns the model of the run to resume; None for a new run."""
  if args.resume is None:
    return None
  with strategies.scope(args.strategy):
    return checkpoints.Run(args.resume).load()


def completed_epochs(args: argparse.Namespace, model: tf.keras.Model,
                     steps_per_epoch: int) -> int:
  """Returns and prints the number of epochs that a resumed model has completed.

  Raises ValueError if no epoch is left.
  """
  completed = int(model.optimizer.iterations.numpy()) // steps_per_epoch
  if completed >= args.epochs:
    raise ValueError(
        f'Expected more --epochs than the {completed} that the run in {args.resume} '
        f'has behind it, got {args.epochs}.')
  print(f'Goes on after epoch {completed} of {args.epochs}; {model.ledger().steps} '
        'steps count as released before.')
  return completed


def train(args: argparse.Namespace, data: datasets.Dataset,
          plan: tfcactus.PrivacyPlan, model: tf.keras.Model | None = None
          ) -> tuple[dict[str, Any], tfcactus.Guarantee]:
  """Trains `model`, or a new model; returns the JSON results and the guarantee.

  `plan` is the plan of the options, or of the run that is resumed with `model`.
  """
  if args.seed is not None:
    tf.keras.utils.set_random_seed(args.seed)
  with strategies.scope(args.strategy):
    way = optimizers.WAYS[args.optimizer](args, plan)
    model = way.compiled(build_model(args)) if model is None else way.resumed(model)
  batches = way.batches(*data.train)
  completed = (completed_epochs(args, model, batches.steps_per_epoch)
               if args.resume else 0)
  start = time.time()
  history = model.fit(
      way.fed(batches), epochs=args.epochs, validation_data=data.test,
      initial_epoch=completed, callbacks=way.callbacks(batches),
      verbose=args.verbose if strategies.is_chief(args.strategy) else 0)
  seconds = time.time() - start
  return result(args, data, way, model, history, seconds), way.guarantee(model)


def result(args: argparse.Namespace, data: datasets.Dataset, way: optimizers.Way,
           model: tf.keras.Model, history: Any, seconds: float) -> dict[str, Any]:
  """Returns the content of the JSON file."""
  plan, guarantee = way.plan, way.guarantee(model)
  return {
      'dataset': data.name, 'dataset_description': data.description,
      'mechanism': args.mechanism, 'noise': plan.noise.name,
      'table_digest': plan.noise.digest,
      'parameters': {
          'noise_multiplier': plan.noise.noise_multiplier,
          'l2_norm_clip': plan.l2_norm_clip, 'batch_size': args.batch_size,
          'epochs': args.epochs, 'learning_rate': args.learning_rate,
          'sampling': args.sampling, 'optimizer': args.optimizer,
          'bands': None if plan.strategy is None else plan.strategy.bands,
          'activation': args.activation, 'features': args.features,
          'augmentation_multiplicity': args.augmentation_multiplicity,
          'held_out': args.held_out, 'strategy': args.strategy,
          'num_examples': plan.num_examples,
          'sampling_prob': plan.sampling_prob, 'seed': args.seed},
      'steps': way.released(model),
      accuracy_name(args): history.history['val_accuracy'][-1],
      'epsilon': {'lower': guarantee.lower, 'estimate': guarantee.estimate,
                  'upper': guarantee.upper},
      'delta': guarantee.delta,
      'neighboring_relation': guarantee.neighboring_relation,
      'accountant': guarantee.accountant, 'proven': guarantee.proven,
      'seeded': guarantee.seeded, 'statement': guarantee.statement,
      'seconds': seconds}


def run(args: argparse.Namespace) -> tuple[dict[str, Any], tfcactus.Guarantee]:
  """Trains as the options say; returns the JSON results and the guarantee."""
  check_writable(args.json)
  check_writable(args.run_card, '--run-card')
  strategies.opened(args.strategy)  # Must precede all other use of TensorFlow.
  model = resumed(args)
  data = load_data(args)
  args.dataset = data.name  # Saved, so that a resumed run loads the same data.
  plan = make_plan(args, num_examples=data.train[1].size) if model is None else (
      longer_plan(args, model.plan))
  if args.checkpoint is not None:
    checkpoints.Run(args.checkpoint).begin()
  announce(args, data, plan)
  try:
    return train(args, seen(args, data), plan, model)
  except KeyboardInterrupt:
    folder = args.resume or args.checkpoint
    if folder is not None and checkpoints.Run(folder).begun():
      print(f'\n--resume {folder} goes on from here.', file=sys.stderr)
    raise


def show(args: argparse.Namespace, found: dict[str, Any],
         guarantee: tfcactus.Guarantee) -> None:
  """Prints the results, and writes the JSON file."""
  name = accuracy_name(args)
  print(f'{name.replace("_", " ").capitalize()} {found[name]:.4f} on '
        f'{found["dataset"]} after {found["steps"]} steps in {found["seconds"]:.0f} s.')
  print(guarantee)
  if guarantee.proven:
    print(guarantee.statement)
  if args.json and strategies.is_chief(args.strategy):
    with open(args.json, 'w', encoding='utf-8') as file:
      json.dump(found, file, indent=2)
      file.write('\n')


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the script; returns 0, or 2 after an error, 130 after an interrupt."""
  try:
    args = parse(argv)
    show(args, *run(args))
  except (ValueError, datasets.DatasetError, FileNotFoundError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    return 130
  return 0


if __name__ == '__main__':
  sys.exit(main())
