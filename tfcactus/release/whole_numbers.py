"""Releases in whole numbers: values are scaled and rounded, and get whole noise.

The scale leaves room for what rounding adds to the sensitivity, so that the noise, a
little larger than the law that was asked for, costs what that law costs. A small leak
covers the difference between the noise that is drawn and that law. The proof is in
docs/soundness.md ("Whole numbers in releases").
"""

from __future__ import annotations

import math
from typing import Any, Callable, NamedTuple

import dp_accounting
import numpy as np
from scipy import special

from tfcactus import accounting, noise as noise_lib
from tfcactus.noise import discrete_gaussian, rounded_laplace
from tfcactus.randomness import SystemRandom

_LARGEST = 2.0**62
"""Bound on scaled values. Beside them the largest draw fits into an int64."""

_BITS = 20
"""Bits of the scale. Products with 32 bits of a value are then exact in float64."""

_FINEST = 64
"""Fewest whole numbers of a sensitivity over what rounding adds to it. The noise is at
most 2 % larger than asked for then."""

_LARGEST_LEAK = 1e-9
"""Leaks above it are refused: noise is so small that epsilon is beyond all use."""


_LEAST = 2.0**-24
"""Least scale at which noisy counts, the draws over the scale, fit into an int64."""


class _Law(NamedTuple):
  """A law of noise that is drawn in whole numbers.

  Attributes:
    size: Returns the scale of noise, in units of sensitivity.
    scale: The scale of the draws.
    distance: Bound on the total variation distance of one draw.
    draw: Returns so many draws, int64.
    tail: Returns bounds on the privacy profile for a change of s scales, shape (n,), at
      each epsilon, shape (n,).
    overlap: Returns a lower bound on 1 less the profile at epsilon zero.
  """

  size: Callable[[Any], float]
  scale: int
  distance: float
  draw: Callable[[SystemRandom, int], np.ndarray]
  tail: Callable[[float, np.ndarray], np.ndarray]
  overlap: Callable[[float], float]


_LAWS: dict[type[noise_lib.Noise], _Law] = {
    noise_lib.Gaussian: _Law(
        lambda noise: noise.noise_multiplier, discrete_gaussian.SCALE,
        discrete_gaussian.DISTANCE, discrete_gaussian.draw,
        lambda s, epsilon: special.ndtr(s / 2 - epsilon / s),
        lambda s: float(special.erfc(s / math.sqrt(8)))),
    noise_lib.Laplace: _Law(
        lambda noise: noise.scale, rounded_laplace.SCALE, rounded_laplace.DISTANCE,
        rounded_laplace.draw,
        lambda s, epsilon: -np.expm1(np.minimum(0.5 * (epsilon - s), 0)),
        lambda s: math.exp(-s / 2))}


class Scaled(NamedTuple):
  """Whole numbers of a value's steps, and what their noise is.

  Attributes:
    unit: Whole numbers per step of the value, of at most `_BITS` bits.
    larger: Factor by which the noise is larger than the law that was asked for.
    event: The cost: that of the law, and of the leak.
  """

  unit: float
  larger: float
  event: dp_accounting.DpEvent


