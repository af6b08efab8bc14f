"""Composition and inversion of characteristic functions that a user supplies.

docs/soundness_accounting.md ("Inversions of the papers") has the integral for delta
and the three errors that are bounded: aliasing, truncation and rounding.

Source: Algorithm 1, Theorem 16 and Lemma 17 of Zhu, Dong and Wang (AISTATS 2022);
alternation as in Davies, "Numerical inversion of a characteristic function" (1973).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import dataclasses
import functools
import math
import operator
from typing import Callable

import numpy as np

from tfcactus import _checks, _numerics
from tfcactus._numerics import EPS
from tfcactus.accounting.bounds import Bounds, first_end, IntractableError, root
from tfcactus.accounting.composition.losses import laplace
from tfcactus.accounting.composition.losses.base import PHASE_ROUNDOFF
from tfcactus.pairs.dominating_pair import DominatingPair, MASS_ROUNDOFF

MAX_NODES = 1 << 20
"""Largest number of nodes of a sum; bounds widen beyond it. Knob of speed."""

BLOCK = 1 << 14
"""Nodes per call of phi; limits the size of arrays over nodes and atoms."""

MAX_PERIOD = 1e7
"""Largest period tried. Knob of speed."""

LOG_TAIL = -36.0
"""Log of the |phi| at which a sum is truncated, if phi decays. Knob of speed."""

LOG_LARGEST = 709.0
"""Log of a bound on finite losses, which are floats."""

LOG_NOTHING = -690.0
"""Smaller logs of |phi| are raised to this, so that zero has a finite log."""

_UNDERFLOW = 1e-299
"""Bound on the error of phi, phase included, if its log is raised to LOG_NOTHING: more
than four times e^LOG_NOTHING."""

_COSINES = np.array([[1.0, -1.0, 0.0, 0.0], [1.5, -2.0, 0.5, 0.0],
                     [2.5, -3.75, 1.5, -0.25]])
"""Coefficients of cos(j x) in (1 - cos x)^n, for n = 1, 2, 3."""

Array = np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class PhiFunction:
  """The characteristic function of one step's privacy loss, in one direction.

  The caller vouches for three facts: the function is the phi of log(P/Q) under P for a
  pair that dominates the step, its error is within `accuracy`, and `log_decay` bounds
  it. The other direction, Q against P, needs another PhiFunction.

  Attributes:
    log_phi: Takes t > 0 of shape (n,); returns log E_P[exp(i t loss)] over finite
      losses, complex, of any branch; the real part is -inf where phi is zero.
    log_decay: Takes t > 0; returns a bound on log |phi| at t and all larger arguments.
      None bounds |phi| by the mass of finite losses only, and the bounds are as wide as
      the truncated part of the sum.
    p_inf: P-mass of an infinite loss.
    accuracy: Bound on the error of `log_phi`, in units of 1 + |log_phi|; or a function
      of t, shape (n,), that bounds the absolute error of phi.
  """

  log_phi: Callable[[Array], Array]
  log_decay: Callable[[Array], Array] | None = None
  p_inf: float = 0.0
  accuracy: float | Callable[[Array], Array] = 1e-15

  def __post_init__(self) -> None:
    for name in ('log_phi', 'log_decay'):
      value = getattr(self, name)
      if not callable(value) and (name == 'log_phi' or value is not None):
        raise ValueError(f'Expected {name} to be a function of t, got {value!r}.')
    if not 0 <= _checks.real('p_inf', self.p_inf) < 1:
      raise ValueError(f'Expected p_inf in [0, 1), got p_inf={self.p_inf!r}.')
    if not callable(self.accuracy):
      _checks.positive('accuracy', self.accuracy)

  @classmethod
  def gaussian(cls, mu: float) -> PhiFunction:
    """Returns phi of the Gaussian mechanism; `mu` is sensitivity / deviation."""
    half = 0.5 * _checks.positive('mu', mu)**2
    return cls(lambda t: half * t * (1j - t), lambda t: -half * t * t)

  @classmethod
  def laplace(cls, scale: float) -> PhiFunction:
    """Returns phi of the Laplace mechanism; scale is in units of sensitivity."""
    top = 1 / _checks.noise_scale('scale', scale)
    # |phi| is at most w + w / (2 t): w is the mass of the atoms, and the second term
    # is for the density between them.
    atoms = math.log(0.5 * (1 + math.exp(-top)))
    return cls(lambda t: laplace.log_moment(1j * t, top),
               lambda t: np.minimum(atoms + np.log1p(0.5 / t) + 8 * EPS, 0.0),
               accuracy=laplace.TiltedLaplace(top, 0.0, 0.0).error)

  @classmethod
  def of_pair(cls, pair: DominatingPair) -> PhiFunction:
    """Returns phi of a discrete pair, such as randomized response; no `log_decay`."""
    size = float(np.sum(pair.p * np.abs(pair.loss)))
    rounded = MASS_ROUNDOFF + _numerics.sum_roundoff(pair.p.size)
    return cls(
        lambda t: _numerics.log(_numerics.product(
            np.exp(1j * np.multiply.outer(t, pair.loss)), pair.p)),
        None, pair.p_inf, lambda t: rounded + PHASE_ROUNDOFF * (1 + t * size))

  def values(self, t: Array) -> tuple[Array, Array]:
    """Returns log phi at t > 0 and a bound on log(|phi| + error) - log |phi|, (n,).

    Raises ValueError if `log_phi` or `accuracy` return what cannot be right.
    """
    own = np.asarray(self.log_phi(t), dtype=np.complex128)
    if own.shape != t.shape or np.any(np.isnan(own)) or np.any(np.isinf(own.imag)):
      raise ValueError(
          'Expected log_phi to return one complex number for each t, with a finite '
          f'imaginary part, got {own!r}.')
    # |phi| is at most the mass of finite losses, so larger values may be clipped.
    mass = math.log1p(-self.p_inf)
    real = np.clip(own.real, LOG_NOTHING, mass)
    size = 1 + np.abs(real + 1j * own.imag)
    if callable(self.accuracy):
      off = np.asarray(self.accuracy(t), dtype=np.float64)
      if off.shape != t.shape or not np.all(off >= 0):
        raise ValueError('Expected accuracy to return one number of at least zero for '
                         f'each t, got {off!r}.')
      error = np.log1p(off * np.exp(-real))
    else:
      error = self.accuracy * size
    if np.any(own.real > mass + 4 * EPS / (1 - self.p_inf) + error):
      raise ValueError('Expected |phi| of at most the mass of finite losses, got '
                       f'log_phi={own!r} with p_inf={self.p_inf!r}.')
    return real + 1j * own.imag, error + 4 * EPS * size

  def decay(self, t: Array) -> Array:
    """Returns log of a bound on |phi| at t and beyond: at most that of P(finite)."""
    mass = math.log1p(-self.p_inf)
    if self.log_decay is None:
      return np.full(np.shape(t), mass)
    log_decay = np.asarray(self.log_decay(t), dtype=np.float64)
    if np.any(np.isnan(log_decay)):
      raise ValueError(f'Expected log_decay to return real numbers, got {log_decay!r}.')
    return np.broadcast_to(np.minimum(log_decay, mass), np.shape(t))


@dataclasses.dataclass(frozen=True, eq=False)
class LevyComposition:
  """Independent groups (PhiFunction, number of steps), composed in one direction.

  A guarantee is the larger of both directions' bounds.
  """

  groups: Sequence[tuple[PhiFunction, int]]

  def __post_init__(self) -> None:
    groups = tuple(self.groups) if isinstance(self.groups, Iterable) else ()
    if not groups or not all(
        isinstance(group, (tuple, list)) and len(group) == 2 and
        isinstance(group[0], PhiFunction) for group in groups):
      raise ValueError(
          'Expected groups to be pairs (PhiFunction, count), at least one, got '
          f'{self.groups!r}; one step is [(phi, 1)].')
    object.__setattr__(self, 'groups', tuple(
        (phi, _checks.integer('count', count, 1)) for phi, count in groups))

  def delta(self, epsilon: float) -> Bounds:
    """Returns bounds on the least delta at `epsilon` >= 0; `estimate` is the sum."""
    epsilon = _checks.non_negative('epsilon', epsilon)
    value, below, above = self._nodes(self._period(epsilon)).delta(epsilon)
    return self._clipped(1 - 0.5 * self.finite_mass + value, below, above)

  def epsilon(self, delta: float) -> Bounds:
    """Returns bounds on the least epsilon >= 0 at `delta` in (0, 1).

    All are inf if `delta` is at most the mass of infinite losses. If a search fails,
    `upper` is inf and `lower` may be zero.
    """
    delta = _checks.delta(delta)
    # Rounded down: for delta slightly above the mass at infinity epsilon is finite.
    infinite = -math.expm1(self._log_finite_mass) * (1 - 16 * EPS)
    if delta <= infinite:
      return Bounds(math.inf, math.inf, math.inf)
    if self.delta(0.0).upper <= delta:
      return Bounds(0.0, 0.0, 0.0)
    # A search ends near a root; bounds are moved to ends where they were evaluated.
    low, near, high = (
        self._root(operator.itemgetter(side), delta) for side in range(3))
    low = min(low, MAX_PERIOD)
    try:
      low = first_end(low, -1e-12 * (1 + low), lambda x: (
          self.delta(x).lower >= delta)) if low > 0 else 0.0
      high = first_end(high, 1e-12 * (1 + high), lambda x: (
          self.delta(x).upper <= delta)) if high < math.inf else high
    except IntractableError:
      low, high = 0.0, math.inf
    return Bounds(low, min(max(near, low), high), high)

  def _root(self, side: Callable[[Bounds], float], delta: float) -> float:
    """Returns about the epsilon whose `side` bound is `delta`; inf if search fails."""
    try:
      return root(lambda x: side(self.delta(x)), delta, precision=1e-13,
                  limit=MAX_PERIOD)
    except IntractableError:
      return math.inf

  def loss_cdf(self, loss: float) -> Bounds:
    """Returns bounds on the P-probability that the total loss is at most `loss`, real.

    The bounds assume a continuous distribution function at `loss`. At a jump `estimate`
    is near its middle, and `upper` may be the value below it. The bounds leave out the
    integral of |phi| / t beyond 2^200 times the last node.
    """
    loss = _checks.real('loss', loss)
    value, below, above = self._nodes(self._period(loss)).cdf(loss)
    return self._clipped(0.5 * self.finite_mass - value, above, below)

  @functools.cached_property
  def finite_mass(self) -> float:
    """P-probability of a finite total loss."""
    return math.exp(self._log_finite_mass)

  @functools.cached_property
  def _log_finite_mass(self) -> float:
    """Log of the P-probability of a finite total loss."""
    return math.fsum(count * math.log1p(-phi.p_inf) for phi, count in self.groups)

  @functools.cached_property
  def _mass_error(self) -> float:
    """Bound on the relative error of the finite mass from rounding of p_inf."""
    return math.fsum(4 * EPS * count / (1 - phi.p_inf) for phi, count in self.groups)

  def _clipped(self, value: float, below: float, above: float) -> Bounds:
    """Returns value - below and value + above, widened by rounding, within [0, 1]."""
    room = 4 * EPS + self._mass_error * self.finite_mass
    low, high = max(value - below - room, 0.0), min(value + above + room, 1.0)
    return Bounds(low, min(max(value, low), high), high)

  def log_phi(self, t: Array) -> tuple[Array, Array]:
    """Returns the total loss's log phi at t > 0, and bounds on its error, both (n,)."""
    # An error bound is the log of the product of the groups' |phi| + error, each to the
    # power of its number of steps, minus log |phi|.
    total, error = np.zeros(t.shape, np.complex128), np.zeros(t.shape)
    for start in range(0, t.size, BLOCK):
      part = slice(start, start + BLOCK)
      for phi, count in self.groups:
        own, off = phi.values(t[part])
        total[part] += count * own
        error[part] += count * off
    return total, error

  def log_decay(self, t: Array) -> Array:
    """Returns log of a bound on the total loss's |phi| at t and larger arguments."""
    return sum((count * phi.decay(t) for phi, count in self.groups),
               np.full(np.shape(t), self._mass_error))

  def _period(self, epsilon: float) -> float:
    """Returns a period X, a power of two, which affects width and speed only.

    Tries to leave P-mass of at most 1e-14 above epsilon + X, and e^LOG_TAIL below
    epsilon - X.
    """
    # At most e^-x of P's mass is below -x. Powers of two let several epsilons share
    # nodes. Stops where a period 16 times as long would not halve the mass above.
    reach = max(abs(epsilon), abs(epsilon - self._centre)) - LOG_TAIL
    period = 2.0**math.ceil(math.log2(reach))
    while period < MAX_PERIOD and self.tail(epsilon + period) > max(
        1e-14, 2 * self.tail(epsilon + 16 * period)):
      period *= 2
    return period

  @functools.cached_property
  def _centre(self) -> float:
    """Approximate mean loss; every value gives valid bounds."""
    t = np.array([1e-4])
    return float(math.fsum(
        count * np.angle(np.exp(LevyComposition([(phi, 1)]).log_phi(t)[0][0])) / t[0]
        for phi, count in self.groups))

  def tail(self, x: float) -> float:
    """Returns an upper bound on the P-probability of finite losses above x."""
    reach = x - self._centre
    if reach <= 0:
      return 1.0
    # At scale i, t has |t (L - centre)| in [pi / 2, 3 pi / 2] for losses from 3^i reach
    # to 3^(i + 1) reach beyond the centre: there 1 - cos is at least one. So the tail
    # is at most the sum over scales of E (1 - cos)^n. Rows of `t` are t, 2 t and 3 t.
    scales = np.arange(max(int((LOG_LARGEST - math.log(reach)) / math.log(3)) + 2, 1))
    t = np.multiply.outer(np.arange(1, 4), 0.5 * math.pi / reach * 3.0**-scales)
    t = np.maximum(t, 1e-300)
    log_phi, error = self.log_phi(t.ravel())
    turned = (log_phi - 1j * t.ravel() * self._centre).reshape(t.shape)
    lost = -_numerics.expm1(turned - math.log(self.finite_mass)).real
    error = error.reshape(t.shape) + 4 * EPS * (1 + np.abs(turned)) + self._mass_error
    # Values of phi differ by at most two, less than e^2 - 1: a larger error is moot.
    error = np.expm1(np.minimum(error, 2.0))
    # Each row of `sums` is E (1 - cos(t (L - centre)))^n for one n, each column for one
    # scale. The cosines' weights sum to zero, so sums of 1 - phi replace sums of phi.
    sums = -_COSINES[:, 1:] @ lost + np.abs(_COSINES[:, 1:]) @ error
    return min(float(np.sum(np.clip(np.min(sums, axis=0), 0.0, 1.0))), 1.0)

  @functools.lru_cache(maxsize=8)  # noqa: B019
  def _nodes(self, period: float) -> _Nodes:
    """Returns the nodes of the midpoint rule with this period, cached."""
    return _Nodes(self, period)


