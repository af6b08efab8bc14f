"""What sinh-normal noise costs, exactly: one release, its moments, its pair.

The privacy loss of the noise against itself shifted increases along the line
(the density is log-concave), so that the best test is a threshold: delta and
epsilon of one release are in closed form, to rounding.

Source: section 4 of Bun, Dwork, Rothblum and Steinke (STOC 2018) for the noise;
exact accounting is this library's.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Optional

import numpy as np
from scipy import optimize
from scipy import special

from tfcactus import _checks
from tfcactus.accounting import truncated_cdp
from tfcactus.noise.sinh_normal import SinhNormal
from tfcactus.pairs import dominating_pair as pair_lib
from tfcactus.pairs import of_noise

_REACH = 12.0
"""Standard deviations, of the normal inside, kept in cells."""

_LARGEST_LOSS = 650.0
"""Losses beyond this are counted as infinite: e^-650 is nothing."""

_NODES = 1000
"""Points of a moment's quadrature; the integrand is analytic, and twice as
many change its logarithm by less than 1e-12."""

_SEARCH_NODES = 4000
"""Points among which the integrand's support is looked for."""


def delta(noise: SinhNormal, epsilon: float, *, shift: float = 1.0) -> float:
  """The exact delta of one release.

  Args:
    noise: Log-concave sinh-normal noise.
    epsilon: Non-negative.
    shift: The change of the query in units of its sensitivity: 1 for add or
      remove, 2 for a replaced record.

  Raises:
    ValueError: if the noise is not log-concave (bend < sigma).
  """
  epsilon = _checks.non_negative('epsilon', epsilon)
  return math.exp(_log_delta(check_log_concave(noise), epsilon,
                             _checks.positive('shift', shift)))


def epsilon(noise: SinhNormal, delta: float, *, shift: float = 1.0) -> float:  # pylint: disable=redefined-outer-name
  """The exact epsilon of one release; zero if delta is that large.

  Args:
    noise: Log-concave sinh-normal noise.
    delta: In (0, 1).
    shift: As for `delta`.

  Raises:
    ValueError: if the noise is not log-concave (bend < sigma).
  """
  target = math.log(_checks.delta(delta))
  shift = _checks.positive('shift', shift)
  check_log_concave(noise)
  excess = lambda value: _log_delta(noise, value, shift) - target
  if excess(0.0) <= 0:
    return 0.0
  high = 1.0
  while excess(high) > 0:
    high *= 2
  return optimize.brentq(excess, 0.0, high, xtol=1e-14, rtol=1e-14)


def renyi_limit(noise: SinhNormal, *, shift: float = 1.0) -> float:
  """The order below which Renyi divergences are finite."""
  return -1 / math.expm1(-2 * shift / noise.bend)


def renyi_divergence(noise: SinhNormal, order: float, *, shift: float = 1.0
                     ) -> float:
  """The Renyi divergence of the noise from itself, shifted.

  Args:
    noise: Any sinh-normal noise, log-concave or not; if it is not, smaller
      shifts may cost more.
    order: Above one.
    shift: The change of the query in units of its sensitivity.

  Returns:
    D_order; inf from `renyi_limit` on.

  Raises:
    ValueError: if `order` is not above one.
  """
  order = _checks.real('order', order)
  shift = _checks.positive('shift', shift)
  if order <= 1:
    raise ValueError(f'Expected order > 1, got order={order!r}.')
  if order >= renyi_limit(noise, shift=shift):
    return math.inf
  return _renyi_divergence(noise, order, shift)


@functools.lru_cache(maxsize=4096)
def _renyi_divergence(noise: SinhNormal, order: float, shift: float) -> float:
  log_term = lambda x: (order * noise.log_density_at(x) -
                        (order - 1) * noise.log_density_at(x - shift))
  low, high = _support(log_term, noise, shift)
  x = np.linspace(low, high, _NODES)
  value = log_term(x)
  peak = np.max(value)
  log_moment = peak + math.log(np.sum(np.exp(value - peak)) * (x[1] - x[0]))
  return log_moment / (order - 1)


def _support(log_term, noise: SinhNormal, shift: float) -> tuple[float, float]:
  """An interval outside which the integrand is below e^-80 of its peak."""
  unit = min(noise.sigma, noise.bend)
  # The integrand falls doubly exponentially: the span in units of the bend is
  # a logarithm, unless the bend is far off and it is a plain normal.
  reach = noise.bend * np.arcsinh(40 * noise.sigma / noise.bend) + shift
  while True:
    x = np.linspace(-reach - shift, reach + shift, _SEARCH_NODES)
    value = log_term(x)
    value = np.where(np.isnan(value), -np.inf, value)
    kept = np.flatnonzero(value > np.max(value) - 80)
    if 0 < kept[0] and kept[-1] < x.size - 1:
      return x[kept[0] - 1], x[kept[-1] + 1]
    reach += 10 * unit + 0.5 * reach


