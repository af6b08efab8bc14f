"""The type of a command, and the arguments and output that commands share."""

from __future__ import annotations

import argparse
import dataclasses
import fractions
import json
import os
from typing import Callable
import zipfile

import numpy as np

from tfcactus import noise as noise_lib
from tfcactus.release import planner


@dataclasses.dataclass(frozen=True)
class Command:
  """One command of the command line.

  Attributes:
    name: Word typed to select the command.
    help: One-line description.
    add_arguments: Adds the command's arguments to a parser.
    run: Runs the command and prints. A ValueError, OSError, ImportError, OverflowError,
      SolverError or UnsupportedEventError is printed without a traceback.
  """

  name: str
  help: str
  add_arguments: Callable[[argparse.ArgumentParser], None]
  run: Callable[[argparse.Namespace], None]


def show(args: argparse.Namespace, report: object, text: str) -> None:
  """Prints `report`, exact, as JSON if --json is given; else `text`, rounded safely."""
  print(json.dumps(report) if args.json else text)


def fraction(text: str) -> fractions.Fraction:
  """Returns the exact number of a text such as 0.004 or 250/60000, for argparse."""
  try:
    return exact(text)
  except ValueError as error:
    raise argparse.ArgumentTypeError(str(error)) from None


def exact(text: str) -> fractions.Fraction:
  """Returns the number of a text as a fraction; ValueError if the text is none."""
  try:
    if len(text.lower().partition('e')[2]) > 5:  # Such a power of ten takes minutes.
      raise ValueError(text)
    return fractions.Fraction(text)
  except (ValueError, ZeroDivisionError):
    raise ValueError(
        f'Expected a number or a fraction such as 250/60000, got {text!r}.') from None


def number(text: str) -> float:
  """Returns the float of a text such as 0.25 or 250/60000, for argparse."""
  return float(fraction(text))


def add_json(parser: argparse.ArgumentParser) -> None:
  """Adds --json, which prints JSON in place of words."""
  parser.add_argument('--json', action='store_true', help='print the result as JSON')


def require(args: argparse.Namespace, command: str, *names: str) -> None:
  """Raises ValueError naming the first of the arguments `names` that is not given."""
  for name in names:
    if getattr(args, name) is None:
      raise ValueError(f'Expected {option(name)} with "{command}", got none.')


def option(name: str) -> str:
  """Returns the command-line spelling of an argument."""
  return '--' + name.replace('_', '-')


def add_noise(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of closed-form noise: its family and its size."""
  parser.add_argument('--noise', choices=planner.FAMILIES, default='gaussian',
                      help='noise distribution; default: %(default)s')
  add_noise_size(parser)


def add_noise_size(parser: argparse.ArgumentParser) -> None:
  """Adds --noise-multiplier and --bend, which set the size of the noise."""
  add = parser.add_argument
  add('--noise-multiplier', type=float,
      help='size of the noise, in units of the sensitivity: standard deviation of the '
      'Gaussian, scale b of the Laplace, sigma of the sinh-normal')
  add('--bend', type=float,
      help='distance, in units of the sensitivity, beyond which the tails of the '
      'sinh-normal fall doubly exponentially')


def make_noise(family: str, noise_multiplier: float | None,
               bend: float | None) -> noise_lib.ScalarNoise:
  """Returns the noise of one of `planner.FAMILIES`; ValueError for a wrong size."""
  if noise_multiplier is None:
    raise ValueError(f'Expected --noise-multiplier with --noise {family}.')
  return planner.noise_family(family, bend)(noise_multiplier)


def read_numbers(path: str) -> np.ndarray:
  """Returns a file's numbers, one or a row per record; an empty text has no records.

  Each line of a text is a record, also the only line. A .npy file may hold an array of
  anything but objects. Raises ValueError if there is no file, or it cannot be read.
  """
  if not os.path.exists(path):
    raise ValueError(f'Expected a file of numbers at {path!r}, found none.')
  try:
    if path.endswith('.npy'):
      return np.load(path, allow_pickle=False)
    rows = np.loadtxt(path, ndmin=2)
    return rows.ravel() if rows.size == len(rows) else rows
  except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
    raise ValueError(
        f'Expected {path!r} to hold numbers, one per line or as .npy: '
        f'{str(error).splitlines()[0]}') from None
