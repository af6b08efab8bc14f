"""`tfcactus design truncated`: bounded noise by any method.

Finds the least delta for a given utility, or the least utility for a given delta.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from tfcactus import _format
from tfcactus.cli import command
from tfcactus.search import truncated

LEARNED = ('sigmoid-adp', 'sigmoid-pdp', 'sigmoid-ma')
"""Methods of `LearnedNoise`: its model and loss."""

METHODS = ('direct', 'lp', 'ma', *LEARNED)
"""Methods that find a table: those of `search.truncated`, and `LEARNED`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of truncated noise only."""
  add = parser.add_argument_group('truncated noise').add_argument
  number = command.number
  add('--range', type=number, metavar='R', help='bound on |noise|, in units of '
      'sensitivity')
  add('--utility', type=number, metavar='U',
      help='bound on E|Z| or sqrt(E Z^2), by --norm')
  add('--norm', type=int, choices=(1, 2),
      help='1 bounds E|Z|, 2 sqrt(E Z^2); default: 2')
  add('--epsilon', type=number, help='epsilon at which delta is minimised, or bounded '
      'by --delta')
  add('--method', choices=METHODS, help='how the table is found; default: direct')
  add('--seed', type=int, help='seed of the sigmoid methods; default: 0')
  add('--seconds', type=number,
      help='longest training time of the sigmoid methods; default: 120')


def run(args: argparse.Namespace) -> None:
  """Designs truncated noise, writes it and reports; ValueError for wrong arguments."""
  if (args.utility is None) == (args.delta is None):
    raise ValueError(
        'Expected --utility, for the least delta, or --delta, for the least utility, '
        f'got --utility {args.utility} and --delta {args.delta}.')
  method = args.method or 'direct'
  request = {'epsilon': args.epsilon, 'steps': args.steps, 'norm': args.norm or 2,
             'sampling_prob': 1.0 if args.sampling_prob is None else
                              args.sampling_prob, 'bins': args.bins}
  report, words = {}, []
  if method in LEARNED:
    found = _learned(args, method, request)
  else:
    if args.seed is not None or args.seconds is not None:
      raise ValueError(
          'Expected --seed and --seconds with the sigmoid methods only, got '
          f'them with --method {method}.')
    if args.utility is None:
      least = truncated.least_utility(
          args.range, delta=args.delta, method=method, **request)
      found, words = least.found, [least.statement]
      report = {'least_utility': least.lower_bound}
    else:
      found = truncated.truncated_noise(
          args.range, utility=args.utility, method=method, **request)
  if args.out is not None:
    found.noise.save(args.out)
  command.show(args, {
      'delta': found.delta.upper, 'utility': found.utility, 'omega': found.omega,
      'method': found.method, 'certified': found.certified, 'seconds': found.seconds,
      'digest': found.noise.digest, **report}, '\n'.join([_told(args, found), *words]))


def _learned(args: argparse.Namespace, method: str, request: dict[str, Any]
             ) -> truncated.TruncatedNoise:
  """Learns noise with a method of `LEARNED`; returns it with its account."""
  if args.utility is None:
    raise ValueError(f'Expected --utility with --method {method}, got --delta; the '
                     'other methods take one.')
  from tfcactus.learned import learned_noise  # pylint: disable=import-outside-toplevel
  begun = time.perf_counter()
  table = learned_noise.LearnedNoise(
      args.range, utility=args.utility, loss=method.split('-')[1], seed=args.seed or 0,
      max_seconds=120.0 if args.seconds is None else args.seconds,
      progress=not args.json, **request).solve()
  return truncated.account(
      table, method=method, seconds=time.perf_counter() - begun,
      **{name: request[name] for name in (
          'epsilon', 'steps', 'sampling_prob', 'norm')})


def _told(args: argparse.Namespace, found: truncated.TruncatedNoise) -> str:
  """Returns the noise and its account in words."""
  norm = 'E|Z|' if (args.norm or 2) == 1 else 'sqrt(E Z^2)'
  by = ('full shift: the density never increases with |z|' if found.noise.monotone else
        'envelope of all smaller shifts: the density is not monotone')
  return '\n'.join([
      f'delta <= {_format.upper(found.delta.upper)} at epsilon '
      f'{_format.upper(found.epsilon)} after {found.steps} release(s) of a scalar '
      f'query at sampling probability {_format.upper(found.sampling_prob)}',
      f'accounted by the {by}; {_format.upper(found.omega, 4)} of delta is for outputs '
      'that only one of two neighbours can have',
      f'{norm} {_format.upper(found.utility)}, |noise| <= '
      f'{_format.upper(found.noise.range)}, {found.noise.bins} cells per unit, '
      f'{found.seconds:.2f} s by {found.method}', found.statement,
      f'digest {found.noise.digest}' + (
          f', written to {args.out}' if args.out else '')])
