"""The Gaussian's privacy loss, subsampled or not: moments and delta."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt
from scipy import special

from tfcactus import _numerics
from tfcactus.accounting.bounds import Bounds, epsilon_bounds, root
from tfcactus.accounting.composition.losses import base
from tfcactus.accounting.composition.losses.base import PHASE_ROUNDOFF, ROUNDOFF
from tfcactus.accounting.composition.losses.grouped import GroupedGaussian
from tfcactus.accounting.composition.losses.quadrature import SampledGaussian


@dataclasses.dataclass(frozen=True)
class GaussianLoss(SampledGaussian):
  """The privacy loss of one Gaussian release, of a Poisson sample or of all records.

  Without sampling the loss is normal and all quantities have closed forms.
  """

  @property
  def normal(self) -> bool:
    return self.sampling_prob == 1

  @property
  def largest(self) -> float:
    """The largest loss: finite for addition to a sampled release, else inf."""
    if self.normal or self.direction == 'remove':
      return math.inf
    return -math.log1p(-self.sampling_prob)

  def cumulants(self, orders: np.ndarray) -> np.ndarray:
    if not self.normal:
      return super().cumulants(orders)
    return 0.5 * self.mu**2 * np.stack(
        [orders * (orders + 1), 2 * orders + 1, np.full_like(orders, 2.0)])

  def log_decay(self, order: float, t: np.ndarray) -> np.ndarray:
    if not self.normal:
      return super().log_decay(order, t)
    return -0.5 * (self.mu * np.asarray(t, dtype=np.float64))**2

  def tilted(self, order: float, t_max: float, tolerance: float) -> base.TiltedLoss:
    if not self.normal:
      return super().tilted(order, t_max, tolerance)
    return TiltedNormal(0.5 * self.mu**2 * order * (order + 1), self.mu, order)

  def delta(self, epsilon: npt.ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Returns delta of one release at any real `epsilon`, and a bound on its error.

    Both have the shape of `epsilon`.
    """
    s, mu = self.sampling_prob, self.mu
    epsilon = np.minimum(np.asarray(epsilon, dtype=np.float64), self.zero_from)
    if self.normal:
      return gaussian_delta(mu, epsilon)
    # Let P0 = N(0, 1), Q0 = N(mu, 1). Removal: s H(Q0 || P0) at
    # e^z = (e^eps - 1 + s) / s. Addition: e^eps s e^z H(P0 || Q0) at e^-z,
    # e^z = (e^-eps - 1 + s) / s. No such z (`certain`): all losses are above epsilon
    # (removal), or none is (addition).
    remove = self.direction == 'remove'
    signed = epsilon if remove else -epsilon
    # Above 30, log odds is computed without e^signed, which may overflow.
    odds = np.expm1(np.minimum(signed, 30.0)) + s
    certain, close = odds <= 0, np.abs(odds) <= ROUNDOFF * (1 + s)
    odds = np.where(certain, 1.0, odds)
    log_odds = np.where(signed > 30, signed + np.log1p(
        -(1 - s) * np.exp(-np.maximum(signed, 30.0))), np.log(odds)) - math.log(s)
    threshold = log_odds if remove else -log_odds
    scale = s if remove else s * np.exp(np.minimum(epsilon - threshold, 700.0))
    value, error = gaussian_delta(mu, threshold)
    # The threshold's own rounding moves delta by at most its slope.
    slip = ROUNDOFF * (1 + np.abs(threshold) + s / odds) * np.exp(np.minimum(
        threshold + special.log_ndtr(-0.5 * mu - threshold / mu), 0.0))
    # A delta below all floats is not zero.
    error = scale * (error + slip + ROUNDOFF * value) + _numerics.LEAST
    sure = np.maximum(-np.expm1(np.minimum(signed, 0.0)), 0.0) if remove else 0.0
    return (np.where(certain, sure, scale * value),
            # Odds near zero may have been rounded to zero.
            np.where(certain, ROUNDOFF * (sure + np.where(
                close, s * np.exp(np.clip(epsilon, 0.0, 700.0)), 0.0)), error))


@dataclasses.dataclass(frozen=True)
class TiltedNormal(base.TiltedLoss):
  """A normal loss (mean mu^2 / 2, variance mu^2) under a tilt; it stays normal."""

  log_mgf: float
  mu: float
  order: float

  def log_phi(self, spacing: float, count: int) -> np.ndarray:
    t = spacing * np.arange(count)
    return 0.5 * self.mu**2 * t * (1j * (2 * self.order + 1) - t)

  def error(self, t: np.ndarray) -> np.ndarray:
    return PHASE_ROUNDOFF * 0.5 * self.mu**2 * t * (2 * self.order + 1 + t)


@dataclasses.dataclass(frozen=True)
class ClosedForm:
  """One Gaussian release, accounted by its delta in closed form."""

  loss: GaussianLoss | GroupedGaussian

  def delta(self, epsilon: float) -> Bounds:
    """Returns bounds on delta, rounding included."""
    value, error = map(float, self.loss.delta(epsilon))
    return Bounds(max(value - error, 0.0), value, min(value + error, 1.0))

  def epsilon(self, delta: float) -> Bounds:
    """Returns bounds on the least epsilon >= 0; may raise IntractableError."""
    if self.delta(0.0).upper <= delta:
      return Bounds(0.0, 0.0, 0.0)
    near = root(lambda x: float(self.loss.delta(x)[0]), delta)
    move = 4e-15 * (1 + near)
    return epsilon_bounds(self.delta, delta, near, move, move)


def gaussian_delta(mu: float, epsilon: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns delta of N(mu, 1) against N(0, 1), and a bound on its error.

  Both have the shape of `epsilon`, which may be negative.

  Source: Balle and Wang (2018), Theorem 8.
  """
  x, y = 0.5 * mu - epsilon / mu, 0.5 * mu + epsilon / mu
  # Large exponents would cancel in b = e^eps Phi(-y). Use b = exp(-x^2 / 2) erfcx / 2
  # instead, since eps - y^2 / 2 = -x^2 / 2.
  a, peak = special.ndtr(x), np.exp(-0.5 * x * x)
  scaled = 0.5 * special.erfcx(np.maximum(y, 0.0) / math.sqrt(2))
  b = np.where(y > 0, peak * scaled,
               np.exp(np.minimum(epsilon, 0.0) + special.log_ndtr(-y)))
  value = np.maximum(np.where(x < 0, peak * (  # y > 0 here.
      0.5 * special.erfcx(np.maximum(-x, 0.0) / math.sqrt(2)) - scaled), a - b), 0.0)
  # x and y are off by less than this; Phi and erfcx are monotone.
  parts = 1 + 0.5 * mu + np.abs(epsilon) / mu
  slack = ROUNDOFF * parts
  error = special.ndtr(x + slack) - special.ndtr(x - slack) + ROUNDOFF * (a + b + value)
  near, far = np.maximum(np.abs(x) - slack, 0.0), np.abs(x) + slack
  most, least = (
      0.5 * np.exp(-0.5 * from_zero**2) * special.erfcx(
          np.maximum(above, 0.0) / math.sqrt(2))
      for from_zero, above in ((near, y - slack), (far, y + slack)))
  error += np.where(y > 0, most - least,
                    slack * b * (1 + np.abs(x)) + ROUNDOFF * b * np.abs(epsilon))
  # Phi(x) underflows below -37. An overflow that ended in nan leaves delta in [0, 1].
  error = error + np.finfo(np.float64).tiny * (x < -37)
  return (np.where(np.isnan(value), 0.0, value), np.where(np.isnan(error), 1.0, error))
