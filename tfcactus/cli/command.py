"""The type of a command, and how a command prints its result."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Callable


@dataclasses.dataclass(frozen=True)
class Command:
  """One command of the command line.

  Attributes:
    name: Word typed to select the command.
    help: One-line description.
    add_arguments: Adds the command's arguments to a parser.
    run: Runs the command and prints. A ValueError, OSError, ImportError, SolverError
      or UnsupportedEventError is printed on one line.
  """

  name: str
  help: str
  add_arguments: Callable[[argparse.ArgumentParser], None]
  run: Callable[[argparse.Namespace], None]


def show(args: argparse.Namespace, report: object, text: str) -> None:
  """Prints `report`, exact, as JSON if --json is given; else `text`, rounded safely."""
  print(json.dumps(report) if args.json else text)