def check_log_concave(noise: SinhNormal) -> SinhNormal:
  """Returns `noise` if the full shift dominates every smaller one.

  Raises:
    ValueError: if bend < sigma, where the density has two peaks.
  """
  if not noise.monotone:
    raise ValueError(
        'Expected sinh-normal noise with bend >= sigma, whose density has one '
        f'peak, got {noise!r}: no shift of it dominates the others. Raise bend, '
        'or use the table of tfcactus.design.DiscretizedSinhNormal, which is '
        'accounted over all shifts.')
  return noise


def loss(noise: SinhNormal, y: np.ndarray, shift: float) -> np.ndarray:
  """The privacy loss log f(x - shift) / f(x) at x = y + shift / 2; odd in y."""
  a = noise.bend
  half = 0.5 * shift / a
  with np.errstate(over='ignore'):
    steep = (0.5 * (a / noise.sigma)**2 * math.sinh(2 * half) *
             np.sinh(2 * y / a))
  # log cosh(u - half) - log cosh(u + half), the part of the Jacobian.
  u = np.abs(y) / a
  drop = (np.logaddexp(u - half, half - u) - np.logaddexp(u + half, -u - half))
  return steep + np.sign(y) * drop


def _threshold(noise: SinhNormal, epsilon: float, shift: float) -> float:  # pylint: disable=redefined-outer-name
  """The y at which the loss is epsilon >= 0."""
  a = noise.bend
  scale = (a / noise.sigma)**2 * math.sinh(shift / a) / 2
  # The log cosh terms lower the loss by at most shift / a.
  low = 0.5 * a * math.asinh(epsilon / scale)
  high = 0.5 * a * math.asinh((epsilon + shift / a) / scale)
  excess = lambda y: float(loss(noise, np.float64(y), shift)) - epsilon
  if low == high or excess(low) >= 0:
    return low
  high = high * (1 + 1e-12) + 1e-300
  while excess(high) < 0:
    high *= 1 + 1e-6
  return optimize.brentq(excess, low, high, xtol=1e-300, rtol=1e-15)


def _log_delta(noise: SinhNormal, epsilon: float, shift: float) -> float:  # pylint: disable=redefined-outer-name
  t = _threshold(noise, epsilon, shift)
  steep = noise.bend / noise.sigma
  with np.errstate(over='ignore'):
    near = special.log_ndtr(-steep * np.sinh((t - 0.5 * shift) / noise.bend))
    far = special.log_ndtr(-steep * np.sinh((t + 0.5 * shift) / noise.bend))
  if near == -np.inf or far + epsilon >= near:
    return -math.inf
  return float(near + math.log(-math.expm1(far + epsilon - near)))


def sinh_normal_bound(noise: SinhNormal) -> truncated_cdp.TCDP:
  """What Theorem 17 proves of sinh-normal noise: an order of magnitude loose.

  Raises:
    ValueError: if its hypothesis 1 < 1/sqrt(rho) <= A fails for
      rho = 1 / (2 sigma^2), or A <= 8, where it says nothing.
  """
  rho = 0.5 / noise.sigma**2
  if noise.bend <= 8:
    raise ValueError(
        'Expected bend > 8, since Theorem 17 says nothing below (its omega '
        f'would be {noise.bend / 8:.4g}), got {noise!r}; account the noise '
        'exactly.')
  if not 1 < 1 / math.sqrt(rho) <= noise.bend:
    raise ValueError(
        'Expected 1 < sqrt(2) sigma <= bend, the hypothesis of Theorem 17, got '
        f'{noise!r}; account the noise exactly.')
  return truncated_cdp.TCDP(16 * rho, noise.bend / 8)


