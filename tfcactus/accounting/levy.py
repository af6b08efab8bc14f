"""Characteristic functions of one's own, composed and inverted on the real line.

With phi(t) = E_P[exp(i t loss)] over finite losses, w = phi(0) and any real epsilon,

    delta(epsilon) = 1 - w / 2 + (1 / pi) * integral over t > 0 of
                         Re(phi(t) exp(-i t epsilon) / (i t (1 + i t))) dt,

Levy's formula for both distribution functions of the loss in one. The midpoint rule of
step 2 pi / X has three errors, all bounded:

- aliasing: an alternating sum of what is beyond epsilon + X and epsilon - X. Below, no
  privacy loss has more than e^-x of P beyond -x; above, phi itself bounds a tail, since
  E (1 - cos(t L))^n is at least P(pi/2 <= |t L| <= 3 pi/2), scale by scale;
- the end of the sum: by the bound on |phi| given, or by one;
- rounding, by the accuracy given.

Source: Algorithm 1, Theorem 16 and Lemma 17 of Zhu, Dong and Wang (AISTATS 2022);
alternation as in Davies, "Numerical inversion of a characteristic function" (1973); the
bounds are this library's.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from typing import Callable
from typing import Optional
from typing import Sequence

import numpy as np

from tfcactus import _checks
from tfcactus import _numerics
from tfcactus._numerics import EPS
from tfcactus.accounting import monotone
from tfcactus.accounting.bounds import Bounds
from tfcactus.accounting.bounds import IntractableError
from tfcactus.accounting.composition.losses import laplace
from tfcactus.pairs.dominating_pair import DominatingPair
from tfcactus.pairs.dominating_pair import MASS_ROUNDOFF

MAX_NODES = 1 << 20
"""Nodes of a sum at most. Knob of speed: beyond them bounds widen."""

BLOCK = 1 << 14
"""Nodes at which phi is asked for at once: arrays of their product with atoms."""

MAX_PERIOD = 1e7
"""Periods that are tried at most. Knob of speed."""

LOG_TAIL = -36.0
"""Log of what is left out at the end of a sum, if phi decays. Knob of speed."""

LOG_LARGEST = 709.0
"""Finite losses are below e to this: they are floats."""

_COSINES = np.array([[1.0, -1.0, 0.0, 0.0], [1.5, -2.0, 0.5, 0.0],
                     [2.5, -3.75, 1.5, -0.25]])
"""(1 - cos x)^n as a sum of cos(j x), for n = 1, 2, 3."""

Array = np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class PhiFunction:
  """The characteristic function of one step's privacy loss, in one direction.

  What is given is the caller's word: that it is the phi of log(P/Q) under P for a pair
  that dominates the step, that it is as right as `accuracy` says, and that `log_decay`
  bounds it. The other direction, of Q against P, is a function of its own.

  Attributes:
    log_phi: Takes t > 0 of shape (n,); returns log E_P[exp(i t loss)] over finite
      losses, complex; any branch.
    log_decay: Takes t > 0; returns a bound on log |phi| at t and all larger ones. None:
      no bound but one, so that bounds are as wide as what the sum leaves out.
    p_inf: P-mass of an infinite loss.
    accuracy: Bound on the error of `log_phi`, in units of 1 + |log_phi|.
  """

  log_phi: Callable[[Array], Array]
  log_decay: Optional[Callable[[Array], Array]] = None
  p_inf: float = 0.0
  accuracy: float = 1e-15

  def __post_init__(self) -> None:
    if not 0 <= _checks.real('p_inf', self.p_inf) < 1:
      raise ValueError(f'Expected p_inf in [0, 1), got p_inf={self.p_inf!r}.')
    _checks.positive('accuracy', self.accuracy)

  @classmethod
  def gaussian(cls, mu: float) -> PhiFunction:
    """Of the Gaussian mechanism; mu is sensitivity over standard deviation."""
    half = 0.5 * _checks.positive('mu', mu)**2
    return cls(lambda t: half * t * (1j - t), lambda t: -half * t * t)

  @classmethod
  def laplace(cls, scale: float) -> PhiFunction:
    """Of the Laplace mechanism; scale is that of the noise over sensitivity."""
    top = 1 / _checks.positive('scale', scale)
    atoms = math.log(0.5 * (1 + math.exp(-top)))
    return cls(lambda t: laplace.log_moment(1j * t, top),
               lambda t: np.minimum(atoms + np.log1p(0.5 / t), 0.0),
               accuracy=1e-14 * (1 + top))

  @classmethod
  def of_pair(cls, pair: DominatingPair) -> PhiFunction:
    """Of a discrete pair, such as randomised response: it does not decay."""
    size = float(np.max(np.abs(pair.loss), initial=0.0))
    return cls(pair.log_phi, None, pair.p_inf,
               MASS_ROUNDOFF + _numerics.sum_roundoff(pair.p.size) * (1 + size))


@dataclasses.dataclass(frozen=True, eq=False)
class LevyComposition:
  """Independent groups of steps, in one direction, known by their phi functions.

  A guarantee takes the larger of both directions' bounds.

  Attributes:
    groups: Pairs (PhiFunction, number of steps).
  """

  groups: Sequence[tuple[PhiFunction, int]]

  def __post_init__(self) -> None:
    groups = tuple((phi, _checks.integer('count', count, 1))
                   for phi, count in self.groups)
    if not groups or not all(isinstance(phi, PhiFunction) for phi, _ in groups):
      raise ValueError(
          f'Expected pairs (PhiFunction, count), at least one, got {self.groups!r}.')
    object.__setattr__(self, 'groups', groups)

  def delta(self, epsilon: float) -> Bounds:
    """Bounds on the least delta at `epsilon` >= 0.

    `estimate` is what the sum gives. Where no `log_decay` is given it may be far
    better than the bounds, and is not proved to be.
    """
    epsilon = _checks.non_negative('epsilon', epsilon)
    value, below, above = self._nodes(self._period(epsilon)).delta(epsilon)
    return self._clipped(1 - 0.5 * self.finite_mass + value, below, above)

  def epsilon(self, delta: float) -> Bounds:
    """Bounds on the least epsilon >= 0 at `delta` in (0, 1); see `delta`."""
    delta = _checks.delta(delta)
    if delta <= 1 - self.finite_mass:
      return Bounds(math.inf, math.inf, math.inf)
    if self.delta(0.0).upper <= delta:
      return Bounds(0.0, 0.0, 0.0)
    ends = [self._root(operator.itemgetter(side), delta) for side in range(3)]
    # A search ends next to a root: what is published was evaluated.
    low, near, high = ends
    try:
      low = monotone.first_end(low, -1e-12 * (1 + low), lambda x: (
          self.delta(x).lower >= delta)) if low > 0 else 0.0
      high = monotone.first_end(high, 1e-12 * (1 + high), lambda x: (
          self.delta(x).upper <= delta)) if high < math.inf else high
    except IntractableError:
      low, high = 0.0, math.inf
    return Bounds(low, min(max(near, low), high), high)

  def _root(self, side: Callable[[Bounds], float], delta: float) -> float:
    try:
      return monotone.root(lambda x: side(self.delta(x)), delta, precision=1e-13,
                           limit=MAX_PERIOD)
    except IntractableError:
      return math.inf

  def loss_cdf(self, loss: float) -> Bounds:
    """Bounds on the P-probability that the total loss is at most `loss`, real.

    At a jump `estimate` is near the middle of it, and `upper` may be the value below:
    the bounds are for a continuous distribution function there.
    """
    loss = _checks.real('loss', loss)
    value, below, above = self._nodes(self._period(loss)).cdf(loss)
    return self._clipped(0.5 * self.finite_mass - value, above, below)

  @functools.cached_property
  def finite_mass(self) -> float:
    """P-probability of a finite loss."""
    return math.exp(math.fsum(count * math.log1p(-phi.p_inf)
                              for phi, count in self.groups))

  @functools.cached_property
  def _mass_error(self) -> float:
    """Bound on the relative error of the mass of finite losses: p_inf is rounded."""
    return math.fsum(4 * EPS * count / (1 - phi.p_inf) for phi, count in self.groups)

  def _clipped(self, value: float, below: float, above: float) -> Bounds:
    room = 4 * EPS + self._mass_error * self.finite_mass
    low, high = max(value - below - room, 0.0), min(value + above + room, 1.0)
    return Bounds(low, min(max(value, low), high), high)

  def log_phi(self, t: Array) -> tuple[Array, Array]:
    """log phi of the composition at t > 0, and a bound on its error."""
    parts = [self._log_phi(part) for part in np.array_split(t, -(-t.size // BLOCK))]
    return (np.concatenate([part for part, _ in parts]),
            np.concatenate([error for _, error in parts]))

  def _log_phi(self, t: Array) -> tuple[Array, Array]:
    total, error = np.zeros(t.shape, np.complex128), np.zeros(t.shape)
    for phi, count in self.groups:
      own = np.asarray(phi.log_phi(t), dtype=np.complex128)
      if own.shape != t.shape or np.any(np.isnan(own)) or np.any(
          np.exp(np.minimum(own.real, 1.0)) > 1 - phi.p_inf + 4 * EPS + (
              phi.accuracy * (1 + np.abs(own)))):
        raise ValueError(
            'Expected log_phi to return one complex number for each t, with |phi| at '
            f'most the mass of finite losses, got {own!r}.')
      total += count * own
      error += count * (phi.accuracy + 4 * EPS) * (1 + np.abs(own))
    return total, error

  def log_decay(self, t: Array) -> Array:
    """log of a bound on |phi| at t and beyond."""
    return sum((count * np.minimum(phi.log_decay(t), 0.0) for phi, count in self.groups
                if phi.log_decay is not None), np.zeros(np.shape(t)))

  def _period(self, epsilon: float) -> float:
    """A period that leaves little beyond it, of a coarse list so that nodes serve."""
    reach = max(abs(epsilon), abs(epsilon - self._centre)) - LOG_TAIL
    period = 2.0**math.ceil(math.log2(reach))
    while period < MAX_PERIOD and self.tail(epsilon + period) > max(
        1e-14, 2 * self.tail(epsilon + 16 * period)):
      period *= 2
    return period

  @functools.cached_property
  def _centre(self) -> float:
    """About the mean loss; any number will do."""
    t = np.array([1e-4])
    return float(math.fsum(
        count * np.angle(np.exp(LevyComposition([(phi, 1)]).log_phi(t)[0][0])) / t[0]
        for phi, count in self.groups))

  def tail(self, x: float) -> float:
    """A bound on the P-probability of finite losses beyond x."""
    reach = x - self._centre
    if reach <= 0:
      return 1.0
    scales = np.arange(max(int((LOG_LARGEST - math.log(reach)) / math.log(3)) + 2, 1))
    t = np.multiply.outer(np.arange(1, 4), 0.5 * math.pi / reach * 3.0**-scales)
    t = np.maximum(t, 1e-300)
    log_phi, error = self.log_phi(t.ravel())
    turned = (log_phi - 1j * t.ravel() * self._centre).reshape(t.shape)
    lost = -_numerics.expm1(turned - math.log(self.finite_mass)).real
    error = error.reshape(t.shape) + 4 * EPS * (1 + np.abs(turned)) + self._mass_error
    # The cosines' weights sum to zero, so that what phi lacks of one is summed.
    sums = -_COSINES[:, 1:] @ lost + np.abs(_COSINES[:, 1:]) @ error
    return min(float(np.sum(np.clip(np.min(sums, axis=0), 0.0, 1.0))), 1.0)

  @functools.lru_cache(maxsize=8)  # noqa: B019
  def _nodes(self, period: float) -> _Nodes:
    return _Nodes(self, period)


class _Nodes:
  """phi on midpoints, and sums over them."""

  def __init__(self, whole: LevyComposition, period: float):
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
    size = np.abs(self._phi)
    self._wrong = size * np.expm1(np.minimum(error, 1.0) + _numerics.sum_roundoff(
        count) + 16 * EPS * (1 + np.abs(log_phi)))
    self._size = size

  def delta(self, epsilon: float) -> tuple[float, float, float]:
    """The sum for delta, and how far the truth may lie below and above."""
    kernel = 1 / (1j * self._t * (1 + 1j * self._t))
    tail = float(np.exp(self._whole.log_decay(np.array([self._end])))[0])
    return self._summed(
        epsilon, kernel, tail * self._whole.finite_mass * math.asinh(1 / self._end))

  def cdf(self, loss: float) -> tuple[float, float, float]:
    """The sum for minus the distribution function, likewise."""
    doubled = self._end * 2.0**np.arange(200)
    decay = np.exp(self._whole.log_decay(doubled))
    # Over each doubling the integral of |phi| / t is at most its bound times log 2.
    rest = math.log(2) * float(np.sum(decay)) if decay[-1] < 1e-30 else math.inf
    return self._summed(loss, 1 / (1j * self._t), rest)

  def _summed(self, at: float, kernel: Array, rest: float
              ) -> tuple[float, float, float]:
    weight = self._spacing / math.pi
    value = weight * float(np.sum((self._phi * kernel * np.exp(
        -1j * self._t * at)).real))
    turning = 8 * EPS * self._size * (1 + abs(at)) * self._t
    error = weight * float(np.sum(np.abs(kernel) * (
        self._wrong + turning))) + rest / math.pi
    beyond = self._whole.tail(at + self._period)
    under = math.exp(-max(self._period - at, 0.0))
    return value, error + under, error + beyond
