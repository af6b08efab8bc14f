"""Sinh-normal noise: normal near zero, with doubly exponentially light tails.

If bend >= sigma, the privacy loss of the noise against its shift is monotone along the
line, so that the best test is a threshold, and delta of one release a closed form. This
accounting is the library's own.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Callable

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from tfcactus import _checks
from tfcactus._numerics import EPS
from tfcactus.noise import base
from tfcactus.pairs import cells as cells_lib, dominating_pair as pair_lib, overlap
from tfcactus.pairs.dominating_pair import PairBounds
from tfcactus.randomness import Random, Size

_REACH = 12.0
"""Standard deviations of the underlying normal that the cells cover."""

_LARGEST_LOSS = 300.0
"""Larger losses count as infinite: e^-300 is negligible, and `LOSS_ROUNDOFF` does not
cover losses that are much larger."""

_LARGEST_SHIFT = 600.0
"""Noise counts as none for shifts by more than this many sigma, since exponentials of
shift / bend, which is smaller still, would overflow."""

_TAIL_ROUNDOFF = 1e-12
"""Bound on the relative error of the mass of a tail beyond the cells."""

_NODES = 1000
"""Points of a moment's quadrature. The integrand is analytic; twice as many points
change its logarithm by less than 1e-12."""

_SEARCH_NODES = 4000
"""Points of the search for the integrand's support."""


@dataclasses.dataclass(frozen=True)
class SinhNormal(base.ScalarNoise):
  """Sinh-normal noise, bend * arsinh(sigma N(0, 1) / bend), for a scalar query.

  Near zero it is N(0, sigma^2); beyond `bend` it grows like the logarithm of that
  normal. The density has one peak, and is log-concave, if and only if
  bend >= sigma; only then is the closed form accounted.

  Attributes:
    sigma: Standard deviation of the underlying normal, over the sensitivity.
    bend: The |z| beyond which tails get lighter (A of the paper), in units of
      sensitivity.

  Raises:
    ValueError: if an argument is not from 1e-100 to 1e100.

  Source: section 4 of Bun, Dwork, Rothblum and Steinke, "Composable and
  Versatile Privacy via Truncated CDP" (STOC 2018).
  """

  sigma: float
  bend: float

  kind = 'sinh-normal'

  def __post_init__(self) -> None:
    for name in ('sigma', 'bend'):
      object.__setattr__(self, name, _checks.noise_scale(name, getattr(self, name)))

  @property
  def log_concave(self) -> bool:
    """Returns whether the density is log-concave, which holds if it has one peak."""
    return self.bend >= self.sigma

  def check_accounted(self) -> None:
    """Raises ValueError if bend < sigma: no shift dominates all smaller ones."""
    if not self.log_concave:
      raise ValueError(
          'Expected sinh-normal noise with bend >= sigma, whose density has one '
          f'peak, got {self!r}: no shift of it dominates the others. Raise bend, '
          'or use the table of tfcactus.design.DiscretizedSinhNormal, which is '
          'accounted over all shifts.')

  @property
  def noise_multiplier(self) -> float:
    """Standard deviation over sensitivity."""
    # The trapezoidal rule is exact to rounding: the density is analytic in z.
    z = np.linspace(-1, 1, 4001) * self._bent(np.array(39.0))
    log_density = self.log_density_at(z)
    weight = np.exp(log_density - np.max(log_density))
    return float(np.sqrt(np.sum(weight * z * z) / np.sum(weight)))

  def _bent(self, normal: np.ndarray) -> np.ndarray:
    """Returns the noise to which standard normal values are mapped."""
    return self.bend * np.arcsinh(self.sigma / self.bend * normal)

  def straight(self, z: npt.ArrayLike) -> np.ndarray:
    """Returns the standard normal value that `_bent` maps to z; inf on overflow."""
    with np.errstate(over='ignore'):
      return self.bend / self.sigma * np.sinh(
          np.asarray(z, dtype=np.float64) / self.bend)

  def sample(self, rng: Random, size: Size) -> np.ndarray:
    return self._bent(rng.standard_normal(size))

  def cdf(self, z: npt.ArrayLike) -> np.ndarray:
    return special.ndtr(self.straight(_checks.numbers_of('z', z)))

  def quantile(self, u: npt.ArrayLike) -> np.ndarray:
    return self._bent(special.ndtri(_checks.shares('u', u, inner=True)))

  def log_density_at(self, z: npt.ArrayLike) -> np.ndarray:
    """Returns the log density at `z` of any shape; -inf where it is below -1e308."""
    with np.errstate(over='ignore'):
      # Beyond 1e6 bends the log density is below -1e308 for all parameters.
      bends = np.minimum(np.abs(_checks.numbers_of('z', z)) / self.bend, 1e6)
      log_cosh = bends + np.log1p(np.exp(-2 * bends)) - math.log(2)
      straight = self.straight(bends * self.bend)
      return (log_cosh - 0.5 * straight * straight -
              math.log(self.sigma * math.sqrt(2 * math.pi)))

  def log_mgf(self, t: float) -> float:
    """Returns an upper bound on log E exp(t Z), for t > 0."""
    # E exp(t Z) = E cosh(t Z), and |Z| <= |Y| for the underlying Y ~ N(0, sigma^2).
    return 0.5 * (self.sigma * _checks.positive('t', t))**2

  def dominating_pair(self, shift: int = 1) -> PairBounds:
    """Returns bounds from cells; the upper pair has the noise's own Renyi moments.

    Raises ValueError if bend < sigma.
    """
    self.check_accounted()
    shift = _checks.integer('shift', shift, 1)
    if shift > _LARGEST_SHIFT * self.sigma:
      return overlap.no_noise(1.0)
    # y is the outcome minus shift / 2: the loss is odd and increasing in y. P is
    # centred at y = shift / 2, Q at -shift / 2.
    reach = self.bend * math.asinh(_REACH * self.sigma / self.bend)
    top = min(reach + 0.5 * shift, _threshold(self, _LARGEST_LOSS, shift))
    y = np.linspace(-top, top, cells_lib.CELLS + 1)
    p, q = (cells_lib.counted(cells_lib.cell_masses(
        lambda x: np.exp(self.log_density_at(x)), y[:-1] + 0.5 * way * shift,
        np.diff(y), 6)) for way in (-1, 1))
    beyond = float(self.cdf(0.5 * shift - top))
    # A normal value x is off by (1 + |z| / bend) x EPS, a mass by |x| times as much;
    # beyond x = 40 there is none.
    far = np.abs(y) + 0.5 * shift
    off = 2 * EPS * (1 + far / self.bend) * np.minimum(self.straight(far), 40)**2
    bounds = cells_lib.from_cells(
        loss(self, y, shift), p, q, beyond * (1 + _TAIL_ROUNDOFF),
        off=np.maximum(off[1:], off[:-1]))
    return PairBounds(
        _with_tail(bounds.lower, beyond, float(self.cdf(-top - 0.5 * shift))),
        _SinhNormalPair(**vars(bounds.upper), noise=self, shift=shift))


