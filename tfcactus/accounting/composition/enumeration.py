"""Enumeration of all outcomes of a composition of few discrete releases.

Releases of the same pair are exchangeable: an outcome is determined by the number of
times each atom occurred. Losses and masses of outcomes are known to rounding, and delta
is a sum over outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math

import numpy as np
from scipy import special

from tfcactus import _numerics
from tfcactus.accounting.bounds import Bounds, first_end, IntractableError
from tfcactus.accounting.composition import infinite_mass
from tfcactus.pairs import dominating_pair as pair_lib

MAX_OUTCOMES = 4_000_000
"""Compositions with more outcomes are not enumerated."""

OPERATIONS = 64
"""Bound on the operations behind the loss or the log mass of an outcome, each with an
error of EPS / 2 of the largest intermediate. Within MAX_OUTCOMES a pair has at most
twelve releases or at most twelve atoms, since C(25, 12) > 4e6. Each release, or each
atom, takes one product and two sums. Several pairs have fewer each, because their
outcome counts multiply."""

UNDERFLOW = 1e-300
"""Bound on the error of a sum of P-masses, each within 1e-307 of its outcome's: smaller
ones have few digits, or vanish."""


@dataclasses.dataclass(frozen=True, eq=False)
class Outcomes:
  """Outcomes of a composition with finite loss."""

  loss: np.ndarray  # Shape (outcomes,), increasing.
  p: np.ndarray  # Shape (outcomes,), P-masses.
  steps: int  # Number of releases.

  @classmethod
  def of(cls, groups: Sequence[tuple[pair_lib.DominatingPair, int]]) -> Outcomes:
    """Returns all outcomes of groups (pair, releases); IntractableError if too many."""
    if math.prod(math.comb(pair.p.size + count - 1, count) if count <= 10**6
                 else MAX_OUTCOMES + 1 for pair, count in groups) > MAX_OUTCOMES:
      raise IntractableError
    loss, log_p = np.zeros(1), np.zeros(1)
    for pair, count in groups:
      real = pair.p > 0
      build = _atom_by_atom if np.sum(real) < count else _draw_by_draw
      own_loss, own_log_p = build(pair.loss[real], np.log(pair.p[real]), count)
      loss = np.add.outer(loss, own_loss).ravel()
      log_p = np.add.outer(log_p, own_log_p).ravel()
    order = np.argsort(loss)
    return cls(loss[order], np.exp(log_p[order]), sum(n for _, n in groups))

  @property
  def _loss_error(self) -> float:
    """Bound on the absolute error of every outcome's loss."""
    top = float(np.max(np.abs(self.loss), initial=0.0))
    return self.steps * pair_lib.LOSS_ROUNDOFF + OPERATIONS * _numerics.EPS * top

  def delta(self, epsilon: float, sign: int) -> float:
    """Returns a bound on delta from finite losses: upper (`sign` 1) or lower (-1)."""
    epsilon -= sign * self._loss_error
    first = int(np.searchsorted(self.loss, epsilon, side='right'))
    room = UNDERFLOW if first < self.loss.size else 0.0
    gain = self.p[first:] * -np.expm1(epsilon - self.loss[first:])
    # The relative error of a mass is the absolute error of its logarithm.
    log_error = OPERATIONS * _numerics.EPS * (1 + self._log_size[first:])
    return float(np.sum(gain * (1 + sign * log_error))) * (
        1 + sign * self.steps * pair_lib.MASS_ROUNDOFF) + sign * room

  @functools.cached_property
  def _log_size(self) -> np.ndarray:
    """Bound on the moduli of all intermediates behind each outcome's log P-mass."""
    return np.abs(_numerics.log_mass(np.maximum(self.p, 1e-300))) + (
        2 * special.gammaln(self.steps + 1.0))

  @functools.cached_property
  def _suffix(self) -> tuple[np.ndarray, np.ndarray]:
    """P- and Q-masses from each outcome upwards, then zero; shapes (outcomes + 1,)."""
    # Q-masses are capped at losses below -600, where no epsilon is sought.
    q = self.p * np.exp(np.minimum(-self.loss, 600.0))
    p, q = (np.append(np.cumsum(mass[::-1])[::-1], 0.0) for mass in (self.p, q))
    return p, q

  def epsilon(self, delta: float, sign: int) -> float:
    """Returns a bound on epsilon from finite losses: upper (`sign` 1) or lower (-1)."""
    if self.delta(0.0, sign) <= delta:
      return 0.0
    p, q = self._suffix
    # delta at each outcome's loss, from the outcomes above it. It decreases.
    with np.errstate(over='ignore', invalid='ignore'):
      at_losses = p[1:] - np.exp(self.loss) * q[1:]
    index = int(np.searchsorted(-np.nan_to_num(at_losses), -delta))
    near = float(self.loss[min(index, self.loss.size - 1)])
    # At epsilons between the loss before and this one, delta is p - e^epsilon q.
    if q[index] > 0 and p[index] > delta:
      below = float(self.loss[index - 1]) if index else -math.inf
      near = min(max(math.log(p[index] - delta) - math.log(q[index]), below), near)
    try:
      return first_end(
          near, sign * (self._loss_error + 1e-15 * abs(near)),
          lambda x: sign * (delta - self.delta(x, sign)) >= 0)
    except IntractableError:  # The largest loss, and zero, are bounds.
      return max(float(self.loss[-1]) + self._loss_error, 0.0) if sign > 0 else 0.0


