"""`tfcactus account`: begins, shows and moves the account of a data set."""

from __future__ import annotations

import argparse
import os

import numpy as np

from tfcactus import _format, relations
from tfcactus.audit import pictures
from tfcactus.cli import command
from tfcactus.cli.command import Command
from tfcactus.data_account import DataAccount


def _add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the action, the file, and the budget of a new account."""
  add = parser.add_argument
  add('action', choices=('new', 'show', 'moved'), help='new: begin an account; show: '
      'print who spent what, and what is left; moved: accept a file in another place, '
      'on your word that no other copy is spent from')
  add('file', metavar='FILE', help='file of the account')
  add('--epsilon', type=float, help='new: epsilon of everything together')
  add('--delta', type=float, help='new: delta of everything together')
  add('--relation', choices=tuple(relations.NAMES), help='new: neighbouring relation; '
      'default: add-or-remove')
  add('--unit', help='new: whom it protects, such as user; default: example')
  add('--leak', type=float, help='new: part of delta for what is not planned; default: '
      'a tenth')
  add('--picture', metavar='P.png', help='show: draw who spent what')
  command.add_json(parser)


def _run(args: argparse.Namespace) -> None:
  """Begins, shows or moves an account, and prints it."""
  given = {'epsilon': args.epsilon, 'delta': args.delta, 'unit': args.unit,
           'leak': args.leak, 'neighboring_relation': args.relation}
  if args.action == 'new':
    command.require(args, 'account new', 'epsilon', 'delta')
    if os.path.exists(args.file):
      raise ValueError(f'Expected a new file, got {args.file!r}, which is there.')
    account = DataAccount(args.file, **given)
  elif any(value is not None for value in given.values()):
    raise ValueError('Expected a budget with "account new" only, got one with '
                     f'"account {args.action}".')
  else:
    account = DataAccount(args.file, moved=args.action == 'moved')
  if args.picture:
    _draw(account, args.picture)
  left, found = account.left, account.guarantee()
  planned = account.epsilon_if_planned()
  command.show(args, {
      'upper': found.upper, 'delta': found.delta, 'unit': account.unit,
      'neighboring_relation': found.neighboring_relation, 'head': account.head,
      'left': left._asdict(), 'if_planned': planned, 'entries': account.entries,
      'slots': {label: [slot.used, slot.count]
                for label, slot in account.slots.items()},
  }, account.report())


def _draw(account: DataAccount, path: str) -> None:
  """Draws what is spent of the adaptive part and of each slot, to the file `path`."""
  axis = pictures.axes(1, 8, 3 + 0.3 * len(account.slots))
  bars: dict[str, str] = {}
  start = np.zeros(2)
  spent, left = account.spent, account.left
  # At least 1e-300, so that an empty part divides by no zero.
  whole = np.maximum([spent.mu**2 + left.mu**2, spent.leak + left.leak], 1e-300)
  for entry in account.entries:
    if entry['kind'] in ('spend', 'reserve'):
      share = np.array([entry['mu']**2, entry['leak']]) / whole
      label = None if entry['label'] in bars else entry['label']  # Once in the legend.
      colour = bars.setdefault(entry['label'], f'C{len(bars) % 10}')
      axis.barh(['adaptive part, mu²', 'adaptive part, leak'], share, left=start,
                color=colour, label=label)
      start = start + share
  for label, slot in account.slots.items():
    axis.barh([f'slot {label}'], [slot.used / slot.count], color='grey')
  axis.set(xlim=(0, 1), xlabel='share that is spent', title=(
      f'epsilon <= {_format.upper(account.guarantee().upper)} at delta '
      f'{_format.upper(account.guarantee().delta)}'))
  if bars:
    axis.legend(fontsize=8)
  axis.figure.savefig(path, dpi=120)


COMMAND = Command('account', 'begin or show the account of a data set, which holds all '
                  'that is done with it', _add_arguments, _run)