def scaled(noise: noise_lib.Noise, scale: float, step: float, coordinates: int,
           rounding: float) -> Scaled:
  """Returns the scale of a release; ValueError if no account of it is proved.

  Args:
    noise: Noise in units of the sensitivity.
    scale: Sensitivity of the value.
    step: The value is in whole multiples of it.
    coordinates: Length of the value.
    rounding: Bound on what rounding to whole numbers adds to the sensitivity.
  """
  law = _law(noise)
  size = law.size(noise)
  if not law.scale >= _FINEST * rounding * size:
    raise ValueError(
        "Expected with arithmetic='integer' noise of at most "
        f'{law.scale / (_FINEST * rounding):.3g} sensitivities for {coordinates:,} '
        f'numbers, got {noise!r}: a sensitivity would be too few whole numbers. Take '
        "arithmetic='float'.")
  if not scale >= 2.0**-30 * step:
    raise ValueError(
        "Expected with arithmetic='integer' a resolution of at most 2^30 "
        f'sensitivities, got resolution={step!r} at sensitivity {scale!r}; check the '
        'units of both.')
  # Whole numbers of a sensitivity, less the room; then per step, rounded down.
  room = law.scale / size - rounding * (1 + 2.0**-40)
  fraction, exponent = math.frexp(room * (1 - 2.0**-48) / (scale / step))
  unit = math.ldexp(math.floor(fraction * 2**_BITS), exponent - _BITS)
  if not unit >= (_LEAST if step == 1 else 2.0**-900):
    raise ValueError(
        "Expected with arithmetic='integer' noise below 2^55 steps of the grid it is "
        f'released on (of {step!r}), got {noise!r} at sensitivity {scale!r}; take a '
        'coarser resolution.')
  event = cost(noise, coordinates)
  found = event.events[1].delta
  if not found <= _LARGEST_LEAK:
    raise ValueError(
        "Expected with arithmetic='integer' noise large enough that its distance from "
        f'whole numbers is negligible, got {noise!r}, for which a leak of {found:.1e} '
        "covers that distance; take larger noise, or arithmetic='float'.")
  return Scaled(
      unit, (1 + 2.0**-38) * law.scale / size / (unit * (scale / step)), event)


def cost(noise: noise_lib.Noise, coordinates: int) -> dp_accounting.ComposedDpEvent:
  """Returns the event of a release: that of its noise, and of its leak."""
  law = _law(noise)
  found = leak(law, 1 / law.size(noise), coordinates)
  # A leak of a half, by noise that `scaled` refuses, is beyond all use too.
  return dp_accounting.ComposedDpEvent([
      accounting.noise_event(noise), accounting.DistanceDpEvent(min(found, 0.5))])


def _law(noise: noise_lib.Noise) -> _Law:
  """Returns the law of noise in whole numbers; ValueError if there is none."""
  law = _LAWS.get(type(noise))
  if law is None:
    raise ValueError(
        "Expected Gaussian or Laplace noise with arithmetic='integer', the laws that "
        f"are drawn in whole numbers, got {noise!r}; take arithmetic='float'.")
  return law


def leak(law: _Law, shift: float, coordinates: int) -> float:
  """Returns a probability of showing the data that covers the distance of the draws.

  `shift` is the sensitivity in scales of the noise.
  """
  # For replaced records, at twice the shift. Every epsilon gives a bound.
  epsilon, shift = np.linspace(0.0, 80.0, 1601), 2 * shift
  far = 1.01 * coordinates * law.distance * (1 + np.exp(epsilon))
  with np.errstate(divide='ignore'):
    return float(np.min(np.maximum(far + (1 + 1e-9) * law.tail(shift, epsilon),
                                   far / law.overlap(shift))))


def released(steps: np.ndarray, noise: noise_lib.Noise, unit: float, rng: SystemRandom
             ) -> np.ndarray:
  """Returns steps with noise, rounded to whole steps: float64 whole numbers."""
  # Rounding and the division are functions of the whole noisy numbers.
  whole = rounded(steps, unit)
  noisy = whole + _LAWS[type(noise)].draw(rng, whole.size).reshape(whole.shape)
  return np.rint(noisy * (1 / unit))


def rounded(steps: np.ndarray, unit: float) -> np.ndarray:
  """Returns int64 steps times `unit`, rounded from the exact products."""
  if not np.max(np.abs(steps.astype(np.float64)), initial=0.0) * unit <= _LARGEST:
    raise ValueError(
        'Expected values below 2^30 standard deviations of the noise with '
        "arithmetic='integer', got larger ones; check the units of the sensitivity, or "
        "take arithmetic='float'.")
  # Both products, their fractions and the sum of these are exact, up to 2^-52.
  size = np.abs(steps)
  parts = [(size >> 32) * (2.0**32 * unit), (size & (2**32 - 1)) * unit]
  below = [np.floor(part) for part in parts]
  fraction = (parts[0] - below[0]) + (parts[1] - below[1])
  return np.sign(steps) * sum(
      each.astype(np.int64) for each in (*below, np.rint(fraction)))
