"""Rounding errors of a loss's closed forms and of its phi (characteristic) function."""

from __future__ import annotations

import numpy as np

from tfcactus import _numerics

ROUNDOFF = 64 * _numerics.EPS
"""Bound on the relative rounding error of a closed form of a few terms. They are sums
and logarithms of the normal distribution function, which are within 8 EPS."""

PHASE_ROUNDOFF = 8 * _numerics.EPS
"""Bound on the relative rounding error of a phase t loss. The loss (log1p, expm1, an
exponential and three products), t and the product are rounded."""


def phi_error(loss: np.ndarray, weight: np.ndarray, order: float, size: float,
              t: np.ndarray, rounded: float | None = None) -> np.ndarray:
  """Returns bounds on the rounding error of phi at `t`, and of log M at 0.

  Each term of phi carries the errors of its phase and of its weight. The weight is an
  exponential of order times the loss. phi - 1 is summed as products of e^ix - 1 and
  e^iy - 1 with x + y = t loss, whose moduli are at most min(2, |x|) and min(2, |y|).
  `loss` and `weight` (tilted probabilities) have shape (nodes,). `size` is the sum of
  the moduli of the terms of log M. `rounded` is the mean of what the losses' rounding
  errors are relative to, by default of their moduli.
  """
  mean_abs = float(np.sum(weight * np.abs(loss)))
  square = float(np.sum(weight * loss * loss))
  moduli = np.minimum(t * mean_abs, 4.0) + np.minimum(
      np.minimum(2 * t * mean_abs, 0.25 * square * t * t), 4.0)
  rounded = mean_abs if rounded is None else rounded
  return (PHASE_ROUNDOFF * (t + 2 * (1 + order)) * rounded +
          _numerics.sum_roundoff(loss.size) * np.where(t > 0, moduli, size))
