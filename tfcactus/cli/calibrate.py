"""`tfcactus calibrate`: noise, steps or sampling probability for a target epsilon."""

from __future__ import annotations

import argparse
import fractions
import time
from typing import Any, Callable

import dp_accounting

from tfcactus import _format, accounting, relations
from tfcactus.accounting import calibration
from tfcactus.cli import command, steps, tuned_epsilon
from tfcactus.release import planner

_SOLVERS: dict[str, Callable[[float, Callable[[Any], float]], float]] = {
    'noise_multiplier': calibration.calibrate_noise,
    'steps': calibration.calibrate_steps,
    'sampling_prob': calibration.calibrate_sampling_prob}
"""Functions of (target epsilon, account) that find an argument, by its name."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds steps, runs of a search, and the target."""
  steps.add_steps(parser)
  tuned_epsilon.add_runs(parser)
  parser.add_argument('--target-epsilon', type=float, required=True,
                      help='largest epsilon allowed at --delta')
  parser.add_argument('--delta', type=float, required=True, help='delta of the target')


def _wanted(args: argparse.Namespace) -> str:
  """Returns the argument to find; ValueError unless it alone is missing.

  Sets args.steps, also by --epochs; args.sampling and args.sampling_prob have
  defaults, 'poisson' and 1.
  """
  if args.noise is None or args.step or args.steps_file:
    raise ValueError('Expected --noise with calibrate, and no other steps.')
  args.steps = steps.counted(args)
  flags = {'noise_multiplier': '--noise-multiplier', 'steps': '--steps',
           'sampling_prob': '--sampling-prob'}
  table = args.noise not in planner.FAMILIES
  if table:
    del flags['noise_multiplier']
  if args.sampling == 'allocation':  # Each record is in one batch of an epoch.
    flags['steps'] = '--epochs'
    del flags['sampling_prob']
  wanted = [name for name in flags if getattr(args, name) is None]
  if args.sampling_prob is None and wanted != ['sampling_prob']:
    args.sampling_prob = fractions.Fraction(1)
    wanted = [name for name in wanted if name != 'sampling_prob']
  if len(wanted) != 1:
    given = ', '.join(flag for name, flag in flags.items() if name not in wanted)
    raise ValueError(
        f'Expected just one of {", ".join(flags.values())} to be missing, to find it'
        f'{"; a table has its own noise multiplier" if table else ""}; got '
        f'{given or "none of them"}.')
  return wanted[0]


def _run(args: argparse.Namespace) -> None:
  """Finds the argument that is missing, and prints it with the epsilon it gives."""
  name = _wanted(args)
  if args.runs is None and (args.eta is not None or args.most_runs is not None):
    raise ValueError('Expected --runs with --eta and --most-runs, got none.')

  def event(value: float) -> dp_accounting.DpEvent:
    """Returns the event of all steps, or of a search, with the sought `value`."""
    values = {known: getattr(args, known) for known in _SOLVERS}
    values[name] = fractions.Fraction(value) if name == 'sampling_prob' else value
    found = steps.StepGroup(args.noise, sampling=args.sampling, bend=args.bend,
                            batches=args.batches, **values).event()
    return found if args.runs is None else tuned_epsilon.search(args, found)

  start = time.perf_counter()
  cost = calibration.account(event, args.delta, relations.NAMES[args.relation],
                             args.direction)
  if name == 'noise_multiplier' and args.runs is not None:
    # The bounds of a search are no smooth function of the noise.
    value = calibration.calibrate_noise(args.target_epsilon, cost, tolerance=1e-4)
  else:
    value = _SOLVERS[name](args.target_epsilon, cost)
  # No step at all, if one would already cost more than the target.
  reached, found = (cost(value), event(value)) if value else (0.0, None)
  condition = found.condition if isinstance(found, accounting.SearchDpEvent) else ''
  # Less noise, or a larger sampling probability, would cost more than printed.
  safe = _format.lower if name == 'sampling_prob' else _format.upper
  told = str(value) if name == 'steps' else safe(value, 10)
  if name == 'steps' and args.sampling == 'allocation':
    name = 'epochs'
  command.show(
      args, {name: value, 'epsilon': reached, 'relation': args.relation,
             'direction': args.direction, 'seconds': time.perf_counter() - start},
      f'{name} {told}: epsilon <= {_format.upper(reached, 10)} at delta '
      f'{_format.upper(args.delta)} ({args.relation}, direction {args.direction}). '
      f'{steps.one_direction(args)}{condition}'.rstrip())


COMMAND = command.Command(
    'calibrate', 'find the noise multiplier, the number of steps or the sampling '
    'probability that meets a target epsilon; give the others', _add_arguments, _run)
