"""Bounds on a pair, from cells on which its loss is monotone.

The masses of cells and the losses at their ends are known up to bounded errors. `upper`
returns a pair that dominates the true one: errors raise its loss stochastically.
`lower` returns a pair that the true one dominates: errors bring the two masses of a
cell closer to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math

import numpy as np

from tfcactus._numerics import EPS
from tfcactus.pairs.dominating_pair import DominatingPair, LARGEST_LOSS, LEAST_MASS

SUM_ROUNDOFF = 1e-13
"""Bound on the rounding of a sum of masses."""

ONE_ROUNDOFF = 16 * EPS
"""Smaller contradictions of masses and losses are ignored: they may come from a tail
computed as one minus the other tail."""

WIDEST_ROOM = 1.0
"""Largest `room` of `_pivot`. Mass whose loss is less certain counts both above the
pivot and below it."""


@dataclasses.dataclass(frozen=True)
class Piece:
  """Cells between breaks, or a tail, in order of increasing loss."""

  # Shapes (cells + 1,), non-decreasing: low[i] is a lower bound on all losses from end
  # i of the cells on, high[i] an upper bound on all losses up to end i.
  low: np.ndarray
  high: np.ndarray
  p: Masses  # Masses of the cells under P.
  q: Masses  # Masses of the cells under Q.

  def reversed(self) -> Piece:
    """Returns these cells with P and Q exchanged."""
    return Piece(low=-self.high[::-1], high=-self.low[::-1], p=self.q.reversed(),
                 q=self.p.reversed())

  def contradiction(self) -> int | None:
    """Returns the index of a cell whose masses contradict its losses, or None."""
    # The P-mass of a cell is the integral of e^loss under Q over the cell. With exact
    # losses and masses it is at least e^low and at most e^high times the Q-mass.
    for side in (self, self.reversed()):
      (p, p_error), (q, q_error) = side.p.cell, side.q.cell
      ratio = np.exp(np.minimum(side.high[1:], LARGEST_LOSS))
      most = ratio * (q + q_error + LEAST_MASS) * (1 + 1e-12)
      bad = np.flatnonzero(
          (p - p_error - ONE_ROUNDOFF > most) & (side.high[1:] < LARGEST_LOSS))
      if bad.size:
        return int(bad[0] if side is self else p.size - 1 - bad[0])
    return None


@dataclasses.dataclass(frozen=True)
class Masses:
  """Masses of cells under one distribution, each with a bound on its error.

  Row 0 of each array holds masses, row 1 holds bounds on their absolute errors.
  """

  cell: np.ndarray  # Shape (2, cells): cell[0, i] is the mass of cell i.
  # Shape (2, cells + 1): above[0, i] is the mass of all cells above end i.
  above: np.ndarray
  # Shape (2, cells + 1): below[0, i] is the mass of all cells below end i.
  below: np.ndarray

  @classmethod
  def of(cls, tails: tuple[np.ndarray, np.ndarray], accuracy: float) -> Masses:
    """Returns masses between increasing or decreasing ends x, given their `tails`."""
    # The tails are P(X <= x) and P(X > x), with relative errors of at most `accuracy`.
    below, above = tails

    def between(first: slice, last: slice) -> np.ndarray:
      """Returns masses between ends `first` and `last` and their errors, (2, n)."""
      # Subtract the tails of the side on which both are small.
      near = below[first] + below[last] <= above[first] + above[last]
      mass = np.where(near, np.abs(below[last] - below[first]),
                      np.abs(above[first] - above[last]))
      size = np.where(near, below[first] + below[last], above[first] + above[last])
      return np.stack([mass, (accuracy + 2 * EPS) * size])

    every, end, start = slice(None), slice(-1, None), slice(0, 1)
    return cls(cell=between(slice(0, -1), slice(1, None)), above=between(every, end),
               below=between(start, every))

  def reversed(self) -> Masses:
    """Returns the masses in reverse cell order: `above` and `below` change places."""
    return Masses(cell=self.cell[:, ::-1], above=self.below[:, ::-1],
                  below=self.above[:, ::-1])


def upper(pieces: Sequence[Piece]) -> DominatingPair:
  """Returns a pair that dominates the pair whose cells are in `pieces`.

  H(alpha) is the integral over x > log alpha of alpha e^-x times the P-mass of losses
  above x. A pivot near the middle of the losses splits the proof:

  - Above the pivot, the P-mass of losses above each x is at least the true one. Hence
    so is H.
  - Below the pivot, the same holds with P and Q exchanged.
  - Within `room` of the pivot, losses may be on either side. The rest of both masses is
    at pivot - room and pivot + room (or at one loss beyond one of them), so that H is
    linear there, a chord of a convex function.
  """
  pivot, room = _pivot(pieces)
  top = _beyond(pieces, pivot + room)
  low = _beyond([piece.reversed() for piece in pieces], room - pivot)
  rest_p = 1 - float(np.sum(top.p) + np.sum(low.q)) - top.p_inf
  rest_q = 1 - float(np.sum(top.q) + np.sum(low.p)) - low.p_inf
  if rest_p >= 0 and rest_q >= 0:
    middle = _spread(rest_p, rest_q, pivot, room)
  else:
    # Distributions that hardly overlap: all mass below pivot + room is raised to it,
    # and the Q-mass that this leaves over goes to outcomes with mass under Q only.
    low = DominatingPair(np.zeros(0), np.zeros(0), np.zeros(0))
    level = pivot + room
    rest_p = max(1 - float(np.sum(top.p)) - top.p_inf, 0.0)
    rest_q = rest_p * math.exp(-level)
    middle = DominatingPair(np.array([level]), np.array([rest_p]), np.array([rest_q]),
                            0.0, max(1 - float(np.sum(top.q)) - rest_q, 0.0))
  loss = np.concatenate([-low.loss[::-1], middle.loss, top.loss])
  p = np.concatenate([low.q[::-1], middle.p, top.p])
  q = np.concatenate([low.p[::-1], middle.q, top.q])
  return DominatingPair(loss, p, q, top.p_inf + middle.p_inf, low.p_inf + middle.q_inf)


def _pivot(pieces: Sequence[Piece]) -> tuple[float, float]:
  """Returns (pivot, room): a loss near the middle, and a distance; zeros if unknown."""
  # If the bounds [low, high] at some end of a cell contain the pivot, then high is at
  # most pivot + room or low is at least pivot - room. This does not hold for bounds
  # that are both farther from the pivot than WIDEST_ROOM.
  low = np.concatenate([piece.low[1:] for piece in pieces])
  high = np.concatenate([piece.high[1:] for piece in pieces])
  mass = np.concatenate([piece.p.cell[0] + piece.q.cell[0] for piece in pieces])
  with np.errstate(invalid='ignore'):
    loss = 0.5 * (low + high)
    known = (np.abs(loss) < LARGEST_LOSS) & (high - low < 2 * WIDEST_ROOM)
  if not np.any(known):
    return 0.0, 0.0
  loss, mass = loss[known], mass[known]
  order = np.argsort(loss)
  total = np.cumsum(mass[order])
  first, last = np.searchsorted(total, np.array([0.25, 0.75]) * total[-1])
  # From the middle half of the mass, choose a loss with much of it, beside which errors
  # of masses are small.
  middle = order[first:last + 1]
  pivot = float(loss[middle[np.argmax(mass[middle])]])
  low = np.concatenate([piece.low for piece in pieces])
  high = np.concatenate([piece.high for piece in pieces])
  # If a loss may be on either side of the pivot, the nearer bound tells how far.
  reach = np.minimum(high - pivot, pivot - low)
  reach = reach[(reach >= 0) & (reach <= WIDEST_ROOM)]
  room = float(np.max(reach, initial=0.0))
  return pivot, room + 4 * EPS * (room + abs(pivot))


def _beyond(pieces: Sequence[Piece], start: float) -> DominatingPair:
  """Returns atoms of loss > `start`, with at least the true P-mass above each level."""
  levels, masses = [], []
  for piece in pieces:
    level, at_least = _raised(piece)
    above = level > start
    levels.append(level[above])
    masses.append(-np.diff(at_least[above], append=0.0))
  level, mass = np.concatenate(levels), np.concatenate(masses)
  order = np.argsort(level, kind='stable')
  level, mass = level[order], mass[order]
  with np.errstate(under='ignore'):
    q = mass * np.exp(-np.minimum(level, LARGEST_LOSS))
  real = (level <= LARGEST_LOSS) & (mass >= LEAST_MASS) & (q >= LEAST_MASS)
  p_inf = min(float(np.sum(mass[~real])), 1.0)
  level, mass = level[real], mass[real]
  # Limit the sum to one, leaving out the least levels.
  total = np.minimum(p_inf + np.append(0.0, np.cumsum(mass[::-1])), 1.0)
  mass = np.minimum(mass, np.diff(total)[::-1]) if total[-1] == 1 else mass
  return DominatingPair(level, mass, mass * np.exp(-level), p_inf)


def _raised(piece: Piece) -> tuple[np.ndarray, np.ndarray]:
  """Returns losses at cells' ends, and upper bounds on the P-mass of losses >= each."""
  # As in `cells.raised_masses`, the mass of each cell moves to the upper bounds on the
  # loss at its two ends, which are the losses returned. Both arrays are (cells + 1,).
  level = piece.high
  (p, p_error), (q, q_error) = piece.p.cell, piece.q.cell
  with np.errstate(invalid='ignore', over='ignore', divide='ignore'):
    width = np.nan_to_num(np.diff(level), nan=0.0)
    ratio = np.exp(np.minimum(level[:-1], LARGEST_LOSS))
    # Losses below the level at a cell's lower end were raised to it first, by `slack`
    # at most. At the same P-mass that leaves e^-slack of Q-mass or more; `lost` bounds
    # what it takes, and the error of q. Less Q-mass moves more P-mass to the upper end.
    slack = (level - piece.low)[:-1]
    lost = q_error + (q + q_error) * (-np.expm1(-np.nan_to_num(slack)) + 8 * EPS)
    raised = (p - ratio * q + p_error + ratio * lost + 8 * EPS * p) / -np.expm1(-width)
  raised = np.clip(np.nan_to_num(raised, nan=np.inf), 0.0, p + p_error)
  mass = piece.p.above[0] + piece.p.above[1]
  # At most all of a cell may have moved up.
  at_least = np.minimum(mass + np.append(0.0, raised), np.append(np.inf, mass[:-1]))
  return level, np.maximum.accumulate(at_least[::-1])[::-1] * (1 + 4 * EPS)


