"""How often the privacy loss may be large, by each definition of privacy.

The loss of two neighbours is Z = log(P(y) / Q(y)) for y drawn from P. Each function
bounds P(Z > loss) from above, for everything that keeps the definition.

Source: section 1.3 of Bun, Dwork, Rothblum and Steinke (STOC 2018), called "the paper"
below; approximate definitions hold "up to constants" there, and are bounded here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tfcactus import _checks
from tfcactus.accounting import truncated_cdp

_GAPS = np.geomspace(1e-3, 30, 200)
"""Distances to the profile that are tried; each gives a bound. Knob of tightness."""


def pure_dp(epsilon: float, loss: npt.ArrayLike) -> np.ndarray:
  """Under epsilon-differential privacy no loss is above epsilon.

  Args:
    epsilon: Non-negative.
    loss: Of any shape, as in all functions here.
  """
  return np.where(_losses(loss) >= _checks.non_negative('epsilon', epsilon), 0.0, 1.0)


def truncated_cdp_tail(guarantee: truncated_cdp.TCDP, loss: npt.ArrayLike
                       ) -> np.ndarray:
  """Under truncated CDP: subgaussian up to a point, beyond it subexponential.

  With t = loss - rho it is exp(-t^2 / (4 rho)) for t in [0, 2 rho (omega - 1)] and
  exp((omega - 1)^2 rho - (omega - 1) t) beyond; zCDP is omega = inf.

  Args:
    guarantee: (rho, omega).
    loss: Of any shape; no loss is above an infinite one.
  """
  guarantee = truncated_cdp.check_guarantee(guarantee)
  loss = _losses(loss)
  if guarantee.rho == 0:
    return np.where(loss >= 0, 0.0, 1.0)
  rho, omega = guarantee.rho, guarantee.omega
  with np.errstate(over='ignore', invalid='ignore'):
    order = (loss + rho) / (2 * rho)
    near = -(loss - rho)**2 / (4 * rho)
    far = (omega - 1) * (rho * omega - loss)
    exponent = np.where((order < omega) | np.isinf(omega), near, far)
  return np.where(order > 1, np.exp(np.minimum(exponent, 0.0)), 1.0)


def renyi_dp(order: float, divergence: float, loss: npt.ArrayLike) -> np.ndarray:
  """Under (order, divergence)-RDP: subexponential.

  Args:
    order: Above one.
    divergence: Bound on the Renyi divergence of that order.
    loss: Of any shape.
  """
  order = truncated_cdp.check_omega(order)
  divergence = _checks.non_negative('divergence', divergence)
  if np.isinf(order):
    return pure_dp(divergence, loss)
  return np.exp(np.minimum((order - 1) * (divergence - _losses(loss)), 0.0))


def approximate_dp(epsilon: float, delta: float, loss: npt.ArrayLike) -> np.ndarray:
  """Under (epsilon, delta)-differential privacy: never below delta.

  Of the event A that the loss is above epsilon + s, Q(A) <= e^-(epsilon + s) P(A), so
  that P(A) (1 - e^-s) <= delta.

  Args:
    epsilon: Non-negative.
    delta: In (0, 1).
    loss: Of any shape.
  """
  epsilon, delta = _checks.non_negative('epsilon', epsilon), _checks.delta(delta)
  gap = _losses(loss) - epsilon
  with np.errstate(divide='ignore'):
    bound = delta / -np.expm1(-np.maximum(gap, 0.0))
  return np.minimum(bound, 1.0)


def approximate_zcdp(rho: float, delta: float, loss: npt.ArrayLike) -> np.ndarray:
  """Under delta-approximate rho-zCDP: subgaussian, but for delta.

  With events E of probabilities at least 1 - delta given which the laws keep rho-zCDP,
  P(A) - e^x Q(A) <= delta + P_E(A) - e^x (1 - delta) Q_E(A), and so the profile is at
  most delta + the tail of zCDP at x + log(1 - delta); from it P(Z > x + s) as under
  `approximate_dp`.

  Args:
    rho: Non-negative.
    delta: In (0, 1).
    loss: Of any shape.

  Source: Bun and Steinke, "Concentrated Differential Privacy" (TCC 2016), section 8 for
  the definition.
  """
  guarantee = truncated_cdp.TCDP(rho)
  delta = _checks.delta(delta)
  at = _losses(loss)[..., np.newaxis] - _GAPS
  profile = delta + truncated_cdp_tail(guarantee, at + np.log1p(-delta))
  return np.minimum(np.min(profile / -np.expm1(-_GAPS), axis=-1), 1.0)


def _losses(loss: npt.ArrayLike) -> np.ndarray:
  return _checks.numbers_of('loss', loss)
