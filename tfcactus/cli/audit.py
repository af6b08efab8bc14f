"""`tfcactus audit`: bounds on epsilon from the scores of canaries."""

from __future__ import annotations

import argparse
import csv
import dataclasses

from tfcactus import _checks, accounting, audit, relations
from tfcactus.audit import evidence
from tfcactus.cli import command, steps

_COLUMNS = ('score', 'present')
"""Columns of the file that are read."""

_COINS = {'1': True, 'true': True, '0': False, 'false': False}
"""Coins by their text, in small letters."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the file of scores, the arguments of the bounds, and steps."""
  add = parser.add_argument
  add('scores', metavar='SCORES.csv', help='file with the columns score (larger for '
      'canaries that seem to be in the data) and present (1 if a fair coin put the '
      'canary into the data, else 0), one line a canary')
  add('--delta', type=float, required=True, help='delta of the bounds on epsilon')
  add('--significance', type=float, default=evidence.SIGNIFICANCE,
      help='probability that one bound is wrong; default: %(default)s')
  add('--pilot', type=command.number, default=evidence.PILOT,
      help='share of the canaries that choose the threshold and the number of guesses; '
      'only the others are evidence; default: %(default)s')
  add('--guesses', type=int, help='canaries guessed for the one-run bounds, fixed '
      'before scores were seen; default: the pilot chooses')
  steps.add_steps(parser)


def _claim(args: argparse.Namespace) -> audit.Claim | None:
  """Returns the claim of the steps, if any; ValueError if canaries do not test it."""
  if args.noise is None and not args.step and not args.steps_file:
    steps.check_without_noise(args)
    return None
  relation = relations.NAMES[args.relation]
  if relation == relations.REPLACE or args.direction != 'both':
    raise ValueError(
        'Expected --relation add-or-remove or zero-out, and --direction both, for '
        'canaries that a coin puts into the data or leaves out, got --relation '
        f'{args.relation} and --direction {args.direction}.')
  groups = steps.groups(args)
  normal = all(group.noise == 'gaussian' for group in groups)

  def account(noise: float, sampled: float) -> accounting.PhiAccountant:
    """Returns the account of all steps with `noise` times the noise multipliers."""
    del sampled  # Only component checks change it.
    accountant = accounting.PhiAccountant(relation)
    for group in groups:
      accountant.compose((group if noise == 1 else dataclasses.replace(
          group, noise_multiplier=noise * (group.noise_multiplier or 0.0))).event())
    return accountant

  return audit.Claim(account, args.delta,
                     groups[0].noise_multiplier if normal else None,
                     independent=all(group.sampling != 'fixed' for group in groups))


def _read(path: str) -> tuple[list[float], list[bool]]:
  """Returns scores and coins of a file; ValueError that names the first wrong line.

  Raises csv.Error if the file is no CSV, UnicodeDecodeError if it is not in UTF-8.
  """
  scores, coins = [], []
  with open(path, encoding='utf-8-sig', newline='') as file:  # Excel writes a mark.
    lines = csv.DictReader(file)
    if not set(_COLUMNS) <= set(lines.fieldnames or ()):
      raise ValueError(
          f'Expected a first line with the names {", ".join(_COLUMNS)} in {path!r}, '
          f'got {", ".join(lines.fieldnames or ()) or "none"}.')
    for row in lines:
      score, coin = (str(row[name]).strip() for name in _COLUMNS)
      try:
        scores.append(_checks.real('score', float(score)))
        coins.append(_COINS[coin.lower()])
      except (ValueError, KeyError):
        raise ValueError(
            'Expected a finite score, and 0, 1, false or true for present, in line '
            f'{lines.line_num} of {path!r}, got {score!r} and {coin!r}.') from None
  return scores, coins


def _run(args: argparse.Namespace) -> None:
  """Audits the scores in a file and prints the findings."""
  claim = _claim(args)
  try:
    scores, coins = _read(args.scores)
  except (csv.Error, UnicodeDecodeError) as error:
    raise ValueError(f'Expected CSV, in UTF-8, in {args.scores!r}: {error}.') from None
  found = audit.audit_scores(
      scores, coins, delta=args.delta, claim=claim, guesses=args.guesses,
      significance=args.significance, pilot=args.pilot)
  command.show(args, found.as_dict(), str(found))


COMMAND = command.Command(
    'audit', 'bound epsilon from below by the scores of canaries, and try to refute '
    'the claim of training steps, if given', _add_arguments, _run)