def _spread(p: float, q: float, pivot: float, room: float) -> DominatingPair:
  """Returns atoms of masses p, q at pivot +- room, or at log(p / q) outside these."""
  # Both masses are one minus a sum. If one of them is mostly rounding error, up to
  # SUM_ROUNDOFF of it is moved to outcomes of that distribution only. If one is hardly
  # a float, all of both masses are moved so.
  whole_p, whole_q = p, q
  p, q = (max(p - SUM_ROUNDOFF, min(p, q * math.exp(pivot + room))),
          max(q - SUM_ROUNDOFF, min(q, p * math.exp(room - pivot))))
  if min(p, q) < LEAST_MASS:
    return DominatingPair(np.zeros(0), np.zeros(0), np.zeros(0), whole_p, whole_q)
  alone = whole_p - p, whole_q - q
  loss = math.log(p) - math.log(q)
  if abs(loss - pivot) >= room or room <= 0:
    return DominatingPair(np.array([loss]), np.array([p]), np.array([q]), *alone)
  ends = pivot + room * np.array([-1.0, 1.0])
  share = math.expm1(loss - ends[0]) / math.expm1(2 * room) * math.exp(ends[1] - loss)
  masses = np.array([1 - share, share]) * p
  return DominatingPair(ends, masses, masses * np.exp(-ends), *alone)


