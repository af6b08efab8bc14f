"""Values of B_n, the integrand of `mean_lognormal`, at the nodes of its outer integral.

A_k(t) = E[(t X / T)^k exp(-t X / T)] / k!, with X = exp(mu y - mu^2 / 2), is an
integral over y. If log t and mu y lie on lattices of one spacing, all A_k at all t are
one correlation. B_n is the coefficient of h^n in (sum_k A_k h^k)^T.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from scipy import special

from tfcactus import _numerics
from tfcactus.accounting.bounds import IntractableError
from tfcactus.accounting.composition.losses import base

REACH = 12.0
"""Standard deviations of y beyond the outermost mode."""

MAX_PRODUCTS = 1_000_000_000
"""Most products in a correlation; moments that take more are intractable."""

NOTHING = 1e-300
"""Smaller weights are left out, so that sums of products do not underflow."""

_SHARES = np.linspace(0.03, 0.97, 30)
"""Widths of strips about y that are tried, relative to the widest."""


@dataclasses.dataclass(frozen=True)
class Lattice:
  """Nodes of u and of y whose sums u + mu y lie on one lattice."""

  mu: float  # Standard deviation of the logarithms.
  count: int  # Number of factors T.
  n: int  # Largest k of A_k.
  angle: float  # Angle of t, at most zero.
  u: np.ndarray  # log |t|, shape (nodes,).
  y: np.ndarray  # Real parts of y, shape (inner,).
  lift: float  # Imaginary part added to all y.
  width: float  # Half width of a strip about y.
  spacing: float  # Spacing of u.
  stride: int  # Spacing of u, in units of the lattice's spacing.
  comb: int  # Spacing of mu y, in the same units. `stride` or `comb` is one.

  @classmethod
  def of(cls, mu: float, count: int, n: int, low: float, high: float, spacing: float,
         angle: float, digits: float) -> Lattice:
    """Returns nodes for u in [low, high], spaced by at most `spacing`.

    Raises IntractableError if the correlation takes more than `MAX_PRODUCTS`.
    """
    # The trapezoidal rule in y aims at relative errors of exp(-digits). The choice
    # of `lift` and `widths` needs no proof: `_errors` bounds the errors that follow.
    lift = min(abs(angle) / mu, 1.5)
    rest = abs(angle) - mu * lift
    widths = _SHARES * min((0.5 * math.pi - rest) / mu, 6.0)
    steps = 2 * math.pi * widths / (digits + 0.5 * (lift + widths)**2 - n * np.log(
        np.cos(rest + mu * widths)))
    width, inner = float(widths[np.argmax(steps)]), float(steps.max())
    stride = max(int(spacing / (mu * inner)), 1)
    comb = max(int(mu * inner / spacing), 1)
    # Neither spacing exceeds the one asked for.
    if comb == 1:
      spacing = min(spacing, stride * mu * inner)
    inner = spacing * comb / (stride * mu)
    # Reach beyond the maximum of exp(-t X / T) times the density, for the largest t.
    down = float(special.lambertw(mu**2 * math.exp(min(
        high - math.log(count) - 0.5 * mu**2, 600.0))).real) / mu
    reach = down + math.sqrt(2 * (digits + 2))
    top = REACH + n * mu
    nodes, inner_nodes = ((end - start) / step + 2 for start, end, step in (
        (low, high, spacing), (-reach, top, inner)))
    if not 2 * nodes * inner_nodes * (n + 2) < MAX_PRODUCTS:
      raise IntractableError
    return cls(mu, count, n, angle, low + spacing * np.arange(int(nodes)),
               -reach + inner * np.arange(int(inner_nodes)), lift, width, spacing,
               stride, comb)

  @property
  def _inner(self) -> float:
    """Spacing of y. A difference of nodes would lose its digits."""
    return self.spacing * self.comb / (self.stride * self.mu)

  @property
  def _rest(self) -> float:
    """The angle of t X that is left after y is moved."""
    return abs(self.angle) - self.mu * self.lift

  @functools.cached_property
  def _log_unit(self) -> float:
    """log of `unit`: A_k (unit / t)^k is computed, which floats can represent."""
    return max(math.log(self.n) - 1, 0.0)

  def _sums(self, rest: float, weights: np.ndarray) -> np.ndarray:
    """Returns sums over y of weights times exp(-t X / T), where t X has angle -rest."""
    # `weights`, (inner, number of k), multiply the exponential, or its modulus if real.
    size = (self.u.size - 1) * self.stride + (self.y.size - 1) * self.comb + 1
    v = self.u[0] + self._log_x[0] + self.spacing / self.stride * np.arange(size)
    tx = np.exp(np.minimum(v, 700.0))
    values = np.exp(-tx * (np.exp(-1j * rest) if np.iscomplexobj(weights) else
                           math.cos(rest)))
    windows = np.lib.stride_tricks.sliding_window_view(
        values, size - (self.u.size - 1) * self.stride)
    return _numerics.product(
        np.ascontiguousarray(windows[::self.stride, ::self.comb]), weights).T

  @property
  def _log_x(self) -> np.ndarray:
    """log X / T at real y."""
    return self.mu * self.y - 0.5 * self.mu**2 - math.log(self.count)

  def _weights(self, rows: int) -> np.ndarray:
    """Returns moduli of the factors of exp(-t X / T) in A_k (unit / t)^k."""
    # Shape (inner, rows).
    k = np.arange(rows)
    exponent = (self.lift**2 - self.y**2)[:, None] / 2 + k * (
        self._log_x[:, None] + self._log_unit) - special.gammaln(k + 1)
    found = self._inner / math.sqrt(2 * math.pi) * np.exp(exponent)
    return np.where(found < NOTHING, 0.0, found)

  def _coefficients(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns A_k / (t / unit)^k and bounds on its errors, shape (n + 1, nodes)."""
    rows, rest = self.n + 1, self._rest
    weights = self._weights(rows + 1)  # One k more: errors of A_k need A_(k+1).
    # `own` and `sides` are sums of moduli, for the errors: their weights are real.
    own = self._sums(rest, weights)
    sides = self._sums(rest + self.mu * self.width, weights[:, :rows])
    a = own[:rows]
    if self.lift:
      # At y + i lift, X^k and the density of y turn by these angles.
      turn = self.lift * (self.mu * np.arange(rows) - self.y[:, None])
      a = self._sums(rest, weights[:, :rows] * np.exp(1j * turn))
    return a, self._errors(weights[:, :rows], own, sides)

  def _errors(self, weights: np.ndarray, own: np.ndarray, sides: np.ndarray
              ) -> np.ndarray:
    """Returns bounds on the errors of `_coefficients`, given its `_weights`."""
    # `own`, shape (n + 2, nodes), holds for each k the sum over y of the terms' moduli;
    # `sides`, shape (n + 1, nodes), holds such sums with y on the sides of its strip.
    # Factors of 1.01 cover the rounding of these sums and of the bounds themselves.
    mu, step, rest = self.mu, self._inner, self._rest
    k = np.arange(self.n + 1)[:, None]
    side = math.cos(rest + mu * self.width)
    log_factor, log_x = special.gammaln(k + 1), self._log_x
    log_unit = k * (self._log_unit - self.u)
    # The error of the trapezoidal rule is bounded by integrals with all y moved by
    # +-i width. The moduli rise and fall once, so that an integral is at most its sum
    # plus one maximum. If moduli rise at the first node (`inside`), the log modulus has
    # at its maximum, and to the next node below, a second derivative of modulus at most
    # bend = 1 + mu (k mu - y). The maximum is then at most exp(bend step^2 / 2) times
    # that node's modulus. Otherwise it is at most the maximum over x of
    # |x^k exp(-t x)|, times e^(lift^2 / 2) for the density.
    inside = side * np.exp(np.minimum(self.u + log_x[0], 700.0)) < k - self.y[0] / mu
    bend = 1 + mu * (k * mu - self.y[0])
    log_most = special.xlogy(k, k / math.e) - k * math.log(side) - log_factor + log_unit
    with np.errstate(over='ignore'):
      most = np.where(inside, sides * np.exp(0.5 * bend * step**2),
                      step * np.exp(log_most + 0.5 * self.lift**2))
    grown = self.width * (self.lift + 0.5 * self.width)
    rule = 1.01 * (sides + most) * 2 * math.exp(grown) / math.expm1(min(
        2 * math.pi * self.width / step, 700.0))
    # Rounding of the weights' exponents, and of exp(-t X), whose relative error is
    # |t X| times the relative error of t X.
    far = 1 + float(np.max(np.abs(log_x))) + mu**2
    y = float(np.max(np.abs(self.y)))
    rounded = 1.01 * own[:-1] * (_numerics.sum_roundoff(self.y.size) + (
        base.PHASE_ROUNDOFF * (y * (y + self.lift) + log_factor + k * (
            far + self._log_unit + mu * self.lift))))
    far += float(np.max(np.abs(self.u)))
    with np.errstate(over='ignore'):
      rounded += 1.01 * own[1:] * (k + 1) * np.exp(self.u - self._log_unit) * (
          far * base.PHASE_ROUNDOFF)
    # `_beyond` bounds the terms beyond the ends of y, which the sums leave out. The
    # rule's error there is its small factor times moduli of about that size: 1.01
    # allows for this too. `lost` counts terms that underflow.
    lost = self.y.size * (NOTHING + 5e-324 * weights.max(axis=0))
    return lost[:, None] + rule + rounded + 1.01 * self._beyond(k, log_factor, log_unit)

  def _beyond(self, k: np.ndarray, log_factor: np.ndarray, log_unit: np.ndarray
              ) -> np.ndarray:
    """Returns bounds on the terms of `_coefficients` beyond the ends of y."""
    # `k` has shape (n + 1, 1). `log_factor` is log k!, `log_unit` is log (unit /
    # |t|)^k. The normal density falls there, and |t X|^k exp(-|t X| cos(rest)) is at
    # most its value at the end, or at its peak, or without the exponential.
    mu, cosine = self.mu, math.cos(self._rest)
    peak = np.log(np.maximum(k, 1e-300) / cosine)
    total = np.zeros((k.size, self.u.size))
    for y, log_x, best in ((self.y[0], self._log_x[0], np.minimum),
                           (self.y[-1], self._log_x[-1], np.maximum)):
      v = best(self.u + log_x, peak)
      log_term = special.log_ndtr(-abs(y)) + k * v - cosine * np.exp(
          np.minimum(v, 700.0)) + log_unit
      if y > 0:
        log_term = np.minimum(log_term, special.log_ndtr(k * mu - y) + k * (
            self._log_unit - math.log(self.count)) + 0.5 * mu**2 * k * (k - 1))
      with np.errstate(over='ignore'):
        total += np.exp(log_term + 0.5 * self.lift**2 - log_factor)
    return total

  def log_powers(self) -> np.ndarray:
    """Returns estimates of log B_k at real nodes, shape (n + 1, nodes)."""
    a = self._sums(0.0, self._weights(self.n + 1))
    k = np.arange(self.n + 1)[:, None]
    return self.count * np.log(a[0]) + np.log(power(a / a[0], self.count)) + k * (
        self.u - self._log_unit)

  def log_power(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns log B_n at the nodes, and log of bounds on the errors of B_n."""
    a, errors = self._coefficients()
    count, n = self.count, self.n
    with np.errstate(all='ignore'):
      first = np.abs(a[0])
      log_scale = count * np.log(a[0]) + n * (self.u + 1j * self.angle - self._log_unit)
      found = power(a / a[0], count)[n]
      most = (np.abs(a) + errors) / first
      others = power(most, count - 1) if count > 1 else _one(most)
      # The error of one factor times the bounds of all others.
      wrong = count * (errors / first * others[::-1]).sum(axis=0)
      wrong += NOTHING * n * count * np.maximum(others.max(axis=0), 1.0)
      wrong += base.PHASE_ROUNDOFF * (
          (n + 2)**2 + count * (4 + np.abs(np.log(a[0]))) + np.abs(log_scale)) * (
              most * others[::-1]).sum(axis=0)
      log_error = np.log(wrong) + log_scale.real
      log_b = log_scale + np.log(found)
    return np.where(np.isnan(log_b), -np.inf, log_b), np.where(
        np.isnan(log_b) | np.isnan(log_error), np.inf, log_error)


def power(coefficients: np.ndarray, exponent: int) -> np.ndarray:
  """Returns the coefficients of polynomials raised to `exponent` >= 1.

  `coefficients` have shape (degree + 1, points): the lowest, which is nonzero, first.
  The result has this shape; higher coefficients are left out.
  """
  degree = len(coefficients) - 1
  if exponent >= degree and exponent > 1:
    # All factors of this recurrence are positive, as exponent >= k: nothing cancels if
    # the coefficients are positive. For a smaller exponent the square-and-multiply loop
    # below needs few products.
    out = np.empty_like(coefficients)
    out[0] = coefficients[0]**exponent
    for k in range(1, degree + 1):
      j = np.arange(1, k + 1)
      out[k] = np.einsum('j,jn,jn->n', (j * (exponent + 1.0) - k) / k,
                         coefficients[1:k + 1], out[:k][::-1]) / coefficients[0]
    return out
  out, square = _one(coefficients), coefficients
  while exponent:
    if exponent & 1:
      out = _product(out, square)
    exponent >>= 1
    if exponent:
      square = _product(square, square)
  return out


def _one(like: np.ndarray) -> np.ndarray:
  """Returns the coefficients of the polynomial one, in the shape of `like`."""
  out = np.zeros_like(like)
  out[0] = 1.0
  return out


def _product(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """Returns the product of polynomials, up to their degree; shapes as for `power`."""
  return np.stack([np.einsum('jn,jn->n', first[:k + 1], second[:k + 1][::-1])
                   for k in range(len(first))])
