"""`tfcactus epsilon`: the epsilon of training steps at a delta."""

from __future__ import annotations

import argparse
import functools

import numpy as np

from tfcactus import _format, accounting
from tfcactus.accounting.attacks import AttackReport
from tfcactus.audit import pictures
from tfcactus.cli import command, steps
from tfcactus.cli.command import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds steps, rows of a person, --delta, and the arguments of the report."""
  steps.add_steps(parser)
  steps.add_rows(parser)
  parser.add_argument('--delta', type=float, required=True,
                      help='delta at which epsilon is computed')
  parser.add_argument('--report', action='store_true', help='also say what a '
                      'membership attack can do: true positive rates, advantage, '
                      'posterior, Gaussian differential privacy')
  parser.add_argument('--prior', type=command.number, default=0.5,
                      help='with --report: probability that a record is in the data, '
                      'before the attack; default: %(default)s')
  parser.add_argument('--picture', metavar='P.png', help='draw the trade-off curve: '
                      'the true positive rate of the best attack by its false positive '
                      'rate')


def _run(args: argparse.Namespace) -> None:
  """Prints the bounds on epsilon, with a report if asked."""
  steps.show_bounds(
      args, 'epsilon', f'delta {_format.upper(args.delta)}',
      lambda accountant: accountant.epsilon_bounds(args.delta),
      functools.partial(_report, args) if args.report or args.picture else None)


def _report(args: argparse.Namespace, accountant: accounting.PhiAccountant,
            statement: str) -> AttackReport:
  """Returns the report, and draws its picture if asked."""
  axis = pictures.axes(1, 6) if args.picture else None
  found = AttackReport.of(accountant, statement, prior=args.prior)
  if axis is not None:
    rate = np.geomspace(1e-5, 1.0, 400)
    axis.loglog(rate, found.curve.most_true_positives(rate), label='no attack passes')
    axis.loglog(rate, found.curve.best_true_positives(rate), ':', label='lower bound')
    axis.loglog(rate, rate, '--', color='grey', label='guessing')
    axis.set(xlabel='false positive rate', ylabel='largest true positive rate',
             title=f'epsilon <= {_format.upper(accountant.get_epsilon(args.delta))} at '
                   f'delta {_format.upper(args.delta)}')
    axis.grid(alpha=0.3)
    axis.legend()
    axis.figure.savefig(args.picture, dpi=120)
  return found


COMMAND = Command('epsilon', 'compute the epsilon of training steps at a delta',
                  _add_arguments, _run)
