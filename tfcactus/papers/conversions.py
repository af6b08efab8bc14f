"""Conversions of partial knowledge of a mechanism into safe bounds for accounting.

A distribution function of the privacy loss, or bounds on it, becomes a dominating pair.
Renyi divergences become upper bounds on a privacy profile, since finitely many orders
determine no more (`post_formula` inverts divergences known at all orders).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tfcactus import _checks, _numerics
from tfcactus.accounting import renyi_curves
from tfcactus.accounting.composition.losses.rounding import ROUNDOFF
from tfcactus.pairs.dominating_pair import DominatingPair

LARGEST_LOSS = 700.0
"""Larger losses count as infinite: their Q-mass is below any float."""

LEAST_MASS = 1e-290
"""Atoms with a smaller P- or Q-mass count as infinite losses: coarse floats."""


def pair_from_loss_cdf(loss: npt.ArrayLike, cdf: npt.ArrayLike) -> DominatingPair:
  """Returns a pair that dominates every pair whose loss CDF is at least `cdf`.

  Mass between two points moves to the upper point, mass beyond the last point to
  infinity. Under P the loss only grows, and with it the profile H(alpha) = E_P (1 -
  alpha e^-loss)+.

  Args:
    loss: Shape (points,), increasing.
    cdf: Shape (points,), non-decreasing, in [0, 1]: P-probabilities of losses up to
      `loss`, or lower bounds on them.

  Raises:
    ValueError: if the points are not those of a distribution function of a privacy
      loss, for which E_P e^-loss <= 1.

  Source: appendix B of Zhu, Dong and Wang (AISTATS 2022).
  """
  x, y = _checks.vector('loss', loss), _checks.vector('cdf', cdf)
  if x.shape != y.shape:
    raise ValueError(
        f'Expected a value of cdf for each loss, got {y.size} for {x.size}.')
  for name, array, bad in (('loss to increase', x, np.diff(x) <= 0),
                           ('cdf not to fall', y, np.diff(y) < 0)):
    if np.any(bad):
      first = int(np.flatnonzero(bad)[0])
      raise ValueError(
          f'Expected {name}, got {float(array[first])!r} and then '
          f'{float(array[first + 1])!r} at index {first + 1}; sort the points by loss, '
          'each loss once.')
  if y[0] < 0 or y[-1] > 1:
    raise ValueError(
        f'Expected cdf in [0, 1], got values from {float(y[0])!r} to {float(y[-1])!r}.')
  p = np.diff(y, prepend=0.0)
  with np.errstate(over='ignore', under='ignore', invalid='ignore'):
    q = np.where(p > 0, p * np.exp(-x), 0.0)
  known = (x <= LARGEST_LOSS) & (np.minimum(p, q) >= LEAST_MASS)
  total = float(np.sum(q))
  if total > 1 + 1e-12:
    raise ValueError(
        f'Expected E exp(-loss) <= 1, as for any privacy loss, got {total!r}; cdf is '
        'too large where losses are small.')
  p_inf = float(1 - y[-1]) + float(np.sum(p[~known]))
  return DominatingPair(
      x[known], p[known], q[known], p_inf, max(1 - float(np.sum(q[known])), 0.0))


def profile_from_renyi(orders: Sequence[float], divergences: Sequence[float],
                       epsilon: npt.ArrayLike) -> np.ndarray:
  """Returns upper bounds on delta at `epsilon` from Renyi divergences; not tight.

  Args:
    orders: Above one, increasing.
    divergences: D_order(P || Q), or upper bounds on them.
    epsilon: Real or infinite, any shape.

  Returns:
    Bounds with the shape of `epsilon`; `views.pair_from_profile` makes a pair of them.

  Raises:
    ValueError: if orders and divergences are no Renyi curve, or epsilon contains NaN.

  Source: Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy"
    (2020), Proposition 12.
  """
  order, divergence = renyi_curves.check(
      _checks.vector('orders', orders).tolist(),
      _checks.vector('divergences', divergences).tolist())
  at = _checks.numbers_of('epsilon', epsilon)
  with np.errstate(invalid='ignore'):
    # (1 - alpha e^-x)+ <= c e^((order - 1) x) for the least c, where both touch.
    log_delta = (order - 1) * (divergence - at[..., None]) + _numerics.log_kernel(
        order - 1)
  size = (order - 1) * (np.abs(divergence) + np.abs(at[..., None])) + order
  slack = ROUNDOFF * np.where(np.isfinite(size), size, 0.0)
  return np.exp(np.minimum(np.min(log_delta + slack, axis=-1), 0.0))
