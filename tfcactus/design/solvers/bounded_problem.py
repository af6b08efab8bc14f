"""The design problem of truncated noise: cells, cost and composed delta.

The unknowns are the masses w of the mirrored pairs of cells of [-range, range],
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
  """The request for truncated noise, as a grid with a bound on utility.

  Attributes:
    bins: Cells per unit of sensitivity.
    cells: Cells between zero and the range.
    norm: Utility is E|Z| for 1, sqrt(E Z^2) for 2.
    utility: Upper bound on the utility.
    epsilon: The epsilon at which delta is minimised.
    steps: Number of releases.
    sampling_prob: Poisson sampling probability; 1 for no sampling.
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
    """Mean of |z|^norm over each cell, dither included; shape (cells,)."""
    return tiling.cell_cost(self.cells, self.bins, self.norm)

  @property
  def budget(self) -> float:
    """Upper bound on E|Z|^norm."""
    return self.utility**self.norm

  def coarser(self, bins: int) -> Problem:
    """Returns this problem on wider cells, `bins` of them per unit."""
    return dataclasses.replace(self, bins=bins,
                               cells=self.cells * bins // self.bins)

  def pairs(self, w: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns outcome masses (P, Q) of one release, for each direction that differs."""
    return composed_delta.sampled_pairs(*shifted(w, self.bins),
                                        self.sampling_prob)

  def delta(self, w: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns the largest delta over `pairs`, and its gradient with respect to w."""
    values = [composed_delta.composed_delta(p, q, epsilon=self.epsilon,
                                            steps=self.steps)
              for p, q in self.pairs(w)]
    worst = max(range(len(values)), key=lambda i: values[i].delta)
    value = values[worst]
    return value.delta, self.by_masses(worst, value.by_p, value.by_q)

  def by_masses(self, direction: int, by_p: np.ndarray, by_q: np.ndarray
                ) -> np.ndarray:
    """Maps derivatives by the masses of pairs(w)[direction] to a gradient by w."""
    by_p, by_q = composed_delta.unsampled(direction, by_p, by_q,
                                          self.sampling_prob)
    n = self.cells
    full = by_p[:2 * n] + by_q[self.bins:]
    return 0.5 * (full[n:] + full[:n][::-1])


def shifted(w: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
  """Returns noise w and w shifted by `bins` cells, on 2 * cells + bins common cells."""
  full = 0.5 * np.concatenate([w[::-1], w])
  nothing = np.zeros(bins)
  return np.append(full, nothing), np.append(nothing, full)