def lower(pieces: Sequence[Piece]) -> DominatingPair:
  """Returns a dominated pair: an outcome per cell, errors move P and Q closer."""
  p, p_error = np.concatenate([piece.p.cell for piece in pieces], axis=1)
  q, q_error = np.concatenate([piece.q.cell for piece in pieces], axis=1)
  # A cell with loss +inf throughout has no Q-mass, a cell with loss -inf no P-mass.
  alone_p = np.concatenate([piece.low[:-1] for piece in pieces]) == np.inf
  alone_q = np.concatenate([piece.high[1:] for piece in pieces]) == -np.inf
  q, q_error = np.where(alone_p, 0.0, q), np.where(alone_p, 0.0, q_error)
  p, p_error = np.where(alone_q, 0.0, p), np.where(alone_q, 0.0, p_error)
  sign = np.where(p >= q, 1.0, -1.0)
  low_p = np.maximum(p - sign * p_error, 0.0)
  low_q = np.maximum(q + sign * q_error, 0.0)
  crossed = sign * (low_p - low_q) < 0
  same = np.minimum(low_p, low_q)
  low_p, low_q = np.where(crossed, same, low_p), np.where(crossed, same, low_q)
  excess = float(np.sum(low_p) - np.sum(low_q))
  gap = np.maximum(np.sign(excess) * (low_p - low_q), 0.0)
  total = float(np.sum(gap))
  if 0 < abs(excess) >= 0.5 * total:
    # Errors leave little of the pair: return equal laws, which every pair dominates.
    return DominatingPair(np.zeros(1), np.ones(1), np.ones(1))
  # The larger masses are lowered until both sums are equal.
  taken = abs(excess) / max(total, LEAST_MASS) * gap
  low_p, low_q = (low_p - taken, low_q) if excess > 0 else (low_p, low_q - taken)
  size = max(float(np.sum(low_p)), float(np.sum(low_q)), 1.0)
  low_p, low_q = low_p / size, low_q / size
  return _with_rest(low_p, low_q, alone_p, alone_q)


def _with_rest(p: np.ndarray, q: np.ndarray, alone_p: np.ndarray, alone_q: np.ndarray
               ) -> DominatingPair:
  """Returns the pair of the outcomes and of one more, which has the rest at loss 0."""
  # `alone_p` is True for outcomes with mass under P only, `alone_q` under Q only.
  rest = max(1 - max(float(np.sum(p)), float(np.sum(q))), 0.0)
  p_inf, q_inf = float(np.sum(p[alone_p])), float(np.sum(q[alone_q]))
  shared = ~alone_p & ~alone_q
  both = shared & (p > LEAST_MASS) & (q > LEAST_MASS)
  atoms = [(rest, rest)]
  # Merge outcomes with a mass that is hardly a float into one on either side; a zero
  # mass was too small for a float.
  for side in (p >= q, p < q):
    tiny = shared & ~both & side
    masses = float(np.sum(p[tiny])), float(np.sum(q[tiny]))
    if max(masses) > LEAST_MASS:
      atoms.append((max(masses[0], LEAST_MASS), max(masses[1], LEAST_MASS)))
  more_p, more_q = np.array(atoms).T
  p, q = np.append(p[both], more_p), np.append(q[both], more_q)
  real = p > 0
  p, q = p[real], q[real]
  return DominatingPair(np.log(p) - np.log(q), p, q, p_inf, q_inf)
