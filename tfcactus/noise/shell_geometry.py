"""Spherical shells: their masses, and how probably a unit shift moves between them.

For x uniform in one spherical shell, the probability that x - e (e a unit vector) lies
in another shell is a double difference of ball-ball intersection volumes. Two balls
meet in two spherical caps, and a cap is an incomplete beta function (in many
dimensions, a series). There is no quadrature, so the only error is rounding.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from scipy import special

from tfcactus import _checks
from tfcactus.noise import table_file

REACH_TAIL = 1e-24
"""Largest probability of a change of radius beyond the band of `transition`."""

BODY_ROUNDOFF = 2e-15
"""Bound on the error of a central cap's fraction of its ball, and
`TAIL_ROUNDOFF + dim * TAIL_ROUNDOFF_PER_DIM` on the relative error of a small
cap's. Errors against mpmath in dimensions 1 to 1e6 are less than half of either."""

TAIL_ROUNDOFF = 2e-14
TAIL_ROUNDOFF_PER_DIM = 2e-16

EXPONENT_ROUNDOFF = 8 * np.finfo(np.float64).eps
"""Relative error of exp(dim * log1p(x)) over 1 + |its exponent|, and of the few
sums and products around it: each of at most eight roundings counts once."""

LEAST = 1e-300
"""Caps below this have lost digits, or are zero."""

PLANE_ROUNDOFF = 8 * np.finfo(np.float64).eps
"""Error of a plane's distance from the centre of a ball of radius r, in units of r, is
at most this times 1 + 1 / (4 r)."""

TAIL_START = 2.0
"""A unit ball's cap beyond the distance s from its centre is computed as a tail where
dim * s^2 exceeds this, else as one half less the part between."""

MANY = 200
"""In more dimensions a cap is nearly a normal tail, and a series is faster and
more accurate than the incomplete beta function."""

SERIES_ROUNDOFF = 1e-14
SERIES_ROUNDOFF_PER_EXPONENT = 1e-15
"""Relative error of the series, and its growth with the exponent dim * s^2; both
include the rounding of s."""

SERIES_REACH = 0.5
"""Largest -log(1 - s^2) for which the series is used; it converges below 2 pi."""

SERIES_TERMS = 24
"""Number of coefficients; the sum stops sooner once a term is below 1e-18 of it."""


def reach(dim: int, first_radius: float, width: float) -> int:
  """Returns the most shells a unit shift crosses, except with chance `REACH_TAIL`."""
  # This number is the half bandwidth of `transition`.
  change = 1.0
  if first_radius > 1 and dim > 1:
    # A direction's cosine exceeds c with probability I_{1-c^2}(a, 1/2) / 2, where
    # a = (dim - 1) / 2, and |x - e| differs from |x| by at most c + 1 / (2 |x|).
    low, high = 0.0, 1.0
    for _ in range(60):
      middle = 0.5 * (low + high)
      tail = special.betainc(0.5 * (dim - 1), 0.5, 1 - middle * middle)
      low, high = (middle, high) if tail > REACH_TAIL else (low, middle)
    change = min(1.0, high + 0.5 / first_radius)
  return int(np.ceil(change / width)) + 1


