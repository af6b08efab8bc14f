"""`tfcactus delta`: the delta of training steps at an epsilon."""

from __future__ import annotations

import argparse

from tfcactus import _format
from tfcactus.cli import steps
from tfcactus.cli.command import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
  steps.add_steps(parser)
  steps.add_rows(parser)
  parser.add_argument('--epsilon', type=float, required=True,
                      help='epsilon at which delta is computed')


def _run(args: argparse.Namespace) -> None:
  steps.show_bounds(args, 'delta', f'epsilon {_format.upper(args.epsilon)}',
                    lambda accountant: accountant.delta_bounds(args.epsilon))


COMMAND = Command('delta', 'compute the delta of training steps at an epsilon',
                  _add_arguments, _run)
