"""Releases in whole numbers: values are scaled and rounded, and get whole noise.

The scale leaves room for what rounding adds to the sensitivity: noise is a little
larger than asked for. Proof: docs/soundness_releases.md.
"""

from __future__ import annotations

import functools
import math
from typing import Callable, NamedTuple

import numpy as np

from tfcactus import accounting, noise as noise_lib
from tfcactus.noise import discrete_gaussian, floored_table, rounded_laplace
from tfcactus.randomness import SystemRandom

_LARGEST = 2.0**62
"""Bound on scaled values. Beside them the largest draw fits into an int64."""

_BITS = 20
"""Bits of the scale. Products with 32 bits of a value are then exact in float64."""

_FINEST = 64
"""Least size of a sensitivity, in whole numbers, over what rounding adds to it. The
noise is then at most 2 % larger than asked for."""

OFF = 1.5
"""Whole numbers by which rounding may move a value (by half of one) and its noise (of a
table by one, else by half of one)."""

_LARGEST_LEAK = 1e-9
"""Leaks above it are refused: noise is so small that epsilon is beyond all use."""

_LEAST = 2.0**-24
"""Least scale at which noisy counts, the draws over the scale, fit into an int64."""


class _Law(NamedTuple):
  """Noise that is drawn in whole numbers."""

  size: float  # How many whole numbers a sensitivity is.
  distance: float  # Bound on the total variation distance of one draw.
  draw: Callable[[SystemRandom, int], np.ndarray]  # Returns so many draws, int64.


def _law(noise: noise_lib.Noise) -> _Law:
  """Returns the law of noise in whole numbers; ValueError if there is none."""
  if isinstance(noise, noise_lib.Gaussian):
    return _Law(discrete_gaussian.SCALE / noise.noise_multiplier,
                discrete_gaussian.DISTANCE, discrete_gaussian.draw)
  if isinstance(noise, noise_lib.Laplace):
    return _Law(rounded_laplace.SCALE / noise.scale,
                rounded_laplace.DISTANCE, rounded_laplace.draw)
  if isinstance(noise, noise_lib.ScalarTable):
    return _Law(math.ldexp(noise.bins, floored_table.cell_bits(noise)),
                floored_table.DISTANCE, functools.partial(floored_table.draw, noise))
  raise ValueError(
      "Expected Gaussian or Laplace noise or a scalar table with arithmetic='integer', "
      f'the noise that is drawn in whole numbers, got {noise!r}; take '
      "arithmetic='float'.")


class Scaled(NamedTuple):
  """Whole numbers of a value's steps, and what their noise is."""

  unit: float  # Whole numbers per step, of at most `_BITS` bits; may be below one.
  larger: float  # Factor by which the noise is larger than the law asked for.
  event: accounting.DistanceDpEvent  # Cost of the law and of the draws' distance to it.


def scaled(noise: noise_lib.Noise, scale: float, step: float, coordinates: int,
           rounding: float) -> Scaled:
  """Returns the scale of a release; ValueError if no account of it is proved.

  The value has sensitivity `scale` and is in multiples of `step`. A record changes
  `coordinates` at most, and rounding adds up to `rounding` whole numbers to that.
  """
  size = _law(noise).size
  if not size >= _FINEST * rounding:
    raise ValueError(
        "Expected with arithmetic='integer' noise of at most "
        f'{size / (_FINEST * rounding):.3g} times the size for {coordinates:,} '
        f'numbers, got {noise!r}: a sensitivity would be too few whole numbers. Take '
        "arithmetic='float'.")
  if not scale >= 2.0**-30 * step:
    raise ValueError(
        "Expected with arithmetic='integer' a resolution of at most 2^30 "
        f'sensitivities, got resolution={step!r} at sensitivity {scale!r}; check the '
        'units of both.')
  if isinstance(noise, noise_lib.ScalarTable) and scale == step:
    unit = size  # Whole: nothing is rounded.
  else:
    # Whole numbers of a sensitivity, less the room; then per step, rounded down, which
    # makes noise larger. Factors near one cover rounding.
    room = size - rounding * (1 + 2.0**-40)
    fraction, exponent = math.frexp(room * (1 - 2.0**-48) / (scale / step))
    unit = math.ldexp(math.floor(fraction * 2**_BITS), exponent - _BITS)
  if not unit >= (_LEAST if step == 1 else 2.0**-900):
    raise ValueError(
        "Expected with arithmetic='integer' noise below 2^55 steps of the grid it is "
        f'released on (of {step!r}), got {noise!r} at sensitivity {scale!r}; take a '
        'coarser resolution.')
  event = cost(noise, coordinates)
  leak = event.leak(2)  # Of a replaced record; it is less for one added or removed.
  if not leak <= _LARGEST_LEAK:
    raise ValueError(
        "Expected with arithmetic='integer' noise large enough that its distance from "
        f'whole numbers is negligible, got {noise!r}, for which a leak of {leak:.1e} '
        "covers that distance; take larger noise, or arithmetic='float'.")
  return Scaled(unit, (1 + 2.0**-38) * size / (unit * (scale / step)), event)


def cost(noise: noise_lib.Noise, coordinates: int) -> accounting.DistanceDpEvent:
  """Returns the event of a release of which a record changes so many coordinates."""
  return accounting.DistanceDpEvent(
      accounting.noise_event(noise), coordinates * _law(noise).distance)


def released(steps: np.ndarray, noise: noise_lib.Noise, unit: float, rng: SystemRandom
             ) -> np.ndarray:
  """Returns steps with noise, rounded to whole steps: float64 whole numbers."""
  # Division and rounding are functions of the whole noisy numbers: post-processing.
  whole = rounded(steps, unit)
  noisy = whole + _law(noise).draw(rng, whole.size).reshape(whole.shape)
  return np.rint(noisy * (1 / unit))


def rounded(steps: np.ndarray, unit: float) -> np.ndarray:
  """Returns int64 steps times `unit`, rounded; ValueError if too large for an int64."""
  if not np.max(np.abs(steps.astype(np.float64)), initial=0.0) * unit <= _LARGEST:
    raise ValueError(
        'Expected values below 2^30 standard deviations of the noise with '
        "arithmetic='integer', got larger ones; check the units of the sensitivity, or "
        "take arithmetic='float'.")
  # Both products and their fractions are exact; only the sum of the fractions is
  # rounded, by up to 2^-52.
  size = np.abs(steps)
  parts = [(size >> 32) * (2.0**32 * unit), (size & (2**32 - 1)) * unit]
  below = [np.floor(part) for part in parts]
  fraction = (parts[0] - below[0]) + (parts[1] - below[1])
  return np.sign(steps) * sum(
      each.astype(np.int64) for each in (*below, np.rint(fraction)))
