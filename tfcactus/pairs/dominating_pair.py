"""Dominating pairs of discrete distributions, and operations that keep dominance.

A pair (P, Q) dominates a mechanism if its privacy profile H(alpha) = sup_A P(A) - alpha
Q(A) is, for every alpha >= 0, at least that of the mechanism on any two neighbouring
inputs. Docstrings say whether an operation keeps, raises or lowers the profile.

Source: Zhu, Dong and Wang, "Optimal Accounting of Differential Privacy via
Characteristic Function" (AISTATS 2022), called "the paper" below.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from tfcactus import _checks, _numerics

MASS_TOLERANCE = 1e-12
"""Largest difference from one of the sum of P's masses, or of Q's: long sums round."""

MASS_ROUNDOFF = 1e-13
"""Bound on the relative error of a computed mass: 1e-14 for a cell of normal laws
(`cells.NORMAL_ROUNDOFF`), and as much for its log and for the exponential of loss times
order, whose exponents are within a few hundred where masses count. `cells.from_cells`
makes room for masses with larger errors."""

LOSS_ROUNDOFF = 1e-12
"""Bound on the error of a log ratio of two computed masses."""

LARGEST_LOSS = 700.0
"""Larger losses count as infinite: their Q-mass is below 1e-304, hardly a float. Losses
below -LARGEST_LOSS, with such a P-mass, count as minus infinity."""

LEAST_MASS = 1e-290
"""Bounds from cells (`cell_bounds`) keep no atoms with a smaller P- or Q-mass, since
products may underflow: the upper pair has their mass at infinite losses, the lower pair
merges them."""


@dataclasses.dataclass(frozen=True, eq=False)
class DominatingPair:
  """Two distributions P and Q on common atoms.

  Attributes:
    loss: Shape (atoms,), privacy loss log(p / q) of each atom.
    p: Shape (atoms,), P-masses; non-negative.
    q: Shape (atoms,), Q-masses; non-negative.
    p_inf: P-mass where Q has none: the loss is +infinity.
    q_inf: Q-mass where P has none. It adds nothing to the profile of (P, Q), but
      counts once the pair is reversed or subsampled.
  """

  loss: np.ndarray
  p: np.ndarray
  q: np.ndarray
  p_inf: float = 0.0
  q_inf: float = 0.0

  @classmethod
  def from_masses(cls, p: npt.ArrayLike, q: npt.ArrayLike) -> DominatingPair:
    """Returns the pair of two discrete distributions on the same outcomes.

    Args:
      p: Shape (outcomes,), probabilities under P; zeros allowed.
      q: Shape (outcomes,), probabilities under Q.

    Raises:
      ValueError: unless both are probability vectors, of one length.
    """
    p, q = _checks.vector('p', p), _checks.vector('q', q)
    if p.shape != q.shape:
      raise ValueError(
          f'Expected p and q of the same shape, got {p.shape} and {q.shape}.')
    for name, mass in (('p', p), ('q', q)):
      if np.any(mass < 0):
        raise ValueError(
            f'Expected non-negative probabilities in {name}, got {np.min(mass)!r}.')
      if abs(np.sum(mass) - 1) > MASS_TOLERANCE:
        raise ValueError(
            f'Expected {name} to sum to 1 within {MASS_TOLERANCE:g}, got '
            f'{float(np.sum(mass))!r}; divide it by its sum.')
    # Over a billion steps a deficit of `MASS_TOLERANCE` grows to a thousandth of all.
    p, q = p / math.fsum(p), q / math.fsum(q)
    both = (p > 0) & (q > 0)
    return cls(
        np.log(p[both]) - np.log(q[both]), p[both], q[both],
        float(np.sum(p[q == 0])), float(np.sum(q[p == 0])))

  def check(self, less: float = MASS_ROUNDOFF, more: float = MASS_ROUNDOFF) -> None:
    """Checks that a pair given by hand consists of two distributions.

    Pairs derived from others here are not checked again.

    Args:
      less: The sums of P and of Q may miss one by this much.
      more: The sums of P and of Q may exceed one by this much.

    Raises:
      ValueError: if an array is not float64 of shape (atoms,), a loss is not finite,
        masses are negative or do not sum to one, an atom has mass under one of P and Q
        only, or the loss of an atom with mass is not log(p / q).
    """
    arrays = {'loss': self.loss, 'p': self.p, 'q': self.q}
    for name, array in arrays.items():
      if not isinstance(array, np.ndarray) or array.ndim != 1 or (
          array.dtype != np.float64 or array.size != np.size(self.p)):
        raise ValueError(
            f'Expected {name} of the pair to be a float64 array of one shape '
            f'(atoms,), got {array!r}; use DominatingPair.from_masses(p, q).')
    if not np.all(np.isfinite(self.loss)):
      raise ValueError(
          'Expected finite losses in the pair, also of atoms without mass, got '
          f'{self.loss!r}; mass of infinite losses is p_inf or q_inf.')
    for name, mass, rest in (('p', self.p, self.p_inf), ('q', self.q, self.q_inf)):
      _check_masses(name, mass, rest, less, more)
    lone = (self.p > 0) != (self.q > 0)
    if np.any(lone):
      raise ValueError(
          f'Expected no atom with mass in one of p and q only, got '
          f'{np.sum(lone)}; such mass is p_inf or q_inf.')
    real = self.p > 0
    loss = np.log(self.p[real]) - np.log(self.q[real])
    off = np.abs(loss - self.loss[real])
    # The other half is for the logarithms. Subnormal masses are rounded absolutely.
    room = 0.5 * LOSS_ROUNDOFF + 2.0**-1073 / np.minimum(self.p, self.q)[real]
    if not np.all(off <= room):
      raise ValueError(
          'Expected each loss of the pair to be log(p / q), got some that are off by '
          f'{np.max(off):.3g}; use DominatingPair.from_masses(p, q).')

  @classmethod
  def from_symmetric_profile(cls, alpha: np.ndarray, value: np.ndarray
                             ) -> DominatingPair:
    """Returns the symmetric pair whose profile is the lower convex hull of points.

    The reverse of the pair has the same profile, as for any symmetric noise. The first
    value is lowered where the others and symmetry show that it is too large. If the
    values are upper bounds on the profile of a symmetric mechanism, the pair dominates
    the mechanism: chords lie above a convex function.

    Args:
      alpha: Shape (points,), increasing from one; symmetry gives the profile below one.
      value: Shape (points,), H(alpha); the last holds for all larger alpha.

    Source: Lemma 9 and Corollary 25 of the paper.
    """
    # From alpha = 1 on, a symmetric profile falls by at most (1 - H(1)) / 2 per unit of
    # alpha, since Q-mass at positive losses equals P-mass at negative ones. So the
    # other values bound H(1).
    reach = 0.5 * (alpha - 1)
    value = np.append(min(value[0], np.min((value + reach) / (1 + reach))), value[1:])
    keep = lower_hull(alpha, value)
    alpha, value = alpha[keep], np.minimum.accumulate(value[keep])
    slope = np.append(np.diff(value) / np.diff(alpha), 0.0)
    jump = np.diff(slope)
    return cls.symmetric(np.log(alpha[1:]), alpha[1:] * jump, jump, float(value[-1]))

  @classmethod
  def symmetric(cls, loss: np.ndarray, p: np.ndarray, q: np.ndarray,
                p_inf: float) -> DominatingPair:
    """Returns the pair that equals its own reverse, with given masses at losses > 0."""
    # Atoms at other losses or without Q-mass are left out. Mass left over has loss 0.
    real = (q > 0) & (loss > 0)
    loss, p, q = loss[real], p[real], q[real]
    rest = max(1 - p_inf - float(np.sum(p) + np.sum(q)), 0.0)
    return cls(
        np.concatenate([-loss[::-1], [0.0], loss]),
        np.concatenate([q[::-1], [rest], p]),
        np.concatenate([p[::-1], [rest], q]), p_inf, p_inf)

  def reversed(self) -> DominatingPair:
    """Returns the pair (Q, P)."""
    return DominatingPair(-self.loss, self.q, self.p, self.q_inf, self.p_inf)

  def hockey_stick(self, epsilon: float) -> float:
    """Returns the hockey-stick divergence sup_A P(A) - e^epsilon Q(A).

    Raises ValueError unless `epsilon` is a number, which may be negative or infinite.
    """
    if epsilon not in (-np.inf, np.inf):
      epsilon = _checks.real('epsilon', epsilon)
    above = self.loss > epsilon
    gain = -np.expm1(epsilon - self.loss[above])
    return float(np.sum(self.p[above] * gain) + self.p_inf)

  def log_phi(self, t: np.ndarray) -> np.ndarray:
    """Returns complex log E_P[exp(i t loss)], finite losses only, at real `t`, (n,)."""
    t = np.asarray(t, dtype=np.float64)
    return np.log(np.exp(1j * np.multiply.outer(t, self.loss)) @ self.p)

  def renyi_divergence(self, order: float, *, finite: bool = False) -> float:
    """Returns D_order(P || Q); inf without finite losses, or if `p_inf` and order > 1.

    Args:
      order: Positive, other than one.
      finite: Leave the P-mass of infinite losses out; the rest of P is not normalised
        again.

    Raises:
      ValueError: if the order is not positive, or is one.
    """
    order = _checks.positive('order', order)
    if order == 1:
      raise ValueError('Expected an order other than 1, got order=1.0; take one '
                       'slightly above.')
    if self.p_inf > 0 and order > 1 and not finite or not np.any(self.p > 0):
      return float('inf')
    exponent = (order - 1) * self.loss + _numerics.log_mass(self.p)
    return float(_numerics.log_sum(exponent)) / (order - 1)

  def poisson(self, sampling_prob: float) -> tuple[DominatingPair, DominatingPair]:
    """Returns the pairs of a mechanism on a Poisson sample of the records.

    This pair has to dominate the mechanism on all records when a record is added: P is
    the law without the record, Q the law with it.

    Args:
      sampling_prob: Probability, in (0, 1], with which each record is drawn.

    Returns:
      (add, remove): pairs that dominate the subsampled mechanism when a record is added
      and when one is removed.

    Source: part 1 of the amplification theorem, section 4.1 of the paper.
    """
    s = _checks.sampling_prob(sampling_prob)
    if s == 1:
      return self, self.reversed()
    # Outcomes with mass under P only get a finite loss: a sample may lack the record.
    loss, p, q = self.loss, self.p, self.q
    mixed = (1 - s) * p + s * q
    change = _numerics.log_mixture(s, -loss)
    if self.p_inf > 0:
      change = np.append(change, np.log1p(-s))
      p = np.append(p, self.p_inf)
      mixed = np.append(mixed, (1 - s) * self.p_inf)
    add = DominatingPair(-change, p, mixed, 0.0, s * self.q_inf)
    return add, add.reversed()


def _check_masses(name: str, mass: np.ndarray, rest: float, less: float, more: float
                  ) -> None:
  """Raises ValueError unless `mass`, and `rest` of infinite loss, sum to about one."""
  rest = _checks.non_negative(f'{name}_inf', rest)
  with np.errstate(over='ignore', invalid='ignore'):
    total = float(np.sum(mass)) + rest
  positive = bool(np.all(mass >= 0))
  if positive and total < 2:  # `fsum` refuses sums beyond the largest float.
    total = math.fsum([*mass, rest])
  if not positive or not -less <= total - 1 <= more:
    raise ValueError(
        f'Expected {name} and {name}_inf of the pair to be non-negative and '
        f'to sum to 1 within -{less:g} and +{more:g}, got a sum of {total!r} and '
        f'a least mass of {np.min(mass, initial=0.0)!r}.')


@dataclasses.dataclass(frozen=True)
class PairBounds:
  """Bounds on a mechanism: it dominates the pair `lower`, and `upper` dominates it.

  If the mechanism's pair is known exactly, both are one object.
  """

  lower: DominatingPair
  upper: DominatingPair

  @classmethod
  def exact(cls, pair: DominatingPair) -> PairBounds:
    """Returns bounds of which both are `pair`."""
    return cls(pair, pair)

  def reversed(self) -> PairBounds:
    """Returns bounds on the reversed mechanism."""
    if self.lower is self.upper:
      return PairBounds.exact(self.upper.reversed())
    return PairBounds(self.lower.reversed(), self.upper.reversed())

  def poisson(self, sampling_prob: float) -> tuple[PairBounds, PairBounds]:
    """Returns (add, remove) bounds after Poisson subsampling, which keeps dominance."""
    add, remove = self.upper.poisson(sampling_prob)
    low_add, low_remove = (add, remove) if self.lower is self.upper else (
        self.lower.poisson(sampling_prob))
    return PairBounds(low_add, add), PairBounds(low_remove, remove)


def rounded_to_grid(pair: DominatingPair, width: float, floor: float = -np.inf
                    ) -> tuple[int, np.ndarray, np.ndarray]:
  """Returns a pair with a lower profile: each atom gets a random label on a grid.

  A label is an integer; the mean of label times `width` is the loss, or `floor` for
  smaller losses. Given the atom, the label is drawn alike under P and Q, so that labels
  are post-processing. Returns (first, p, q): the least label, and the P- and Q-masses
  of the labels first, first + 1, ...; `p_inf` and `q_inf` are left out.
  """
  scaled = np.maximum(pair.loss, floor) / width
  cell = np.floor(scaled).astype(np.int64)
  return _on_grid(cell, scaled - cell, pair.p, pair.q)


def _on_grid(cell: np.ndarray, share: np.ndarray, *masses: np.ndarray) -> tuple:
  """Returns the least cell, and arrays of masses: `share` of each moved one cell up."""
  first = int(cell.min())
  cell, size = cell - first, int(cell.max()) - first + 2
  return (first, *(np.bincount(cell, weights=mass * (1 - share), minlength=size) +
                   np.bincount(cell + 1, weights=mass * share, minlength=size)
                   for mass in masses))


def split_to_grid(pair: DominatingPair, width: float, floor: float = -np.inf
                  ) -> tuple[int, np.ndarray]:
  """Returns a pair with a higher profile: (first, p) on losses (first + j) * width.

  `p` has the P-masses of the finite losses; Q-masses are p e^-loss. Losses below
  `floor` are raised to `floor` first.
  """
  loss = np.maximum(pair.loss, floor)
  cell = np.floor(loss / width).astype(np.int64)
  low = cell * width
  # The share that moves up keeps P- and Q-mass; LOSS_ROUNDOFF only raises the share.
  share = -np.expm1(low - loss - LOSS_ROUNDOFF) / -np.expm1(-width)
  return _on_grid(cell, np.clip(share, 0.0, 1.0), pair.p)


def lower_hull(x: np.ndarray, y: np.ndarray) -> np.ndarray:
  """Returns indices of the lower convex hull of points with increasing x."""
  hull: list[int] = []
  for i in range(x.size):
    while len(hull) >= 2:
      a, b = hull[-2], hull[-1]
      if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
        break
      hull.pop()
    hull.append(i)
  return np.array(hull)
