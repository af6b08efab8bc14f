"""Epsilon and delta by methods that share no code with the accountant.

- `Gaussian.delta`, `Laplace.delta`: one release in closed form, from the normal
  distribution function and elementary ones alone;
- `quadrature`: two and three releases, mixed or not, by integrating the closed
  form of the last against the densities of the others;
- `Discretised`: any number, from above by masses split between neighbouring
  grid points so that P and Q are kept (the profile's chords lie above it), and
  from below by tests on labels that are rounded at random, which is
  post-processing. Sums by one transform under an exponential tilt, with
  allowances for its rounding and for what wraps around.
- `Atoms`: discrete pairs by enumeration.

Everything works in P's order: `delta` is sup over A of P(A) - e^epsilon Q(A) at
any real epsilon.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import itertools
import math
from typing import Callable

import numpy as np
from scipy import optimize, special

EPS = np.finfo(np.float64).eps

REACH = 12.5
"""Standard deviations that are integrated over: beyond lies 4e-36."""


@dataclasses.dataclass(frozen=True)
class Gaussian:
  """A Gaussian release of sensitivity one, of a Poisson sample.

  Attributes:
    sigma: Noise multiplier.
    prob: Sampling probability.
    remove: Whether P is the law with the record; else Q is.
  """

  sigma: float
  prob: float
  remove: bool

  def delta(self, epsilon: np.ndarray) -> np.ndarray:
    """delta at any real epsilon."""
    e = np.asarray(epsilon, np.float64)
    q, sigma = self.prob, self.sigma
    with np.errstate(over='ignore', divide='ignore', invalid='ignore'):
      log_t = self._log_odds(e)
      grown = log_t > -np.inf
      # The outcome where the likelihood ratio is the threshold.
      at = sigma * log_t + 0.5 / sigma
      if self.remove:
        one, other = (special.log_ndtr(1 / sigma - at),
                      log_t + special.log_ndtr(-at))
        value = np.exp(math.log(q) + one) * -np.expm1(np.minimum(other - one, 0))
        return np.where(grown, value, -np.expm1(e))
      one, other = log_t + special.log_ndtr(at), special.log_ndtr(at - 1 / sigma)
      value = np.exp(math.log(q) + e + one) * -np.expm1(np.minimum(other - one, 0))
      return np.where(grown, value, 0.0)

  def _log_odds(self, loss: np.ndarray) -> np.ndarray:
    """log(q1 / p0) where the loss is this; -inf where it is out of reach."""
    signed = np.asarray(loss if self.remove else -loss, np.float64)
    if self.prob == 1:
      return signed
    with np.errstate(divide='ignore', over='ignore'):
      grown = np.expm1(np.clip(signed, -745, 700)) + self.prob
      log_t = np.where(grown > 0, np.log(np.maximum(grown, 1e-320)), -np.inf)
      return np.where(signed > 600, signed, log_t) - math.log(self.prob)

  def loss(self, y: np.ndarray) -> np.ndarray:
    """The loss at an outcome y, in standard deviations."""
    z = y / self.sigma - 0.5 / self.sigma**2
    if self.prob == 1:
      u = z
    else:
      # Where the ratio is near one its digits come from expm1.
      u = np.where(z < 30, np.log1p(self.prob * np.expm1(np.minimum(z, 30))),
                   np.logaddexp(math.log1p(-self.prob), math.log(self.prob) + z))
    return u if self.remove else -u

  def nodes(self, finest: float, order: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """(outcomes, P-weights) of a composite Gauss rule with cells of `finest`."""
    top = REACH + (1 / self.sigma if self.remove else 0.0)
    cells = int(math.ceil((top + REACH) / finest))
    edges = np.linspace(-REACH, top, cells + 1)
    x, w = np.polynomial.legendre.leggauss(order)
    half = 0.5 * np.diff(edges)
    y = (edges[:-1] + half)[:, None] + half[:, None] * x
    mass = half[:, None] * w * np.exp(-0.5 * y * y) / math.sqrt(2 * math.pi)
    if self.remove:
      mass = mass * np.exp(self.loss(y))
    return y.ravel(), mass.ravel()

  def outcome(self, loss: np.ndarray) -> np.ndarray:
    """Where the loss is this, in standard deviations; not finite if nowhere."""
    return self.sigma * self._log_odds(loss) + 0.5 / self.sigma

  @property
  def scale(self) -> float:
    """A length, in standard deviations, on which the loss bends."""
    return min(1.0, self.sigma)

  def cells(self, width: float, low: float, high: float
            ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Losses j * width in [low, high], and P- and Q-masses between them.

    The first and last mass are those below and above.
    """
    first, last = math.ceil(low / width), math.floor(high / width)
    losses = width * np.arange(first, last + 1)
    sign = 1 if self.remove else -1
    y = self.outcome(losses)
    y = np.concatenate([[-sign * np.inf], y, [sign * np.inf]])
    base = np.abs(_interval(y[:-1], y[1:]))
    shifted = np.abs(_interval(y[:-1] - 1 / self.sigma, y[1:] - 1 / self.sigma))
    mixed = (1 - self.prob) * base + self.prob * shifted
    return (losses, mixed, base) if self.remove else (losses, base, mixed)

  def range(self) -> tuple[float, float]:
    """Losses outside of which P has 1e-35 at most."""
    ends = self.loss(np.array([-REACH, REACH + 1 / self.sigma]))
    return float(np.min(ends)), float(np.max(ends))


