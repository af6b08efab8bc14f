"""`tfcactus release` and `tfcactus gap`: private statistics of a file of numbers."""

from __future__ import annotations

import argparse
from typing import Callable

import numpy as np

from tfcactus import _format, arithmetic, noise as noise_lib, release as release_lib
from tfcactus.cli import command
from tfcactus.release import interior, selection, threshold_queries
from tfcactus.release.result import Release


def _add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of all statistics."""
  add = parser.add_argument
  add('statistic', choices=tuple(_STATISTICS), help='statistic to publish')
  add('data', metavar='DATA', help='FILE.npy, or text with one number per line')
  command.add_noise(parser)
  add('--epsilon', type=float, help='epsilon to spend, in place of --noise-multiplier')
  add('--delta', type=float, required=True, help='delta of the guarantee')
  add('--bins', type=int, help='size of the domain 0..BINS-1 (histogram, '
      'most-frequent, thresholds)')
  add('--fraction', type=float, default=0.5,
      help='fraction of records below the quantile; default: %(default)s')
  add('--low', type=float, help='least value of the domain (quantile)')
  add('--high', type=float, help='largest value of the domain (quantile)')
  add('--resolution', type=float, help='distance between possible answers (quantile), '
      'such as 1 for whole numbers; default: a millionth of the range')
  add('--clip', type=float, help='bound to which each record is clipped (sum)')
  add('--arithmetic', choices=arithmetic.MODES, default='float',
      help="'integer' draws noise exactly, in whole numbers, and counts all rounding "
      '(histogram, sum); default: %(default)s')
  add('--beta', type=float, default=0.05,
      help='probability that the stated error bound fails; default: %(default)s')
  add('--seed', type=int, help='seed of repeatable noise, for experiments: not private')
  command.add_json(parser)


def _noise(args: argparse.Namespace, releases: int) -> noise_lib.ScalarNoise:
  """Returns the requested noise; with --epsilon, the least for `releases` releases."""
  if (args.noise_multiplier is None) == (args.epsilon is None):
    raise ValueError('Expected exactly one of --noise-multiplier and --epsilon.')
  if args.epsilon is None:
    return command.make_noise(args.noise, args.noise_multiplier, args.bend)
  return release_lib.noise_for_epsilon(
      args.noise, args.epsilon, args.delta, releases=releases, bend=args.bend,
      arithmetic=args.arithmetic)


def _thresholds(args: argparse.Namespace, data: np.ndarray) -> Release:
  """Answers all threshold queries; each level of the counting tree is one release."""
  return release_lib.thresholds(
      data, num_values=args.bins, seed=args.seed,
      noise=_noise(args, releases=threshold_queries.num_levels(args.bins)))


def _quantile(args: argparse.Namespace, data: np.ndarray) -> Release:
  """Releases a quantile by binary search; each comparison is one release."""
  # The number of possible answers sets that of comparisons, each of them a release.
  size = release_lib.num_values(low=args.low, high=args.high,
                                resolution=args.resolution)
  noise = _noise(args, releases=interior.num_queries(size, 'binary-search'))
  return release_lib.quantile(
      data, args.fraction, low=args.low, high=args.high, noise=noise,
      resolution=args.resolution, method='binary-search', seed=args.seed)


_STATISTICS: dict[str, tuple[
    Callable[[argparse.Namespace, np.ndarray], Release], tuple[str, ...]]] = {
    'histogram': (lambda args, data: release_lib.histogram(
        data, num_bins=args.bins, noise=_noise(args, releases=1),
        seed=args.seed, arithmetic=args.arithmetic), ('bins',)),
    'most-frequent': (lambda args, data: release_lib.most_frequent(
        data, num_bins=args.bins, noise=_noise(args, releases=1), seed=args.seed),
                      ('bins',)),
    'thresholds': (_thresholds, ('bins',)),
    'quantile': (_quantile, ('low', 'high')),
    'sum': (lambda args, data: release_lib.noisy_sum(
        data, l2_norm_clip=args.clip, noise=_noise(args, releases=1), seed=args.seed,
        arithmetic=args.arithmetic), ('clip',)),
}
"""For each statistic, the function that releases it and the options it requires."""

_IN_WHOLE_NUMBERS = ('histogram', 'sum')
"""Statistics that take `--arithmetic integer`."""


def _run(args: argparse.Namespace) -> None:
  """Releases the statistic of the records in a file, and prints it with its report."""
  data = command.read_numbers(args.data)
  release, required = _STATISTICS[args.statistic]
  command.require(args, f'release {args.statistic}', *required)
  if args.arithmetic != 'float' and args.statistic not in _IN_WHOLE_NUMBERS:
    raise ValueError(
        f'Expected --arithmetic float for {args.statistic}, got {args.arithmetic}: '
        f'only {" and ".join(_IN_WHOLE_NUMBERS)} add noise in whole numbers; leave '
        '--arithmetic out.')
  result = release(args, data)
  guarantee = result.guarantee(args.delta)
  value = np.asarray(result.value).tolist()
  command.show(args, {
      'value': value, 'epsilon': guarantee.upper, 'delta': args.delta,
      'neighboring_relation': guarantee.neighboring_relation,
      'mechanism': result.mechanism, 'error': result.error(args.beta),
      'error_kind': result.error_kind, 'beta': args.beta,
      'seeded': result.seeded},
      '' if args.json else f'{value}\n{result.report(args.delta, args.beta)}')


COMMAND = command.Command(
    'release', 'publish a private statistic of a column of numbers',
    _add_arguments, _run)


def _add_gap_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `tfcactus gap`."""
  command.add_noise(parser)
  add = parser.add_argument
  add('--options', type=int, required=True, metavar='K',
      help='number of options to select from')
  add('--beta', type=float, default=0.05,
      help='probability that another option is selected; default: %(default)s')
  add('--sensitivity', type=float, default=1.0,
      help='largest change of a score by one record; default: %(default)s')
  command.add_json(parser)


def _gap(args: argparse.Namespace) -> None:
  """Prints the lead that the best option needs, by each method of `gap_max`."""
  noise = command.make_noise(args.noise, args.noise_multiplier, args.bend)
  gaps = {method: release_lib.smallest_gap(
      noise, num_options=args.options, beta=args.beta, method=method,
      sensitivity=args.sensitivity) for method in selection.METHODS}
  command.show(args, gaps, '\n'.join(
      f'{method}: the best of {args.options} options is selected with probability '
      f'{_format.complement(args.beta)} or more if its score leads by '
      f'{_format.upper(gap)}'
      for method, gap in gaps.items()))


GAP = command.Command(
    'gap', 'compute the lead that the best of many options needs to be selected',
    _add_gap_arguments, _gap)
