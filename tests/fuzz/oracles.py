"""Computes privacy profiles from first principles, for fuzzing.

This file imports nothing from the package and shares no formula with it.

`Law` objects are noise in mpmath's 50 digits; tables are given as plain arrays and
enumerated cell by cell. `*_profile` functions are H(alpha) = sup_A P(A) - alpha Q(A),
P the output with the first data, at alpha = e^epsilon.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Callable, NamedTuple

import mpmath
from mpmath import mp
import numpy as np

mp.dps = 50

_TAIL = 1500.0
"""Geometric tails are enumerated until they have fallen by this many nats: extended
precision reaches far below."""

Profile = Callable[[mpmath.mpf], mpmath.mpf]


def between(rng: np.random.Generator, low: float, high: float) -> float:
  """Returns a random number whose logarithm is uniform."""
  return math.exp(rng.uniform(math.log(low), math.log(high)))


class Law(NamedTuple):
  """Symmetric log-concave noise with density exp(log_density)."""

  survival: Callable[[mpmath.mpf], mpmath.mpf]
  log_density: Callable[[mpmath.mpf], mpmath.mpf]


def _normal_survival(x: mpmath.mpf) -> mpmath.mpf:
  return mpmath.erfc(x / mpmath.sqrt(2)) / 2


def gaussian(sigma: float) -> Law:
  sigma = mpmath.mpf(sigma)
  return Law(lambda x: _normal_survival(x / sigma), lambda x: -(x / sigma)**2 / 2)


def laplace(scale: float) -> Law:
  scale = mpmath.mpf(scale)
  return Law(
      lambda x: (mpmath.exp(-x / scale) / 2 if x >= 0 else
                 1 - mpmath.exp(x / scale) / 2),
      lambda x: -abs(x) / scale)


def sinh_normal(sigma: float, bend: float) -> Law:
  sigma, bend = mpmath.mpf(sigma), mpmath.mpf(bend)
  straight = lambda x: bend / sigma * mpmath.sinh(x / bend)
  return Law(lambda x: _normal_survival(straight(x)),
             lambda x: mpmath.log(mpmath.cosh(x / bend)) - straight(x)**2 / 2)


def threshold_profile(law: Law, shift: float, alpha: mpmath.mpf) -> mpmath.mpf:
  """Returns H(alpha) of noise moved by `shift` against noise, by threshold tests.

  For log-concave noise the likelihood ratio rises along the line. Any threshold
  gives a lower bound, so that a rough root cannot make an upper bound look wrong
  by more than its square.
  """
  shift, alpha = mpmath.mpf(shift), mpmath.mpf(alpha)
  if alpha == 0:
    return mpmath.mpf(1)
  target = mpmath.log(alpha)
  loss = lambda x: law.log_density(x - shift) - law.log_density(x)
  high = mpmath.mpf(1)
  while loss(shift / 2 + high) < target and high < 1e6:
    high *= 2
  low = mpmath.mpf(1)
  while loss(shift / 2 - low) > target and low < 1e6:
    low *= 2
  low, high = shift / 2 - low, shift / 2 + high
  for _ in range(110):
    middle = (low + high) / 2
    low, high = (middle, high) if loss(middle) < target else (low, middle)
  gain = law.survival(high - shift) - alpha * law.survival(high)
  return max(gain, 1 - alpha, mpmath.mpf(0))


def subsampled(profile: Profile, prob: float, way: str) -> Profile:
  """Returns the profile where the record is sampled with `prob`, from that of P and Q.

  'remove': (1 - s) Q + s P against Q. 'add': Q against that mixture, for which the
  profile of Q against P is needed, the same by symmetry.
  """
  s = mpmath.mpf(prob)

  def removed(alpha):
    inner = (alpha - 1 + s) / s
    return s * profile(inner) if inner > 0 else 1 - alpha

  def added(alpha):
    rest = 1 - alpha * (1 - s)
    return rest * profile(alpha * s / rest) if rest > 0 else mpmath.mpf(0)

  return removed if way == 'remove' else added


def discrete_profile(p: Sequence[float], q: Sequence[float], alpha: float) -> float:
  """Returns H(alpha) of two mass vectors, summed without rounding."""
  return math.fsum(max(a - alpha * b, 0.0) for a, b in zip(p, q))


def cell_masses(half: np.ndarray, log_tail_ratio: float, edge_at_zero: bool
                ) -> np.ndarray:
  """Returns all cells of a symmetric table from its right half, tails enumerated."""
  half = np.asarray(half, dtype=np.longdouble)
  if math.isfinite(log_tail_ratio) and half[-1] > 0:
    count = int(math.ceil(-_TAIL / log_tail_ratio)) + 1
    half = np.concatenate(
        [half, half[-1] * np.exp(np.arange(1, count, dtype=np.longdouble) *
                                 np.longdouble(log_tail_ratio))])
  left = half[::-1] if edge_at_zero else half[:0:-1]
  whole = np.concatenate([left, half])
  return whole / np.sum(whole)


def moved(mass: np.ndarray, cells: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns (masses, masses moved by whole cells), on common cells."""
  nothing = np.zeros(cells, mass.dtype)
  return np.append(nothing, mass), np.append(mass, nothing)


