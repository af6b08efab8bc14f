"""The commands `release`, `gap` and `tcdp` of the command line."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

import numpy as np

from tfcactus import _format
from tfcactus import accounting
from tfcactus import noise as noise_lib
from tfcactus import release
from tfcactus.release import interior
from tfcactus.release import threshold_queries

STATISTICS = ('histogram', 'most-frequent', 'thresholds', 'quantile', 'sum')
FAMILIES = ('gaussian', 'laplace', 'sinh-normal')


def register(commands: Any) -> None:
  """Adds the subcommands; each sets `run`, a function of the parsed arguments.

  Args:
    commands: What `ArgumentParser.add_subparsers` returned.
  """
  parser = commands.add_parser(
      'release', help='publish a private statistic of a column of numbers')
  add = parser.add_argument
  add('statistic', choices=STATISTICS)
  add('data', metavar='DATA', help='FILE.npy, or text with one number per line')
  _add_noise(parser)
  add('--epsilon', type=float, help='budget, in place of --noise-multiplier')
  add('--delta', type=float, required=True)
  add('--bins', type=int, help='size of the domain 0..BINS-1 (histogram, '
      'most-frequent, thresholds)')
  add('--fraction', type=float, default=0.5, help='of the quantile')
  add('--low', type=float, help='least value of the domain (quantile)')
  add('--high', type=float, help='largest value of the domain (quantile)')
  add('--resolution', type=float, help='spacing of answers (quantile); default a '
      'millionth of the range, 1 for whole numbers')
  add('--clip', type=float, help='bound on a record (sum)')
  add('--beta', type=float, default=0.05, help='of the accuracy statement')
  add('--seed', type=int, help='repeatable noise: an experiment, no release')
  add('--json', action='store_true', help='print JSON')
  parser.set_defaults(run=run_release)
  gap = commands.add_parser(
      'gap', help='the gap from which on the best of many options is found')
  _add_noise(gap)
  gap.add_argument('--options', type=int, required=True, metavar='K')
  gap.add_argument('--beta', type=float, default=0.05,
                   help='probability of a wrong answer')
  gap.add_argument('--sensitivity', type=float, default=1.0)
  gap.add_argument('--json', action='store_true', help='print JSON')
  gap.set_defaults(run=run_gap)
  _register_tcdp(commands)


def _register_tcdp(commands: Any) -> None:
  parser = commands.add_parser(
      'tcdp', help='what (rho, omega)-truncated CDP implies')
  add = parser.add_argument
  add('--rho', type=float, required=True)
  add('--omega', type=float, default=float('inf'), help='default: zCDP')
  add('--sampling-prob', type=float, help='on a sample first (Theorem 12)')
  add('--steps', type=int, default=1, help='so many of them')
  add('--group', type=int, default=1, help='for groups of that size')
  add('--delta', type=float, required=True)
  add('--json', action='store_true', help='print JSON')
  parser.set_defaults(run=run_tcdp)


def _add_noise(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add('--noise', choices=FAMILIES, default='gaussian')
  add('--noise-multiplier', type=float,
      help='over the sensitivity: standard deviation of the Gaussian, scale of '
      'the Laplace, sigma of the sinh-normal')
  add('--bend', type=float, help='of the sinh-normal, over the sensitivity')


def make_noise(family: str, noise_multiplier: float, bend: Any
               ) -> noise_lib.Noise:
  """The noise of a family.

  Args:
    family: 'gaussian', 'laplace' or 'sinh-normal'.
    noise_multiplier: Its size.
    bend: For 'sinh-normal'; None otherwise.

  Raises:
    ValueError: if `bend` is missing or out of place.
  """
  _check_bend(family, bend)
  if family == 'sinh-normal':
    return noise_lib.SinhNormal(noise_multiplier, bend)
  kinds = {'gaussian': noise_lib.Gaussian, 'laplace': noise_lib.Laplace}
  return kinds[family](noise_multiplier)


def _check_bend(family: str, bend: Any) -> None:
  if (bend is not None) != (family == 'sinh-normal'):
    raise ValueError(
        'Expected --bend with --noise sinh-normal and no other, got '
        f'bend={bend!r} with {family}.')


def _noise(args: argparse.Namespace, releases: int) -> noise_lib.Noise:
  if (args.noise_multiplier is None) == (args.epsilon is None):
    raise ValueError(
        'Expected exactly one of --noise-multiplier and --epsilon.')
  _check_bend(args.noise, args.bend)
  if args.epsilon is None:
    return make_noise(args.noise, args.noise_multiplier, args.bend)
  return release.noise_for_epsilon(
      args.noise, args.epsilon, args.delta, releases=releases, bend=args.bend)


def run_release(args: argparse.Namespace) -> None:
  """Reads, releases and prints.

  Raises:
    ValueError: if an argument is missing or does not suit the statistic.
  """
  data = _read(args.data)
  kind = args.statistic
  if kind == 'quantile':
    _need(args, 'low', 'high')
    # As many answers as the grid has; the count decides the price.
    size = release.num_values(low=args.low, high=args.high,
                              resolution=args.resolution)
    noise = _noise(args, interior.num_queries(size, 'binary-search'))
    result = release.quantile(
        data, args.fraction, low=args.low, high=args.high, noise=noise,
        resolution=args.resolution, method='binary-search', seed=args.seed)
  elif kind == 'sum':
    _need(args, 'clip')
    result = release.noisy_sum(data, l2_norm_clip=args.clip,
                               noise=_noise(args, 1), seed=args.seed)
  else:
    _need(args, 'bins')
    if kind == 'thresholds':
      result = release.thresholds(
          data, num_values=args.bins, seed=args.seed,
          noise=_noise(args, threshold_queries.num_levels(args.bins)))
    else:
      make = {'histogram': release.histogram,
              'most-frequent': release.most_frequent}[kind]
      result = make(data, num_bins=args.bins, noise=_noise(args, 1),
                    seed=args.seed)
  _print(args, result)


def _print(args: argparse.Namespace, result: release.Release) -> None:
  guarantee = result.guarantee(args.delta)
  value = np.asarray(result.value).tolist()
  if args.json:
    print(json.dumps({
        'value': value, 'epsilon': guarantee.upper, 'delta': args.delta,
        'neighboring_relation': guarantee.neighboring_relation,
        'mechanism': result.mechanism, 'error': result.error(args.beta),
        'error_kind': result.error_kind, 'beta': args.beta,
        'seeded': result.seeded}))
    return
  print(f'{value}\n{result.report(args.delta, args.beta)}')


def run_gap(args: argparse.Namespace) -> None:
  """Prints the smallest gap for both reductions."""
  if args.noise_multiplier is None:
    raise ValueError('Expected --noise-multiplier with gap.')
  noise = make_noise(args.noise, args.noise_multiplier, args.bend)
  gaps = {method: release.smallest_gap(
      noise, num_options=args.options, beta=args.beta, method=method,
      sensitivity=args.sensitivity)
          for method in ('obvious-answer', 'histogram')}
  if args.json:
    print(json.dumps(gaps))
    return
  for method, gap in gaps.items():
    print(f'{method}: a gap of {_format.upper(gap)} is found with probability '
          f'{_format.lower(1 - args.beta)} among {args.options} options')


def run_tcdp(args: argparse.Namespace) -> None:
  """Prints what the guarantee becomes, and its epsilon."""
  guarantee = accounting.TCDP(args.rho, args.omega)
  if args.sampling_prob is not None:
    guarantee = guarantee.subsample(args.sampling_prob)
  guarantee = guarantee.self_compose(args.steps)
  epsilon = (guarantee.epsilon(args.delta) if args.group == 1 else
             guarantee.group_epsilon(args.group, args.delta))
  if args.json:
    print(json.dumps({'rho': guarantee.rho, 'omega': guarantee.omega,
                      'epsilon': epsilon}))
    return
  whom = 'one record' if args.group == 1 else f'groups of {args.group} records'
  print(f'{guarantee}: epsilon <= {_format.upper(epsilon, 10)} at delta '
        f'{_format.upper(args.delta)} for {whom}')


def _need(args: argparse.Namespace, *names: str) -> None:
  for name in names:
    if getattr(args, name) is None:
      raise ValueError(f'Expected --{name} with "release {args.statistic}".')


def _read(path: str) -> np.ndarray:
  """A column of numbers, or rows of them for a sum.

  Raises:
    ValueError: if the file holds anything else.
  """
  if not os.path.exists(path):
    raise ValueError(f'Expected a file of numbers at {path!r}, found none.')
  try:
    data = (np.load(path, allow_pickle=False) if path.endswith('.npy') else
            np.loadtxt(path, ndmin=1))
  except (ValueError, OSError, EOFError) as error:
    raise ValueError(
        f'Expected {path!r} to hold numbers, one per line or as .npy: '
        f'{str(error).splitlines()[0]}') from None
  return data
