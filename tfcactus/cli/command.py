"""What a file of this room offers: one command."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Callable


@dataclasses.dataclass(frozen=True)
class Command:
  """One command of the command line.

  Attributes:
    name: As it is typed.
    help: What it does, on one line.
    add_arguments: Adds its arguments to a parser.
    run: Does it and prints. A ValueError, OSError, ImportError, SolverError or
      UnsupportedEventError is told on one line.
  """

  name: str
  help: str
  add_arguments: Callable[[argparse.ArgumentParser], None]
  run: Callable[[argparse.Namespace], None]


def show(args: argparse.Namespace, report: object, text: str) -> None:
  """Prints what was found.

  Args:
    args: Says whether --json was given.
    report: Exact numbers, for JSON.
    text: The same in words, every bound rounded to the side that was proved.
  """
  print(json.dumps(report) if args.json else text)