def array_profile(p: np.ndarray, q: np.ndarray, alpha: float) -> float:
  """Returns H(alpha) of two arrays of masses in extended precision."""
  return float(np.sum(np.maximum(p - np.longdouble(alpha) * q, 0)))


def binomial_delta(first: float, epsilon_each: float, count: int, epsilon: float
                   ) -> mpmath.mpf:
  """Returns delta of `count` randomised responses, summed over the number of true ones.

  Args:
    first: Mass of infinite loss of each response.
    epsilon_each: Finite loss of a response.
    count: Number of responses.
    epsilon: Epsilon at which delta is computed.
  """
  keep, e = 1 - mpmath.mpf(first), mpmath.mpf(epsilon_each)
  win = keep * mpmath.exp(e) / (1 + mpmath.exp(e))
  lose = keep - win
  start = max(int(math.floor((epsilon / epsilon_each + count) / 2)) - 1, 0)
  total = mpmath.mpf(0)
  for k in range(start, count + 1):
    loss = (2 * k - count) * e
    if loss > epsilon:
      total += mpmath.binomial(count, k) * win**k * lose**(count - k) * (
          1 - mpmath.exp(epsilon - loss))
  return total + 1 - keep**count


def composed_delta(p: Sequence[float], q: Sequence[float], count: int,
                   epsilon: float) -> float:
  """Returns delta of `count` releases of a discrete pair, by multinomial counts."""
  p, q = np.asarray(p, float), np.asarray(q, float)
  size, total = p.size, []
  log_p, log_q = (np.log(np.where(x > 0, x, 1.0)) for x in (p, q))

  def visit(index, left, log_weight, log_a, log_b, dead_a, dead_b):
    if index == size - 1:
      weight = log_weight - math.lgamma(left + 1)
      dead_a = dead_a or (left > 0 and p[index] == 0)
      dead_b = dead_b or (left > 0 and q[index] == 0)
      a = 0.0 if dead_a else math.exp(weight + log_a + left * log_p[index])
      if a == 0.0:
        return
      if dead_b:
        total.append(a)
        return
      loss = (log_a + left * log_p[index]) - (log_b + left * log_q[index])
      if loss > epsilon:
        total.append(-a * math.expm1(epsilon - loss))
      return
    for k in range(left + 1):
      visit(index + 1, left - k, log_weight - math.lgamma(k + 1),
            log_a + k * log_p[index], log_b + k * log_q[index],
            dead_a or (k > 0 and p[index] == 0), dead_b or (k > 0 and q[index] == 0))

  visit(0, count, math.lgamma(count + 1), 0.0, 0.0, False, False)
  return math.fsum(total)


def gaussian_delta(mu: float, epsilon: float) -> mpmath.mpf:
  """Returns delta of a normal law moved by mu standard deviations."""
  mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
  return _normal_survival(epsilon / mu - mu / 2) - mpmath.exp(
      epsilon) * _normal_survival(epsilon / mu + mu / 2)


