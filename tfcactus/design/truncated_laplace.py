"""The Laplace distribution truncated to a range, as a table."""

from __future__ import annotations

import dataclasses

import numpy as np

from tfcactus.design import truncated_base


@dataclasses.dataclass(frozen=True)
class TruncatedLaplace(truncated_base.TruncatedForm):
  """Request for a Laplace density truncated to [-range, range], on cells that tile it.

  Attributes:
    range: Bound on |noise|, in units of sensitivity; above one half.
    scale: The parameter b of exp(-|z| / b); give either `scale` or `utility`.
    utility: E|Z| (norm 1) or sqrt(E Z^2) (norm 2) of the table.
    norm: 1 or 2.
    bins: Cells per unit of sensitivity; None for about 400 on each side.

  Raises:
    ValueError: if an argument is out of range, or none or both of `scale` and
      `utility` are given.

  Source: Geng, Ding, Guo and Kumar, "Tight analysis of privacy and utility
  tradeoff in approximate differential privacy" (AISTATS 2020).
  """

  norm: int = 1

  mechanism = 'truncated-laplace'

  def _log_mass(self, edges: np.ndarray, scale: float) -> np.ndarray:
    return -edges[:-1] / scale
