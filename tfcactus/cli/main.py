"""Accounts for, designs and releases with differentially private noise."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import sys

import dp_accounting

from tfcactus import design as design_lib
from tfcactus.cli import (
  account,
  audit,
  calibrate,
  choose_unit,
  delta,
  design,
  epsilon,
  release,
  tables,
  tcdp,
  tuned_epsilon,
)
from tfcactus.cli.command import Command

COMMANDS: tuple[Command, ...] = (
    epsilon.COMMAND,
    delta.COMMAND,
    calibrate.COMMAND,
    choose_unit.COMMAND,
    design.COMMAND,
    tables.COMMAND,
    tables.LIST,
    release.COMMAND,
    release.GAP,
    tcdp.COMMAND,
    tuned_epsilon.COMMAND,
    audit.COMMAND,
    account.COMMAND,
)


def parser(commands: Sequence[Command] = COMMANDS) -> argparse.ArgumentParser:
  """Returns a parser of `commands`; parsed arguments hold `run` of the one typed."""
  whole = argparse.ArgumentParser(prog='tfcactus', description=__doc__)
  added = whole.add_subparsers(dest='command', required=True)
  for command in commands:
    one = added.add_parser(command.name, help=command.help, description=command.help)
    command.add_arguments(one)
    one.set_defaults(run=command.run)
  return whole


def main(argv: Sequence[str] | None = None,
         commands: Sequence[Command] = COMMANDS) -> int:
  """Runs the command; returns 0, or 2 after printing one of the errors of `Command`."""
  try:
    args = parser(commands).parse_args(argv)
    args.run(args)
  except (ValueError, OSError, ImportError, design_lib.SolverError,
          dp_accounting.UnsupportedEventError) as error:
    print(f'tfcactus: {error}', file=sys.stderr)
    return 2
  except OverflowError as error:
    print(f'tfcactus: the numbers given are out of range: {error}', file=sys.stderr)
    return 2
  return 0
