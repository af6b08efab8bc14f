"""The Gaussian truncated to a range, as a table."""

from __future__ import annotations

import dataclasses

import numpy as np

from tfcactus.design import closed_form, truncated_base


@dataclasses.dataclass(frozen=True)
class TruncatedGaussian(truncated_base.TruncatedForm):
  """Request for a normal density truncated to [-range, range], on cells that tile it.

  Attributes:
    range: Bound on |noise|, in units of sensitivity; above one half.
    scale: Standard deviation before truncation; give either `scale` or `utility`.
    utility: E|Z| (norm 1) or sqrt(E Z^2) (norm 2) of the table.
    norm: 1 or 2.
    bins: Cells per unit of sensitivity; None for about 400 on each side.

  Raises:
    ValueError: if an argument is out of range, or none or both of `scale` and
      `utility` are given.

  Source: Example 7 of Sommer et al., "Learning Numeric Optimal Differentially
  Private Truncated Additive Mechanisms" (2021).
  """

  mechanism = 'truncated-gaussian'

  def _log_mass(self, edges: np.ndarray, scale: float) -> np.ndarray:
    return closed_form.normal_log_mass(edges / scale)
