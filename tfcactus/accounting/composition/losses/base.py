"""The interface of a privacy loss for methods of composition.

With M(s) = E_P[e^(s loss)], phi(t) = M(c + i t) / M(c) is the characteristic function
of the loss under the exponential tilt c > 0. A contour needs values of phi, bounds on
their errors, and a bound on |phi| at large t. A loss that has all three is one class.
"""

from __future__ import annotations

import abc
import math

import numpy as np

from tfcactus import _numerics

ROUNDOFF = 64 * _numerics.EPS
"""Bound on the relative rounding error of a closed form of a few terms. They are sums
and logarithms of the normal distribution function, which are within 8 EPS."""

PHASE_ROUNDOFF = 8 * _numerics.EPS
"""Bound on the relative rounding error of a phase t loss. The loss (log1p, expm1, an
exponential and three products), t and the product are rounded."""


class TiltedLoss(abc.ABC):
  """A loss under an exponential tilt: its phi (characteristic) function and errors.

  phi(t) = M(order + i t) / M(order).
  """

  log_mgf: float  # log M(order).
  # Whether phi and its error are clipped to phi's possible range, which assumes that
  # `log_mgf` is about right.
  cut_off: bool = False

  @property
  def nodes(self) -> int:
    """Terms per value of phi, to which cost is proportional; one by default."""
    return 1

  @abc.abstractmethod
  def log_phi(self, spacing: float, count: int) -> np.ndarray:
    """Returns log phi at spacing * (0..count-1), shape (count,), complex."""

  @abc.abstractmethod
  def error(self, t: np.ndarray) -> np.ndarray:
    """Returns bounds on phi's absolute error at `t` >= 0, shape (n,).

    At t = 0, where phi is exactly one, the bound is on the error of `log_mgf`.
    """


class TiltedSum(TiltedLoss):
  """A tilted loss that is a sum over points."""

  loss: np.ndarray  # Shape (points,).
  weight: np.ndarray  # Shape (points,), tilted probabilities; sum to one.

  @property
  def nodes(self) -> int:
    """The number of points."""
    return self.loss.size

  def log_phi(self, spacing: float, count: int) -> np.ndarray:
    return _numerics.log_phi_table(self.loss, self.weight, spacing, count)


class Loss(abc.ABC):
  """The privacy loss of one step, or of several together."""

  # Whether `cumulants` returns log M, or an upper bound on it, up to rounding at every
  # order. Else its values are estimates, and bounds use `log_moment`.
  moments_are_proved: bool = True

  @property
  @abc.abstractmethod
  def max_order(self) -> float:
    """Approximate largest tilt that is tried. Affects speed only."""

  @abc.abstractmethod
  def cumulants(self, orders: np.ndarray) -> np.ndarray:
    """Returns log M at `orders` > 0 and its first two derivatives, shape (3, n).

    The derivatives only guide choices of tilts; on log M see `moments_are_proved`.
    """

  @abc.abstractmethod
  def log_decay(self, order: float, t: np.ndarray) -> np.ndarray:
    """Returns upper bounds on log |phi(t')| for all t' >= t, shape (n,).

    `t` > 0 increases; bounds are at most zero and decrease.
    """

  @abc.abstractmethod
  def tilted(self, order: float, t_max: float, tolerance: float) -> TiltedLoss:
    """Returns the loss under the exponential tilt `order` > 0, for phi up to `t_max`.

    `tolerance` is the error of phi wanted at t_max; `error` bounds the actual one.
    Raises IntractableError if that takes too many nodes or is not accurate enough.
    """

  def log_moment(self, order: float) -> float:
    """Returns an upper bound on log M(order); raises IntractableError as `tilted`."""
    tilted = self.tilted(order, 0.0, 1e-16)
    return tilted.log_mgf + math.log1p(float(tilted.error(np.zeros(1))[0]))


class ReleaseLoss(Loss):
  """The loss of a Gaussian release, or of several that share a random allocation."""

  mu: float  # Sensitivity over standard deviation of a release.
  direction: str  # 'add' or 'remove'.

  @property
  def normal(self) -> bool:
    """Returns whether the loss is a normal variable: neither sampled nor allocated."""
    return False

  @property
  def largest(self) -> float:
    """Upper bound on the loss; inf if there is none."""
    return math.inf


def phi_error(loss: np.ndarray, weight: np.ndarray, order: float, size: float,
              t: np.ndarray, rounded: float | None = None) -> np.ndarray:
  """Returns bounds on the rounding error of phi at `t` >= 0, shape (n,).

  At t = 0, where phi is exactly one, the bound is that of log M. `weight` is the mass
  of each loss under the tilt `order`, and sums to one.
  """
  # Each term of phi carries the errors of its phase and of its weight. The weight is an
  # exponential of order times the loss. With x + y = t loss, phi - 1 is summed as
  # (e^ix - 1)(e^iy - 1) + (e^ix - 1) + (e^iy - 1). The moduli of the factors are at
  # most min(2, |x|) and min(2, |y|).
  # `size` is the sum of the moduli of the terms of log M. `rounded` is the mean, under
  # the tilt, of the sizes that errors of losses are relative to; None: their moduli.
  mean_abs = float(np.sum(weight * np.abs(loss)))
  square = float(np.sum(weight * loss * loss))
  moduli = np.minimum(t * mean_abs, 4.0) + np.minimum(
      np.minimum(2 * t * mean_abs, 0.25 * square * t * t), 4.0)
  rounded = mean_abs if rounded is None else rounded
  return (PHASE_ROUNDOFF * (t + 2 * (1 + order)) * rounded +
          _numerics.sum_roundoff(loss.size) * np.where(t > 0, moduli, size))
