"""The Laplace mechanism's privacy loss in closed form.

Let a be the shift of the query over the scale of the noise. The loss under P is a with
probability one half, -a with probability e^-a / 2, and has a density in between. Hence
M(s) = ((s + 1) e^(s a) + s e^(-(s + 1) a)) / (2 s + 1).

Source: Table 2 of Zhu, Dong and Wang (AISTATS 2022); the bounds are this library's.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from tfcactus import _numerics
from tfcactus.accounting.composition.losses import base
from tfcactus.accounting.composition.losses.base import ROUNDOFF

STEEP = 30.0
"""Above this real part of s a, M is one term and a correction. Any value > 1 works."""

_SERIES = 0.5
"""Modulus of z below which e^z - 1 - z is computed as a series of 20 terms. The
remainder is about z^22 / 22!."""


def _curvature(z: np.ndarray) -> np.ndarray:
  """Returns e^z - 1 - z of complex z, with relative accuracy at small |z|."""
  small = np.abs(z) < _SERIES
  near = np.where(small, z, 0.0)
  series = np.ones_like(near)
  for n in range(21, 2, -1):  # z^2 / 2 (1 + z / 3 (1 + z / 4 (1 + ...))).
    series = 1 + series * near / n
  far = np.where(small, 1.0, z)
  return np.where(small, 0.5 * near * near * series, _numerics.expm1(far) - far)


def _excess(s: np.ndarray, top: float) -> tuple[np.ndarray, np.ndarray]:
  """Returns M(s) - 1, and the sum of the moduli of its two terms."""
  # The terms linear in a cancel and are left out.
  one = (s + 1) * _curvature(s * top) / (2 * s + 1)
  other = s * _curvature(-(s + 1) * top) / (2 * s + 1)
  return one + other, np.abs(one) + np.abs(other)


def log_moment(s: np.ndarray, top: float) -> np.ndarray:
  """Returns log M at complex s with real part >= 0; `top` is the largest loss."""
  s = np.asarray(s, dtype=np.complex128)
  steep = s.real * top > STEEP
  log_m = _numerics.log1p(_excess(np.where(steep, 0.0, s), top)[0])
  far = np.where(steep, s, STEEP / top)
  # M = e^(s a) (1 + (s / (s + 1)) e^(-(2 s + 1) a)) (s + 1) / (2 s + 1).
  ratio = (1 + (far / (far + 1)) * np.exp(-(2 * far + 1) * top)) * (
      (far + 1) / (2 * far + 1))
  return np.where(steep, far * top + np.log(ratio), log_m)


@dataclasses.dataclass(frozen=True)
class LaplaceLoss(base.Loss):
  """The loss of a Laplace release; `top`, the largest loss, is shift over scale."""

  top: float

  @property
  def max_order(self) -> float:
    # Tilts matter in units of 1 / top.
    return max(1e4, 1e2 / self.top)

  def cumulants(self, orders: np.ndarray) -> np.ndarray:
    s, a = np.asarray(orders, dtype=np.float64), self.top
    # M = e^(s a) g / (2 s + 1); `slope` and `curve` are the derivatives of g.
    z = np.exp(-(2 * s + 1) * a)
    g, slope = (s + 1) + s * z, 1 + z - 2 * a * s * z
    curve = 4 * a * z * (a * s - 1)
    mean = a + slope / g - 2 / (2 * s + 1)
    variance = curve / g - (slope / g)**2 + 4 / (2 * s + 1)**2
    return np.stack([log_moment(s, a).real, mean, np.maximum(variance, 0.0)])

  def log_decay(self, order: float, t: np.ndarray) -> np.ndarray:
    # The two atoms have tilted weight w together. The density between them has a
    # transform of modulus w / (2 t) at most. log w is rounded up.
    log_mgf = float(log_moment(np.array([order]), self.top)[0].real)
    size = order * self.top
    log_w = (size + math.log1p(math.exp(-(2 * order + 1) * self.top)) - math.log(2)
             - log_mgf) + ROUNDOFF * (1 + size)
    return np.minimum(log_w + np.log1p(0.5 / np.asarray(t, dtype=np.float64)), 0.0)

  def tilted(self, order: float, t_max: float, tolerance: float) -> TiltedLaplace:
    del t_max, tolerance
    return TiltedLaplace(
        self.top, order, float(log_moment(np.array([order]), self.top)[0].real))


@dataclasses.dataclass(frozen=True)
class TiltedLaplace(base.TiltedLoss):
  """The loss of a Laplace release under a tilt; `top` is the largest loss."""

  top: float
  order: float
  log_mgf: float

  nodes = 4  # The closed form has about four terms.

  def log_phi(self, spacing: float, count: int) -> np.ndarray:
    s = self.order + 1j * spacing * np.arange(count)
    return log_moment(s, self.top) - self.log_mgf

  def error(self, t: np.ndarray) -> np.ndarray:
    s = self.order + 1j * np.asarray(t, dtype=np.float64)
    if self.order * self.top > STEEP:
      size = np.full(s.shape, 2.0)
    else:
      size = _excess(s, self.top)[1] / math.exp(self.log_mgf)
    # About ten operations, and rounding of the exponentials' arguments.
    turn = 4 * _numerics.EPS * np.abs(s + 1) * self.top
    return (ROUNDOFF + turn) * size + ROUNDOFF * abs(self.log_mgf)