def histogram_noise(rho: float, omega: float) -> SinhNormal:
  """The noise of Corollary 18: a histogram under (rho, omega)-tCDP.

  Args:
    rho: In (0, 1).
    omega: At least 1 / sqrt(2 rho), which the proof needs and the printed
      hypothesis (1 / (8 sqrt rho)) does not give. Below that, the divergence is
      computed, and refused where it is larger than claimed.

  Returns:
    Noise for each count; a replaced record changes two counts by one.

  Raises:
    ValueError: if the claim is false at these parameters.
  """
  rho, omega = _checks.positive('rho', rho), truncated_cdp.check_omega(omega)
  noise = SinhNormal(4 / math.sqrt(rho), 8 * omega)
  if rho < 1 and omega >= 1 / math.sqrt(2 * rho):
    return noise
  limit = renyi_limit(noise)
  if omega < limit:
    needed = 2 * truncated_cdp.certificate(
        lambda order: renyi_divergence(noise, order), omega,
        orders=300).rho
    if needed <= rho:
      return noise
  else:
    needed = math.inf
  raise ValueError(
      f'Expected omega >= 1 / sqrt(2 rho) = {1 / math.sqrt(2 * rho):.6g}, got '
      f'omega={omega!r}: Corollary 18 is false there, its noise needs '
      f'rho={needed:.6g} and claims rho={rho!r}. Raise omega.')


def histogram_error(rho: float, omega: float, *, num_bins: int,
                    beta: float) -> float:
  """Corollary 18's bound on the largest error of all counts.

  Args:
    rho: Of the guarantee.
    omega: Of the guarantee.
    num_bins: Size of the domain.
    beta: Probability of a larger error.
  """
  histogram_noise(rho, omega)
  num_bins = _checks.integer('num_bins', num_bins, 1)
  log_ratio = math.log(num_bins / _checks.delta(beta, 'beta'))
  return 8 * omega * math.asinh(math.sqrt(log_ratio / (2 * omega**2 * rho)))


@of_noise.dominating_pair.register
def _(noise: SinhNormal, *, shift: int = 1) -> pair_lib.PairBounds:
  check_log_concave(noise)
  shift = _checks.integer('shift', shift, 1)
  reach = noise.bend * math.asinh(_REACH * noise.sigma / noise.bend)
  top = min(reach + 0.5 * shift, _threshold(noise, _LARGEST_LOSS, shift))
  y = np.linspace(-top, top, of_noise.CELLS + 1)
  edges = loss(noise, y, shift)
  p, q = (_cells(noise, y + 0.5 * way * shift) for way in (-1, 1))
  beyond = float(noise.cdf(0.5 * shift - top))
  bounds = of_noise.from_cells(edges, np.diff(edges), p, q, beyond)
  return pair_lib.PairBounds(
      _with_tail(bounds.lower, beyond, float(noise.cdf(-top - 0.5 * shift))),
      _with_moments(bounds.upper, noise, shift))


def _with_tail(pair: pair_lib.DominatingPair, p: float, q: float
               ) -> pair_lib.DominatingPair:
  """Adds the tail as one atom, which lowers its losses to their mean."""
  q = max(q, 1e-300)
  if p <= q:
    return pair
  return pair_lib.DominatingPair(
      np.append(pair.loss, math.log(p) - math.log(q)), np.append(pair.p, p),
      np.append(pair.q, q), pair.p_inf, pair.q_inf)


@dataclasses.dataclass(frozen=True, eq=False)
class _SinhNormalPair(pair_lib.DominatingPair):
  """Atoms for the profile, which count the far tail as a failure, beside exact
  moments, which the tail does not spoil."""

  noise: Optional[SinhNormal] = None
  shift: int = 1

  def renyi_divergence(self, order: float, *, finite: bool = False) -> float:
    """D_order of the noise itself, finite below `renyi_limit`.

    Args:
      order: Above one.
      finite: Of the atoms only.
    """
    if finite:
      return super().renyi_divergence(order, finite=True)
    return renyi_divergence(self.noise, order, shift=self.shift)

  def reversed(self) -> pair_lib.DominatingPair:
    """The pair (Q, P); its moments are the same, by symmetry."""
    return _with_moments(super().reversed(), self.noise, self.shift)


def _with_moments(pair: pair_lib.DominatingPair, noise: SinhNormal, shift: int
                  ) -> _SinhNormalPair:
  return _SinhNormalPair(pair.loss, pair.p, pair.q, pair.p_inf, pair.q_inf,
                         noise, shift)


def _cells(noise: SinhNormal, edges: np.ndarray) -> np.ndarray:
  """Probabilities between neighbouring edges, to 1e-14 relatively."""
  nodes, weights = np.polynomial.legendre.leggauss(6)
  width = np.diff(edges)
  return sum(
      0.5 * weight * width * np.exp(noise.log_density_at(
          edges[:-1] + 0.5 * width * (1 + node)))
      for node, weight in zip(nodes, weights))
