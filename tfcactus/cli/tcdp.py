"""`tfcactus tcdp`: converts truncated CDP to epsilon and delta."""

from __future__ import annotations

import argparse

from tfcactus import _format, accounting
from tfcactus.cli import command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds rho, omega, delta, and what is done with the guarantee."""
  add = parser.add_argument
  add('--rho', type=float, required=True, help='rho of the guarantee')
  add('--omega', type=float, default=float('inf'),
      help='omega of the guarantee; default: infinite, which is zCDP')
  add('--sampling-prob', type=float, help='amplify by sampling with this probability '
      '(Theorem 12)')
  add('--steps', type=int, default=1, help='number of releases composed; default: '
      '%(default)s')
  add('--group', type=int, default=1, help='number of records protected together '
      '(group privacy); default: %(default)s')
  add('--delta', type=float, required=True, help='delta at which epsilon is computed')
  command.add_json(parser)


def _run(args: argparse.Namespace) -> None:
  """Amplifies the guarantee by sampling, composes it, and prints its epsilon."""
  guarantee = accounting.TCDP(args.rho, args.omega)
  if args.sampling_prob is not None:
    guarantee = guarantee.subsample(args.sampling_prob)
  guarantee = guarantee.self_compose(args.steps)
  epsilon = (guarantee.epsilon(args.delta) if args.group == 1 else
             guarantee.group_epsilon(args.group, args.delta))
  whom = 'one record' if args.group == 1 else f'groups of {args.group} records'
  command.show(
      args, {'rho': guarantee.rho, 'omega': guarantee.omega, 'epsilon': epsilon},
      f'{guarantee}: epsilon <= {_format.upper(epsilon, 10)} at delta '
      f'{_format.upper(args.delta)} for {whom}')


COMMAND = command.Command(
    'tcdp', 'convert (rho, omega)-truncated CDP to epsilon and delta',
    _add_arguments, _run)
