"""Pairs of one's own laws on the line, by their distribution functions and densities.

Between breaks that the user names, log p - log q is monotone, so that the loss on a
cell lies between those at its ends. The masses of cells are differences of the
distribution functions. From both follow, cell by cell,

- a pair that dominates: each cell's masses go to the losses at its ends, both kept,
  and whatever is not known of them raises the law of the loss stochastically;
- a pair that is dominated: each cell is one outcome, and whatever is not known of its
  two masses brings them closer to each other.

Source: sections 4.3 and E of Zhu, Dong and Wang (AISTATS 2022), Algorithm 2 with
Definition 38 and Lemma 39, which go to one end of a cell; keeping both masses makes the
error one of second order. The bounds on rounding are this library's.
"""

from __future__ import annotations

import dataclasses
from typing import Callable
from typing import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tfcactus import _checks
from tfcactus._numerics import EPS
from tfcactus.pairs import cell_bounds
from tfcactus.pairs import cell_edges
from tfcactus.pairs.cells import CELLS
from tfcactus.pairs.dominating_pair import PairBounds


class Law(Protocol):
  """A law on the line with a density, such as a frozen distribution of SciPy."""

  def cdf(self, x: np.ndarray) -> np.ndarray:
    """P(X <= x)."""

  def sf(self, x: np.ndarray) -> np.ndarray:
    """P(X > x)."""

  def logpdf(self, x: np.ndarray) -> np.ndarray:
    """Log density; -inf where there is none."""


@dataclasses.dataclass(frozen=True)
class FunctionLaw:
  """A law on the line by three functions of arrays.

  Attributes:
    cdf: P(X <= x), with the digits of its lower tail.
    sf: P(X > x), with the digits of its upper tail: not one minus the other.
    logpdf: Log density, -inf where there is none.
  """

  cdf: Callable[[np.ndarray], np.ndarray]
  sf: Callable[[np.ndarray], np.ndarray]
  logpdf: Callable[[np.ndarray], np.ndarray]


def continuous_pair(p: Law, q: Law, breaks: npt.ArrayLike = (), *,
                    accuracy: float = 1e-13, cells: int = CELLS) -> PairBounds:
  """Bounds on the pair of two laws with densities on the line.

  What cannot be checked is the caller's word: that log p(x) - log q(x) is continuous
  and monotone (in whichever direction) on each interval between neighbouring `breaks`,
  and from the outer ones to infinity; that the ends of the supports are among them; and
  that the laws' functions are as right as `accuracy` says. That the pair dominates the
  mechanism is the caller's word too, as for any pair.

  Args:
    p: The law of the mechanism for one of two neighbours: a frozen distribution of
      SciPy, or a `FunctionLaw`. Where a pair is for adding a record, the one without.
    q: That for the other.
    breaks: Shape (breaks,), increasing; empty if the loss is monotone throughout.
    accuracy: Bound on the relative error of `cdf` and `sf` and, in units of 1 + |log
      density|, on the error of `logpdf`.
    cells: About how many cells there are; bounds are apart by its inverse square.

  Returns:
    (lower, upper): `lower` is dominated by (p, q), `upper` dominates. Mass farther out
    than all but 1e-40 of both laws has the largest loss that it can have.

  Raises:
    ValueError: if the loss is seen not to be monotone between breaks, or a function is
      seen not to be what it should.
  """
  accuracy = _checks.positive('accuracy', accuracy)
  cells = _checks.integer('cells', cells, 16)
  if accuracy > 1e-3:
    raise ValueError(f'Expected accuracy <= 1e-3, got accuracy={accuracy!r}.')
  known = np.asarray(breaks, dtype=np.float64)
  if known.ndim != 1 or not np.all(np.isfinite(known)) or np.any(np.diff(known) <= 0):
    raise ValueError(
        f'Expected breaks to be finite and increasing, got breaks={breaks!r}.')
  pieces = list(_pieces(_Checked(p, accuracy), _Checked(q, accuracy), known, cells))
  return PairBounds(cell_bounds.lower(pieces), cell_bounds.upper(pieces))