def delta(noise: SinhNormal, epsilon: float, *, shift: float = 1.0) -> float:
  """Returns delta of one release of log-concave noise at `epsilon` >= 0, to rounding.

  Rounding goes to either side: an accountant has an upper bound. `shift` is the change
  of the query over its sensitivity: 1 for add or remove, 2 for a replaced record. Delta
  is 1 for shifts of more than 600 sigma, where the noise counts as none. Raises
  ValueError if the noise is not log-concave (bend < sigma).
  """
  epsilon = _checks.non_negative('epsilon', epsilon)
  noise.check_accounted()
  return math.exp(_log_delta(noise, epsilon, _checks.positive('shift', shift)))


def epsilon(noise: SinhNormal, delta: float, *, shift: float = 1.0) -> float:  # pylint: disable=redefined-outer-name
  """Returns epsilon of one release at `delta`, to rounding on either side.

  Returns 0 if already epsilon 0 has a delta of at most `delta`, and inf for shifts of
  more than 600 sigma. `shift` and errors are those of the function `delta`.
  """
  target = math.log(_checks.delta(delta))
  shift = _checks.positive('shift', shift)
  noise.check_accounted()
  if shift > _LARGEST_SHIFT * noise.sigma:
    return math.inf
  excess = lambda value: _log_delta(noise, value, shift) - target
  if excess(0.0) <= 0:
    return 0.0
  high = 1.0
  while excess(high) > 0:
    high *= 2
  return optimize.brentq(excess, 0.0, high, xtol=1e-14, rtol=1e-14)


def renyi_limit(noise: SinhNormal, *, shift: float = 1.0) -> float:
  """Returns the order below which Renyi divergences at `shift` > 0 are finite."""
  # The log density falls like -c e^(2 |z| / bend), so the moment converges as long as
  # order > (order - 1) e^(2 shift / bend).
  return -1 / math.expm1(-2 * _checks.positive('shift', shift) / noise.bend)


def renyi_divergence(noise: SinhNormal, order: float, *, shift: float = 1.0) -> float:
  """Returns the Renyi divergence D_order of the noise from its shift, by quadrature.

  Returns inf for orders from `renyi_limit` on, and for shifts of more than 600 sigma.
  Raises ValueError for orders of at most 1. If the noise is not log-concave, smaller
  shifts may cost more.
  """
  order = _checks.real('order', order)
  shift = _checks.positive('shift', shift)
  if order <= 1:
    raise ValueError(f'Expected order > 1, got order={order!r}.')
  if (order >= renyi_limit(noise, shift=shift) or
      shift > _LARGEST_SHIFT * noise.sigma):
    return math.inf
  return _renyi_divergence(noise, order, shift)


@functools.lru_cache(maxsize=4096)
def _renyi_divergence(noise: SinhNormal, order: float, shift: float) -> float:
  """Returns D_order by quadrature, for `order` above one and below `renyi_limit`."""
  log_term = lambda x: (order * noise.log_density_at(x) -
                        (order - 1) * noise.log_density_at(x - shift))
  low, high = _support(log_term, noise, shift)
  x = np.linspace(low, high, _NODES)
  value = log_term(x)
  peak = np.max(value)
  log_moment = peak + math.log(np.sum(np.exp(value - peak)) * (x[1] - x[0]))
  return max(log_moment / (order - 1), 0.0)  # Rounding may leave less than zero.