def _interval(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """Normal probability between a and b, from the side where both are small."""
  flip = (a + b) > 0
  low, high = np.where(flip, -b, a), np.where(flip, -a, b)
  with np.errstate(invalid='ignore'):
    return special.ndtr(high) - special.ndtr(low)


def refined(steps: Sequence[Gaussian], epsilon: float) -> tuple[float, float]:
  """`quadrature` of one or two releases, finer until it stays; (value, error)."""
  value = quadrature(steps, epsilon)
  if len(steps) != 2:
    return value, 1e-9 * value
  for finer in (2, 4, 8):
    last, value = value, quadrature(steps, epsilon, finer)
    if abs(value - last) <= 1e-11 * value:
      break
  return value, 1e-10 * value + 2 * abs(value - last)


def quadrature(steps: Sequence[Gaussian], epsilon: float,
               finer: float = 1.0) -> float:
  """delta of one, two or three Gaussian releases of any kind.

  Args:
    steps: The releases.
    epsilon: Any real number.
    finer: Cells are so much narrower than needed, about.
  """
  *outer, inner, last = sorted(steps, key=lambda step: -step.sigma) if (
      len(steps) > 1) else (None, *steps)
  if inner is None:
    return float(last.delta(epsilon))
  if not outer:
    return float(_two(inner, last, np.array([epsilon]), finer)[0])
  least = sum((1 if step.remove else -1) * (
      math.log1p(-step.prob) if step.prob < 1 else -math.inf)
              for step in (inner, last))
  y, mass = _graded(outer[0], np.array([epsilon - least]),
                    0.5 * min(outer[0].scale, 1.0) / finer, 8)
  keep = mass[0] > 1e-40
  y, mass = y[0][keep], mass[0][keep]
  left = epsilon - outer[0].loss(y)
  value = np.concatenate([_two(inner, last, part, finer)
                          for part in np.array_split(left, left.size // 64 + 1)])
  return float(np.sum(mass * value))


def _two(first: Gaussian, last: Gaussian, epsilon: np.ndarray, finer: float
         ) -> np.ndarray:
  """delta of two releases at several epsilons, shape (n,)."""
  edge = math.log1p(-last.prob) if last.prob < 1 else -math.inf
  # Within a cell the last one's threshold moves by a cell of its own outcomes.
  own = np.linspace(-REACH, REACH + 1 / last.sigma, int(
      (2 * REACH + 1 / last.sigma) * finer / min(0.7, 0.5 * last.scale)) + 2)
  bends = first.outcome(epsilon[:, None] - last.loss(own))
  y, mass = _graded(first, epsilon - (edge if last.remove else -edge),
                    min(0.5 * first.scale, 0.7) / finer, 10, bends)
  return np.sum(mass * last.delta(epsilon[:, None] - first.loss(y)), axis=1)


def _graded(step: Gaussian, loss: np.ndarray, finest: float, order: int,
            more: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
  """(outcomes, P-weights), shape (n, nodes), for each of several losses.

  Where the loss left to the other releases makes their outcome certain, the
  integrand is not analytic: cells shrink towards that point from both sides.
  """
  low, high = -REACH, REACH + (1 / step.sigma if step.remove else 0.0)
  point = step.outcome(loss)
  point = np.clip(np.where(np.isfinite(point), point, low), low, high)
  reach = high - low
  offsets = np.union1d(reach * 2.0**-np.arange(46),
                       np.arange(0, reach + finest, finest))
  offsets = np.concatenate([-offsets[::-1], offsets[offsets > 0]])
  edges = np.clip(point[:, None] + offsets, low, high)
  if more is not None:
    more = np.clip(np.where(np.isfinite(more), more, low), low, high)
    edges = np.sort(np.concatenate([edges, more], axis=1), axis=1)
  x, w = np.polynomial.legendre.leggauss(order)
  half = 0.5 * np.diff(edges)[..., None]
  y = (edges[:, :-1, None] + half * (1 + x)).reshape(loss.size, -1)
  mass = (half * w).reshape(y.shape) * np.exp(-0.5 * y * y) / math.sqrt(2 * math.pi)
  return y, mass * np.exp(step.loss(y)) if step.remove else mass


@dataclasses.dataclass(frozen=True)
class Laplace:
  """A Laplace release of sensitivity one, of a Poisson sample; adds nothing.

  P has the record (removal) or Q has; the loss is bounded by log(1 + q(e^1/b - 1)).
  """

  scale: float
  prob: float
  remove: bool

  def delta(self, epsilon: np.ndarray) -> np.ndarray:
    """delta at any real epsilon."""
    e = np.asarray(epsilon, np.float64)
    q, top = self.prob, 1 / self.scale
    grown = np.expm1(np.clip(e if self.remove else -e, -745, 700)) + q
    with np.errstate(divide='ignore', over='ignore', invalid='ignore'):
      z = np.log(np.maximum(grown, 1e-320)) - math.log(q)
      # H of Laplace(0) against Laplace(1) at e^z: 1 - e^((z - top) / 2) inside.
      base = np.where(z >= top, 0.0, np.where(
          z <= -top, -np.expm1(np.minimum(z, 0)), -np.expm1(0.5 * (z - top))))
      if self.remove:
        return np.where(grown > 0, q * base, -np.expm1(e))
      # (P, Q) reversed: H(alpha) = 1 - alpha + alpha H'(1 / alpha).
      other = np.where(-z >= top, 0.0, np.where(
          -z <= -top, -np.expm1(np.minimum(-z, 0)), -np.expm1(0.5 * (-z - top))))
      return np.where(grown > 0, np.exp(e + math.log(q) + z) * other, 0.0)

  def losses(self, z: np.ndarray) -> np.ndarray:
    """The loss where z is the log of the likelihoods' ratio q1 / p0."""
    value = np.log1p(self.prob * np.expm1(z))
    return value if self.remove else -value

  def ratios(self, loss: np.ndarray) -> np.ndarray:
    """The z of `losses`, within reach."""
    grown = np.expm1(loss if self.remove else -loss) / self.prob
    return np.clip(np.log1p(np.maximum(grown, np.nextafter(-1, 0))),
                   -1 / self.scale, 1 / self.scale)

  def nodes(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(losses, P-masses): both atoms and a Gauss rule between edges of z."""
    top = 1 / self.scale
    x, w = np.polynomial.legendre.leggauss(12)
    half = 0.5 * np.diff(edges)
    z = ((edges[:-1] + half)[:, None] + half[:, None] * x).ravel()
    dz = (half[:, None] * w).ravel()
    # Under the law without the record and under that with it.
    without = 0.25 * np.exp(-0.5 * (z + top)) * dz
    with_it = without * np.exp(z)
    z = np.concatenate([[-top], z, [top]])
    without = np.concatenate([[0.5], without, [0.5 * math.exp(-top)]])
    with_it = np.concatenate([[0.5 * math.exp(-top)], with_it, [0.5]])
    if self.remove:
      return self.losses(z), (1 - self.prob) * without + self.prob * with_it
    return self.losses(z), without


def laplace_two(first: Laplace, second: Laplace, epsilon: float,
                pieces: int = 400) -> float:
  """delta of two Laplace releases."""
  top = np.array([-1, 1]) / first.scale
  # Where the second's delta has kinks, and between them, where it bends.
  kinks = np.sort(first.ratios(
      epsilon - second.losses(np.array([-1, 1]) / second.scale)))
  edges = np.union1d(np.linspace(*top, pieces + 1), np.linspace(*kinks, pieces + 1))
  loss, mass = first.nodes(edges)
  return float(np.sum(mass * second.delta(epsilon - loss)))


@dataclasses.dataclass(frozen=True)
class Atoms:
  """A discrete pair; zeros are allowed on either side."""

  p: np.ndarray
  q: np.ndarray

  def sampled(self, prob: float, remove: bool) -> Atoms:
    """Poisson sampling: p is without the record, q with it."""
    mixed = (1 - prob) * self.p + prob * self.q
    return Atoms(mixed, self.p) if remove else Atoms(self.p, mixed)

  def delta(self, epsilon: float, count: int = 1) -> float:
    """delta of `count` releases, by enumeration of multisets of outcomes."""
    value = 0.0
    with np.errstate(divide='ignore'):
      log_p, log_q = np.log(self.p), np.log(self.q)
    for chosen in itertools.combinations_with_replacement(
        range(self.p.size), count):
      times = np.bincount(chosen, minlength=self.p.size)
      ways = math.lgamma(count + 1) - math.fsum(
          math.lgamma(n + 1) for n in times)
      used = times > 0
      lp, lq = (float(np.sum(times[used] * part[used])) for part in (log_p, log_q))
      if lp > -math.inf and lp > epsilon + lq:
        value += math.exp(ways + lp) * -math.expm1(min(epsilon + lq - lp, 0.0))
    return value

  def delta_of_pairs(self, other: Atoms, epsilon: float) -> float:
    """delta of one release of each."""
    p = np.multiply.outer(self.p, other.p)
    q = np.multiply.outer(self.q, other.q)
    return float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0.0)))


@dataclasses.dataclass
class _Grid:
  """Masses at first, first + 1, ... times the width."""

  first: int
  mass: np.ndarray

  def log_moment(self, width: float, order: float) -> float:
    x = (self.first + np.arange(self.mass.size)) * width
    real = self.mass > 0
    return float(special.logsumexp(np.log(self.mass[real]) + order * x[real]))


@dataclasses.dataclass(frozen=True)
class Groups:
  """A composition of Gaussian releases: pairs (release, how many)."""

  parts: Sequence[tuple[Gaussian, int]]

  def delta(self, epsilon: float, points: int = 1 << 17) -> tuple[float, float]:
    """(lower, upper) of delta at epsilon."""
    return Discretised(self.parts, epsilon, points).delta()


class Discretised:
  """Two-sided bounds on delta at one epsilon."""

  def __init__(self, parts: Sequence[tuple[Gaussian, int]], epsilon: float,
               points: int):
    self.parts, self.epsilon, self.points = parts, epsilon, points
    self.steps = sum(n for _, n in parts)
    self.order, self.spread = self._saddle()
    self.width = 2 * self.spread / points
    for part, _ in parts:
      low, high = part.range()
      self.width = max(self.width, (high - low) / (1 << 20))

  def _coarse(self) -> list[tuple[np.ndarray, np.ndarray, int]]:
    """Losses and log masses, fine enough to choose a tilt and a window."""
    found = []
    for part, n in self.parts:
      y, mass = part.nodes(0.4 * max(part.scale, 0.05), 6)
      real = mass > 0
      found.append((part.loss(y[real]), np.log(mass[real]), n))
    return found

  def _saddle(self) -> tuple[float, float]:
    coarse = self._coarse()
    def moments(c):
      total = 0.0
      for loss, log_mass, n in coarse:
        total += n * special.logsumexp(log_mass + c * loss)
      return total
    def objective(log_c):
      c = math.exp(log_c)
      return moments(c) - c * self.epsilon - math.log(c) - math.log1p(c)
    best = optimize.minimize_scalar(
        objective, bounds=(math.log(1e-3), math.log(3e3)), method='bounded')
    c = math.exp(best.x)
    self._log_moments = moments
    base = moments(c)
    def reach(sign):
      # Chernoff: beyond this distance from epsilon is e^-45 of tilted mass.
      values = []
      for u in np.geomspace(1e-3, 1e3, 60):
        other = c + sign * u
        if other <= -1:
          continue
        values.append((moments(other) - base - sign * u * self.epsilon + 45) / u)
      return max(min(values), 1e-9)
    self._above, self._below = reach(1), reach(-1)
    return c, 0.5 * (self._above + self._below) * 1.1

  def _grids(self) -> tuple[list, list, list, float]:
    up, label_p, label_q = [], [], []
    infinite = 0.0
    for part, n in self.parts:
      low, high = part.range()
      losses, p, q = part.cells(self.width, low - 2 * self.width,
                                high + 2 * self.width)
      first = int(round(losses[0] / self.width))
      inner_p, inner_q = p[1:-1], q[1:-1]
      left = losses[:-1]
      # Mass raised to the right end of its cell, so that Q keeps its own.
      share = (inner_p - np.exp(left) * inner_q) / -math.expm1(-self.width)
      # Rounding of the difference may only raise it.
      share = np.clip(share + 8 * EPS * (inner_p + np.exp(left) * inner_q) /
                      -math.expm1(-self.width), 0.0, inner_p)
      raised = np.append(inner_p - share, 0.0) + np.append(0.0, share)
      raised[0] += p[0]
      infinite += n * p[-1]
      up.append((_Grid(first, raised), n))
      # Labels: cell j gets its mean position, at random, the same under P and Q.
      mean = np.where(inner_q > 0, np.log(np.maximum(inner_p, 1e-320)) - np.log(
          np.maximum(inner_q, 1e-320)), left)
      part_up = np.clip((mean - left) / self.width, 0.0, 1.0)
      for target, mass, below, above in (
          (label_p, inner_p, 0.0, p[-1]), (label_q, inner_q, q[0], q[-1])):
        grid = np.append(mass * (1 - part_up), 0) + np.append(0, mass * part_up)
        grid[0] += below
        grid[-1] += above
        target.append((_Grid(first, grid), n))
    return up, label_p, label_q, infinite

  def _sum(self, grids: list, order: float
           ) -> tuple[np.ndarray, float, np.ndarray, float]:
    """Tilted masses of the sum on the window.

    Returns:
      Masses, log of their factor, their losses, and the norm of what rounding
      may have done to them.
    """
    n = 1 << int(math.ceil(math.log2(2.2 * self.spread / self.width)))
    start = int(math.floor((self.epsilon - self._below * 1.05) / self.width))
    log_factor, transform, sensitivity = 0.0, 0.0, 0.0
    for grid, count in grids:
      log_m = grid.log_moment(self.width, order)
      log_factor += count * log_m
      x = (grid.first + np.arange(grid.mass.size)) * self.width
      with np.errstate(divide='ignore'):
        weight = np.exp(np.log(grid.mass) + order * x - log_m)
      index = (grid.first + np.arange(grid.mass.size)) % n
      folded = np.bincount(index, weights=weight, minlength=n)
      coefficient = np.fft.rfft(folded)
      size = np.maximum(np.abs(coefficient), 1e-30)
      transform = transform + count * np.log(np.where(
          np.abs(coefficient) < 1e-30, 1e-30, coefficient))
      sensitivity = sensitivity + count / size
    levels = 8 * EPS * math.log2(n)
    phi = np.exp(transform)
    mass = np.fft.irfft(phi, n)
    error = levels * (math.sqrt(float(np.mean((sensitivity * np.abs(phi))**2))) +
                      float(np.linalg.norm(mass)))
    losses = (start + np.arange(n)) * self.width
    # Moments, too, are only known to rounding.
    return np.roll(mass, -(start % n)), log_factor, losses, error

  def delta(self) -> tuple[float, float]:
    """(lower, upper)."""
    up, label_p, label_q, infinite = self._grids()
    mass, log_factor, x, error = self._sum(up, self.order)
    wrapped = 1e-18  # Chernoff's bound has it at e^-45.
    slack = 64 * EPS * (self.steps * 0.01 + 1) + 64 * EPS * abs(
        self.order * self.epsilon)
    scale = math.exp(min(log_factor - self.order * self.epsilon, 700))
    gain = np.exp(-self.order * np.maximum(x - self.epsilon, 0)) * -np.expm1(
        np.minimum(self.epsilon - x, 0))
    upper = scale * (float(np.sum(np.maximum(mass, 0) * gain)) +
                     error * float(np.linalg.norm(gain)) + wrapped) + infinite
    p, p_factor, _, p_error = self._sum(label_p, self.order)
    q, q_factor, _, q_error = self._sum(label_q, self.order + 1)
    power, level = (self._suffix(part, x, order) + sign * self._norms(x, order) * e
                    for part, order, sign, e in (
                        (p, self.order, -1, p_error + wrapped),
                        (q, self.order + 1, 1, q_error + wrapped)))
    near = np.abs(x - self.epsilon) * (self.order + 1) < 40
    power = power * math.exp(min(p_factor - self.order * self.epsilon, 700))
    # Q(loss >= x) e^epsilon: e^(K_q - (c + 1) epsilon + epsilon).
    level = level * math.exp(min(q_factor - self.order * self.epsilon, 700))
    lower = float(np.max(power[near] - level[near], initial=0.0))
    lower -= slack * float(np.max(power[near], initial=0.0))
    return max(lower, 0.0), min(upper * (1 + slack), 1.0)

  def _norms(self, x: np.ndarray, order: float) -> np.ndarray:
    """Norms of the weights that `_suffix` gives, from each loss on."""
    step = -math.expm1(-2 * order * self.width)
    return np.exp(np.clip(-order * (x - self.epsilon), -700, 700)) * min(
        step**-0.5, math.sqrt(x.size))

  def _suffix(self, mass: np.ndarray, x: np.ndarray, order: float) -> np.ndarray:
    """Sums over x' >= x of mass e^(-order (x' - epsilon))."""
    terms = np.maximum(mass, 0) * np.exp(
        np.clip(-order * (x - self.epsilon), -700, 700))
    return np.cumsum(terms[::-1])[::-1]


def crossing(delta_at: Callable[[float], float], delta: float,
             high: float | None = None) -> float:
  """The epsilon >= 0 where a falling delta crosses `delta`."""
  if delta_at(0.0) <= delta:
    return 0.0
  high = high or 1.0
  while delta_at(high) > delta:
    high *= 2
  return float(optimize.brentq(
      lambda e: math.log(max(delta_at(e), 1e-300)) - math.log(delta), 0.0, high,
      xtol=1e-13, rtol=1e-13))
