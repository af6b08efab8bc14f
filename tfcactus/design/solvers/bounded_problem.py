"""The problem of designing truncated noise: cells, cost, and composed delta.

Unknown are the masses w of the mirrored pairs of cells of [-range, range],
counted outwards from zero.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from tfcactus.design.solvers import composed_delta
from tfcactus.noise import tiling


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
  """What truncated noise is asked for.

  Attributes:
    bins: Cells per unit of sensitivity.
    cells: Cells between zero and the range.
    norm: 1 for E|Z|, 2 for sqrt(E Z^2).
    utility: Bound on it.
    epsilon: Where delta is minimised.
    steps: Number of releases.
    sampling_prob: Of Poisson sampling; 1 for none.
  """

  bins: int
  cells: int
  norm: int
  utility: float
  epsilon: float
  steps: int
  sampling_prob: float = 1.0

  @functools.cached_property
  def cost(self) -> np.ndarray:
    """Shape (cells,), the mean of |z|^norm over a cell, dither included."""
    return tiling.cell_cost(self.cells, self.bins, self.norm)

  @property
  def budget(self) -> float:
    """Bound on E|Z|^norm."""
    return self.utility**self.norm

  def coarser(self, bins: int) -> Problem:
    """The same problem on wider cells."""
    return dataclasses.replace(self, bins=bins,
                               cells=self.cells * bins // self.bins)

  def pairs(self, w: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Outcome masses (P, Q) of one release, in each direction that differs."""
    return composed_delta.sampled_pairs(*shifted(w, self.bins),
                                        self.sampling_prob)

  def delta(self, w: np.ndarray) -> tuple[float, np.ndarray]:
    """The larger composed delta of the directions, and its derivative by w.

    Args:
      w: Shape (cells,), masses of the mirrored pairs of cells.
    """
    values = [composed_delta.composed_delta(p, q, epsilon=self.epsilon,
                                            steps=self.steps)
              for p, q in self.pairs(w)]
    worst = max(range(len(values)), key=lambda i: values[i].delta)
    value = values[worst]
    return value.delta, self.by_masses(worst, value.by_p, value.by_q)

  def by_masses(self, direction: int, by_p: np.ndarray, by_q: np.ndarray
                ) -> np.ndarray:
    """Derivatives by w from those by a direction's (P, Q).

    Args:
      direction: Index into `pairs`.
      by_p: Shape (outcomes,), derivatives by the P-masses.
      by_q: Shape (outcomes,), derivatives by the Q-masses.
    """
    by_p, by_q = composed_delta.unsampled(direction, by_p, by_q,
                                          self.sampling_prob)
    n = self.cells
    full = by_p[:2 * n] + by_q[self.bins:]
    return 0.5 * (full[n:] + full[:n][::-1])


def shifted(w: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
  """Masses of the noise and of the noise shifted by `bins` cells, aligned."""
  full = 0.5 * np.concatenate([w[::-1], w])
  nothing = np.zeros(bins)
  return np.append(full, nothing), np.append(nothing, full)
