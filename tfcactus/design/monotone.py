"""Scalar noise of least divergence whose density falls away from zero."""

from __future__ import annotations

from tfcactus.design import scalar


class Monotone(scalar.ScalarRequest):
  """Minimises the divergence at full shift over densities falling in |z|.

  For a monotone density the full shift dominates every smaller one, so that its
  privacy is accounted exactly by one pair.

  Attributes:
    budget, power, cost: E cost(|Z|) <= budget, |z|^power unless a cost is given.
    bins, cells, tail_ratio: The grid (n, N, r of the paper); None chooses.
    objective, solver: What is minimised, and by what; see `ScalarRequest`.

  Source: program (20) of Alghamdi et al., "Cactus Mechanisms" (ISIT 2022), with
  the monotonicity of Definition 1 and Proposition 1 of Alghamdi et al.,
  "Optimal Multidimensional Differentially Private Mechanisms in the
  Large-Composition Regime" (ISIT 2023).
  """

  monotone = True
