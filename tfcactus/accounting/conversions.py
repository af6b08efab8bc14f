"""From what is often known of a mechanism to what is composed: safe in one direction.

A distribution function of the privacy loss, or bounds on it, becomes a pair that
dominates; Renyi divergences become bounds on a privacy profile, which is all that they
determine here: the exact inversion (Post's formula) takes derivatives of all orders.
"""

from __future__ import annotations

from typing import Sequence

import numpy as np
import numpy.typing as npt

from tfcactus import _checks
from tfcactus import _numerics
from tfcactus.accounting import renyi_curves
from tfcactus.accounting.composition.losses.rounding import ROUNDOFF
from tfcactus.pairs.dominating_pair import DominatingPair

LARGEST_LOSS = 700.0
"""Losses beyond this count as infinite: their Q-mass is below any float."""


def pair_from_loss_cdf(loss: npt.ArrayLike, cdf: npt.ArrayLike) -> DominatingPair:
  """A pair that dominates all whose loss has a distribution function above some points.

  Mass between two points is put at the upper one, mass beyond the last at infinity:
  under P the loss only becomes larger, and the profile H(alpha) = E_P (1 - alpha
  e^-loss)+ with it.

  Args:
    loss: Shape (points,), increasing.
    cdf: Shape (points,), non-decreasing, in [0, 1]: P-probabilities of losses up to
      `loss`, or lower bounds on them.

  Raises:
    ValueError: if the points are not those of a distribution function, or none that
      a privacy loss has, since E_P e^-loss is at most one.

  Source: appendix B of Zhu, Dong and Wang (AISTATS 2022).
  """
  x, y = _checks.vector('loss', loss), _checks.vector('cdf', cdf)
  if x.shape != y.shape or np.any(np.diff(x) <= 0):
    raise ValueError(
        'Expected loss to increase, with a value of cdf for each, got shapes '
        f'{x.shape} and {y.shape}.')
  if np.any(np.diff(y) < 0) or not 0 <= y[0] <= y[-1] <= 1:
    raise ValueError('Expected cdf to rise within [0, 1].')
  p = np.diff(y, prepend=0.0)
  known = (x <= LARGEST_LOSS) & (p > 0)
  q = p[known] * np.exp(-x[known])
  total = float(np.sum(q))
  if total > 1 + 1e-12:
    raise ValueError(
        f'Expected E exp(-loss) <= 1, as for any privacy loss, got {total!r}; cdf is '
        'too large where losses are small.')
  p_inf = max(1 - float(np.sum(p[known])), 0.0)
  return DominatingPair(x[known], p[known], q, p_inf, max(1 - total, 0.0))


def profile_from_renyi(orders: Sequence[float], divergences: Sequence[float],
                       epsilon: npt.ArrayLike) -> np.ndarray:
  """Upper bounds on delta at `epsilon` from Renyi divergences: lossy, never too small.

  Args:
    orders: Above one, increasing.
    divergences: D_order(P || Q), or bounds on them.
    epsilon: Real, any shape.

  Returns:
    delta, of the shape of `epsilon`; `views.pair_from_profile` makes a pair of it.

  Source: Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy"
    (2020), Proposition 12.
  """
  order, divergence = renyi_curves.check(orders, divergences)
  at = np.asarray(epsilon, dtype=np.float64)
  with np.errstate(invalid='ignore'):
    # (1 - alpha e^-x)+ is at most c e^((order - 1) x): c is where they touch.
    log_delta = (order - 1) * (divergence - at[..., None]) + _numerics.log_kernel(
        order - 1)
  size = (order - 1) * (np.abs(divergence) + np.abs(at[..., None])) + order
  slack = ROUNDOFF * np.where(np.isfinite(size), size, 0.0)
  return np.exp(np.minimum(np.min(log_delta + slack, axis=-1), 0.0))
