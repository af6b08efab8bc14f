"""Moments E[L^q] of a mean L of T lognormal variables, with bounds on their errors.

Each variable is X = exp(mu y - mu^2 / 2) with y standard normal. For an integer n > Re
q, the moment is n! / Gamma(n - q) times the integral over t > 0 of t^(-q - 1) B_n(t),
where B_n(t) = E[(t L)^n exp(-t L)] / n! is computed by `lognormal_lattice`. The
integral is a trapezoidal rule in u = log t, for large Im q along a ray of complex t.
All errors are bounded: docs/soundness_formulas.md, "Moments of a mean of lognormals".
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import numpy.typing as npt
from scipy import special

from tfcactus import _numerics
from tfcactus.accounting.bounds import IntractableError
from tfcactus.accounting.composition.losses import base, lognormal_lattice

DIGITS = 37.0
"""The rules aim at errors of exp(-DIGITS) of the moment; actual errors are added up.
All constants here affect speed only, unless they say otherwise."""

PILOT_DIGITS = 18.0
"""DIGITS for estimates that only guide choices."""

AHEAD = 4
"""n exceeds Re q by at least this much."""

MAX_WHOLE = 1000
"""Moments of integer orders up to this, or to 30 / mu if that is less, are known."""

STEEPEST = 0.5 * math.pi - 1e-9
"""Largest angle of t at which the integrand is bounded: cos(angle) must be positive."""

_STRIPS = np.linspace(0.03, 1.5, 50)
"""Half widths of strips about a ray of u."""

_MOVES = np.linspace(0.0, 1.0, 17)[:, None]
"""Shares of a strip's half width that the imaginary part of y offsets in arg(t X)."""


