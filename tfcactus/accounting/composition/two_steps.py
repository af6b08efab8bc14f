"""Two Gaussian releases: cells of one loss against the closed form of the other.

With H the second release's delta, delta(epsilon) = E_P1[H(epsilon - L1)]. Moving a
cell's two masses to the ends of its losses raises delta, by chords of a convex
function; merging a cell into one atom lowers it, by tangents. Cells are narrow where
chords and tangents differ, so that kinks and tails need no special care.

Source: Lemma 9 and Proposition 15 of Zhu, Dong and Wang (AISTATS 2022).
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from scipy import special

from tfcactus._numerics import EPS
from tfcactus.accounting.bounds import Bounds, epsilon_bounds, IntractableError, root
from tfcactus.accounting.composition.losses.gaussian import GaussianLoss
from tfcactus.pairs import cells as cells_lib

PILOTS = (1 << 12, 1 << 13)
"""Numbers of cells of the partitions that show where cells have to be narrow."""

CELLS = 1 << 16
"""Number of cells of the last partition."""

SPREAD = 0.25
"""Share of the cells that is spread evenly, so that no cell is wide."""

MASS_ROUNDOFF = 1e-12
"""Bound on the relative error of a sum over cells: masses are right to
`dominating_pair.MASS_ROUNDOFF`, numpy's sums to 1e-14."""

LOSS_ROUNDOFF = 8 * EPS
"""Relative error of a loss at an edge, log1p of a product with an expm1."""

BEYOND = float(2 * special.ndtr(-cells_lib.GAUSSIAN_REACH))
"""P-mass outside all cells, counted as if its loss were infinite."""

MAX_MU = 24.0
"""Above this a cell within reach may have less P0-mass than the least float."""

MAX_EPSILON = 1e5
"""Epsilon is not sought beyond this."""

CLOSE = 1e-12
"""Relative precision of the estimate."""


