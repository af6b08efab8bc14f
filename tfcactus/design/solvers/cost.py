"""Costs of noise: |z|^power, or a function that meets the papers' assumptions."""

from __future__ import annotations

import abc
from typing import Callable

import numpy as np

from tfcactus import _checks

_NODES = 16
"""Gauss-Legendre nodes in every cell for a cost without a closed form."""

_JUMP = 1e-3
"""Maximum relative rise of a continuous cost at one point."""


class Cost(abc.ABC):
  """Base class: the cost of noise as a function of its distance from zero."""

  # Exponent of |z|^power; None for another function, which no file can hold.
  power: float | None = None

  @abc.abstractmethod
  def at(self, radius: np.ndarray) -> np.ndarray:
    """Returns the cost at distances from zero, in sensitivities, of any shape."""

  @abc.abstractmethod
  def size(self, budget: float) -> float:
    """Returns the distance whose cost is `budget`; may be inf."""

  @abc.abstractmethod
  def means(self, inner: np.ndarray, outer: np.ndarray, dim: int) -> np.ndarray:
    """Returns mean costs between pairs of radii, by volume in R^dim; (cells,)."""


class PowerCost(Cost):
  """The cost |z|^power, with means in closed form."""

  power: float

  def __init__(self, power: float):
    self.power = power

  def at(self, radius: np.ndarray) -> np.ndarray:
    return radius**self.power

  def size(self, budget: float) -> float:
    with np.errstate(over='ignore'):
      return float(np.float64(budget)**(1 / self.power))

  def means(self, inner: np.ndarray, outer: np.ndarray, dim: int) -> np.ndarray:
    # The integral of r^(power + dim - 1) over that of r^(dim - 1), both in closed form.
    power = self.power
    with np.errstate(divide='ignore'):
      # log (inner / outer)^dim: in thin shells a difference of powers would cancel.
      hollow = dim * np.log1p(-np.minimum((outer - inner) / outer, 1.0))
    ratio = np.expm1(hollow * (1 + power / dim)) / np.expm1(hollow)
    return outer**power * ratio * dim / (dim + power)


class FunctionCost(Cost):
  """A cost given by a function of an array of distances, which may contain zero.

  The constructor raises ValueError unless the papers' assumptions hold on a grid of
  distances.

  Source: Assumption 1 of Alghamdi et al., "Cactus Mechanisms" (ISIT 2022), and of
  Alghamdi et al. (ISIT 2023).
  """

  def __init__(self, function: Callable[[np.ndarray], np.ndarray]):
    self._function = function
    radius = np.concatenate([[0.0], np.geomspace(1e-6, 1e6, 6001)])
    values = self.at(radius)
    if values[0] != 0:
      raise _violation('0 at |z| = 0', f'{values[0]:.6g}')
    if np.any(values < 0):
      raise _violation('a cost of at least 0', f'{np.min(values):.6g}')
    fall = np.flatnonzero(np.diff(values) < 0)
    if fall.size:
      i = fall[0]
      raise _violation(
          'a cost that never falls as |z| grows', f'{values[i]:.6g} at {radius[i]:.6g} '
          f'and {values[i + 1]:.6g} at {radius[i + 1]:.6g}')
    self._check_tail(radius, values)
    self._check_jumps(radius, values)

  def _check_tail(self, radius: np.ndarray, values: np.ndarray) -> None:
    """Raises unless the last two log-log slopes are those of a power above zero.

    They are nearly equal for c ~ beta |z|^alpha; for logarithms they fall by a sixth.
    """
    # The grid has 500 distances a decade: these slopes are those of the last two.
    with np.errstate(divide='ignore', invalid='ignore'):
      slope = np.diff(np.log(values[[-1001, -501, -1]])) / np.diff(
          np.log(radius[[-1001, -501, -1]]))
    if not (np.all(slope > 1e-3) and abs(slope[1] / slope[0] - 1) < 0.05):
      raise _violation(
          'a cost that grows like a positive power of |z|',
          f'local powers {slope[0]:.4g} and {slope[1]:.4g} near |z| = 1e6')

  def _check_jumps(self, radius: np.ndarray, values: np.ndarray) -> None:
    """Raises if bisection of one of the 20 steepest rises ends at a jump."""
    steps = np.diff(values) / np.maximum(values[1:], 1e-300)
    for i in np.argsort(steps)[-20:]:
      low, high = radius[i], radius[i + 1]
      for _ in range(60):
        middle = 0.5 * (low + high)
        ends = self.at(np.array([low, middle, high]))
        low, high = ((low, middle) if ends[1] - ends[0] > ends[2] - ends[1]
                     else (middle, high))
      ends = self.at(np.array([low, high]))
      # At zero a steep rise, such as that of |z|^0.1, looks like a jump: allow both.
      if low > 0 and ends[1] - ends[0] > _JUMP * ends[1]:
        raise _violation(
            'a continuous cost', f'a jump from {ends[0]:.6g} to {ends[1]:.6g} at '
            f'|z| = {high:.6g}')

  def at(self, radius: np.ndarray) -> np.ndarray:
    """Returns the cost at distances; ValueError unless finite and of their shape."""
    radius = np.asarray(radius, dtype=np.float64)
    try:
      values = np.asarray(self._function(radius), dtype=np.float64)
    except (TypeError, ValueError) as error:
      raise _violation('a function of an array of distances', str(error)) from error
    if values.shape != radius.shape or not np.all(np.isfinite(values)):
      raise _violation(
          f'finite values of shape {radius.shape}',
          f'shape {values.shape}' if values.shape != radius.shape else
          'values that are not finite')
    return values

  def size(self, budget: float) -> float:
    """Returns the distance of cost `budget` by bisection, from e^-14 to e^14."""
    low, high = -14.0, 14.0
    for _ in range(80):
      middle = 0.5 * (low + high)
      above = float(self.at(np.array([np.exp(middle)]))[0]) > budget
      low, high = (low, middle) if above else (middle, high)
    return float(np.exp(high))

  def means(self, inner: np.ndarray, outer: np.ndarray, dim: int) -> np.ndarray:
    """Returns mean costs between pairs of radii, by volume in R^dim; by quadrature."""
    # `share` holds the distances of the nodes, as shares of the outer radius.
    node, weight = np.polynomial.legendre.leggauss(_NODES)
    share = (inner / outer)[:, None] + (1 - inner / outer)[:, None] * ((node + 1) / 2)
    weight = weight * share**(dim - 1)
    return np.sum(self.at(outer[:, None] * share) * weight, axis=1) / np.sum(
        weight, axis=1)


def make(power: object, function: Callable[[np.ndarray], np.ndarray] | None = None
         ) -> Cost:
  """Returns the cost `function`, or |z|^power if it is None.

  Raises ValueError unless `power` is positive, and for a function with a `power` other
  than 2, the default of designs: one of the two would be ignored.
  """
  if function is None:
    return PowerCost(_checks.positive('power', power))
  if not callable(function):
    raise ValueError(f'Expected cost to be a function of |z|, got cost={function!r}.')
  if power != 2:
    raise ValueError(f'Expected no power beside a cost function, got power={power!r}.')
  return FunctionCost(function)


def _violation(expected: str, got: str) -> ValueError:
  """Returns the error to raise if a cost fails an assumption of the papers."""
  return ValueError(f'Expected cost to be {expected}, got {got}; the papers '
                    'prove nothing for such a cost.')
