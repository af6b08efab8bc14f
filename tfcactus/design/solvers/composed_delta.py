"""Composed delta of n releases and its exact gradient, for designing noise.

Each outcome's privacy loss is split between the two nearest points of a uniform grid.
One FFT composes n losses, and the total is tested against epsilon: a total loss x gains
g(x) = (1 - e^(epsilon - x))^+. One more FFT gives the gradient. Let V(x) be the mean of
g(x + S) over the sum S of n - 1 losses. The derivative of delta with respect to the
mass of an outcome of loss x is n V(x), and with respect to its loss the mass times n
V'(x). The result is an objective to minimise, not a guarantee: only the accountant says
what a table costs.

Source: the composition of Sommer et al., "Learning Numeric Optimal Differentially
Private Truncated Additive Mechanisms" (2021), section 3.4.2; the adjoint derivative is
this library's.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import fft

SPREAD = 12.0
"""Standard deviations of the total loss that the grid covers on either side."""

POINTS = 1 << 14
"""Grid points for up to `FEW` releases; more get twice as many. Splitting raises a
loss's variance by a share of about (SPREAD / points)^2 * steps: the optimum shifts."""

FEW = 32
"""Largest number of releases that are composed on `POINTS` grid points."""


@dataclasses.dataclass(frozen=True)
class Value:
  """A composed delta sup_A P^n(A) - e^epsilon Q^n(A), and its gradients."""

  delta: float
  by_p: np.ndarray  # Gradient with respect to the masses of P.
  by_q: np.ndarray  # Gradient with respect to the masses of Q.


def composed_delta(p: np.ndarray, q: np.ndarray, *, epsilon: float, steps: int,
                   points: int | None = None) -> Value:
  """Returns delta of `steps` independent releases, masses p against q, with gradients.

  `points` is the size of the grid of losses, None for the default. Delta is accurate to
  the grid, and no bound.
  """
  both = (p > 0) & (q > 0)
  a, b = p[both], q[both]
  loss = np.log(a) - np.log(b)
  lost = float(np.sum(p[q <= 0]))  # Probability of an infinite loss in one release.
  grid = _Grid.around(loss, a, epsilon, steps,
                      points or (POINTS if steps <= FEW else 2 * POINTS))
  by_a, by_loss, finite = grid.composed(loss, a, epsilon, steps)
  by_p, by_q = np.zeros_like(p), np.zeros_like(q)
  # The derivatives of loss = log p - log q enter both gradients.
  by_p[both] = by_a + by_loss / a
  by_q[both] = -by_loss / b
  by_p[q <= 0] = steps * (1 - lost)**(steps - 1)
  infinite = -math.expm1(steps * math.log1p(-lost)) if lost < 1 else 1.0
  return Value(infinite + finite, by_p, by_q)


def sampled_pairs(p: np.ndarray, q: np.ndarray, sampling_prob: float
                  ) -> list[tuple[np.ndarray, np.ndarray]]:
  """Returns Poisson-sampled (P, Q) of noise p and shifted noise q, per direction.

  The first pair is for a removed record, the second for an added one. Without sampling
  both cost the same, since the noise is symmetric, and one pair is returned.
  """
  if sampling_prob == 1:
    return [(p, q)]
  mixed = (1 - sampling_prob) * p + sampling_prob * q
  return [(mixed, p), (p, mixed)]


def unsampled(direction: int, by_p: np.ndarray, by_q: np.ndarray,
              sampling_prob: float) -> tuple[np.ndarray, np.ndarray]:
  """Maps gradients for P, Q of `sampled_pairs(...)[direction]` to those for p, q."""
  if sampling_prob == 1:
    return by_p, by_q
  mixed, plain = (by_p, by_q) if direction == 0 else (by_q, by_p)
  return (1 - sampling_prob) * mixed + plain, sampling_prob * mixed


@dataclasses.dataclass(frozen=True)
class _Grid:
  """A uniform grid of losses around the likely total loss of `steps` releases."""

  width: float  # Spacing.
  points: int  # Number of points; sums wrap around after them.
  first: int  # Index of the first point of the total loss.

  @classmethod
  def around(cls, loss: np.ndarray, mass: np.ndarray, epsilon: float,
             steps: int, points: int) -> _Grid:
    """Returns a grid that covers the likely range of the total loss, and epsilon."""
    share = mass / np.sum(mass)
    mean = float(share @ loss)
    std = math.sqrt(max(float(share @ (loss - mean)**2), 1e-300))
    largest = float(np.max(np.abs(loss - mean)))
    reach = min(SPREAD * std * math.sqrt(steps) + 2 * largest, steps * largest) + 1e-9
    low = min(steps * mean - reach, epsilon)
    high = max(steps * mean + reach, epsilon)
    # A few points of room at both ends, so that split losses do not wrap around.
    width = (high - low) * 1.02 / (points - 8)
    return cls(width, points, math.floor(low / width) - 2)

  def composed(self, loss: np.ndarray, mass: np.ndarray, epsilon: float, steps: int
               ) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns delta's derivatives by mass and by loss, and delta of finite losses."""
    # Arrays are circular: index j stands for losses (j + k points) * width, k whole.
    cell = np.floor(loss / self.width).astype(np.int64)
    share = loss / self.width - cell
    at = cell % self.points
    then = (cell + 1) % self.points
    law = (np.bincount(at, mass * (1 - share), self.points) +
           np.bincount(then, mass * share, self.points))
    phi = fft.rfft(law)
    total = (self.first + np.arange(self.points)) * self.width
    gain = -np.expm1(np.minimum(epsilon - total, 0.0))
    gain = np.roll(gain, self.first % self.points)
    rest = phi**(steps - 1)
    # V of the module's docstring, at every grid point, by correlation.
    seen = fft.irfft(np.conj(rest) * fft.rfft(gain), self.points)
    value = float(law @ seen)
    low, high = steps * seen[at], steps * seen[then]
    return (low + (high - low) * share, mass * (high - low) / self.width, value)
