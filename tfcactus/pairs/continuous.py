"""Pairs of user-defined distributions on the line, from distribution functions.

Between breaks that the user names, log p - log q is monotone, so that the loss on a
cell lies between those at its ends. The masses of cells are differences of the
distribution functions. `cell_bounds` makes pairs of losses and masses.

Source: sections 4.3 and E of Zhu, Dong and Wang (AISTATS 2022), Algorithm 2 with
Definition 38 and Lemma 39. Keeping both masses of a cell makes the error second order.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
from typing import Callable, Protocol

import numpy as np
import numpy.typing as npt

from tfcactus import _checks
from tfcactus._numerics import EPS
from tfcactus.pairs import cell_bounds
from tfcactus.pairs.cells import CELLS
from tfcactus.pairs.dominating_pair import PairBounds

_TAIL = 1e-40
"""About the mass of each distribution in each tail outside all cells."""

_PILOT = 200
"""Number of quantiles, of each tail of each law, that are the first edges of cells."""

_SHARE = 0.5
"""Share of the cells that is spread over losses."""

_WIDEST = 1.0
"""Larger changes of the loss on a cell count as this one where cells are placed."""


class Law(Protocol):
  """A distribution on the line with a density, such as SciPy's frozen distributions."""

  def cdf(self, x: np.ndarray) -> np.ndarray:
    """Returns P(X <= x)."""

  def sf(self, x: np.ndarray) -> np.ndarray:
    """Returns P(X > x)."""

  def logpdf(self, x: np.ndarray) -> np.ndarray:
    """Returns the log density; -inf where the density is zero."""


@dataclasses.dataclass(frozen=True)
class FunctionLaw:
  """A distribution on the line, given by three functions of arrays.

  Attributes:
    cdf: P(X <= x), with the digits of its lower tail.
    sf: P(X > x), with the digits of its upper tail: not computed as 1 - cdf.
    logpdf: Log density, -inf where the density is zero.
  """

  cdf: Callable[[np.ndarray], np.ndarray]
  sf: Callable[[np.ndarray], np.ndarray]
  logpdf: Callable[[np.ndarray], np.ndarray]


def continuous_pair(p: Law, q: Law, breaks: npt.ArrayLike = (), *,
                    accuracy: float = 1e-13, cells: int = CELLS) -> PairBounds:
  """Returns bounds on the pair of two distributions with densities on the line.

  The caller vouches for these preconditions, which cannot be checked: log p(x) - log
  q(x) is continuous and monotone (in whichever direction) on each interval between
  neighbouring `breaks`, and from the outer ones to infinity; it is bounded beside a
  break at which both `logpdf` are finite (at others it may go to infinity); the ends of
  the supports are among the breaks; and the functions are as right as `accuracy` says.
  The caller vouches for dominance of the pair too, as for any pair.

  Args:
    p: The distribution of the mechanism for one of two neighbours: a frozen
      distribution of SciPy, or a `FunctionLaw`. For a pair of an added record, the
      distribution without the record.
    q: The distribution for the other neighbour.
    breaks: Shape (breaks,), increasing; empty if the loss is monotone throughout.
    accuracy: Bound on the relative error of `cdf` and `sf` and, in units of 1 + |log
      density|, on the error of `logpdf`.
    cells: Approximate number of cells; the width of bounds falls with its square.

  Returns:
    (lower, upper): `lower` is dominated by (p, q), `upper` dominates. Beyond the cells,
    each tail has at most about 1e-40 of the mass of each distribution. `upper` gives
    this mass the extreme loss that monotonicity allows; in `lower` each tail is one
    outcome.

  Raises:
    ValueError: if an argument is out of range, the loss is seen not to be monotone
      between breaks, a function is seen not to be what it should, or masses do not
      match the densities.
  """
  accuracy = _checks.positive('accuracy', accuracy)
  cells = _checks.integer('cells', cells, 16)
  if accuracy > 1e-3:
    raise ValueError(f'Expected accuracy <= 1e-3, got accuracy={accuracy!r}.')
  for name, law in (('p', p), ('q', q)):
    missing = [part for part in ('cdf', 'sf', 'logpdf') if not callable(
        getattr(law, part, None))]
    if missing:
      raise ValueError(
          f'Expected {name} to be a law with a density, got {law!r} without '
          f'{" and ".join(missing)}; use a frozen continuous distribution of SciPy or '
          'FunctionLaw(cdf, sf, logpdf).')
  known = _checks.numbers_of('breaks', breaks)
  if known.ndim != 1 or not np.all(np.isfinite(known)) or np.any(np.diff(known) <= 0):
    raise ValueError(
        f'Expected breaks to be finite and increasing, got breaks={breaks!r}.')
  pieces = list(_pieces(_Checked(p, accuracy), _Checked(q, accuracy), known, cells))
  return PairBounds(cell_bounds.lower(pieces), cell_bounds.upper(pieces))


