"""`tfcactus design correlation`: designs correlated noise (BandMF, DP-FTRL)."""

from __future__ import annotations

import argparse
from typing import Any, Callable
import warnings

import numpy as np

from tfcactus import _format, correlated
from tfcactus.audit import pictures
from tfcactus.cli import command
from tfcactus.correlated import workload as workload_lib
from tfcactus.plan import PrivacyPlan

_Plans = list[PrivacyPlan]  # Of increasing bands; empty without --epsilon.


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of correlations only."""
  add = parser.add_argument_group(
      'correlated noise', 'Give --steps. With --batches, --epsilon and --delta the '
      'number of bands of least total error is searched.').add_argument
  add('--bands', type=int, metavar='B', help='number of steps over which noise is '
      'correlated')
  add('--blocked', action='store_true', default=None,
      help='keep one vector of the size of the model, in place of bands - 1')
  add('--momentum', type=command.number, help='momentum of the optimizer; default: 0')
  add('--batches', type=int, metavar='T', help='number of batches in an epoch')
  add('--plot', metavar='P.png', help='file to draw the strategies to')


def run(args: argparse.Namespace) -> None:
  """Designs, writes, draws and reports; raises ValueError for wrong arguments."""
  if args.plot is not None:
    pictures.axes(1, 1)  # Raises without matplotlib, before the search.
  plans: _Plans = []
  if args.epsilon is None:
    command.require(args, 'design correlation without --epsilon', 'bands')
    if args.batches is not None or args.delta is not None:
      raise ValueError('Expected --epsilon with --batches and --delta, got none.')
    steps = args.steps
    strategy = correlated.solved(_request(args)(args.bands), steps)
  else:
    command.require(args, 'design correlation --epsilon', 'batches', 'delta')
    plan, plans = _searched(args)
    assert plan.strategy is not None, 'Of a plan with a correlation.'
    strategy, steps = plan.strategy, plan.steps
  if args.out is not None:
    correlated.save(strategy, args.out)
  if args.plot is not None:
    _draw(args, strategy, steps, plans)
  workload = _workload(args)
  error = strategy.error(steps, workload)
  alone = correlated.BandedToeplitz([1.0]).error(steps, workload)
  report = {**strategy.to_config(), 'steps': steps, 'error': error,
            'error_of_independent_noise': alone,
            'alternatives': [_row(each, workload) for each in plans]}
  command.show(args, report, _told(args, strategy, report))


def _workload(args: argparse.Namespace) -> correlated.Workload:
  """Returns the workload of a constant learning rate and --momentum."""
  return correlated.Workload(momentum=args.momentum or 0.0)


def _request(args: argparse.Namespace) -> Callable[[int], correlated.Correlation]:
  """Returns the function from bands to the correlation asked for, not solved yet."""
  if not args.blocked:
    return lambda bands: correlated.BandedStrategy(bands, _workload(args))
  if args.momentum:
    raise ValueError(
        'Expected no --momentum with --blocked, which is solved for plain sums, got '
        f'{args.momentum}.')
  return correlated.BlockedStrategy


def _searched(args: argparse.Namespace) -> tuple[PrivacyPlan, _Plans]:
  """Returns (plan with --bands, or of least total error; all plans compared)."""
  if args.batches < 1 or args.steps % args.batches:
    raise ValueError(
        'Expected --steps to be a multiple of --batches, whole epochs, got '
        f'{args.steps} and {args.batches}.')
  request = _request(args)

  def plan_of(bands: int) -> PrivacyPlan:
    """Returns the plan of the arguments with noise correlated over `bands` steps."""
    # Only the ratio of the two numbers matters, and a warning that delta is large for
    # so many examples would mislead.
    with warnings.catch_warnings():
      warnings.filterwarnings('ignore', 'Expected delta far below one over the number')
      return PrivacyPlan.for_training(
          batch_size=1000, num_examples=1000 * args.batches,
          epochs=args.steps // args.batches, delta=args.delta, l2_norm_clip=1.0,
          target_epsilon=args.epsilon, correlation=request(bands))

  wanted = None if args.bands is None else plan_of(args.bands)
  best, seen = workload_lib.least_error(
      workload_lib.numbers_of_bands(args.batches), plan_of,
      lambda plan: workload_lib.total_error(plan, _workload(args)))
  return (wanted or best), seen


def _row(plan: PrivacyPlan, workload: correlated.Workload) -> dict[str, Any]:
  """Returns a plan's bands, noise multiplier and total error, ready for JSON."""
  return {'bands': plan.groups, 'noise_multiplier': plan.noise.noise_multiplier,
          'total_error': workload_lib.total_error(plan, workload)}


def _told(args: argparse.Namespace, strategy: correlated.Strategy,
          report: dict[str, Any]) -> str:
  """Returns the report in words."""
  share = report['error'] / report['error_of_independent_noise']
  lines = [f'{strategy.kind} of {strategy.bands} bands for {report["steps"]} steps: '
           f'{100 * share:.4g} % of what independent noise of the same noise '
           f'multiplier adds up to; drawing keeps {strategy.buffers} vector(s) of the '
           "model's size"]
  rows = report['alternatives']
  if rows:
    lines.append(f'at epsilon {_format.upper(args.epsilon)}, delta '
                 f'{_format.upper(args.delta)}, cyclic allocation:')
    first = rows[0]['total_error']
    lines += [f'  {row["bands"]:5d} bands: noise multiplier '
              f'{_format.upper(row["noise_multiplier"])}, total error '
              f'{100 * row["total_error"] / first:.1f} %' for row in rows]
  lines.append(f'digest {strategy.digest}' + (
      f', written to {args.out}' if args.out else '') + (
          f', drawn in {args.plot}' if args.plot else ''))
  return '\n'.join(lines)


def _draw(args: argparse.Namespace, strategy: correlated.Strategy, steps: int,
          plans: _Plans) -> None:
  """Draws one draw's noise over later steps, errors by step, and errors of plans."""
  axes = pictures.axes(*((3, 15) if plans else (2, 10)), 4)
  size = min(2 * strategy.bands, steps)
  axes[0].stem(np.arange(size), strategy.inverse_column(0, size), basefmt=' ')
  axes[0].set(xlabel='steps later', ylabel='of one draw', title='Noise of a draw')
  workload = _workload(args)
  for each, label in ((correlated.BandedToeplitz([1.0]), 'independent'),
                      (strategy, f'{strategy.bands} bands')):
    axes[1].plot(np.arange(1, steps + 1), each.errors(steps, workload), label=label)
  axes[1].set(xlabel='step', ylabel='standard deviation / noise multiplier',
              title='What adds up in the weights')
  axes[1].legend()
  if plans:
    rows = [_row(plan, workload) for plan in plans]
    axes[2].semilogx([row['bands'] for row in rows],
                     [row['total_error'] / rows[0]['total_error'] for row in rows],
                     'o-')
    axes[2].axvline(strategy.bands, color='C1', linewidth=0.8)
    axes[2].set(xlabel='bands', ylabel='total error / that of one band', ylim=(0, None),
                title=f'At epsilon {_format.upper(args.epsilon)}, delta '
                f'{_format.upper(args.delta)}')
  for axis in axes:
    axis.grid(alpha=0.3)
  axes[0].figure.savefig(args.plot, dpi=120)
