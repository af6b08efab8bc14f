"""Arguments that several commands share, and how they are read."""

from __future__ import annotations

import argparse
import fractions
from typing import Any
from typing import Optional
from typing import Sequence

from tfcactus import noise as noise_lib
from tfcactus.release import planner


def fraction(text: str) -> fractions.Fraction:
  """An exact number such as 0.004 or 250/60000."""
  try:
    return fractions.Fraction(text)
  except (ValueError, ZeroDivisionError):
    raise argparse.ArgumentTypeError(
        f'Expected a number or a fraction such as 250/60000, got {text!r}.'
    ) from None


def number(text: str) -> float:
  """A number such as 0.25 or 250/60000."""
  return float(fraction(text))


def add_json(parser: argparse.ArgumentParser) -> None:
  """Adds the choice between words and JSON."""
  parser.add_argument('--json', action='store_true', help='print JSON')


def require(args: argparse.Namespace, command: str, *names: str) -> None:
  """Refuses a command line that lacks one of some options.

  Raises:
    ValueError: naming the first that is missing.
  """
  for name in names:
    if getattr(args, name) is None:
      raise ValueError(
          f'Expected {option(name)} with "{command}", got none.')


def refuse_own(args: argparse.Namespace, mechanism: str, names: Sequence[str]) -> None:
  """Refuses what only one kind of "design" has, beside another.

  Raises:
    ValueError: naming the first that was given.
  """
  for name in names:
    if getattr(args, name) is not None:
      raise ValueError(
          f'Expected {option(name)} with "design {mechanism}" only, got it with '
          f'{args.mechanism!r}.')


def option(name: str) -> str:
  """How the argument of that name is typed."""
  return '--' + name.replace('_', '-')


def add_noise(parser: argparse.ArgumentParser) -> None:
  """Adds noise of a closed form and its size."""
  add = parser.add_argument
  add('--noise', choices=planner.FAMILIES, default='gaussian')
  add('--noise-multiplier', type=float,
      help='over the sensitivity: standard deviation of the Gaussian, scale of '
      'the Laplace, sigma of the sinh-normal')
  add('--bend', type=float, help='of the sinh-normal, over the sensitivity')


def make_noise(family: str, noise_multiplier: Optional[float],
               bend: Optional[float]) -> noise_lib.ScalarNoise:
  """The noise of a family.

  Args:
    family: One of `planner.FAMILIES`.
    noise_multiplier: Its size.
    bend: For 'sinh-normal'; None otherwise.

  Raises:
    ValueError: if one of the two is missing or out of place.
  """
  check_bend(family, bend)
  if noise_multiplier is None:
    raise ValueError(f'Expected --noise-multiplier with --noise {family}.')
  return planner.noise_family(family, bend)(noise_multiplier)


def check_bend(family: str, bend: Optional[float]) -> None:
  """Refuses a bend without sinh-normal noise, and the noise without it."""
  if (bend is not None) != (family == 'sinh-normal'):
    raise ValueError(
        'Expected --bend with --noise sinh-normal and no other, got '
        f'bend={bend!r} with {family}.')


def pyplot(command: str) -> Any:
  """matplotlib.pyplot, that draws into files.

  Args:
    command: Which needs it.

  Raises:
    ImportError: if there is none, saying how to get it.
  """
  try:
    import matplotlib  # pylint: disable=import-outside-toplevel
    matplotlib.use('Agg')
    from matplotlib import pyplot as found  # pylint: disable=import-outside-toplevel
  except ImportError as error:
    raise ImportError(
        f"tfcactus {command} needs matplotlib: pip install 'tfcactus[plot]'."
    ) from error
  return found
