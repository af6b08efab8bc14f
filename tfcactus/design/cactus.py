"""The cactus mechanism: scalar noise of least divergence at the worst shift."""

from __future__ import annotations

from tfcactus.design import scalar


class Cactus(scalar.ScalarRequest):
  """Request for scalar noise that minimises the largest divergence over all shifts.

  Shifts are by 1 to `bins` whole cells. For small budgets the optimal density is not
  monotone in |z|, so that its privacy must be accounted over all shifts. `Monotone` is
  often the better choice there.

  Attributes:
    budget, power, cost: E cost(|Z|) <= budget; the cost is |z|^power unless given.
    bins, cells, tail_ratio: The grid (n, N, r of the paper); None chooses.
    objective, solver: The divergence to minimise and the solver; see `ScalarRequest`.

  Source: program (20), Theorem 2 of Alghamdi et al., "Cactus Mechanisms: Optimal
  Differential Privacy Mechanisms in the Large-Composition Regime" (ISIT 2022).
  """

  monotone = False
