"""Scalar noise of least divergence whose density does not increase with |z|."""

from __future__ import annotations

from tfcactus.design import scalar


class Monotone(scalar.ScalarRequest):
  """Request for the density, non-increasing in |z|, of least divergence at full shift.

  For a monotone density the pair of the full shift dominates the pair of every smaller
  shift, so that one dominating pair accounts its privacy exactly.

  Attributes:
    budget, power, cost: E cost(|Z|) <= budget; the cost is |z|^power unless given.
    bins, cells, tail_ratio: The grid (n, N, r of the paper); None chooses.
    objective, solver: The divergence to minimise and the solver; see `ScalarRequest`.

  Source: program (20) of Alghamdi et al., "Cactus Mechanisms" (ISIT 2022), with
  the monotonicity of Definition 1 and Proposition 1 of Alghamdi et al.,
  "Optimal Multidimensional Differentially Private Mechanisms in the
  Large-Composition Regime" (ISIT 2023).
  """

  monotone = True
