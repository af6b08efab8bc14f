"""Scalar noise of least divergence whose density falls away from zero."""

from __future__ import annotations

import dataclasses
from typing import Callable
from typing import Optional

import numpy as np

from tfcactus.design import _scalar
from tfcactus.noise import scalar


@dataclasses.dataclass(frozen=True)
class Monotone:
  """Minimises the divergence at full shift over densities falling in |z|.

  For a monotone density the full shift dominates every smaller one, so that its
  privacy is accounted exactly by one pair.

  Attributes:
    budget: Bound on E|Z|^power, in units of sensitivity^power.
    power: The cost is |z|^power.
    cost: Another cost, as a function of an array of distances in units of
      sensitivity; it replaces |z|^power and must meet the papers' assumptions.
    bins: Cells per unit of sensitivity (n of the paper); None for 20, more for
      narrow noise and fewer for very wide noise.
    cells: Index of the last free cell (N); None chooses it from the budget.
    tail_ratio: Density ratio r in (0, 1) of neighbouring cells beyond `cells`;
      None matches it to the budget.
    objective: 'kl' for many full releases, 'chi2' for subsampled training,
      'renyi:A', or one of them followed by '@Q' for releases subsampled at
      rate Q (see `divergence.parse`).
    solver: 'interior-point' or 'cvxpy' (small bins only, needs cvxpy).

  Raises:
    ValueError: if an argument is out of range.

  Source: program (20) of Alghamdi et al., "Cactus Mechanisms" (ISIT 2022), with
  the monotonicity of Definition 1 and Proposition 1 of Alghamdi et al.,
  "Optimal Multidimensional Differentially Private Mechanisms in the
  Large-Composition Regime" (ISIT 2023).
  """

  budget: float
  power: float = 2.0
  bins: Optional[int] = None
  cells: Optional[int] = None
  tail_ratio: Optional[float] = None
  objective: str = 'kl'
  solver: str = 'interior-point'
  cost: Optional[Callable[[np.ndarray], np.ndarray]] = None

  def __post_init__(self):
    self._spec()

  def _spec(self) -> _scalar.ScalarSpec:
    return _scalar.spec(
        'monotone' if self.objective == 'kl' else f'monotone-{self.objective}',
        objective=self.objective, budget=self.budget, power=self.power,
        cost=self.cost, bins=self.bins, cells=self.cells, tail_ratio=self.tail_ratio,
        solver=self.solver, monotone=True)

  def solve(self) -> scalar.ScalarTable:
    """Solves for the noise table.

    Returns:
      The table; its `info` holds objective (largest divergence over whole
      shifts), lower_bound and gap (relative), recomputed from the table.

    Raises:
      ValueError: if the grid cannot meet the budget.
      SolverError: if the optimum could not be certified.
      ImportError: if solver='cvxpy' and cvxpy is absent.
    """
    return _scalar.solve(self._spec())
