"""`tfcactus choose-unit`: row sampling or user sampling, by noise per row."""

from __future__ import annotations

import argparse
import dataclasses

from tfcactus import _format, search
from tfcactus.cli import command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the numbers of rows, the run, and the target."""
  add = parser.add_argument
  add('data', metavar='DATA', help='FILE.npy, or text, with the number of rows of each '
      'user, one per line; public or released numbers')
  add('--batch-size', type=int, required=True, help='rows computed in a step')
  add('--steps', type=int, required=True, help='number of steps')
  add('--target-epsilon', type=float, required=True,
      help='epsilon for all rows of any one user')
  add('--delta', type=float, required=True, help='delta of that epsilon')
  add('--caps', type=int, nargs='+', metavar='K',
      help='largest numbers of rows of a user to compare, such as a quantile from '
      '"release quantile". Default: powers of two, and the largest number of rows')
  add('--alike', type=float, default=0.5, help='share of a squared gradient that the '
      'rows of a user have in common, a public guess. Default: %(default)s')
  command.add_json(parser)


def _run(args: argparse.Namespace) -> None:
  """Prints the noise per row of both ways to draw batches, for each cap on rows."""
  found = search.choose_unit(
      command.read_numbers(args.data), batch_size=args.batch_size, steps=args.steps,
      target_epsilon=args.target_epsilon, delta=args.delta, caps=args.caps,
      alike=args.alike)
  user, row = found.by_user, found.by_row
  best, other = f'users, {user.cap} rows of each in a step', f'rows, {row.cap} a user'
  noise = [user.user_noise, row.row_noise]
  if found.unit == 'example':
    best, other, noise = other, best, noise[::-1]
  lines = [f'{"cap":>6s} {"rows kept":>10s} {"row noise":>11s} {"user noise":>11s}']
  lines += [f'{cost.cap:6d} {cost.rows:10d} {_format.upper(cost.row_noise, 4):>11s} '
            f'{_format.upper(cost.user_noise, 4):>11s}' for cost in found.costs]
  command.show(
      args, {'unit': found.unit, 'cap': (user if found.unit == 'user' else row).cap,
             'noise_per_row': noise[0], 'other_noise_per_row': noise[1],
             'costs': [dataclasses.asdict(cost) for cost in found.costs]},
      '\n'.join([*lines, (
          f'Draw {best}: noise per row {_format.upper(noise[0])}, against '
          f'{_format.upper(noise[1])} of {other}, both within epsilon '
          f'{_format.upper(args.target_epsilon)} for all rows of any one user. The '
          'choice tells of the numbers of rows: give public or released ones.')]))


COMMAND = command.Command(
    'choose-unit', 'choose between drawing rows and drawing users, and the most rows '
    'of a user, by the noise per row', _add_arguments, _run)
