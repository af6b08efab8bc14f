"""`tfcactus gap`: the lead that the best of many options needs to be selected."""

from __future__ import annotations

import argparse

from tfcactus import _format, release
from tfcactus.cli import command
from tfcactus.release import selection


def _add_arguments(parser: argparse.ArgumentParser) -> None:
  command.add_noise(parser)
  add = parser.add_argument
  add('--options', type=int, required=True, metavar='K',
      help='number of options to select from')
  add('--beta', type=float, default=0.05,
      help='probability that another option is selected; default: %(default)s')
  add('--sensitivity', type=float, default=1.0,
      help='largest change of a score by one record; default: %(default)s')
  command.add_json(parser)


def _run(args: argparse.Namespace) -> None:
  noise = command.make_noise(args.noise, args.noise_multiplier, args.bend)
  gaps = {method: release.smallest_gap(
      noise, num_options=args.options, beta=args.beta, method=method,
      sensitivity=args.sensitivity) for method in selection.METHODS}
  command.show(args, gaps, '\n'.join(
      f'{method}: the best of {args.options} options is selected with probability '
      f'{_format.lower(1 - args.beta)} or more if its score leads by '
      f'{_format.upper(gap)}'
      for method, gap in gaps.items()))


COMMAND = command.Command(
    'gap', 'compute the lead that the best of many options needs to be selected',
    _add_arguments, _run)