class _Nodes:
  """Values of phi at the nodes of the midpoint rule, and sums over them."""

  def __init__(self, whole: LevyComposition, period: float):
    """Evaluates phi up to a t where its tail is negligible, or at `MAX_NODES` nodes."""
    self._whole, self._period = whole, period
    self._spacing = 2 * math.pi / period
    ends = self._spacing * np.geomspace(8, MAX_NODES, 200)
    enough = np.flatnonzero(whole.log_decay(ends) <= LOG_TAIL)
    count = int(ends[enough[0]] / self._spacing) + 1 if enough.size else MAX_NODES
    self._t = self._spacing * (np.arange(count) + 0.5)
    self._end = count * self._spacing
    log_phi, error = whole.log_phi(self._t)
    with np.errstate(under='ignore'):
      self._phi = np.exp(log_phi)
      self._size = np.abs(self._phi)
      error = error + _numerics.sum_roundoff(count) + 16 * EPS * (1 + np.abs(log_phi))
      # Bounds the error of `_phi`. If the relative error may be one or more, the sizes
      # of the computed and of the true value do, added up.
      self._wrong = _UNDERFLOW + np.where(
          error < 1, self._size * np.expm1(np.minimum(error, 1.0)),
          self._size + np.exp(np.minimum(log_phi.real + error, 0.0)))

  def delta(self, epsilon: float) -> tuple[float, float, float]:
    """Returns (sum for delta, error bound below, error bound above)."""
    kernel = 1 / (1j * self._t * (1 + 1j * self._t))
    tail = float(np.exp(self._whole.log_decay(np.array([self._end])))[0])
    return self._summed(epsilon, kernel, tail * math.asinh(1 / self._end))

  def cdf(self, loss: float) -> tuple[float, float, float]:
    """Returns (sum for minus the CDF, error bound below, error bound above)."""
    doubled = self._end * 2.0**np.arange(200)
    decay = np.exp(self._whole.log_decay(doubled))
    # Over each doubling the integral of |phi| / t is at most its bound times log 2.
    rest = math.log(2) * float(np.sum(decay)) if decay[-1] < 1e-30 else math.inf
    return self._summed(loss, 1 / (1j * self._t), rest)

  def _summed(self, at: float, kernel: Array, rest: float
              ) -> tuple[float, float, float]:
    """Returns (midpoint sum, error bound below, error bound above) at a loss `at`."""
    # The sum approximates 1 / pi times the integral of Re(phi(t) kernel(t) e^(-i t
    # at)). `rest` bounds the integral of |phi kernel| beyond the last node.
    weight = self._spacing / math.pi
    value = weight * float(np.sum((self._phi * kernel * np.exp(
        -1j * self._t * at)).real))
    turning = 8 * EPS * self._size * (1 + abs(at)) * self._t  # Rounding of t at.
    error = weight * float(np.sum(np.abs(kernel) * (
        self._wrong + turning))) + rest / math.pi
    # Aliasing: losses above at + period make the sum too small, and those below at -
    # period too large. At most e^-x of P's mass has losses below -x.
    high_losses = self._whole.tail(at + self._period)
    low_losses = math.exp(-max(self._period - at, 0.0))
    return value, error + low_losses, error + high_losses