@dataclasses.dataclass(frozen=True)
class TwoSteps:
  """Two Gaussian releases, each of a Poisson sample of its own or of all records.

  `first` is the loss that is put into cells; `second` is used in closed form.
  """

  first: GaussianLoss
  second: GaussianLoss

  @classmethod
  def of(cls, one: GaussianLoss, other: GaussianLoss) -> TwoSteps:
    """Puts the noisier release into cells; IntractableError if its mu is too large."""
    if min(one.mu, other.mu) > MAX_MU:
      raise IntractableError
    return cls(*sorted((one, other), key=lambda loss: loss.mu))

  def delta(self, epsilon: float) -> Bounds:
    """Returns bounds on delta at `epsilon` >= 0."""
    return self._at(self._cells(epsilon), epsilon)

  def epsilon(self, delta: float) -> Bounds:
    """Returns bounds on the least epsilon >= 0 at `delta` in (0, 1).

    Raises IntractableError if a search fails, or epsilon is beyond `MAX_EPSILON`.
    """
    even = self._even
    if self._at(even, 0.0).lower <= delta and self.delta(0.0).upper <= delta:
      return Bounds(0.0, 0.0, 0.0)
    # An estimate by even cells, then by cells that are narrow where that needs it.
    near = root(lambda x: self._at(even, x).estimate, delta, width=1e-8,
                precision=0.1 * CLOSE, limit=MAX_EPSILON)
    cells = self._cells(near)
    near = root(lambda x: self._at(cells, x).estimate, delta, near=near,
                width=1e-5 * (1e-3 + near), precision=0.1 * CLOSE, limit=MAX_EPSILON)
    # The first moves from `near` to try as ends; `epsilon_bounds` checks both ends.
    at = self._at(cells, near)
    move = CLOSE * near + LOSS_ROUNDOFF
    step = 1e-6 * (near + 1e-3)
    slope = max((at.estimate - self._at(cells, near + step).estimate) / step, 1e-300)
    return epsilon_bounds(
        lambda x: self._at(cells, x), delta, near,
        move + 1.01 * max(delta - at.lower, 0.0) / slope,
        move + 1.01 * max(at.upper - delta, 0.0) / slope)

  def _at(self, cells: _Cells, epsilon: float) -> Bounds:
    """Returns bounds on delta at `epsilon`, computed from `cells`."""
    sums = []
    # Sign -1 is the lower bound, by tangents; sign 1 the upper bound, by chords.
    for loss, p, sign in ((cells.mean, cells.p, -1), (cells.loss, cells.raised, 1)):
      slack = LOSS_ROUNDOFF * (abs(epsilon) + np.abs(loss)) + (
          cells.mean_error if sign < 0 else 0.0)
      value, error = self.second.delta(epsilon - loss - sign * slack)
      terms = p * np.clip(value + sign * error, 0.0, 1.0)
      sums.append(float(np.sum(terms)) * (1 + sign * MASS_ROUNDOFF))
    upper = min(sums[1] + BEYOND, 1.0)
    low = min(sums[0], upper)
    return Bounds(low, 0.5 * (low + upper), upper)

  def _cells(self, epsilon: float) -> _Cells:
    """Returns cells that are narrow where delta at `epsilon` needs it."""
    edges, cells = self._edges, self._even
    for count in (*PILOTS[1:], CELLS):
      edges = self._refined(edges, epsilon, count)
      cells = self._partition(edges)
    return cells

  @functools.cached_property
  def _edges(self) -> np.ndarray:
    """Edges of the `PILOTS[0]` equally wide cells of output, in standard deviations."""
    reach = cells_lib.GAUSSIAN_REACH
    shift = self.first.mu if self.first.direction == 'remove' else 0.0
    return np.linspace(-reach, reach + shift, PILOTS[0] + 1)

  @functools.cached_property
  def _even(self) -> _Cells:
    """The loss of the first release in equally wide cells of its output."""
    return self._partition(self._edges)

  def _refined(self, edges: np.ndarray, epsilon: float, count: int) -> np.ndarray:
    """Returns the edges of about `count` cells, from a coarser partition's `edges`."""
    # Cells add about equally to the gap of chords and tangents of delta at `epsilon`.
    loss = self._sign * self.first.log_u(edges)
    width = np.diff(edges)
    p = cells_lib.normal_cells(edges[:-1], width)
    if self._sign > 0:
      # The likelihood ratio turns masses without the record into P-masses.
      p = p * np.exp(np.minimum(loss[1:], 600.0))
    value = self.second.delta(epsilon - loss)[0]
    middle = self.second.delta(epsilon - 0.5 * (loss[1:] + loss[:-1]))[0]
    gap = p * np.abs(0.5 * (value[1:] + value[:-1]) - middle)
    # The gap of a cell grows with the cube of its width.
    density = np.cbrt(gap / width**3)
    # Take the largest value among a cell and its neighbours: a kink nearby is refined.
    density = np.maximum(density, np.append(0.0, density[:-1]))
    density = np.maximum(density, np.append(density[1:], 0.0)) * width
    total = float(np.sum(density))
    share = width / float(np.sum(width))
    if total > 0:
      share = SPREAD * share + (1 - SPREAD) * density / total
    position = np.append(0.0, np.cumsum(share))
    inner = np.interp(np.linspace(0, position[-1], count + 1), position, edges)
    return np.unique(inner)

  @property
  def _sign(self) -> int:
    """1 if the loss increases with the output, else -1."""
    return 1 if self.first.direction == 'remove' else -1

  def _partition(self, edges: np.ndarray) -> _Cells:
    """Returns the first release's loss in cells of its output between `edges`.

    Raises IntractableError if no cell is left.
    """
    law, s = self.first, self.first.sampling_prob
    z = law.mu * edges - 0.5 * law.mu**2
    log_u = law.log_u(edges)
    # Drop edges at which the likelihood ratio is, in floats, that of the edge before.
    keep = np.flatnonzero(np.append(
        True, (np.diff(np.maximum.accumulate(log_u)) > 0) & (np.diff(z) > 0)))
    keep = np.append(keep[:-1], edges.size - 1)
    if keep.size < 2:
      raise IntractableError
    without, with_it = (
        np.add.reduceat(cells_lib.normal_cells(start, np.diff(edges)), keep[:-1])
        for start in (edges[:-1], edges[:-1] - law.mu))
    z, log_u = z[keep], log_u[keep]
    # With the likelihood ratio of the unsampled pair nothing cancels at tiny s.
    ratio = with_it / without
    mean = np.log1p(s * (ratio - 1)) if s < 1 else np.log(ratio)
    # `up` is the share of a cell's mass that moves to the end of larger z, so that both
    # the P- and the Q-mass are kept.
    from_low = ratio * np.exp(-z[:-1]) - 1
    width = np.expm1(np.diff(z))
    up = from_low / width
    # Rounding is added towards the end of larger loss, which is that of larger z for
    # removal and that of smaller z for addition.
    off = cells_lib.ratio_roundoff(z)
    if law.direction == 'remove':
      p = (1 - s) * without + s * with_it
      up = up * np.exp(np.minimum(log_u[1:] - mean, 600.0))
      share = np.minimum(up + off / width, 1.0)
      share = np.where(np.isfinite(share), np.maximum(share, 0.0), 1.0)
    else:
      p = without
      share = np.maximum(up - off / width, 0.0)
      share = np.where(np.isfinite(share), np.minimum(share, 1.0), 0.0)
    raised = np.append(p * (1 - share), 0.0) + np.append(0.0, p * share)
    mean_error = 2 * off * s * ratio / np.exp(mean)
    return _Cells(self._sign * log_u, raised, self._sign * mean, p, mean_error)


@dataclasses.dataclass(frozen=True)
class _Cells:
  """The loss of one release, with its outcomes put into cells."""

  loss: np.ndarray  # Shape (cells + 1,), losses at the ends of the cells.
  raised: np.ndarray  # Shape (cells + 1,), P-masses moved to the ends: raises delta.
  mean: np.ndarray  # Shape (cells,), losses of cells merged into atoms: lowers delta.
  p: np.ndarray  # Shape (cells,), P-masses of the cells.
  mean_error: np.ndarray  # Shape (cells,), bounds on the errors of `mean`.
