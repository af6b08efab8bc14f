"""The cactus mechanism: scalar noise of least KL divergence over all shifts."""

from __future__ import annotations

from tfcactus.design import scalar


class Cactus(scalar.ScalarRequest):
  """Minimises the largest divergence over shifts 1..bins of the cells.

  The optimum is not monotone for small budgets, so that its privacy must be
  accounted over all shifts; there the monotone sibling is often the better
  choice (see `Monotone`).

  Attributes:
    budget, power, cost: E cost(|Z|) <= budget, |z|^power unless a cost is given.
    bins, cells, tail_ratio: The grid (n, N, r of the paper); None chooses.
    objective, solver: What is minimised, and by what; see `ScalarRequest`.

  Source: program (20), Theorem 2 of Alghamdi et al., "Cactus Mechanisms:
  Optimal Differential Privacy Mechanisms in the Large-Composition Regime"
  (ISIT 2022).
  """

  monotone = False