@dataclasses.dataclass(frozen=True)
class _Checked:
  """A law whose values are seen to be possible.

  Attributes:
    law: The law.
    accuracy: As for `continuous_pair`.
  """

  law: Law
  accuracy: float

  def tails(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P(X <= x) and P(X > x); at infinity by themselves."""
    inner = np.isfinite(x)
    below, above = (x > 0).astype(np.float64), (x < 0).astype(np.float64)
    for name, tail in (('cdf', below), ('sf', above)):
      value = np.asarray(getattr(self.law, name)(x[inner]), dtype=np.float64)
      if value.shape != x[inner].shape or not np.all((value >= 0) & (
          value <= 1 + self.accuracy)):
        raise ValueError(
            f'Expected {name} to return probabilities, one for each point, got '
            f'{value!r}.')
      tail[inner] = value
    if np.any(np.abs(below + above - 1) > 2 * self.accuracy + 4 * EPS):
      worst = float(np.max(np.abs(below + above - 1)))
      raise ValueError(
          f'Expected cdf + sf = 1 within accuracy={self.accuracy:g}, got one off by '
          f'{worst:.3g}; state a larger accuracy.')
    return below, above

  def masses(self, x: np.ndarray) -> cell_bounds.Masses:
    """Of cells between points."""
    return cell_bounds.Masses.of(self.tails(x), self.accuracy)

  def log_density(self, x: np.ndarray) -> np.ndarray:
    """At finite points."""
    value = np.asarray(self.law.logpdf(x), dtype=np.float64)
    if value.shape != x.shape or np.any(np.isnan(value)) or np.any(value == np.inf):
      raise ValueError(
          'Expected logpdf to return finite numbers or -inf, one for each point, got '
          f'{value!r}; where a density is infinite, let a break of cells be beside it.')
    return value


def _pieces(p: _Checked, q: _Checked, breaks: np.ndarray, cells: int
            ) -> Iterator[cell_bounds.Piece]:
  """All of the line: cells between breaks, and the tails."""

  def density_ratio(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid='ignore'):
      return p.log_density(x) - q.log_density(x)

  # Densities may have no value at a break itself.
  parts = cell_edges.segments(
      [p.tails, q.tails], lambda x: density_ratio(_beside(x, breaks)), breaks, cells)
  for index, x in enumerate(parts):
    inside = np.clip(x, np.nextafter(x[0], np.inf), np.nextafter(x[-1], -np.inf))
    loss, error, way = _losses(p, q, inside)
    order = slice(None, None, -1 if way < 0 else 1)
    yield cell_bounds.Piece(np.maximum.accumulate(loss[order]), error[order],
                 p.masses(x[order]), q.masses(x[order]))
    ends = []
    if index == 0:
      ends.append((-np.inf, x[0], loss[0], error[0], -way))
    if index == len(parts) - 1:
      ends.append((x[-1], np.inf, loss[-1], error[-1], way))
    for low, high, at, slack, outwards in ends:
      # Outwards the loss goes on as it went, or anywhere if it did not move.
      tail = np.array([low, high])
      yield cell_bounds.Piece(
          np.array([at if outwards > 0 else -np.inf, at if outwards < 0 else np.inf]),
          np.full(2, slack), p.masses(tail), q.masses(tail))


def _beside(x: np.ndarray, breaks: np.ndarray) -> np.ndarray:
  return np.where(np.isin(x, breaks), np.nextafter(x, np.inf), x)


def _losses(p: _Checked, q: _Checked, x: np.ndarray
            ) -> tuple[np.ndarray, np.ndarray, int]:
  """The losses at points of a piece, bounds on their errors, and their direction.

  Returns:
    (loss, error, way): way is 1 where the loss increases with x, -1 where it
    decreases, 0 where it is not seen to do either.
  """
  log_p, log_q = p.log_density(x), q.log_density(x)
  # Where neither has mass any loss will do.
  with np.errstate(invalid='ignore'):
    loss = np.where(np.isneginf(log_p), -np.inf, log_p - log_q)
    error = (p.accuracy + 2 * EPS) * (2 + np.abs(log_p) + np.abs(log_q))
    error = np.where(np.isfinite(loss), error, 0.0)
    change = np.nan_to_num(np.diff(loss), nan=0.0)
  seen = np.isfinite(log_p) | np.isfinite(log_q)
  room = error[1:] + error[:-1]
  rises, falls = ((sign * change > room) & seen[1:] & seen[:-1] for sign in (1, -1))
  if np.any(rises) and np.any(falls):
    moves = np.flatnonzero(rises | falls)
    turn = moves[np.flatnonzero(rises[moves] != rises[moves[0]])[0]]
    raise ValueError(
        'Expected log p - log q to be monotone between breaks, got it to turn near '
        f'{float(x[turn])!r}, between {float(x[0])!r} and {float(x[-1])!r}; add its '
        'extremes to breaks.')
  # A loss that moved less than its error is put in order by as much at most.
  return loss, 2 * np.append(np.maximum(error[1:], error[:-1]), error[-1]), int(
      np.any(rises)) - int(np.any(falls))
