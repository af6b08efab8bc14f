"""The privacy loss of a subsampled Gaussian, split into small and large losses.

A smooth weight W(level) on outputs rises from zero to one around a level of the loss.
The density of a step times W(low) - W(high) is a measure of mass below one: the losses
between two levels (`PartLoss`). `RareLoss` is the part of a whole composition whose
largest loss lies between two levels. `split_contours` composes the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math

import numpy as np
import numpy.typing as npt
from scipy import special

from tfcactus import _numerics
from tfcactus.accounting.bounds import IntractableError
from tfcactus.accounting.composition.losses import base, quadrature

SHARPNESS = 0.25
"""Width of the step of the weight W, in units of the log-likelihood ratio. A narrower
step needs more quadrature nodes; a wider one needs a longer contour."""

CUTOFF = 2.0
"""Coefficient of the term that makes 1 - W fall faster than exponentials of a loss
grow."""

MAX_V = 300.0
"""Log-likelihood ratios v are capped here. Above this, W is one."""

MAX_TILTED_LEVEL = 60.0
"""Largest order times level. Larger tilts are not needed."""

MAX_RANGE = 1200.0
"""Range of log-likelihood ratios beyond which other methods are faster."""

GROWTH_CELL = 0.04
"""Cells, in z, of the sums that replace integrals of a bound on the integrand; at most
half a standard deviation of the output."""

GROWTH_SLACK = 1.0
"""Allowance for these sums in the log of their ratio. A sum over cells of h differs
from the integral of a bump by h times its height at most. The argument of Phi has slope
1 / SHARPNESS + CUTOFF = 6 at the level, so a bump of W(low) - W(high) is at least 0.1
wide. A sum is thus off by at most 0.4 of its integral, and the log of the ratio of two
sums by at most log 1.4 - log 0.6 < 1."""

Groups = Sequence[tuple[quadrature.SampledGaussian, int]]
"""Losses by removal, and the number of steps with each."""


@dataclasses.dataclass(frozen=True)
class PartLoss(quadrature.SampledGaussian):
  """The losses of a subsampled Gaussian between approximate levels `low` and `high`.

  A level is a loss minus the least possible loss, log(1 - sampling_prob). The measure
  has a mass of less than one: P's density times W(low) - W(high), where W(level) =
  Phi(v / SHARPNESS + CUTOFF (e^v - 1)) and v is the log-likelihood ratio of the output
  minus the one at which the loss is at the level. The first term makes W vanish fast on
  small losses. The second makes 1 - W fall faster than any exponential of the loss
  grows.
  """

  low: float  # Approximate lower level; zero leaves out no small loss.
  high: float  # Approximate upper level; inf leaves out no large loss.

  moments_are_proved = False
  _max_strip = 0.7

  @classmethod
  def of(cls, loss: quadrature.SampledGaussian, low: float, high: float
         ) -> quadrature.SampledGaussian:
    """Returns the part of a loss between two levels; `loss` itself for 0 and inf."""
    if low == 0 and math.isinf(high):
      return loss
    return cls(loss.mu, loss.sampling_prob, loss.direction, low, high)

  @property
  def max_order(self) -> float:
    if math.isinf(self.high):
      return min(MAX_TILTED_LEVEL / self.low, super().max_order)
    return MAX_TILTED_LEVEL / self.high

  @property
  def _bend(self) -> float:
    # |W| adds strip^2 / (2 SHARPNESS^2) to the log of the base class's bound.
    return self.sampling_prob / (self.mu**-2 + SHARPNESS**-2)

  def _middle(self, level: float) -> float:
    """Returns the output, in deviations, whose loss is `level` above the least loss."""
    s, mu = self.sampling_prob, self.mu
    return (float(_numerics.log_expm1(level)) + math.log((1 - s) / s) +
            0.5 * mu * mu) / mu

  def _argument(self, y: np.ndarray, level: float, strip: np.ndarray
                ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the real and imaginary parts of the argument of Phi in W(level)."""
    # The log-likelihood ratio is z + i strip, where z belongs to the output `y`. W is
    # one at level zero and zero at level inf.
    if level == 0 or math.isinf(level):
      value = np.full(np.broadcast_shapes(y.shape, strip.shape),
                      -np.inf if level else np.inf)
      return value, np.zeros_like(value)
    v = np.minimum(self.mu * (y - self._middle(level)), MAX_V)
    grown = CUTOFF * np.exp(v)
    return (v / SHARPNESS + grown * np.cos(strip) - CUTOFF,
            strip / SHARPNESS + grown * np.sin(strip))

  def _log_density(self, y: np.ndarray) -> np.ndarray:
    """Returns log of P0's density times W(low) - W(high), up to a constant."""
    above, below = (self._argument(y, level, np.zeros(1))[0]
                    for level in (self.low, self.high))
    # Phi(a) - Phi(b) = Phi(-b) - Phi(-a): use the side where both are small.
    flip = below > 0
    first = special.log_ndtr(np.where(flip, -below, above))
    second = special.log_ndtr(np.where(flip, -above, below))
    with np.errstate(divide='ignore', invalid='ignore'):
      part = first + np.log1p(-np.exp(np.where(first > -np.inf, second - first, 0.0)))
    return super()._log_density(y) + part

  def _missing(self, y: np.ndarray, step: float) -> float:
    """Returns one minus the mass of the measure; `step` is the spacing of `y`."""
    scale = step / math.sqrt(2 * math.pi)
    if self.low > 0:
      return 1.0 - scale * float(np.sum(np.exp(self._log_density(y))))
    # Integrate the missing part itself: one minus the mass would lose digits.
    rest = dataclasses.replace(self, low=self.high, high=math.inf)
    return scale * float(np.sum(np.exp(rest._log_density(y))))

  def _shifted(self, y: np.ndarray, strip: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Includes a bound on |W(low) - W(high)| in the base class's first term."""
    log_bounds = [_log_size(*self._argument(y, level, strip[..., None]))
                  for level in (self.low, self.high)]
    # |W(low) - W(high)| is at most the sum of both |W|, and of both |1 - W|.
    (low, low_rest), (high, high_rest) = log_bounds
    return super()._log_density(y) + np.minimum(
        np.logaddexp(low, high), np.logaddexp(low_rest, high_rest)), (
            0.5 * (strip / self.mu)**2)

  def _growth(self, strip: np.ndarray, order: float, t: np.ndarray) -> np.ndarray:
    """Returns `SampledGaussian._growth`'s bound, by sums over cells; (strips, n).

    Raises IntractableError beyond `MAX_RANGE`.
    """
    top = self._top(order) + quadrature.REACH
    if (top + quadrature.REACH) * self.mu > MAX_RANGE:
      raise IntractableError
    y = np.arange(-quadrature.REACH, top, min(GROWTH_CELL / self.mu, 0.5))
    log_u = (1 + order) * self.log_u(y)
    whole = _numerics.log_sum((self._log_density(y) + log_u)[None])[0]
    moved, growth = self._shifted(y, strip[:, 0])
    _, turn = self._turned(y, strip[:, 0])
    # The bound grows with t: between two grid points, use its value at the next one.
    at = np.unique(np.append(np.geomspace(1e-9, 1, 7) * t[-1], [0.0, t[-1]]))
    bound = _numerics.log_sum(
        (moved + log_u)[:, None, :] + at[:, None] * turn[:, None, :])
    return (growth[:, None] + bound - whole + GROWTH_SLACK)[:, np.searchsorted(at, t)]

  def _top(self, order: float) -> float:
    """Returns an output above all modes of the measure under tilts <= `order`."""
    top = super()._top(order)
    if self.low > 0:
      # W(low) grows up to this output, and the mode may be anywhere below it.
      top = max(top, self._middle(self.low) + 1 / self.mu)
    if math.isinf(self.high):
      return top
    # Above this output e^(-2 (e^v - 1)^2) falls faster than e^(order * loss) grows.
    return min(top, max(self._middle(self.high), 0.0) + float(np.logaddexp(
        0.0, math.log1p(order) + _numerics.log_expm1(self.high))) / self.mu)


def _log_size(real: np.ndarray, imag: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns log of upper bounds on |Phi(real + i imag)| and on |1 - Phi|, in turn."""
  # The smaller is at most b = e^(imag^2 / 2) Phi(-|real|), the larger at most 1 + b.
  small = 0.5 * imag**2 + special.log_ndtr(-np.abs(real))
  other = np.logaddexp(0.0, small)
  return np.where(real < 0, small, other), np.where(real < 0, other, small)


@dataclasses.dataclass(frozen=True)
class RareLoss(base.Loss):
  """The total loss of steps, on outcomes whose largest loss lies between two levels.

  Its measure has a mass of less than one. The levels `low` and `high` are approximate.
  """

  groups: Groups
  low: float
  high: float

  moments_are_proved = False

  @functools.cached_property
  def _laws(self) -> list[tuple[quadrature.SampledGaussian,
                                quadrature.SampledGaussian, int]]:
    """Returns per group (losses below `high`, losses from `low` to `high`, steps)."""
    return [(PartLoss.of(loss, 0.0, self.high),
             PartLoss.of(loss, self.low, self.high), count)
            for loss, count in self.groups]

  @property
  def max_order(self) -> float:
    return min(law.max_order for laws in self._laws for law in laws[:2])

  def cumulants(self, orders: np.ndarray) -> np.ndarray:
    total, rest = np.zeros((2, 3, orders.size))
    for loss, large, count in self._laws:
      full, part = loss.cumulants(orders), large.cumulants(orders)
      total += count * full
      # `rest` is -log of the share of M without large losses in any step: the sum of
      # -log(1 - share), with derivatives; `off` is the derivative of log share.
      share = _share(part[0] - full[0])
      odds, off = share / (1 - share), part[1] - full[1]
      rest += count * np.stack([
          np.log1p(odds), odds * off,
          odds * (off * off + part[2] - full[2]) + (odds * off)**2])
    # The measure's share of M is 1 - e^-rest: add its log, with derivatives.
    grown = np.expm1(np.minimum(rest[0], 700.0))
    slope = rest[1] / grown
    return total + np.stack([
        np.log(-np.expm1(-rest[0])), slope,
        (rest[2] - rest[1]**2) / grown - slope**2])

  def log_decay(self, order: float, t: np.ndarray) -> np.ndarray:
    # The measure is a difference of two products over the steps. It telescopes into a
    # sum over the steps: each term has the difference of this step's two factors, and
    # the other steps' factors, which are at most one.
    log_all, bounds = self.tilted(order, 0.0, 1e-16).log_share, []
    for loss, large, count in self._laws:
      part, full = (law.cumulants(np.array([order]))[0, 0] for law in (large, loss))
      bounds.append(math.log(count) + part - full + large.log_decay(order, t))
    return np.minimum(np.logaddexp.reduce(bounds, axis=0) - log_all, 0.0)

  def tilted(self, order: float, t_max: float, tolerance: float) -> TiltedRare:
    """Returns the loss under the tilt `order`; `tolerance` is shared by the steps."""
    tolerance = tolerance / sum(count for _, count in self.groups)
    return TiltedRare(tuple(
        (loss.tilted_nodes(order, t_max, tolerance),
         large.tilted_nodes(order, t_max, tolerance), count)
        for loss, large, count in self._laws))


def _share(log_ratio: npt.ArrayLike) -> np.ndarray:
  """Returns M of a part over M of the whole, clipped to lie between zero and one."""
  return np.exp(np.clip(log_ratio, -660.0, -1e-15))


class TiltedRare(base.TiltedLoss):
  """A `RareLoss` under a tilt; losses between `low` and `high` are large."""

  def __init__(self, parts: Sequence[tuple[
      quadrature.TiltedQuadrature, quadrature.TiltedQuadrature, int]]):
    # Triples, one per group, under the tilt: a step's losses below `high`, its losses
    # between `low` and `high`, the number of such steps.
    self.parts = parts
    # For each of `parts`, M of a step's large losses over M of its losses below `high`.
    self.shares = [
        float(_share(large.log_mgf - full.log_mgf)) for full, large, _ in parts]
    # log of M of the outcomes with a large loss, over M of all outcomes of losses below
    # `high`, for all steps together.
    self.log_share = math.log(-math.expm1(math.fsum(
        part[2] * math.log1p(-share) for part, share in zip(parts, self.shares))))
    self.log_mgf = self.log_share + math.fsum(
        count * full.log_mgf for full, _, count in parts)

  @property
  def nodes(self) -> int:
    return max(large.nodes for _, large, _ in self.parts)

  def log_phi(self, spacing: float, count: int) -> np.ndarray:
    total, less = np.zeros((2, count), np.complex128)
    for (full, large, steps), share in zip(self.parts, self.shares):
      log_phi = full.log_phi(spacing, count)
      # log of 1 - (large part of phi) / phi.
      ratio = share * _numerics.phi_table(large.loss, large.weight, spacing, count)
      ratio *= np.exp(-np.maximum(log_phi.real, -300.0) - 1j * log_phi.imag)
      total += steps * log_phi
      less += steps * _numerics.log1p(-ratio)
    # 1 - e^less keeps the digits if large losses are rare; if they are not, e^total may
    # be tiny beside e^(total + less).
    with np.errstate(over='ignore', under='ignore', invalid='ignore'):
      value = np.where(
          less.real < 1.0, np.exp(total) * -_numerics.expm1(
              np.minimum(less.real, 1.0) + 1j * less.imag),
          np.exp(total) - np.exp(total + less))
    return _numerics.log(value) - self.log_share

  def error(self, t: np.ndarray) -> np.ndarray:
    """Returns bounds on phi's error, shape of `t`."""
    # They come from those of a step's losses below `high`, and of its losses between
    # `low` and `high`.
    rare = sum(part[2] * share for part, share in zip(self.parts, self.shares))
    total = np.zeros_like(t)
    for (full, large, count), share in zip(self.parts, self.shares):
      # The share is a ratio of two sums.
      ratio = full.error(t[:1] * 0) + large.error(t[:1] * 0) + (
          _numerics.sum_roundoff(full.nodes + large.nodes))
      total += count * (rare * full.error(t) + share * (large.error(t) + ratio))
    return total * math.exp(-self.log_share)
