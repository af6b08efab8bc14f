"""Accountant by moments of the loss, extended to noise with infinite losses."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import numpy as np

from tfcactus.accounting import base, renyi
from tfcactus.accounting.composition.composition import Composition


class ExtendedMomentsAccountant(base.OneSidedAccountant):
  """The moments accountant for noise with distinguishing events.

  A distinguishing event is an outcome that only one of two neighbours has: its privacy
  loss is infinite. Composes the mass omega of infinite losses separately and applies
  Markov's inequality to finite losses: delta = 1 - (1 - omega)^n + min over lambda of
  exp(n Gamma_lambda - lambda epsilon). Without infinite losses this equals
  `RenyiAccountant(conversion='moments')`.

  Source: Theorem 19 and Proposition 17 of Sommer et al., "Learning Numeric
  Optimal Differentially Private Truncated Additive Mechanisms" (2021).
  """

  def __init__(self, *args: Any, orders: Sequence[float] = renyi.ORDERS, **kwargs: Any):
    """Initializes an empty account; other arguments are those of `PairAccountant`.

    Args:
      orders: Renyi orders lambda + 1, above one.
    """
    super().__init__(*args, **kwargs)
    self._orders = renyi.check_orders(orders)

  def _epsilon(self, part: Composition, delta: float) -> float:
    rest = delta - part.p_inf[1]
    if rest <= 0:
      return math.inf
    return max(renyi.markov_epsilon(
        self._orders, self._finite_divergences(part), rest), 0.0)

  def _delta(self, part: Composition, epsilon: float) -> float:
    log_tail = float(np.min(
        (self._orders - 1) * (self._finite_divergences(part) - epsilon)))
    return min(part.p_inf[1] + math.exp(min(log_tail, 0.0)), 1.0)

  def _finite_divergences(self, part: Composition) -> np.ndarray:
    """Returns upper bounds on Renyi divergences over finite losses, at all orders."""
    return renyi.divergence_bounds(part, self._orders, finite=True)
