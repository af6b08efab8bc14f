"""`tfcactus epsilon`: the epsilon of training steps at a delta."""

from __future__ import annotations

import argparse

from tfcactus import _format
from tfcactus.cli import steps
from tfcactus.cli.command import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
  steps.add_steps(parser)
  steps.add_rows(parser)
  parser.add_argument('--delta', type=float, required=True,
                      help='delta at which epsilon is computed')


def _run(args: argparse.Namespace) -> None:
  steps.show_bounds(args, 'epsilon', f'delta {_format.upper(args.delta)}',
                    lambda accountant: accountant.epsilon_bounds(args.delta))


COMMAND = Command('epsilon', 'compute the epsilon of training steps at a delta',
                  _add_arguments, _run)
