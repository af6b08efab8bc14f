"""Tail bounds of the privacy loss under each definition of privacy.

The loss of two neighbours is Z = log(P(y) / Q(y)) for y drawn from P. Each function
returns an upper bound on P(Z > loss) for every mechanism that satisfies the definition;
`loss` has any shape.

Source: section 1.3 of Bun, Dwork, Rothblum and Steinke (STOC 2018). The paper treats
approximate definitions "up to constants"; the bounds for them are derived here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tfcactus import _checks
from tfcactus.accounting import truncated_cdp

_GAPS = np.geomspace(1e-3, 30, 200)
"""Distances between loss and epsilon that are tried; each gives a bound. Knob of
tightness."""


def pure_dp(epsilon: float, loss: npt.ArrayLike) -> np.ndarray:
  """Returns the bound under epsilon-DP: no loss exceeds epsilon."""
  return np.where(_losses(loss) >= _checks.non_negative('epsilon', epsilon), 0.0, 1.0)


def truncated_cdp_tail(guarantee: truncated_cdp.TCDP, loss: npt.ArrayLike
                       ) -> np.ndarray:
  """Returns the bound under truncated CDP: subgaussian, then subexponential.

  With t = loss - rho it is exp(-t^2 / (4 rho)) for t in [0, 2 rho (omega - 1)] and
  exp((omega - 1)^2 rho - (omega - 1) t) beyond. omega = inf is zCDP. At loss = inf the
  bound is zero.
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
  """Returns the bound under (order, divergence)-RDP: subexponential; order > 1."""
  order = truncated_cdp.check_omega(order)
  divergence = _checks.non_negative('divergence', divergence)
  if np.isinf(order):
    return pure_dp(divergence, loss)
  return np.exp(np.minimum((order - 1) * (divergence - _losses(loss)), 0.0))


def approximate_dp(epsilon: float, delta: float, loss: npt.ArrayLike) -> np.ndarray:
  """Returns the bound under (epsilon, delta)-DP; never below delta.

  Let A be the event that the loss exceeds epsilon + s. Then Q(A) <= e^-(epsilon + s)
  P(A), hence P(A) (1 - e^-s) <= delta.
  """
  epsilon, delta = _checks.non_negative('epsilon', epsilon), _checks.delta(delta)
  gap = _losses(loss) - epsilon
  with np.errstate(divide='ignore'):
    bound = delta / -np.expm1(-np.maximum(gap, 0.0))
  return np.minimum(bound, 1.0)


def approximate_zcdp(rho: float, delta: float, loss: npt.ArrayLike) -> np.ndarray:
  """Returns the bound under delta-approximate rho-zCDP: subgaussian plus delta.

  Let E be events of probability at least 1 - delta, given which the laws satisfy
  rho-zCDP. P(A) - e^x Q(A) <= delta + P_E(A) - e^x (1 - delta) Q_E(A), so the privacy
  profile is at most delta + the tail of zCDP at x + log(1 - delta). For every s > 0,
  P(Z > x + s) <= profile(x) / (1 - e^-s).

  Source: Bun and Steinke, "Concentrated Differential Privacy" (TCC 2016), section 8 for
  the definition.
  """
  guarantee = truncated_cdp.TCDP(rho)
  delta = _checks.delta(delta)
  at = _losses(loss)[..., np.newaxis] - _GAPS
  profile = delta + truncated_cdp_tail(guarantee, at + np.log1p(-delta))
  return np.minimum(np.min(profile / -np.expm1(-_GAPS), axis=-1), 1.0)


def _losses(loss: npt.ArrayLike) -> np.ndarray:
  """Returns losses as an array; ValueError unless they are real numbers or infinite."""
  return _checks.numbers_of('loss', loss)
