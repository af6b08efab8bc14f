"""`tfcactus tuned-epsilon`: the epsilon of the best of a secret number of runs."""

from __future__ import annotations

import argparse
from typing import Callable

import dp_accounting

from tfcactus import _format, accounting
from tfcactus.cli import command, steps

_LAWS: dict[str, Callable[[argparse.Namespace], accounting.RunLaw]] = {
    'logarithmic': lambda args: accounting.LogarithmicRuns(args.runs),
    'geometric': lambda args: accounting.GeometricRuns(args.runs),
    'negative-binomial': lambda args: accounting.NegativeBinomialRuns(
        args.runs, args.eta),
    'poisson': lambda args: accounting.PoissonRuns(args.runs),
    'poisson-at-least-one': lambda args: accounting.PoissonRuns(
        args.runs, at_least_one=True),
    'always': lambda args: accounting.FixedRuns(_whole(args.runs)),
}
"""Laws of the number of runs, by --runs-law."""


def add_runs(parser: argparse.ArgumentParser, **options: object) -> None:
  """Adds the arguments of a search; `options` are those of --runs."""
  add = parser.add_argument
  add('--runs', type=command.number, metavar='MEAN', help='mean number of runs of a '
      'search, of which the best is shown (for poisson laws: that of the plain Poisson '
      'law)', **options)  # type: ignore[arg-type]
  add('--runs-law', choices=tuple(_LAWS), default='logarithmic',
      help='law from which the secret number of runs is drawn; always: the same '
      'number, which may be public. Default: %(default)s')
  add('--eta', type=float, help='shape of the negative-binomial law, above -1')
  add('--most-runs', type=int, metavar='CAP', help='public cap: a search ends after so '
      'many runs')
  add('--score', default='released', help='what decides which run is best. released: a '
      'function of what a run releases, all of it in the steps; public: a function of '
      'that and of public data. A score that reads private data without noise is '
      'refused. Default: %(default)s')


def search(args: argparse.Namespace, event: dp_accounting.DpEvent
           ) -> accounting.SearchDpEvent:
  """Returns the search in the arguments of `add_runs`, where a run has this event."""
  if (args.eta is not None) != (args.runs_law == 'negative-binomial'):
    raise ValueError('Expected --eta with --runs-law negative-binomial and no other, '
                     f'got eta={args.eta!r} with {args.runs_law}.')
  law = _LAWS[args.runs_law](args)
  return accounting.SearchDpEvent(
      law if args.most_runs is None else law.capped(args.most_runs), event,
      score=args.score)


def _whole(runs: float) -> int:
  """Returns a number of runs as an int; ValueError unless it is one."""
  if runs != round(runs):
    raise ValueError('Expected --runs to be a whole number with --runs-law always, got '
                     f'{runs}.')
  return round(runs)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds steps, rows of a person, runs of a search, and --delta."""
  steps.add_steps(parser)
  steps.add_rows(parser)
  add_runs(parser, required=True)
  parser.add_argument('--delta', type=float, required=True,
                      help='delta at which epsilon is computed')


def _run(args: argparse.Namespace) -> None:
  """Prints the bounds on the epsilon of a search."""
  steps.show_bounds(args, 'epsilon', f'delta {_format.upper(args.delta)}',
                    lambda accountant: accountant.epsilon_bounds(args.delta),
                    search=lambda event: search(args, event))


COMMAND = command.Command(
    'tuned-epsilon', 'compute the epsilon of a search: the best of a secret number of '
    'runs, each of the steps given', _add_arguments, _run)
