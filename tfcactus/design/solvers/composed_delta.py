"""Composed delta of n releases and its exact gradient, for designing noise.

The result is an objective to minimise, not a guarantee: only the accountant says what
a table costs.

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
  by_a, by_loss, finite = _finite_losses(
      loss, a, epsilon, steps, points or (POINTS if steps <= FEW else 2 * POINTS))
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


def _finite_losses(loss: np.ndarray, mass: np.ndarray, epsilon: float, steps: int,
                   points: int) -> tuple[np.ndarray, np.ndarray, float]:
  """Returns delta's derivatives by mass and by loss, and delta of finite losses."""
  # Each loss is split between the two nearest points of a uniform grid. One FFT
  # composes n losses; a total loss x gains g(x) = (1 - e^(epsilon - x))^+. One more FFT
  # gives V(x), the mean of g(x + S) over the sum S of n - 1 losses. The derivative of
  # delta is n V(x) with respect to the mass of an outcome of loss x, and the mass times
  # n V'(x) with respect to its loss.
  width, first = _grid(loss, mass, epsilon, steps, points)
  # Arrays are circular: index j stands for losses (j + k points) * width, k whole.
  cell = np.floor(loss / width).astype(np.int64)
  share = loss / width - cell
  left, right = cell % points, (cell + 1) % points
  masses = np.bincount(left, mass * (1 - share), points) + np.bincount(
      right, mass * share, points)
  total = (first + np.arange(points)) * width
  gain = np.roll(-np.expm1(np.minimum(epsilon - total, 0.0)), first % points)
  others = fft.rfft(masses)**(steps - 1)  # Transform of the law of S.
  mean_gain = fft.irfft(np.conj(others) * fft.rfft(gain), points)  # V at grid points.
  low, high = steps * mean_gain[left], steps * mean_gain[right]
  return (low + (high - low) * share, mass * (high - low) / width,
          float(masses @ mean_gain))


def _grid(loss: np.ndarray, mass: np.ndarray, epsilon: float, steps: int, points: int
          ) -> tuple[float, int]:
  """Returns (spacing, first index) of a grid of the likely total losses and epsilon."""
  share = mass / np.sum(mass)
  mean = float(share @ loss)
  std = math.sqrt(max(float(share @ (loss - mean)**2), 1e-300))
  largest = float(np.max(np.abs(loss - mean)))
  reach = min(SPREAD * std * math.sqrt(steps) + 2 * largest, steps * largest) + 1e-9
  low = min(steps * mean - reach, epsilon)
  high = max(steps * mean + reach, epsilon)
  # A few points of room at both ends, so that split losses do not wrap around.
  width = (high - low) * 1.02 / (points - 8)
  return width, math.floor(low / width) - 2
