"""Calculus (no accountant) of truncated concentrated differential privacy (tCDP).

Theorem 11 of the paper does not hold as printed: `printed_theorem_11` labels it.

Source: Bun, Dwork, Rothblum and Steinke, "Composable and Versatile Privacy via
Truncated CDP" (STOC 2018), called "the paper" below.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math
from typing import Callable

import numpy as np
from scipy import optimize

from tfcactus import _checks, _format, _numerics

MOST = 2**64
"""Largest number of records or releases, which is a float64."""

LEAST_RHO = 1e-300
"""Least positive rho that is computed here; a smaller one might vanish by underflow."""

UNPROVEN = (
    'NOT a privacy guarantee: Theorem 11 as printed does not follow from '
    'Theorem 12, whose condition (5) fails at the parameters that it chooses.')

PROVEN = 'Holds: condition (5) of Theorem 12 is satisfied; subsample gives more.'


@dataclasses.dataclass(frozen=True)
class TCDP:
  """(rho, omega)-tCDP: Renyi divergences D_order <= rho order for orders in (1, omega).

  Attributes:
    rho: At least zero; as in zero-concentrated differential privacy.
    omega: Above one; infinity for zCDP.

  Source: Definition 1 of the paper.
  """

  rho: float
  omega: float = math.inf

  def __post_init__(self) -> None:
    object.__setattr__(self, 'rho', _checks.non_negative('rho', self.rho))
    object.__setattr__(self, 'omega', check_omega(self.omega))

  @classmethod
  def from_pure_dp(cls, epsilon: float) -> TCDP:
    """Returns the guarantee that epsilon-DP implies (section 2.3)."""
    return cls(_of_square(0.5, epsilon))

  @classmethod
  def from_bounded_range(cls, epsilon: float) -> TCDP:
    """Returns the guarantee of losses in some interval of length `epsilon`.

    The exponential mechanism has such losses. rho is a fourth of that of epsilon-DP.

    Source: Cesar and Rogers, "Bounding, Concentrating, and Truncating" (ALT 2021).
    """
    # log E_Q (P/Q)^a is zero at a = 0 and 1, and its second derivative is the variance
    # of a variable in the interval, at most epsilon^2 / 4.
    return cls(_of_square(0.125, epsilon))

  @classmethod
  def from_zcdp(cls, rho: float) -> TCDP:
    """Returns the guarantee of rho-zCDP; Gaussian: rho = 1 / (2 noise_multiplier^2)."""
    return cls(rho)

  @classmethod
  def from_renyi(cls, orders: Sequence[float], divergences: Sequence[float],
                 omega: float | None = None) -> TCDP:
    """Returns the guarantee that Renyi divergences imply, its rho near the least.

    It also holds between the `orders`, which increase from above one. `divergences` are
    upper bounds at those orders. `omega` is at most the last order, which is taken for
    None. Raises ValueError for other arguments.
    """
    order, divergence = check_curve(orders, divergences)
    omega = order[-1] if omega is None else check_omega(omega)
    if omega > order[-1]:
      raise ValueError(f'Expected omega <= {order[-1]:.6g}, the largest order given, '
                       f'got omega={omega!r}.')
    last = int(np.searchsorted(order, omega))
    return cls(float(running_rho(order, divergence)[last]), omega)

  def compose(self, *others: TCDP) -> TCDP:
    """Returns the guarantee of this release and `others` together (Lemma 2)."""
    parts = (self, *map(check_guarantee, others))
    try:
      rho = math.fsum(part.rho for part in parts)
    except OverflowError:
      rho = math.inf
    return TCDP(rho, min(part.omega for part in parts))

  def self_compose(self, count: int) -> TCDP:
    """Returns the guarantee of `count` releases that each have this guarantee."""
    return TCDP(_checks.integer('count', count, 1, MOST) * self.rho, self.omega)

  def epsilon(self, delta: float) -> float:
    """Returns the epsilon that holds at `delta` (Lemma 6, for delta in (0, 1))."""
    log_inverse = -math.log(_checks.delta(delta))
    if self.rho == 0:
      return 0.0
    if math.sqrt(log_inverse / self.rho) <= self.omega - 1:
      return self.rho + 2 * math.sqrt(self.rho * log_inverse)
    return self.rho * self.omega + log_inverse / (self.omega - 1)

  def delta(self, epsilon: float) -> float:
    """Returns the delta that holds at `epsilon`: the inverse of Lemma 6 (Lemma 8)."""
    epsilon = _checks.non_negative('epsilon', epsilon)
    if self.rho == 0:
      return 0.0
    if epsilon <= self.rho:
      return 1.0
    order = min((epsilon + self.rho) / (2 * self.rho), self.omega)
    exponent = (order - 1) * (self.rho * order - epsilon)
    return max(math.exp(min(exponent, 0.0)), _numerics.LEAST)

  def group(self, size: int) -> TCDP:
    """Returns the guarantee for `size` records, fewer than omega; else ValueError."""
    size = _checks.integer('size', size, 1, MOST)
    if self.omega / size <= 1:
      raise ValueError(
          f'Expected size < omega={self.omega!r}, got size={size}; use '
          'large_group(size), which holds for any size.')
    return TCDP(self.rho * size**2, self.omega / size)

  def large_group(self, size: int) -> LargeGroup:
    """Returns the guarantee for groups of any size."""
    return LargeGroup(self, _checks.integer('size', size, 1, MOST))

  def group_epsilon(self, size: int, delta: float) -> float:
    """Returns the lesser epsilon of `large_group` and `group`, for groups of `size`."""
    of_any_size = self.large_group(size).epsilon(delta)
    return of_any_size if self.omega / size <= 1 else min(
        of_any_size, self.group(size).epsilon(delta))

  def subsample(self, sampling_prob: float) -> TCDP:
    """Returns the guarantee on a random sample of the records (Theorem 12).

    Holds for uniformly random subsets of a fixed size and replaced records, and for
    Poisson sampling and added or removed records: each gives the theorem's mixtures.

    With a share s = `sampling_prob` of the records in the sample, it is (13 s^2 rho,
    omega' / 2) for the largest omega' <= omega that condition (5) allows; for s = 1 it
    is the original guarantee. Raises ValueError if rho is not in (0, 0.1], or no omega'
    satisfies condition (5).
    """
    s = _checks.sampling_prob(sampling_prob)
    if s == 1:
      return self
    if not 0 < self.rho <= 0.1:
      raise ValueError(
          'Expected 0 < rho <= 0.1, as Theorem 12 asks, got '
          f'rho={self.rho!r}; account the mechanism exactly with PhiAccountant.')
    largest = _largest_order(self.rho, s, self.omega)
    if largest is None or not condition_5(self.rho, s, largest):
      raise ValueError(
          "Expected condition (5) of Theorem 12 to hold for some omega' in (2, "
          f'omega={_format.lower(self.omega)}], but it does at none for '
          f'rho={self.rho!r} and sampling_prob={s!r}; account the mechanism '
          'exactly with PhiAccountant.')
    return TCDP(max(13 * s * s * self.rho, LEAST_RHO), largest / 2)

  def printed_theorem_11(self, sampling_prob: float) -> PrintedClaim:
    """Returns the claim of Theorem 11 as printed, labelled as proved or not.

    The claim follows from Theorem 12 only at very small sampling probabilities, where
    `subsample` gives more. Raises ValueError if the printed hypotheses fail.
    """
    s = _checks.sampling_prob(sampling_prob)
    needed = -math.log(s) / (2 * self.rho) if self.rho else math.inf
    if not (0 < self.rho <= 0.1 and s <= 0.1 and self.omega >= needed >= 3 and
            -math.log(s) >= 3 * self.rho * (2 - math.log2(self.rho))):
      raise ValueError(
          'Expected rho and sampling_prob in (0, 0.1], log(1/s) >= 3 rho (2 + '
          'log2(1/rho)) and omega >= log(1/s) / (2 rho) >= 3, as Theorem 11 '
          f'prints, got {self} and sampling_prob={s!r}.')
    proven = condition_5(self.rho, s, needed)
    return PrintedClaim(TCDP(13 * s * s * self.rho, needed / 2), proven,
                        PROVEN if proven else UNPROVEN)

  def __str__(self) -> str:
    return f'({_format.upper(self.rho)}, {_format.lower(self.omega)})-tCDP'


@dataclasses.dataclass(frozen=True)
class PrintedClaim:
  """A claim as printed, whether it is proved at its parameters, and the reason."""

  claim: TCDP
  proven: bool
  statement: str

  def __str__(self) -> str:
    return f'{self.claim}: {self.statement}'


@dataclasses.dataclass(frozen=True)
class LargeGroup:
  """The guarantee for a group of any size that a guarantee for one record implies.

  Source: Propositions 9 and 10 of the paper; `epsilon` is Proposition 10 without the
  loss of its last step.
  """

  single: TCDP  # The guarantee for one record.
  size: int  # Number of records in the group.

  @property
  def _growth(self) -> float:
    """(omega / (omega - 1))^size - 1 for the single record's omega; inf on overflow."""
    try:
      return math.expm1(self.size * math.log1p(1 / (self.single.omega - 1)))
    except OverflowError:
      return math.inf

  @property
  def order(self) -> float:
    """The order at which the divergence is bounded; slightly above one."""
    return 1 + (1 / self._growth if self._growth else math.inf)

  @property
  def divergence(self) -> float:
    """Upper bound on the Renyi divergence at `order`; ValueError if omega is inf."""
    omega, rho = self.single.omega, self.single.rho
    if math.isinf(omega):
      raise ValueError('Expected a finite omega, got omega=inf, where group(size) '
                       'holds for any size; use that.')
    return self._growth * (omega - 1) * (omega * rho) if rho else 0.0

  def epsilon(self, delta: float) -> float:
    """Returns the epsilon that holds for the group at `delta`; inf if omega is inf."""
    log_inverse = -math.log(_checks.delta(delta))
    if math.isinf(self.single.omega):
      return math.inf
    return self.divergence + self._growth * log_inverse if self.single.rho else 0.0

  def printed_epsilon(self, delta: float) -> float:
    """Returns epsilon by Proposition 10 as printed, at least `epsilon`; or inf."""
    log_inverse = -math.log(_checks.delta(delta))
    omega, exponent = self.single.omega, self.size / (self.single.omega - 1)
    if math.isinf(omega) or exponent > 700:
      return math.inf
    return math.exp(exponent) * (omega * omega * self.single.rho + log_inverse)


def _of_square(factor: float, epsilon: float) -> float:
  """Returns the rho factor epsilon^2; ValueError unless epsilon >= 0."""
  epsilon = _checks.non_negative('epsilon', epsilon)
  return max(factor * epsilon * epsilon, LEAST_RHO) if epsilon else 0.0


def condition_5(rho: float, sampling_prob: float, order: float) -> bool:
  """Returns whether condition (5) of Theorem 12 holds at omega' = `order`, above 2."""
  if order <= 2:
    return False
  log_inverse = -math.log((order - 2) * sampling_prob)
  low = 2 - math.log2(rho) + log_inverse / math.log(2)
  return low <= order <= log_inverse / rho


def _largest_order(rho: float, s: float, omega: float) -> float | None:
  """Returns the largest omega' in (2, omega] up to condition (5)'s limit, or None."""
  # The limit is order rho + log((order - 2) s) <= 0. It increases from -inf at order 2.
  excess = lambda order: order * rho + math.log((order - 2) * s)
  low, high = 2 + 1e-12, 2 + 2 / s
  if omega <= low or excess(low) > 0:
    return None
  # Moved below the root by more than the search is off.
  top = optimize.brentq(excess, low, high, xtol=1e-12) * (1 - 1e-12)
  return min(top, omega)


def certificate(divergence: Callable[[float], float], omega: float, *,
                orders: int = 2000) -> TCDP:
  """Returns (rho, omega)-tCDP with an upper bound on the least rho.

  `divergence` maps an order to the Renyi divergence. It is evaluated at `orders` of
  them; chords bound it between. Raises ValueError if omega or a divergence is infinite.
  """
  omega = check_omega(omega)
  if math.isinf(omega):
    raise ValueError('Expected a finite omega, got omega=inf: divergences at all '
                     'orders cannot be looked at one by one.')
  grid = 1 + np.geomspace(min(1e-6, 1e-3 * (omega - 1)), omega - 1, orders)
  rho = running_rho(grid, np.array([divergence(order) for order in grid]))[-1]
  if not math.isfinite(rho):
    raise ValueError(f'Expected finite Renyi divergences up to omega={omega!r}, got '
                     'infinite ones; lower omega.')
  return TCDP(float(rho), omega)


def check_guarantee(value: object) -> TCDP:
  """Returns `value`; ValueError unless it is a TCDP."""
  return _checks.instance('guarantee', value, TCDP, 'use TCDP(rho, omega)')


def check_omega(value: object) -> float:
  """Returns omega; ValueError unless it is above one or infinity."""
  if isinstance(value, (float, np.floating)) and value == math.inf:
    return math.inf
  value = _checks.real('omega', value)
  if value <= 1:
    raise ValueError(f'Expected omega > 1, got omega={value!r}.')
  return value


def check_curve(orders: Sequence[float], divergences: Sequence[float]
                ) -> tuple[np.ndarray, np.ndarray]:
  """Returns arrays (n,); ValueError unless orders > 1 increase and divergences >= 0."""
  order = _checks.vector('orders', orders)
  divergence = _checks.vector('divergences', divergences)
  if order.shape != divergence.shape:
    raise ValueError('Expected as many divergences as orders, got '
                     f'{divergence.size} and {order.size}.')
  if np.any(order <= 1) or np.any(np.diff(order) <= 0):
    raise ValueError('Expected orders above one and increasing.')
  if np.any(divergence < 0):
    raise ValueError(f'Expected divergences >= 0, got {np.min(divergence)!r}.')
  return order, divergence


def running_rho(orders: np.ndarray, divergences: np.ndarray) -> np.ndarray:
  """Returns upper bounds on sup of D_a / a over a in (1, orders[i]), for each i."""
  # (a - 1) D_a is convex in the order a and zero at order one. Between two orders it
  # therefore lies below its chord.
  a, b = orders[:-1], orders[1:]
  with np.errstate(invalid='ignore', over='ignore', divide='ignore'):
    k = (orders - 1) * divergences
    m = np.diff(k) / np.diff(orders)
    c = k[:-1] - m * a
    # D_x / x <= (m x + c) / (x (x - 1)): largest at a stationary point or an end.
    root = np.sqrt(np.maximum(c * c + m * c, 0.0))
    points = [np.clip((-c + sign * root) / m, a, b) for sign in (-1, 1)]
    best = np.maximum(divergences[:-1] / a, divergences[1:] / b)
    for x in points:
      x = np.where(np.isfinite(x), x, a)
      best = np.fmax(best, (m * x + c) / (x * (x - 1)))
  best = np.where(np.isinf(k[1:]), np.inf, best)
  # D increases with the order, and D / a < D.
  return np.maximum.accumulate(np.append(divergences[0], best))