def _draw_by_draw(atom_loss: np.ndarray, atom_log_p: np.ndarray, count: int
                  ) -> tuple[np.ndarray, np.ndarray]:
  """Returns multisets' losses and log P-masses, built as sorted sequences of atoms."""
  # Of each sequence: the index of its last atom, and how often it ends with that atom.
  last, run = np.zeros((2, 1), np.int64)
  loss, log_p = np.zeros(1), np.full(1, math.lgamma(count + 1))
  for _ in range(count):
    # Each sequence, `source`, goes on with its last atom, or `step` atoms further.
    choices = atom_loss.size - last
    source = np.repeat(np.arange(last.size), choices)
    step = np.arange(source.size) - (np.cumsum(choices) - choices)[source]
    atom = last[source] + step
    # The mass counts all orders of the draws: divide by n! for a run of n equal atoms.
    run = np.where(step == 0, run[source], 0) + 1
    loss = loss[source] + atom_loss[atom]
    log_p = log_p[source] + atom_log_p[atom] - np.log(run)
    last = atom
  return loss, log_p


def _atom_by_atom(atom_loss: np.ndarray, atom_log_p: np.ndarray, count: int
                  ) -> tuple[np.ndarray, np.ndarray]:
  """Returns multisets' losses and log P-masses, built by each atom's occurrences."""
  left = np.full(1, count)  # Draws that are left for the atoms to come.
  loss, log_p = np.zeros(1), np.full(1, math.lgamma(count + 1))
  for index in range(atom_loss.size):
    if index == atom_loss.size - 1:  # The last atom takes all draws that are left.
      taken, source = left, np.arange(left.size)
    else:  # Each outcome so far, `source`, goes on with 0, 1, ..., `left` draws.
      source = np.repeat(np.arange(left.size), left + 1)
      taken = np.arange(source.size) - (np.cumsum(left + 1) - (left + 1))[source]
    loss = loss[source] + taken * atom_loss[index]
    log_p = log_p[source] + taken * atom_log_p[index] - special.gammaln(taken + 1.0)
    left = left[source] - taken
  return loss, log_p


@dataclasses.dataclass(frozen=True)
class Enumeration:
  """Enumerated outcomes of the compositions of the lower and of the upper pairs."""

  lower: Outcomes  # Outcomes of the lower pairs, which bound delta from below.
  upper: Outcomes  # Outcomes of the upper pairs, which bound delta from above.
  p_inf: infinite_mass.PInf

  @classmethod
  def of(cls, groups: Sequence[tuple[pair_lib.PairBounds, int]],
         p_inf: infinite_mass.PInf) -> Enumeration:
    """Returns the enumeration; IntractableError if there are too many outcomes."""
    upper = lower = Outcomes.of([(bounds.upper, count) for bounds, count in groups])
    if any(bounds.lower is not bounds.upper for bounds, _ in groups):
      lower = Outcomes.of([(bounds.lower, count) for bounds, count in groups])
    return cls(lower, upper, p_inf)

  def delta(self, epsilon: float) -> Bounds:
    """Returns bounds on delta at `epsilon` >= 0."""
    low, high = infinite_mass.beside(
        self.lower.delta(epsilon, -1), self.upper.delta(epsilon, 1), self.p_inf)
    return Bounds(low, 0.5 * (low + high), high)

  def epsilon(self, delta: float) -> Bounds:
    """Returns bounds on the least epsilon >= 0 at `delta`; inf below `p_inf[0]`."""
    p_low, p_high = self.p_inf
    if delta < p_low:
      return Bounds(math.inf, math.inf, math.inf)
    most, least = infinite_mass.without(delta, self.p_inf)
    low = self.lower.epsilon(most, -1)
    high = self.upper.epsilon(max(least, 0.0), 1) if delta >= p_high else math.inf
    high = max(low, high)
    return Bounds(low, 0.5 * (low + high), high)