@dataclasses.dataclass(frozen=True)
class _Checked:
  """A distribution whose values are checked; `accuracy` is as for `continuous_pair`."""

  law: Law
  accuracy: float

  def tails(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns P(X <= x) and P(X > x), also at infinite x; ValueError if impossible."""
    inner = np.isfinite(x)
    # Right at infinite x; the loop replaces the others.
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
    """Returns the masses of cells between increasing or decreasing points."""
    return cell_bounds.Masses.of(self.tails(x), self.accuracy)

  def log_density(self, x: np.ndarray) -> np.ndarray:
    """Returns the log density at finite points; ValueError for NaN or +inf."""
    value = np.asarray(self.law.logpdf(x), dtype=np.float64)
    if value.shape != x.shape or np.any(np.isnan(value)) or np.any(value == np.inf):
      raise ValueError(
          'Expected logpdf to return finite numbers or -inf, one for each point, got '
          f'{value!r}; where a density is infinite, let a break of cells be beside it.')
    return value


def _pieces(p: _Checked, q: _Checked, breaks: np.ndarray, cells: int
            ) -> Iterator[cell_bounds.Piece]:
  """Yields pieces of the line: cells between breaks, gaps beside breaks, and tails."""
  parts = _segments(p, q, breaks, cells)
  for x in parts:
    yield from _part(p, q, x, breaks)
  # Beyond a break that is the outermost edge nothing is known of the loss.
  first, last = parts[0][0], parts[-1][-1]
  if first in breaks:
    yield _piece(p, q, np.array([-np.inf, first]), *_ANY)
  if last in breaks:
    yield _piece(p, q, np.array([last, np.inf]), *_ANY)


_ANY = (np.full(2, -np.inf), np.full(2, np.inf))
"""Lower and upper bounds at the two ends of a cell whose loss is unknown."""


def _part(p: _Checked, q: _Checked, x: np.ndarray, breaks: np.ndarray
          ) -> Iterator[cell_bounds.Piece]:
  """Yields cells with edges `x`, then the gap to a break, or the tail, at each end."""
  at_break = x[0] in breaks, x[-1] in breaks
  start = np.nextafter(x[0], np.inf) if at_break[0] else x[0]
  stop = np.nextafter(x[-1], -np.inf) if at_break[1] else x[-1]
  if start > stop:
    yield _piece(p, q, x[[0, -1]], *_ANY)
    return
  inside = np.clip(x, start, stop)
  low, high, way = _losses(p, q, inside)
  order = slice(None, None, -1 if way < 0 else 1)
  piece = _piece(p, q, inside[order], low[order], high[order])
  _check_masses(piece, inside[order])
  yield piece
  # The gaps from the cells to the two breaks, or the tails.
  for tail, edge, outwards in (
      (np.array([x[0] if at_break[0] else -np.inf, start]), 0, -way),
      (np.array([stop, x[-1] if at_break[1] else np.inf]), -1, way)):
    near = low[edge], high[edge]
    # The loss in a gap is bounded by `logpdf` at the break, unless the gap's masses
    # contradict that. Then, and in a tail, only its direction is known.
    if at_break[edge]:
      beside = _piece(p, q, tail, *_outwards(near, _at_break(p, q, x[edge]), outwards))
      if beside.contradiction() is None:
        yield beside
        continue
    beyond = _piece(p, q, tail, *_outwards(near, (-np.inf, np.inf), outwards))
    _check_masses(beyond, tail)
    yield beyond


def _piece(p: _Checked, q: _Checked, x: np.ndarray, low: np.ndarray, high: np.ndarray
           ) -> cell_bounds.Piece:
  """Returns cells between points `x`, which are in order of loss; bounds as `Piece`."""
  return cell_bounds.Piece(low=low, high=high, p=p.masses(x), q=q.masses(x))


def _outwards(near: tuple[float, float], far: tuple[float, float], way: int
              ) -> tuple[np.ndarray, np.ndarray]:
  """Returns the bounds (low, high) of a `Piece` of one cell."""
  # `near` and `far` are (lower, upper) bounds on the loss at the cell's two ends. From
  # `near` to `far` the loss rises (`way` 1), falls (-1), or does either (0).
  low, high = min(near[0], far[0]), max(near[1], far[1])
  # Outwards the loss continues in its direction, or anywhere if it did not move.
  return (np.array([near[0] if way > 0 else low, near[0]]),
          np.array([near[1], near[1] if way < 0 else high]))


def _at_break(p: _Checked, q: _Checked, x: float) -> tuple[float, float]:
  """Returns (lower, upper) bounds on the loss at a break; infinite if unknown."""
  at = np.array([x])
  with np.errstate(all='ignore'):
    log_p, log_q = (float(np.asarray(side.law.logpdf(at), np.float64).reshape(-1)[0])
                    for side in (p, q))
  if not np.isfinite(log_p) or not np.isfinite(log_q):
    return -np.inf, np.inf
  error = (p.accuracy + 2 * EPS) * (2 + abs(log_p) + abs(log_q))
  return log_p - log_q - error, log_p - log_q + error


def _check_masses(piece: cell_bounds.Piece, x: np.ndarray) -> None:
  """Raises ValueError unless masses of cells fit densities with these losses."""
  cell = piece.contradiction()
  if cell is None:
    return
  ends = sorted((float(x[cell]), float(x[cell + 1])))
  masses = float(piece.p.cell[0, cell]), float(piece.q.cell[0, cell])
  raise ValueError(
      f'Expected cdf, sf and logpdf to be of one law, got masses {masses[0]!r} and '
      f'{masses[1]!r} between {ends[0]!r} and {ends[1]!r}, where log p - log q is seen '
      f'to be in [{piece.low[cell]:g}, {piece.high[cell + 1]:g}]; a law has no atoms, '
      'extremes and jumps of the loss are breaks, tails have all their digits; or '
      'state a larger accuracy.')


def _losses(p: _Checked, q: _Checked, x: np.ndarray
            ) -> tuple[np.ndarray, np.ndarray, int]:
  """Returns bounds low, high on the loss at `x`, and 1 if it rises, -1 if it falls.

  The last is 0 if errors allow both directions; ValueError if they allow neither.
  """
  log_p, log_q = p.log_density(x), q.log_density(x)
  with np.errstate(invalid='ignore'):
    loss = np.where(np.isneginf(log_p), -np.inf, log_p - log_q)
    error = (p.accuracy + 2 * EPS) * (2 + np.abs(log_p) + np.abs(log_q))
  error = np.where(np.isfinite(loss), error, 0.0)
  # If both densities are zero the loss may be anything.
  unseen = np.isneginf(log_p) & np.isneginf(log_q)
  low = np.where(unseen, -np.inf, loss - error)
  high = np.where(unseen, np.inf, loss + error)
  # A rising loss is at least all losses before it and at most all after it; a falling
  # one is the reverse.
  rising = np.maximum.accumulate(low), np.minimum.accumulate(high[::-1])[::-1]
  falling = np.maximum.accumulate(low[::-1])[::-1], np.minimum.accumulate(high)
  rises, falls = (bool(np.all(a <= b)) for a, b in (rising, falling))
  if rises and falls:
    ones = np.full(x.shape, 1.0)
    return ones * min(low[0], low[-1]), ones * max(high[0], high[-1]), 0
  if rises:
    return (*rising, 1)
  if falls:
    return (*falling, -1)
  fall = int(np.argmax(rising[0] > high))
  rise = int(np.argmax(falling[1] < low))
  turn = np.argmax(low[:fall + 1]) if fall > rise else np.argmin(high[:rise + 1])
  raise ValueError(
      'Expected log p - log q to be monotone between breaks, got it to turn near '
      f'{float(x[turn])!r}, between {float(x[0])!r} and {float(x[-1])!r}; add its '
      'extremes to breaks.')


def _segments(p: _Checked, q: _Checked, breaks: np.ndarray, cells: int
              ) -> list[np.ndarray]:
  """Returns increasing cell edges for each interval between or beyond breaks."""
  # There are about `cells` cells in all. Any edges give valid bounds. Moving a cell's
  # masses to the losses at its ends raises the privacy profile. Half of the cells lie
  # where that raises the profile most. The other half is spread evenly over losses, so
  # that rare losses keep their digits too.
  edges = np.unique(np.concatenate([breaks, _quantiles(p), _quantiles(q)]))
  for count in (cells // 8, cells):
    edges = _refined(p, q, edges, breaks, count)
  places = [0, *np.searchsorted(edges, breaks), edges.size - 1]
  return [edges[a:b + 1] for a, b in zip(places[:-1], places[1:]) if a < b]


def _quantiles(law: _Checked) -> np.ndarray:
  """Returns both tails' quantiles, even in log mass, unsorted: (2 * _PILOT,)."""
  log_mass = np.linspace(np.log(_TAIL), np.log(0.5), _PILOT)
  found = []
  for which, sign in ((0, 1), (1, -1)):
    # Bisect on a scale that reaches sinh(709), about 4e307, on both sides of zero.
    low, high = np.full(_PILOT, -709.0), np.full(_PILOT, 709.0)
    for _ in range(90):
      middle = 0.5 * (low + high)
      with np.errstate(divide='ignore'):
        more = sign * (np.log(law.tails(np.sinh(middle))[which]) - log_mass) > 0
      low, high = np.where(more, low, middle), np.where(more, middle, high)
    found.append(np.sinh(high if sign > 0 else low))
  return np.concatenate(found)


def _refined(p: _Checked, q: _Checked, edges: np.ndarray, breaks: np.ndarray,
             count: int) -> np.ndarray:
  """Returns the edges after cells are cut into equal parts, at most `count` more."""
  mass = np.zeros(edges.size - 1)
  for law in (p, q):
    below, above = law.tails(edges)
    mass += np.where(below[1:] < 0.5, np.diff(below), -np.diff(above))
  # Densities may have no value at a break itself: take the next larger float.
  x = np.where(np.isin(edges, breaks), np.nextafter(edges, np.inf), edges)
  with np.errstate(invalid='ignore'):  # Where both densities are zero.
    move = np.abs(np.diff(p.log_density(x) - q.log_density(x)))
  move = np.minimum(np.nan_to_num(move, nan=0.0, posinf=_WIDEST), _WIDEST)
  # A cell of mass m over losses of width w raises the profile by about m w^2 / 8, and n
  # parts of it by 1 / n^2 of that: the best n are as the cube roots of m w^2.
  cost = np.cbrt(np.maximum(mass, 0.0) * move**2)
  parts = np.zeros(mass.size)
  for share, weight in ((1 - _SHARE, cost), (_SHARE, move)):
    if np.sum(weight) > 0:
      parts += share * count * weight / np.sum(weight)
  number = np.maximum(np.ceil(parts), 1).astype(np.int64)
  first = np.repeat(edges[:-1], number)
  step = np.arange(first.size) - np.repeat(np.cumsum(number) - number, number)
  width = np.repeat(np.diff(edges) / number, number)
  return np.unique(np.append(first + step * width, edges[-1]))
