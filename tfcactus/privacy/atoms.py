"""Phi of a discrete loss, for estimates by contour.

A discrete loss's phi does not decay: it comes back near one again and again,
so nothing certifies where its integral may be cut. Numbers from here are
estimates, shown between bounds that come from the lattice.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from tfcactus.privacy import _numerics
from tfcactus.privacy import pair as pair_lib

SAMPLES = 48
"""How many points stand for all later ones where decay is looked for."""


@dataclasses.dataclass(frozen=True, eq=False)
class AtomicLoss:
  """The finite losses of a pair, as `contour.Contour` wants them.

  Attributes:
    pair: The pair.
  """

  pair: pair_lib.DominatingPair

  sampling_prob = None

  @functools.cached_property
  def _log_p(self) -> np.ndarray:
    with np.errstate(divide='ignore'):
      return np.log(self.pair.p)

  def cumulants(self, orders: np.ndarray) -> np.ndarray:
    """log M at real orders with two derivatives, shape (3, n)."""
    rows = [self._moments(order) for order in orders]
    return np.array(rows).T

  def _moments(self, order: float) -> tuple[float, float, float]:
    log_mgf, weight = self._tilt(order)
    mean = float(weight @ self.pair.loss)
    spread = float(weight @ (self.pair.loss - mean)**2)
    return log_mgf, mean, spread

  def _tilt(self, order: float) -> tuple[float, np.ndarray]:
    exponent = self._log_p + order * self.pair.loss
    log_mgf = float(_numerics.log_sum(exponent))
    return log_mgf, np.exp(exponent - log_mgf)

  def tilted(self, order: float, t_max: float, tolerance: float
             ) -> TiltedAtoms:
    """The loss under a tilt."""
    del t_max, tolerance
    return TiltedAtoms(*self._tilt(order), self.pair.loss)

  def log_decay(self, order: float, t: np.ndarray) -> np.ndarray:
    """log |phi| seen at and beyond t, up to the last of `t`; an estimate."""
    _, weight = self._tilt(order)
    keep = weight > 1e-12
    phase = np.multiply.outer(t, self.pair.loss[keep])
    size = np.log(np.abs(np.exp(1j * phase) @ weight[keep]) + 1e-300)
    return np.maximum.accumulate(size[::-1])[::-1]


@dataclasses.dataclass(frozen=True, eq=False)
class TiltedAtoms:
  """Atoms under a tilt, with the interface of `gaussian.TiltedLoss`."""

  log_mgf: float
  weight: np.ndarray
  loss: np.ndarray

  def log_phi(self, spacing: float, count: int) -> np.ndarray:
    """log of the tilted phi at spacing * (0..count-1)."""
    return _numerics.log_phi_table(self.loss, self.weight, spacing, count)

  def error(self, t: np.ndarray) -> np.ndarray:
    """Zero: estimates carry no bound."""
    return np.zeros_like(t)