@dataclasses.dataclass(frozen=True)
class MeanLognormal:
  """The mean of `count` lognormals of mean one, whose logs have deviation `mu`."""

  mu: float
  count: int

  def log_bound(self, q: npt.ArrayLike) -> np.ndarray:
    """Returns an upper bound on log E[L^q], close to its value."""
    # For q > 1 it interpolates logs of the moments of integer orders, which are finite
    # sums: log E[L^q] is convex in q. Above the largest known order it is log E[X^q],
    # by Jensen's inequality. For q < 0 it is the log moment of the variables' geometric
    # mean, which is at most L. For q in [0, 1], E[L^q] <= 1.
    q, whole = np.asarray(q, dtype=np.float64), _whole_moments(self.mu, self.count)
    room = 1 + base.PHASE_ROUNDOFF
    most = np.interp(q, np.arange(whole.size), whole)
    return room * np.where(q < 0, 0.5 * self.mu**2 * (q * q / self.count - q), np.where(
        q <= whole.size - 1, most, 0.5 * self.mu**2 * q * (q - 1)))

  def log_moments(self, q: np.ndarray) -> np.ndarray:
    """Estimates log E[L^q] and two derivatives at real q; nan where floats overflow.

    The shape is (3, orders).
    """
    n = np.array([_degree(order) for order in q])
    low, high = math.inf, -math.inf
    for order, degree in zip(q, n):
      ends = self._ends(int(degree), float(order), 0.0, PILOT_DIGITS)
      low, high = min(low, ends[0]), max(high, ends[1])
    # At angle zero both sides of a strip are alike; the second bound is never larger.
    strip, log_sides = self._strips(float(np.max(n - q)), 0.0)
    spacing = float(np.max(2 * np.pi * strip / (PILOT_DIGITS + log_sides[1])))
    grid = lognormal_lattice.Lattice.of(
        self.mu, self.count, int(n.max()), low, high, spacing, 0.0, PILOT_DIGITS)
    with np.errstate(all='ignore'):
      log_b = grid.log_powers()[n].real
    exponent = log_b - q[:, None] * grid.u
    peak = exponent.max(axis=1, initial=-np.inf, keepdims=True)
    with np.errstate(all='ignore'):
      weight = np.exp(exponent - peak)
      total = weight.sum(axis=1)
      mean = weight @ grid.u / total
      spread = (weight * (grid.u - mean[:, None])**2).sum(axis=1) / total
      left = n - q
      return np.stack([
          peak[:, 0] + np.log(grid.spacing * total) + special.gammaln(n + 1) -
          special.gammaln(left), special.digamma(left) - mean,
          np.maximum(spread - special.polygamma(1, left), 0.0)])

  def reach(self, order: float, start: float) -> float:
    """Returns an Im q up to which the ray chosen for order + i start serves."""
    # At q = order + i t the integrand peaks at the angle atan(t / left). The ray serves
    # peaks up to 1.2 / sqrt(left) beyond its own angle; where tan grows fast, near
    # pi / 2, it serves twice `start`. This affects speed and the width of bounds only.
    left = _degree(order) - order
    angle = math.atan(start / left) + 1.2 / math.sqrt(left)
    return left * math.tan(angle) if angle < 1.2 else max(2 * start, 1.0)

  def line(self, order: float, start: float, end: float) -> Line:
    """Returns nodes and errors for q = order + i t, t in [start, end], on one ray."""
    # Errors are those of the integral, which is Gamma(n - q) / n! times the moment.
    # Raises IntractableError if no strip about the ray bounds the integrand.
    n = _degree(order)
    left = n - order
    angle = -math.atan(start / left)
    low, high, log_cut = self._ends(n, order, angle, DIGITS)
    strip, log_sides = self._strips(left, angle)
    if not strip.size:
      raise IntractableError
    spacing = float(np.max(2 * np.pi * strip / (
        DIGITS + np.maximum(log_sides[0] + end * strip, log_sides[1] - start * strip))))
    grid = lognormal_lattice.Lattice.of(
        self.mu, self.count, n, low, high, spacing, angle, DIGITS)
    log_b, log_error = grid.log_power()
    scale = special.gammaln(left) - special.gammaln(n + 1)
    log_rule = scale + log_sides - np.log(np.expm1(np.minimum(
        2 * np.pi * strip / grid.spacing, 700.0)))
    # A sum beyond the ends is at most the integral plus spacing times the maximum. In u
    # the bound's integrand mixes gamma laws of shape up to n - q + 12. Their densities
    # of log s are at most the root of the shape (Stirling).
    log_cut += math.log1p(grid.spacing * math.sqrt(left + 12))
    log_wrong = math.log(grid.spacing) + float(np.logaddexp.reduce(
        log_error - order * grid.u))
    return Line(grid.u, log_b, n, order, angle, grid.spacing,
                float(np.logaddexp(log_cut, log_wrong)), strip, log_rule)

  def _ends(self, n: int, order: float, angle: float, digits: float
            ) -> tuple[float, float, float]:
    """Returns the least and the largest u = log |t| to sum over, and a log bound."""
    # The bound is on the integral of |t^(-q - 1) B_n| outside of these ends, and holds
    # wherever they are. `whole` is about the log of n! times the whole integral.
    left, log_cosine = n - order, math.log(math.cos(angle))
    whole = special.gammaln(left) + float(self.log_bound(order))
    if order < 0:  # E[L^q] >= exp(mu^2 q^2 / (2 T)): move all y by q mu / T; Jensen.
      whole += 0.5 * self.mu**2 * order

    def end(move: np.ndarray, sign: int) -> tuple[float, float]:
      """Returns an end's distance from u = 0, and log of a bound beyond it.

      Uses the best moment of order + sign * move; sign is 1 at the lower end, else -1.
      """
      size = special.gammaln(left - sign * move) + self.log_bound(order + sign * move)
      reach = (digits + np.maximum(size - whole, 0.0)) / move
      best = int(np.argmin(reach))
      return float(reach[best]), float(
          size[best] - reach[best] * move[best] - special.gammaln(n + 1) -
          left * log_cosine)

    low, below = end(np.linspace(0.5, left - 0.2, 12), 1)
    high, above = end(np.array([0.5, 1, 2, 3, 4, 6, 8, 12]), -1)
    return -low - log_cosine, high - log_cosine, float(np.logaddexp(below, above))

  def _strips(self, left: float, angle: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns half widths of strips about a ray, (strips,), and logs of bounds."""
    # Each bound is on the integral of |t^(-q - 1) B_n(t)| along a side of the strip,
    # without the factor from Im q, over that of t^(-c - 1) B_n(t) over t > 0. `left` is
    # n - c. Bounds have shape (2, strips), strips >= 0: row 0 is the side towards the
    # positive line. On the other the best i b is added to every y; `move` is mu b.
    outer = abs(angle) + _STRIPS
    move = np.minimum(_MOVES * _STRIPS, outer)
    rest = outer - move
    with np.errstate(invalid='ignore', divide='ignore'):
      cost = np.where(rest < STEEPEST, 0.5 * self.count * (move / self.mu)**2 -
                      left * np.log(np.cos(np.minimum(rest, STEEPEST))), np.inf)
    cost = cost.min(axis=0)
    inner_angle = np.abs(abs(angle) - _STRIPS)
    inner = -left * np.log(np.cos(np.minimum(inner_angle, STEEPEST)))
    usable = np.isfinite(cost) & (inner_angle < STEEPEST)
    return _STRIPS[usable], np.stack([inner, cost])[:, usable]


@dataclasses.dataclass(frozen=True)
class Line:
  """Nodes of the outer integral, on a ray of t."""

  u: np.ndarray  # Shape (nodes,), log |t|, a lattice.
  log_b: np.ndarray  # Shape (nodes,), complex, log B_n.
  n: int  # The n of B_n.
  order: float  # Re q.
  angle: float  # Angle of the ray, at most zero.
  spacing: float  # Spacing of the nodes.
  # log of a bound on the errors common to all q, without the factors Gamma(n - q) / n!
  # and those of Im q on the ray.
  log_error: float
  strip: np.ndarray  # Shape (strips,), half widths of strips about the ray.
  # Shape (2, strips), log of the rule's errors over the moment, from both sides of each
  # strip, without the factor of Im q.
  log_rule: np.ndarray

  def log_gamma(self, t: np.ndarray) -> np.ndarray:
    """Returns log of Gamma(n - q) / n! at q = order + i t."""
    return special.loggamma(self.n - self.order - 1j * t) - special.gammaln(self.n + 1)

  def log_integral(self, spacing: float, count: int, start: float = 0.0) -> np.ndarray:
    """Returns log E[L^q] at q = order + i t, t = start + spacing * (0..count-1)."""
    exponent = self.log_b - self.order * (self.u + 1j * self.angle)
    peak = float(np.max(exponent.real))
    weight = np.where(exponent.real > -np.inf, np.exp(exponent - peak), 0.0)
    table = _numerics.phi_table(-self.u, self.spacing * weight, spacing, count, start)
    t = start + spacing * np.arange(count)
    return peak + _numerics.log(table) + t * self.angle - self.log_gamma(t)

  def log_error_at(self, t: np.ndarray, log_moment: float) -> np.ndarray:
    """Returns log of a bound on the error of E[L^q] at q = order + i t, shape (n,)."""
    # `log_moment` is log of an upper bound on E[L^order].
    log_gamma = self.log_gamma(t)
    fixed = t * self.angle - log_gamma.real
    # Use the strip with the smallest bound.
    turn = self.strip[:, None] * t
    rule = np.logaddexp(self.log_rule[0][:, None] + turn,
                        self.log_rule[1][:, None] - turn).min(axis=0)
    exponent = self.log_b.real - self.order * self.u
    seen = np.isfinite(exponent)
    if not seen.any():
      return np.full(t.shape, np.inf)
    log_size = np.logaddexp.reduce(exponent) + math.log(self.spacing)
    rounded = np.log(_numerics.sum_roundoff(self.u.size) + base.PHASE_ROUNDOFF * (
        4 + (t + abs(self.order)) * float(np.max(np.abs(self.u))) +
        float(np.max(np.abs(self.log_b[seen]))) + np.abs(log_gamma)))
    return fixed + np.logaddexp(np.logaddexp(self.log_error, rule + log_moment),
                                log_size + rounded)

  def log_moment(self) -> float:
    """Returns an upper bound on log E[L^order], or inf; requires angle zero."""
    zero = np.zeros(1)
    found = float(self.log_integral(1.0, 1)[0].real)
    fixed = float(self.log_error_at(zero, -math.inf)[0])
    # The rule's error is a share of the moment itself.
    share = math.exp(min(float(np.logaddexp(*self.log_rule).min()) -
                         float(self.log_gamma(zero)[0].real), 0.0))
    if share > 0.5:
      return math.inf
    return float(np.logaddexp(found, fixed)) - math.log1p(-share)


def _degree(order: float) -> int:
  """Returns the n of the B_n from which E[L^q] is computed at Re q = `order`."""
  return max(1, math.ceil(order) + AHEAD)


@functools.lru_cache(maxsize=64)
def _whole_moments(mu: float, count: int) -> np.ndarray:
  """Returns upper bounds on log E[L^k], k = 0, 1, ..., as far as they are finite."""
  k = np.arange(int(min(30 / mu, MAX_WHOLE)) + 3)
  bound = 0.5 * mu**2 * k * (k - 1)
  # `bound` is log E[X^k], at least log E[L^k] by convexity. E[L^k] is also k! times the
  # coefficient of t^k in the `count`-th power of the sum of E[X^k] (t / count)^k / k!.
  # In units of `log_unit` all terms are floats.
  log_unit = k * math.log(k[-1] / math.e) - special.gammaln(k + 1)
  with np.errstate(over='ignore', under='ignore', divide='ignore', invalid='ignore'):
    terms = np.exp(bound + log_unit - k * math.log(count))[:, None]
    found = np.log(lognormal_lattice.power(terms, count)[:, 0]) - log_unit
    found += base.PHASE_ROUNDOFF * ((k + 2)**2 + np.abs(log_unit) + np.abs(bound))
  found[:2] = 0.0
  known = int(np.argmin(np.append(np.isfinite(found), False)))
  return np.minimum(found, bound)[:known]
