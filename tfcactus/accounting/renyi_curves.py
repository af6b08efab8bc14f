"""Helper (no accountant): bounds on Renyi divergences between known orders.

(order - 1) D_order is convex in the order and zero at order one. Between two orders
it therefore lies below its chord.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Callable

import numpy as np

from tfcactus import _checks


def check(orders: Sequence[float], divergences: Sequence[float]
          ) -> tuple[np.ndarray, np.ndarray]:
  """Returns arrays (n,); ValueError unless orders > 1 increase and divergences >= 0."""
  order = _checks.vector('orders', list(orders))
  divergence = _checks.vector('divergences', list(divergences))
  if order.shape != divergence.shape:
    raise ValueError(
        'Expected as many divergences as orders, got '
        f'{divergence.size} and {order.size}.')
  if np.any(order <= 1) or np.any(np.diff(order) <= 0):
    raise ValueError('Expected orders above one and increasing.')
  if np.any(divergence < 0):
    raise ValueError(
        f'Expected divergences >= 0, got {np.min(divergence)!r}.')
  return order, divergence


def running_rho(orders: np.ndarray, divergences: np.ndarray) -> np.ndarray:
  """Returns upper bounds on sup of D_a / a over a in (1, orders[i]), for each i."""
  k = (orders - 1) * divergences
  a, b = orders[:-1], orders[1:]
  with np.errstate(invalid='ignore', over='ignore', divide='ignore'):
    m = np.diff(k) / np.diff(orders)
    c = k[:-1] - m * a
    # (m x + c) / (x (x - 1)) is largest at a stationary point or an end.
    root = np.sqrt(np.maximum(c * c + m * c, 0.0))
    points = [np.clip((-c + sign * root) / m, a, b) for sign in (-1, 1)]
    best = np.maximum(divergences[:-1] / a, divergences[1:] / b)
    for x in points:
      x = np.where(np.isfinite(x), x, a)
      best = np.fmax(best, (m * x + c) / (x * (x - 1)))
  best = np.where(np.isinf(k[1:]), np.inf, best)
  # D increases with the order, and D / a < D.
  return np.maximum.accumulate(np.append(divergences[0], best))


def subsampled_divergence(divergence: Callable[[int], float], order: int,
                          sampling_prob: float) -> float:
  """Returns D_order(sP + (1-s)Q || Q) from D_k(P || Q), k = 2..order, exactly.

  s is `sampling_prob`; `order` is an integer of at least two.

  Source: Lemma 15 of Bun, Dwork, Rothblum and Steinke (STOC 2018).
  """
  order = _checks.integer('order', order, 2)
  s = _checks.sampling_prob(sampling_prob)
  k = np.arange(2, order + 1)
  log_binomial = np.array([
      math.lgamma(order + 1) - math.lgamma(i + 1) - math.lgamma(order - i + 1)
      for i in k])
  rest = np.where(k < order, (order - k) * math.log1p(-s) if s < 1 else -np.inf,
                  0.0)
  # With zero divergences the sum is one; log1p keeps the precision of the excess.
  excess = np.exp(log_binomial + rest + k * math.log(s)) * np.expm1(
      (k - 1) * np.array([divergence(int(i)) for i in k]))
  return float(np.log1p(np.sum(excess))) / (order - 1)
