"""The cactus mechanism: scalar noise of least KL divergence over all shifts."""

from __future__ import annotations

import dataclasses
from typing import Callable
from typing import Optional

import numpy as np

from tfcactus.design import _scalar
from tfcactus.noise import scalar


@dataclasses.dataclass(frozen=True)
class Cactus:
  """Minimises the largest KL divergence over shifts 1..bins of the cells.

  The optimum is not monotone for small budgets, so that its privacy must be
  accounted over all shifts; there the monotone sibling is often the better
  choice (see `Monotone`).

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
    objective: 'kl', 'chi2', 'renyi:A', or one of them followed by '@Q' for
      releases subsampled at rate Q (see `divergence.parse`).
    solver: 'interior-point' or 'cvxpy' (small bins only, needs cvxpy).

  Raises:
    ValueError: if an argument is out of range.

  Source: program (20), Theorem 2 of Alghamdi et al., "Cactus Mechanisms:
  Optimal Differential Privacy Mechanisms in the Large-Composition Regime"
  (ISIT 2022).
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
        'cactus' if self.objective == 'kl' else f'cactus-{self.objective}',
        objective=self.objective, budget=self.budget, power=self.power,
        cost=self.cost, bins=self.bins, cells=self.cells, tail_ratio=self.tail_ratio,
        solver=self.solver, monotone=False)

  def solve(self) -> scalar.ScalarTable:
    """Solves for the noise table.

    Returns:
      The table; its `info` holds objective (largest KL divergence over whole
      shifts), lower_bound and gap (relative), recomputed from the table.

    Raises:
      ValueError: if the grid cannot meet the budget.
      SolverError: if the optimum could not be certified.
      ImportError: if solver='cvxpy' and cvxpy is absent.
    """
    return _scalar.solve(self._spec())
