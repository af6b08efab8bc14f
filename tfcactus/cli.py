"""The `tfcactus` command: what noise costs, and which tables are shipped."""

from __future__ import annotations

import argparse
import fractions
import json
import sys
import time
from typing import Optional
from typing import Sequence

import dp_accounting

from tfcactus import noise as noise_lib
from tfcactus import privacy
from tfcactus.noise import library

_RELATIONS = {
    'add-or-remove': dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    'replace': dp_accounting.NeighboringRelation.REPLACE_ONE,
}


def _fraction(text: str) -> float:
  """A number such as 0.004 or 250/60000."""
  try:
    return float(fractions.Fraction(text))
  except (ValueError, ZeroDivisionError):
    raise argparse.ArgumentTypeError(
        f'Expected a number or a fraction such as 250/60000, got {text!r}.'
    ) from None


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(prog='tfcactus', description=__doc__)
  commands = parser.add_subparsers(dest='command', required=True)
  epsilon = commands.add_parser(
      'epsilon', help='epsilon of noisy steps at a given delta')
  add = epsilon.add_argument
  add('--noise', required=True,
      help='gaussian, laplace, the name of a shipped table, or FILE.npz')
  add('--noise-multiplier', type=float,
      help='standard deviation of the Gaussian, or scale of the Laplace, over '
      'the sensitivity')
  add('--sampling-prob', type=_fraction, default=1.0)
  add('--steps', type=int, required=True)
  add('--delta', type=float, required=True)
  add('--neighbors', choices=sorted(_RELATIONS), default='add-or-remove')
  add('--direction', choices=('both', 'add', 'remove'), default='both')
  add('--json', action='store_true', help='print JSON')
  commands.add_parser('tables', help='list the shipped noise tables')
  return parser


def _noise(args: argparse.Namespace) -> noise_lib.Noise:
  closed = {'gaussian': noise_lib.Gaussian, 'laplace': noise_lib.Laplace}
  if args.noise in closed:
    if args.noise_multiplier is None:
      raise ValueError(f'Expected --noise-multiplier with --noise {args.noise}.')
    return closed[args.noise](args.noise_multiplier)
  if args.noise_multiplier is not None:
    raise ValueError(
        'Expected no --noise-multiplier with a table, which has its own, got '
        f'{args.noise_multiplier}.')
  if args.noise.endswith('.npz'):
    return noise_lib.load(args.noise)
  return library.get(args.noise)


def _epsilon(args: argparse.Namespace) -> None:
  event = privacy.noise_event(_noise(args))
  if args.sampling_prob != 1:
    event = dp_accounting.PoissonSampledDpEvent(args.sampling_prob, event)
  start = time.perf_counter()
  accountant = privacy.PhiAccountant(
      _RELATIONS[args.neighbors], direction=args.direction)
  accountant.compose(event, args.steps)
  bounds = accountant.epsilon_bounds(args.delta)
  seconds = time.perf_counter() - start
  if args.json:
    print(json.dumps({
        'lower': bounds.lower, 'estimate': bounds.estimate,
        'upper': bounds.upper, 'delta': args.delta, 'steps': args.steps,
        'neighbors': args.neighbors, 'direction': args.direction,
        'seconds': seconds}))
    return
  print(f'epsilon <= {bounds.upper:.6f} at delta {args.delta:g} '
        f'({args.neighbors}; lower bound {bounds.lower:.6f})')


def _tables() -> None:
  for name in library.names():
    table = library.get(name)
    gap = table.info.get('gap')
    certificate = '' if gap is None else f'  gap {gap:.2g}'
    print(f'{name:34s} {table.kind:6s} dim {table.dim:<6d} noise multiplier '
          f'{table.noise_multiplier:<9.6g} {table.digest}{certificate}')


def main(argv: Optional[Sequence[str]] = None) -> int:
  """Runs the command; returns its exit code."""
  args = _parser().parse_args(argv)
  try:
    if args.command == 'epsilon':
      _epsilon(args)
    else:
      _tables()
  except (ValueError, FileNotFoundError,
          dp_accounting.UnsupportedEventError) as error:
    print(f'tfcactus: {error}', file=sys.stderr)
    return 2
  return 0


if __name__ == '__main__':
  sys.exit(main())