def _support(log_term: Callable[[np.ndarray], np.ndarray], noise: SinhNormal,
             shift: float) -> tuple[float, float]:
  """Returns an interval outside which exp(log_term) is below e^-80 of its peak."""
  unit = min(noise.sigma, noise.bend)
  # The integrand falls doubly exponentially: its span in units of the bend is a
  # logarithm, unless the bend is far out and the noise is nearly normal.
  reach = noise.bend * np.arcsinh(40 * noise.sigma / noise.bend) + shift
  while True:
    x = np.linspace(-reach - shift, reach + shift, _SEARCH_NODES)
    value = log_term(x)
    value = np.where(np.isnan(value), -np.inf, value)
    kept = np.flatnonzero(value > np.max(value) - 80)
    if 0 < kept[0] and kept[-1] < x.size - 1:
      return x[kept[0] - 1], x[kept[-1] + 1]
    reach += 10 * unit + 0.5 * reach


def loss(noise: SinhNormal, y: np.ndarray, shift: float) -> np.ndarray:
  """Returns the privacy loss log f(x - shift) / f(x) at x = y + shift / 2; odd in y."""
  # log f(z) is log cosh(z / a) - (a / sigma)^2 sinh(z / a)^2 / 2 plus a constant.
  a = noise.bend
  half = 0.5 * shift / a
  with np.errstate(over='ignore'):
    steep = 0.5 * (a / noise.sigma)**2 * math.sinh(2 * half) * np.sinh(2 * y / a)
  u = np.abs(y) / a
  drop = (np.logaddexp(u - half, half - u) - np.logaddexp(u + half, -u - half))
  return steep + np.sign(y) * drop


def _threshold(noise: SinhNormal, epsilon: float, shift: float) -> float:  # pylint: disable=redefined-outer-name
  """Returns the y at which the loss is epsilon >= 0."""
  a = noise.bend
  scale = (a / noise.sigma)**2 * math.sinh(shift / a) / 2
  # The log cosh terms lower the loss by at most shift / a.
  low = 0.5 * a * math.asinh(epsilon / scale)
  high = 0.5 * a * math.asinh((epsilon + shift / a) / scale)
  excess = lambda y: float(loss(noise, np.asarray(y), shift)) - epsilon
  if low == high or excess(low) >= 0:
    return low
  high = high * (1 + 1e-12) + 1e-300
  while excess(high) < 0:
    high *= 1 + 1e-6
  return optimize.brentq(excess, low, high, xtol=1e-300, rtol=1e-15)


def _log_delta(noise: SinhNormal, epsilon: float, shift: float) -> float:  # pylint: disable=redefined-outer-name
  """Returns log delta(epsilon), epsilon >= 0; -inf if delta is zero to rounding."""
  if shift > _LARGEST_SHIFT * noise.sigma:
    return 0.0
  # `near` and `far` are the logs of the P- and Q-mass of losses above epsilon.
  t = _threshold(noise, epsilon, shift)
  steep = noise.bend / noise.sigma
  with np.errstate(over='ignore'):
    near = special.log_ndtr(-steep * np.sinh((t - 0.5 * shift) / noise.bend))
    far = special.log_ndtr(-steep * np.sinh((t + 0.5 * shift) / noise.bend))
  if near == -np.inf or far + epsilon >= near:
    return -math.inf
  return float(near + math.log(-math.expm1(far + epsilon - near)))


def _with_tail(pair: pair_lib.DominatingPair, p: float, q: float
               ) -> pair_lib.DominatingPair:
  """Returns a lower pair plus a tail of masses p and q as one atom."""
  # Merging outcomes lowers the profile. An atom with p <= q would gain nothing.
  p, q = ((1 - _TAIL_ROUNDOFF) * mass for mass in (p, max(q, 1e-300)))
  if p <= q:
    return pair
  return pair_lib.DominatingPair(
      np.append(pair.loss, math.log(p) - math.log(q)), np.append(pair.p, p),
      np.append(pair.q, q), pair.p_inf, pair.q_inf)


@dataclasses.dataclass(frozen=True, eq=False)
class _SinhNormalPair(pair_lib.DominatingPair):
  """Dominating pair with Renyi moments to rounding; the far tail counts as failure."""

  noise: SinhNormal = None  # type: ignore[assignment]  # After fields with defaults.
  shift: int = 1

  def renyi_divergence(self, order: float, *, finite: bool = False) -> float:
    """Returns D_order of the noise; of the finite atoms if `finite` or order < 1.

    The integral for the noise is for orders above 1. Order 1 raises ValueError.
    """
    if finite or order < 1:
      return super().renyi_divergence(order, finite=True)
    return renyi_divergence(self.noise, order, shift=self.shift)

  def reversed(self) -> pair_lib.DominatingPair:
    return _SinhNormalPair(
        **vars(super().reversed()), noise=self.noise, shift=self.shift)
