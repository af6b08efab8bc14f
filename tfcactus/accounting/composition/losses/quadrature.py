"""The subsampled Gaussian's privacy loss, with moments by quadrature.

At an output y, which is standard normal without the record, z = mu y - mu^2 / 2, and u
= 1 - s + s e^z is the likelihood ratio at sampling probability s. M(t) is E[u^(1 + t)]
if the record is removed, E[u^-t] if it is added. log u is analytic for |Im z| < pi,
which bounds the error of the trapezoidal rule, and |M(c + i t)| at large t
(docs/soundness_formulas.md, "Subsampled Gaussians").
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from tfcactus import _numerics
from tfcactus.accounting.bounds import IntractableError
from tfcactus.accounting.composition.losses import base

REACH = 9.5
"""Least reach of quadrature beyond the outermost mode, in standard deviations. Any
value is sound: beyond the ends the log of the integrand has slope REACH at least, so
that `cut` bounds the mass left out."""

MAX_NODES = 1 << 20
"""Most nodes of a quadrature. Affects speed only."""

UNRESOLVED = 1e-3
"""Relative difference of the sums over every other node beyond which quadrature is
refused. Any value is sound; at a fine enough step the difference is about the square
root of the error bound, 1e-8."""

_STRIPS = np.concatenate([[0.02, 0.05, 0.1, 0.2, 0.4], np.arange(0.7, 3.01, 0.23)])
"""Half widths of strips about the real line of z that are tried."""


@dataclasses.dataclass(frozen=True)
class SampledGaussian(base.ReleaseLoss):
  """The loss of a Gaussian release of a Poisson sample, by the trapezoidal rule."""

  mu: float  # Shift over standard deviation of the base pair.
  sampling_prob: float  # Poisson sampling probability.
  direction: str  # 'add' or 'remove'.

  @property
  def max_order(self) -> float:
    # For removal the number of nodes grows with the tilt.
    return 5e3 * max(1.0, 1 / self.mu) if self.direction == 'remove' else 1e8

  @property
  def zero_from(self) -> float:
    """An epsilon at which delta, less than Phi(-1000), is below all floats."""
    return self.mu * (self.mu + 1e3)

  # Widest strip |Im z|. Any value below pi is sound; 1 / cos(strip / 2) stays small.
  _max_strip = 3.0

  @property
  def _bend(self) -> float:
    """Returns about the best strip of `log_decay`, over t, for many small losses."""
    # Near z = 0, arg u is about s strip for s = `sampling_prob`. The bound on |phi(t)|
    # then has the log strip^2 / (2 mu^2) - t s strip, least at strip = t s mu^2.
    return self.sampling_prob * self.mu**2

  @property
  def _power(self) -> tuple[float, float]:
    """(a, b) such that M(t) = E[u^(a t + b)]."""
    return (1.0, 1.0) if self.direction == 'remove' else (-1.0, 0.0)

  def log_u(self, y: np.ndarray) -> np.ndarray:
    """Returns log(1 - s + s e^z) at y, which is standard normal under P0 = N(0, 1)."""
    # The relative error matters: tilts may be as large as 1 / log u.
    return _numerics.log_mixture(
        self.sampling_prob, self.mu * y - 0.5 * self.mu * self.mu)

  def _rounded(self, y: np.ndarray, log_u: np.ndarray) -> np.ndarray:
    """Returns the sizes that rounding errors of `log_u` are relative to, (n,).

    The result is for `y` with the values `log_u` there.
    """
    del y
    return np.abs(log_u)

  def cumulants(self, orders: np.ndarray) -> np.ndarray:
    # Mean and variance of log u under each tilt are derivatives of log M.
    y, step = self._nodes(float(np.min(orders)), float(np.max(orders)), 0.0, 1e-16)
    a, b = self._power
    log_u = self.log_u(y)
    exponent = np.multiply.outer(a * orders + b, log_u)
    log_density = self._log_density(y)
    weight = exponent + log_density
    peak = weight.max(axis=1)
    weight -= peak[:, None]
    np.exp(weight, out=weight)
    total = weight.sum(axis=1)
    mean = (weight @ log_u) / total
    spread = (weight @ (log_u * log_u)) / total - mean * mean
    log_mean, _ = self._log_mean(
        exponent, log_density, step, peak + np.log(total), self._missing(y, step))
    return np.array([log_mean, a * mean, spread])

  @staticmethod
  def _log_mean(exponent: np.ndarray, log_density: np.ndarray, step: float,
                log_sum: np.ndarray, missing: float
                ) -> tuple[np.ndarray, np.ndarray]:
    """Returns log E[exp(exponent)] by the trapezoidal rule, and its terms' size.

    Raises IntractableError if two sums for the mean differ.
    """
    # Shapes: `exponent` (n, nodes); `log_density`, log of density times sqrt(2 pi),
    # (nodes,); `log_sum`, log of the sum of exp(exponent) times the density, (n,).
    # `missing` is one minus the density's mass. The rounding error is proportional to
    # the size: one plus the moduli of the logs that are added. For a mean near one it
    # is the sum of the moduli of the terms, over the mean.
    scale = step / math.sqrt(2 * math.pi)
    full = log_sum + math.log(scale)
    size = 1.0 + np.abs(full) + np.abs(log_sum)
    # If M is near one, the mean of exp - 1 keeps the digits of log M.
    modest = np.abs(full) < 0.7
    if modest.any():
      terms = np.expm1(np.minimum(exponent[modest], 1.0)) * np.exp(log_density)
      large = exponent[modest] > 1.0
      grown = (exponent[modest] + log_density)[large]
      terms[large] = np.exp(grown) - np.exp(grown - exponent[modest][large])
      terms *= scale
      excess = np.sum(terms, axis=1) - missing
      near = np.abs(excess) < 0.5
      # Both sums estimate the same mean. They differ if the mass is wrong.
      if np.any(np.abs(np.expm1(full[modest]) - excess)[near] > UNRESOLVED * 1e-6):
        raise IntractableError
      full[modest] = np.where(near, np.log1p(np.where(near, excess, 0.0)), full[modest])
      size[modest] = np.where(
          near, (np.sum(np.abs(terms), axis=1) + missing) / (1 - np.minimum(
              np.abs(excess), 0.5)), size[modest])
    return full, size

  def _log_density(self, y: np.ndarray) -> np.ndarray:
    """Returns log of the density of P0's output, up to a constant."""
    return -0.5 * y * y

  def _missing(self, y: np.ndarray, step: float) -> float:
    """Returns one minus the mass of the density; `step` is the spacing of `y`."""
    del y, step
    return 0.0

  def _shifted(self, y: np.ndarray, strip: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns log of a bound on the density's modulus at z + i strip, as two terms."""
    # The first depends on `y`, its last axis; the second has the shape of `strip`.
    return self._log_density(y), 0.5 * (strip / self.mu)**2

  def _growth(self, strip: np.ndarray, order: float, t: np.ndarray) -> np.ndarray:
    """Returns log of a bound on the moduli's integral at z + i strip, over M(order)."""
    # The moduli are those of the integrand of M(order + i t). Shapes: `strip` (strips,
    # 1), `t` (n,) and increasing, result (strips, n).
    grown = 0.5 * (strip / self.mu)**2 + strip * t
    # |u(z + i strip) / u(z)| is between cos(strip / 2) and one; its power is positive
    # for removal and -order for addition.
    return grown if self.direction == 'remove' else (
        grown - order * np.log(np.cos(0.5 * strip)))

  def _top(self, order: float) -> float:
    """Returns an upper bound on the output's mode under tilts <= `order` (removal)."""
    return self.mu * (1 + order)

  def _nodes(self, low: float, high: float, t_max: float, tolerance: float
             ) -> tuple[np.ndarray, float]:
    """Returns nodes and their step for orders [low, high] + i [0, t_max]."""
    # Nodes are outputs y. `tolerance` is the wanted relative error of M. Raises
    # IntractableError if there are more than MAX_NODES.
    strips = _STRIPS[_STRIPS <= self._max_strip]
    log_need = self._growth(
        strips[:, None], high, np.array([t_max]))[:, 0] + math.log(2 / tolerance)
    step = float(np.max(2 * np.pi * strips / (self.mu * log_need)))
    if self.direction == 'remove':
      bottom, top = -REACH, self._top(high) + REACH
    else:
      # `_mode` is right to 0.01, from above.
      bottom, top = self._mode(high) - REACH - 0.01, self._mode(low) + REACH
    # Terms are tiny at more than REACH beyond the mode of the tilted density.
    count = int(math.ceil((top - bottom) / step)) + 1
    if count > MAX_NODES:
      raise IntractableError
    return bottom + step * np.arange(count), step

  def _mode(self, order: float) -> float:
    """Returns the mode of n(y) u^-order, to 0.01; n is the normal density."""
    if order <= 0:
      return 0.0
    low, high = -order * self.mu, 0.0
    while high - low > 1e-2:
      y = 0.5 * (low + high)
      low, high = (low, y) if y + order * self._slope(y) > 0 else (y, high)
    return high

  def _slope(self, y: float) -> float:
    """Returns the derivative of log u at `y`."""
    grown = self.sampling_prob / (1 - self.sampling_prob) * math.exp(
        self.mu * y - 0.5 * self.mu**2)
    return self.mu * grown / (1 + grown)

  def tilted(self, order: float, t_max: float, tolerance: float) -> base.TiltedLoss:
    return self.tilted_nodes(order, t_max, tolerance)

  def tilted_nodes(self, order: float, t_max: float, tolerance: float
                   ) -> TiltedQuadrature:
    """Returns the tilted loss by quadrature, whatever `tilted` does in a subclass.

    Raises IntractableError as `_nodes`, or if quadrature has not converged.
    """
    y, step = self._nodes(order, order, t_max, tolerance)
    a, b = self._power
    log_u = self.log_u(y)
    exponent = (a * order + b) * log_u
    log_density = self._log_density(y)
    weight = exponent + log_density
    peak = weight.max()
    weight = np.exp(weight - peak)
    total = weight.sum()
    weight /= total
    # The error bound implies that the rule with twice the step is already good.
    if abs(float(weight[::2].sum()) - 0.5) > UNRESOLVED:
      raise IntractableError
    # Beyond the end points the terms fall by exp(-step * REACH) each.
    cut = float((weight[0] + weight[-1]) / -math.expm1(-step * REACH))
    (log_mgf,), (size,) = self._log_mean(
        exponent[None], log_density, step, np.array([peak + math.log(total)]),
        self._missing(y, step))
    return TiltedQuadrature(self, order, float(log_mgf), a * log_u, weight, step, cut,
                            float(size), float(weight @ self._rounded(y, log_u)))

  def _turned(self, y: np.ndarray, strip: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns log |u(z + i strip)|, and a lower bound on arg u there, (strip, y)."""
    # The shape of `strip` ends with one, which that of `y` replaces in the results.
    # u = (1 - s)(1 + e^x e^{i strip}). For x > 0, e^x, which may overflow, is factored
    # out of the modulus. The angle grows with x, which may therefore be capped there.
    x = self.mu * y - 0.5 * self.mu**2 + math.log(
        self.sampling_prob / (1 - self.sampling_prob))
    a, e = np.exp(-np.abs(x)), np.exp(np.minimum(x, 300.0))
    cosine, sine = np.cos(strip)[..., None], np.sin(strip)[..., None]
    size = np.maximum(x, 0.0) + 0.5 * np.log1p(a * a + 2 * cosine * a)
    return math.log1p(-self.sampling_prob) + size, np.arctan2(sine * e, 1 + cosine * e)

  def log_decay(self, order: float, t: np.ndarray) -> np.ndarray:
    # The line of integration is moved to Im z = b, where |u^(i t)| = exp(-t arg u).
    y, step = self._nodes(order, order, 0.0, 1e-16)
    # Every other node belongs to a second rule, for the check below.
    y = np.stack([y, y + 0.5 * step])
    a, b = self._power
    power = a * order + b
    # Log M(order) by both rules, and a lower bound on it: the result is over M.
    bases = _numerics.log_sum(self._log_density(y) + power * self.log_u(y))
    log_mgf = np.min(bases) - abs(bases[0] - bases[1])
    # The best strip for many small losses, and wide ones for few large losses.
    narrow = t * self._bend
    widest = self._max_strip
    strip = np.minimum(np.stack(
        [0.6 * narrow, 1.5 * narrow, 4 * narrow, np.full_like(t, 0.25 * widest),
         np.full_like(t, widest)]), widest)[..., None]
    moved, growth = self._shifted(y, strip)
    log_size, turn = self._turned(y, strip)
    exponent = moved + power * log_size
    exponent -= t[:, None, None] * turn
    # The modulus is not analytic, so that no strip bounds the rule's error. Use two
    # rules whose errors have opposite signs, and add their difference.
    even, odd = np.moveaxis(_numerics.log_sum(exponent), -1, 0)
    value = np.maximum(even, odd) + np.abs(even - odd) - log_mgf + growth[..., 0]
    return np.minimum(np.min(value, axis=0), 0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class TiltedQuadrature(base.TiltedSum):
  """One step's loss under a tilt: quadrature weights and their error bounds."""

  law: SampledGaussian  # The loss before the tilt.
  order: float
  log_mgf: float
  loss: np.ndarray  # Shape (nodes,), losses at the nodes.
  weight: np.ndarray  # Shape (nodes,), tilted probabilities; sum to one.
  step: float  # Step of the quadrature.
  cut: float  # Bound on the relative mass beyond the nodes.
  # Sum of the moduli of the terms that were added for log M, as in `_log_mean`.
  size: float
  rounded: float  # Mean of `SampledGaussian._rounded` under the tilt.

  def error(self, t: np.ndarray) -> np.ndarray:
    return (base.phi_error(self.loss, self.weight, self.order, self.size, t,
                           self.rounded) +
            self.quadrature(t) + 2 * self.cut)

  def quadrature(self, t: np.ndarray) -> np.ndarray:
    """Returns bounds on the rule's error of M(order + i t), over M(order), (n,)."""
    law = self.law
    strips = _STRIPS[_STRIPS <= law._max_strip][:, None]
    log_error = law._growth(strips, self.order, t) + math.log(2)
    decay = 2 * np.pi * strips / (law.mu * self.step)
    exponent = log_error - decay - np.log(-np.expm1(-decay))
    return np.exp(np.minimum(np.min(exponent, axis=0), 0.0))