def renyi(law: Law, shift: float, order: float, reach: float) -> mpmath.mpf:
  """Returns the Renyi divergence of noise moved by `shift`, by quadrature."""
  shift, order = mpmath.mpf(shift), mpmath.mpf(order)
  points = mpmath.linspace(-reach, reach + shift, 33)
  with mp.workdps(25):
    norm = mpmath.quad(lambda x: mpmath.exp(law.log_density(x)), points)
    moment = mpmath.quad(
        lambda x: mpmath.exp(order * law.log_density(x - shift) -
                             (order - 1) * law.log_density(x)), points)
    return mpmath.log(moment / norm) / (order - 1)


def _cap(dim: int, height: mpmath.mpf) -> mpmath.mpf:
  """Returns the share of the unit ball beyond a plane at signed distance `height`."""
  if height >= 1:
    return mpmath.mpf(0)
  if height <= -1:
    return mpmath.mpf(1)
  tail = mpmath.betainc((dim + 1) / mpmath.mpf(2), mpmath.mpf(1) / 2, 0,
                        1 - height * height, regularized=True) / 2
  return tail if height >= 0 else 1 - tail


def _lens(dim: int, a: mpmath.mpf, b: mpmath.mpf, distance: mpmath.mpf
          ) -> mpmath.mpf:
  """Returns the common volume of two balls, in units of the unit ball's."""
  if a <= 0 or b <= 0 or a + b <= distance:
    return mpmath.mpf(0)
  if abs(a - b) >= distance:
    return min(a, b)**dim
  plane = (distance**2 + a * a - b * b) / (2 * distance)
  return a**dim * _cap(dim, plane / a) + b**dim * _cap(
      dim, (distance - plane) / b)


class RadialProfile:
  """Privacy profile of noise constant on spherical shells, moved by a distance."""

  def __init__(self, dim: int, first: float, width: float,
               log_density: Sequence[float], log_tail_ratio: float,
               distance: float):
    density = [mpmath.exp(mpmath.mpf(x)) for x in log_density]
    radii = [mpmath.mpf(first) + i * mpmath.mpf(width)
             for i in range(len(density))]
    if math.isfinite(log_tail_ratio):
      ratio = mpmath.exp(mpmath.mpf(log_tail_ratio))
      while density[-1] * radii[-1]**dim > mpmath.mpf('1e-45') * max(
          d * r**dim for d, r in zip(density, radii)):
        density.append(density[-1] * ratio)
        radii.append(radii[-1] + width)
      for _ in range(int(math.ceil(distance / width)) + 1):
        density.append(density[-1] * ratio)
        radii.append(radii[-1] + width)
    volume = [b**dim - a**dim for a, b in zip([mpmath.mpf(0)] + radii, radii)]
    total = mpmath.fsum(d * v for d, v in zip(density, volume))
    density = [d / total for d in density]
    size, distance = len(density), mpmath.mpf(distance)
    lens = [[mpmath.mpf(0)] * (size + 1) for _ in range(size + 1)]
    for i in range(size):
      for j in range(i, size):
        lens[i + 1][j + 1] = lens[j + 1][i + 1] = _lens(
            dim, radii[i], radii[j], distance)
    common = [[lens[i + 1][j + 1] - lens[i][j + 1] - lens[i + 1][j] + lens[i][j]
               for j in range(size)] for i in range(size)]
    self._terms = [(density[i] * common[i][j], density[j] * common[i][j])
                   for i in range(size) for j in range(size)]
    self._outside = mpmath.fsum(density[i] * (volume[i] - mpmath.fsum(common[i]))
                                for i in range(size))

  def __call__(self, alpha: mpmath.mpf) -> mpmath.mpf:
    alpha = mpmath.mpf(alpha)
    return self._outside + mpmath.fsum(
        max(p - alpha * q, mpmath.mpf(0)) for p, q in self._terms)

  def beyond(self, alpha: mpmath.mpf) -> mpmath.mpf:
    """Returns the P-probability that the loss is above log(alpha)."""
    return self._outside + mpmath.fsum(
        p for p, q in self._terms if p > alpha * q)