def transition(dim: int, first_radius: float, width: float,
               shells: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns shell-to-shell transition probabilities under a unit shift, as a band.

  Entry (i, reach + d) of the first array, shape (shells, 2 * reach + 1), is the
  probability that x - e lies in shell i + d for x uniform in shell i; zero where i + d
  < 0. Columns with i + d >= shells are for shells of the same width beyond the last
  one. The second array, shape (shells,), bounds how much probability of a row rounding
  may have moved to neighbouring columns.
  """
  radii, forward, hollow_log = _balls(dim, first_radius, width, shells)
  hollow, solid = np.exp(hollow_log), -np.expm1(hollow_log)
  # `forward` has columns d = 0..reach + 1. Balls i and i + d meet in the same volume
  # whichever of the two is shifted: that gives the columns of negative d.
  own, own_error = (
      np.hstack([_of_ball(dim, radii, width, part[:, 1:])[:, ::-1], part])
      for part in (forward.value, forward.error))
  below, below_error = _of_inner_ball(own), _of_inner_ball(own_error)
  own, own_error = own[:, :-1], own_error[:, :-1]
  within = (own - hollow * below) / solid
  error = 2 * np.sum((own_error + hollow * below_error) / solid, axis=1)
  result = np.clip(np.diff(within, axis=1), 0.0, 1.0)
  result[:, :result.shape[1] // 2] = _inward(dim, radii, width, forward.lens) / solid
  return result, error


def outward(dim: int, first_radius: float, width: float, shells: int
            ) -> tuple[np.ndarray, np.ndarray]:
  """Returns the probability that a unit shift moves a point out by more than d shells.

  The first array, shape (shells, reach + 1), is the probability that x - e lies beyond
  shell i + d, for x uniform in shell i, the second a bound on its error.
  """
  # lens(i, d) is the part of ball i around zero that lies outside ball i + d around e.
  # Without lens(i - 1, d + 1), which lies in ball i - 1, it is the part of shell i that
  # moves out by more than d. Lenses keep their digits where they are tiny, so the error
  # of a rare move is small relative to its probability.
  _, forward, hollow_log = _balls(dim, first_radius, width, shells)
  hollow, solid = np.exp(hollow_log), -np.expm1(hollow_log)
  inner, inner_error = _of_inner_ball(forward.lens), _of_inner_ball(forward.lens_error)
  lens = forward.lens[:, :-1]
  rounding = EXPONENT_ROUNDOFF * (1 - np.maximum(hollow_log, -700.0))
  error = (forward.lens_error[:, :-1] + hollow * inner_error +
           rounding * (lens + hollow * inner)) / solid
  return np.clip((lens - hollow * inner) / solid, 0.0, 1.0), error


def _balls(dim: int, first_radius: float, width: float, shells: int
           ) -> tuple[np.ndarray, _Fraction, np.ndarray]:
  """Returns (radii, fractions of ball i in ball i + d, `log_hollow` as a column)."""
  # d = 0..reach + 1; the larger ball is one unit away.
  radii = first_radius + width * np.arange(shells)
  steps = width * np.arange(reach(dim, first_radius, width) + 2)
  return (radii, _fraction(dim, radii[:, None], steps),
          log_hollow(dim, radii, width)[:, None])


def _of_inner_ball(part: np.ndarray) -> np.ndarray:
  """Returns entry (i - 1, d + 1) at (i, d), zero for i = 0: ball i - 1 with i + d."""
  return np.concatenate([np.zeros((1, part.shape[1] - 1)), part[:-1, 1:]])


def log_hollow(dim: int, radii: np.ndarray, width: float) -> np.ndarray:
  """Returns dim * log(inner / outer radius) of shells, (shells,); -inf for shell 0."""
  with np.errstate(divide='ignore'):
    hollow = dim * np.log1p(-np.minimum(width / radii, 1.0))
  hollow[0] = -np.inf  # Shell 0 is a ball for any first radius.
  return hollow


def _inward(dim: int, radii: np.ndarray, width: float, lens: np.ndarray) -> np.ndarray:
  """Returns, for each shell, the volumes that a unit shift moves further in."""
  # Entry (i, k) of the result, shape (shells, band), is the volume that moves from
  # shell i to shell i - band + k, over the volume of ball i.
  # lens[j, d], (shells, band + 2), is the fraction of ball j outside ball j + d after
  # the shift. Ball j and shell i share lens[j, i - j - 1] - lens[j, i - j] of ball j:
  # lenses are small and do not cancel, as volumes of nearly whole balls would. A
  # certificate multiplies the result by large ratios of densities: relative errors must
  # be small.
  taken = _of_ball(dim, radii, width, np.maximum(lens[:, :-1] - lens[:, 1:], 0.0))
  return np.maximum(taken[:, :-1] - taken[:, 1:], 0.0)[:, ::-1]


def _of_ball(dim: int, radii: np.ndarray, width: float, part: np.ndarray
             ) -> np.ndarray:
  """Returns parts of ball i - d, in column d - 1 = 0, 1, ..., as parts of ball i."""
  # The row changes from i - d to i; rows without a ball i - d are zero.
  result = np.zeros(part.shape)
  for d in range(1, min(part.shape[1], radii.size - 1) + 1):
    result[d:, d - 1] = part[:-d, d - 1] * np.exp(
        dim * np.log1p(-width * d / radii[d:]))
  return result


class _Fraction(NamedTuple):
  """vol(B(0, a) & B(e, a + step)) / vol(B(0, a)), its complement, and both errors."""
  # B(c, r) is the ball in R^dim of centre c and radius r; e is a unit vector. The
  # complement `lens` = 1 - value keeps its digits where it is tiny (step >= 0).

  value: np.ndarray
  error: np.ndarray
  lens: np.ndarray
  lens_error: np.ndarray


def _fraction(dim: int, a: np.ndarray, step: np.ndarray) -> _Fraction:
  """Returns the fraction of the ball B(0, a) in B(e, a + step), a > 0, step >= 0."""
  # `step` is an argument because a difference of large radii would lose its digits.
  a, step = np.broadcast_arrays(a, step)
  b = a + step
  value = (step >= 1).astype(np.float64)
  lens = 1 - value
  error, lens_error = np.zeros(a.shape), np.zeros(a.shape)
  # The rounding of radii may hide that the spheres meet.
  meet = (step < 1 + 1e-15) & (a + b > 1 - 1e-15)
  a, b, step = a[meet], b[meet], step[meet]
  # The spheres meet in the plane at distance t from 0 and 1 - t from e.
  # Relative errors, in eps, are at most 1 of `step` (a quotient times an integer), 1.5
  # of a, 2 of b, and so 3.5 of a^2 - b^2 = -step (2 a + step), which lies between
  # -1 - 2 a and 0. So it adds at most 1.75 / a + 3.5 to the error of t / a, to which
  # the sum with one, the quotient and a add 2.5; (1 - t) / b errs by at most 6.5.
  difference = -step * (2 * a + step)
  own, rest, own_error, rest_error = _cap(
      dim, 0.5 * (1 + difference) / a, PLANE_ROUNDOFF * (1 + 0.25 / a))
  other, _, other_error, _ = _cap(
      dim, 0.5 * (1 - difference) / b, PLANE_ROUNDOFF * (1 + 0.25 / b))
  growth = dim * np.log1p(step / a)
  # A cap that is computed as zero may have had up to its error, or `LEAST`.
  lost, least = other <= LEAST, np.maximum(other, LEAST)
  log_least = np.log(least)
  exponent = growth + log_least
  with np.errstate(over='ignore'):
    other_error = np.minimum(1.0, np.exp(exponent) * (
        lost + EXPONENT_ROUNDOFF * (1 + growth - log_least) + other_error / least))
  other = np.where(lost, 0.0, np.exp(np.minimum(exponent, 0.0)))
  value[meet] = own + other
  error[meet] = own_error + other_error
  lens[meet] = np.maximum(rest - other, 0.0)
  # The lens lies in the cap `rest`, which bounds what `other` can change.
  lens_error[meet] = rest_error + np.minimum(other_error, rest)
  return _Fraction(value, error, lens, lens_error)


def _cap(dim: int, s: np.ndarray, s_error: np.ndarray
         ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """Returns a unit ball's fractions beyond and before a plane at s, and both errors."""
  # s is the plane's distance from the centre, negative if the centre is beyond it;
  # `s_error` bounds its error. In more than two dimensions the smaller fraction has
  # relative precision where s is exact. Errors are bounds on absolute ones.
  s = np.clip(s, -1.0, 1.0)
  size = np.abs(s)
  if dim <= MANY:
    small, error = _beta_cap(dim, size)
  else:
    small, error = np.empty_like(s), np.empty_like(s)
    near = size * size < -math.expm1(-SERIES_REACH)
    small[near], error[near] = _near_cap(dim, size[near])
    small[~near], error[~near] = _beta_cap(dim, size[~near])
  large = 1 - small
  # The cap's derivative with respect to s is below sqrt((dim + 1) / (2 pi)) times
  # (1 - s^2)^((dim - 1) / 2) (Gautschi's inequality), which falls with |s|. The factor
  # 2 covers the rounding of `low`.
  low = np.maximum(size - 2 * s_error, 0.0)
  error = error + LEAST + s_error * math.sqrt((dim + 1) / (2 * math.pi)) * (
      (1 - low) * (1 + low))**(0.5 * (dim - 1))
  body = dim * size * size <= TAIL_START
  return (np.where(s >= 0, small, large), np.where(s >= 0, large, small),
          error + BODY_ROUNDOFF * ((s < 0) | body),
          error + BODY_ROUNDOFF * ((s >= 0) | body))


def _beta_cap(dim: int, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns a unit ball's fraction beyond `size` >= 0 and its error in the tail."""
  shape = 0.5 * (dim + 1)
  in_tail = dim * size * size > TAIL_START
  small = np.empty_like(size)
  small[in_tail] = 0.5 * special.betainc(shape, 0.5, ((1 - size) * (1 + size))[in_tail])
  body = size[~in_tail]
  small[~in_tail] = 0.5 - 0.5 * special.betainc(0.5, shape, body * body)
  return small, np.where(
      in_tail, (TAIL_ROUNDOFF + dim * TAIL_ROUNDOFF_PER_DIM) * small, 0.0)


def _near_cap(dim: int, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns the fraction of a unit ball beyond distance size >= 0, and its error."""
  # A series for more than `MANY` dimensions. The fraction is the integral of (1 -
  # t^2)^A from `size` to 1, A = (dim - 1) / 2, over twice the integral from 0 to 1.
  # Substituting w = -log(1 - t^2) = u^2 / (2 A) turns both, up to one factor, into
  # integrals over u of exp(-u^2 / 2) h(w), h(w) = exp(-w) sqrt(w / (1 - exp(-w))). The
  # power series of h turns them into sums of moments of the normal tail, all positive.
  power = 0.5 * (dim - 1)
  exponent = -power * np.log1p(-size * size)
  u = np.sqrt(2 * exponent)
  # Moments are integrals of exp(-t^2 / 2) t^(2k) / (2 A)^k: `beyond` is the one from u,
  # over exp(-u^2 / 2), `whole` the one from 0. Integration by parts raises k.
  beyond = math.sqrt(0.5 * math.pi) * special.erfcx(np.sqrt(exponent))
  whole = math.sqrt(0.5 * math.pi)
  beyond_sum, whole_sum = beyond, whole
  monomial = 1 / np.maximum(u, 1e-150)
  for k, coefficient in enumerate(_series()[1:], start=1):
    monomial = monomial * (exponent / power)
    beyond = monomial + (2 * k - 1) / (2 * power) * beyond
    whole *= (2 * k - 1) / (2 * power)
    beyond_sum = beyond_sum + coefficient * beyond
    whole_sum += coefficient * whole
    if np.all(abs(coefficient) * beyond <= 1e-18 * beyond_sum):
      break
  small = np.exp(-exponent) * beyond_sum / (2 * whole_sum)
  return small, small * (SERIES_ROUNDOFF + 2 * exponent * SERIES_ROUNDOFF_PER_EXPONENT)


@functools.lru_cache(maxsize=1)
def _series() -> tuple[float, ...]:
  """Returns coefficients of exp(-w) ((1 - exp(-w)) / w)^(-1/2), which is h(w), in w."""
  base = [(-1)**k / math.factorial(k + 1) for k in range(SERIES_TERMS)]
  root = [1.0]
  for k in range(1, SERIES_TERMS):
    root.append(sum((-0.5 * j - (k - j)) * base[j] * root[k - j]
                    for j in range(1, k + 1)) / k)
  return tuple(
      sum(root[k - j] * (-1)**j / math.factorial(j) for j in range(k + 1))
      for k in range(SERIES_TERMS))


def log_volumes(dim: int, first_radius: float, width: float, shells: int) -> np.ndarray:
  """Returns log volumes, (shells,), in units of the innermost ball, the first shell."""
  log_outer = dim * np.log1p(np.arange(shells) * (width / first_radius))
  log_volume = log_outer.copy()
  log_volume[1:] += np.log(-np.expm1(-np.diff(log_outer)))
  return log_volume


def enumerate_shells(dim: int, first_radius: float, width: float,
                     log_density: np.ndarray, log_tail_ratio: float
                     ) -> tuple[np.ndarray, np.ndarray]:
  """Returns log densities and log masses of all shells, the tail down to 1e-30.

  Densities are per volume of the innermost ball. Both arrays are read-only. Raises
  ValueError if the tail takes more than `table_file.MAX_CELLS` shells.
  """
  last = log_density.size - 1
  tail = 0 if np.isneginf(log_tail_ratio) else max(64, last // 4)
  while True:
    steps = np.arange(1, tail + 1)
    log_f = np.concatenate(
        [log_density, log_density[-1] + (log_tail_ratio if tail else 0) * steps])
    log_mass = log_f + log_volumes(dim, first_radius, width, log_f.size)
    if not tail:
      break
    # Volume ratios of neighbouring shells fall: a geometric series bounds the rest.
    log_ratio = log_mass[-1] - log_mass[-2]
    if log_ratio < 0 and (log_mass[-1] - np.log(-np.expm1(log_ratio)) <
                          np.max(log_mass) + table_file.LOG_TAIL_FLOOR):
      break
    tail *= 2
    if tail > table_file.MAX_CELLS:
      raise ValueError(
          f'Expected a tail that ends within {table_file.MAX_CELLS} shells in '
          f'dimension {dim}, got log_tail_ratio={log_tail_ratio!r}; make the '
          'tail steeper.')
  return _checks.read_only(log_f), _checks.read_only(log_mass)
