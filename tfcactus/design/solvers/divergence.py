"""Divergences that a design can minimise, as functions of a pair of cells.

Each is an f-divergence of the noise from its shifted copy, with a generator g. If the
noise has masses a and b in two cells that the shift exchanges, the shifted noise has b
and a. Both cells together contribute phi(a, b) = a g(b / a) + b g(a / b), which is
convex, symmetric and homogeneous of degree one. If a release is Poisson-subsampled, the
noise P is compared with the mixture (1 - rate) P + rate P', P' being the shifted noise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
from typing import Callable

import numpy as np

_FORM = re.compile(r'(?P<kind>kl|chi2|renyi:(?P<order>[^@]+))(@(?P<rate>.+))?')

_SERIES = 0.05
"""Argument below which (1 + v)^order is a series, so that nothing cancels."""

_TERMS = 14  # Highest power in that series.

_ORDERS = (0.05, 256.0)
"""Smallest and largest order that float64 can carry through a design."""

_LEAST_RATE = 1e-6
"""Smallest sampling rate Q; 'chi2' is the limit for small rates."""

Pairwise = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Divergence:
  """A divergence to minimise, with its derivatives."""

  value: Pairwise  # phi(a, b).
  slope: Pairwise  # The derivative of phi with respect to a.
  curvature: Pairwise  # -a b times the mixed second derivative of phi.
  # Maps the minimised sum of phi, which is convex in the density, to the divergence
  # that its name in `parse` means; increasing.
  report: Callable[[float], float]


def parse(name: object) -> Divergence:
  """Returns the divergence of that name; ValueError for another.

  'kl' is for many full releases, 'chi2' for subsampled training (the small-rate limit),
  'renyi:A' is the Renyi divergence of order A. With '@Q' behind, the release is
  Poisson-subsampled with probability Q, and the divergence is that from the release
  without the record (direction 'remove').

  Source: Renyi, "On Measures of Entropy and Information" (1961); the mixture (1 - Q) P
  + Q P' against P of Mironov, Talwar and Zhang, "Renyi Differential Privacy of the
  Sampled Gaussian Mechanism" (2019).
  """
  return _parse(name if isinstance(name, str) else repr(name))


@functools.lru_cache(maxsize=64)
def _parse(name: str) -> Divergence:
  """Returns the divergence of that name, cached; ValueError for an unknown name."""
  order = rate = math.nan
  form = _FORM.fullmatch(name)
  if form is not None:
    with contextlib.suppress(ValueError):
      order = {'kl': 1.0, 'chi2': 2.0}.get(form['kind']) or float(form['order'])
      rate = float(form['rate'] or 1.0)
  if not (_ORDERS[0] <= order <= _ORDERS[1] and _LEAST_RATE <= rate <= 1):
    raise ValueError(
        "Expected objective to be 'kl', 'chi2' or 'renyi:A' with A between "
        f'{_ORDERS[0]:g} and {_ORDERS[1]:g}, optionally followed by @Q with a '
        f'sampling rate Q in [{_LEAST_RATE:g}, 1], got objective={name!r}.')
  chi2 = name.startswith('chi2')

  def report(total):
    """Returns log(1 + A (A - 1) total) / (A - 1); for KL and chi2 a multiple."""
    # `_subsampled` divides phi by rate^2, and has half of chi2.
    total = rate**2 * total
    if chi2:
      return float(total if rate == 1 else 2 * total)
    if order == 1:
      return float(total)
    return float(np.log1p(order * (order - 1) * total) / (order - 1))

  functions = (_subsampled(order, rate) if rate < 1 else
               _plain(order, 2.0 if chi2 else 1.0))
  return Divergence(*functions, report)


def _plain(order: float, unit: float) -> tuple[Pairwise, Pairwise, Pairwise]:
  """Returns phi, its slope and curvature for unsampled releases, times `unit`."""
  # With A the order, phi is (b^A a^(1-A) + a^A b^(1-A) - a - b) / (A (A - 1)); its
  # limit for A = 1 is that of KL, where `unit` is one.
  order_minus_one = order - 1

  def value(a, b):
    """Returns phi(a, b), elementwise."""
    log_ratio = np.log(b / a)
    if order == 1:
      return (b - a) * log_ratio
    # A product, so that nearly equal cells lose no digits.
    return unit * a * np.expm1(order_minus_one * log_ratio) * np.expm1(
        order * log_ratio) * np.exp(-order_minus_one * log_ratio) / (
            order * order_minus_one)

  def slope(a, b):
    """Returns the derivative of phi with respect to a."""
    log_ratio = np.log(b / a)
    if order == 1:
      return 1 - log_ratio - b / a
    return unit * (order * np.expm1(-order_minus_one * log_ratio) -
                   order_minus_one * np.expm1(order * log_ratio)) / (
                       order * order_minus_one)

  def curvature(a, b):
    """Returns -a b times the mixed second derivative of phi."""
    if order == 1:
      return a + b
    log_ratio = np.log(b / a)
    return unit * a * (np.exp(order * log_ratio) + np.exp(-order_minus_one * log_ratio))

  return value, slope, curvature


def _subsampled(order: float, rate: float) -> tuple[Pairwise, Pairwise, Pairwise]:
  """Returns phi, its slope and curvature for (1 - rate) P + rate P' against P."""
  # The generator, g(t) = G(rate (t - 1)) / rate^2, tends to chi2 / 2 for small rates.
  order_minus_one = order - 1

  def generator(v):
    """Returns G(v) = ((1 + v)^A - 1 - A v) / (A (A - 1)), A being the order."""
    # The direct formula loses digits at small v: use the power series there.
    series = np.ones_like(v)
    for k in range(_TERMS, 2, -1):
      series = 1 + (order - k + 1) / k * v * series
    if order == 1:
      direct = (1 + v) * np.log1p(v) - v
    else:
      direct = (np.expm1(order * np.log1p(v)) - order * v) / (order * order_minus_one)
    return np.where(np.abs(v) * max(order, 1) < _SERIES, 0.5 * v * v * series, direct)

  def first(v):
    """Returns the derivative of G."""
    log = np.log1p(v)
    return log if order == 1 else np.expm1(order_minus_one * log) / order_minus_one

  def second(v):
    """Returns the second derivative of G."""
    return np.exp((order - 2) * np.log1p(v))

  def value(a, b):
    """Returns phi(a, b), elementwise."""
    forth, back = rate * (b - a) / a, rate * (a - b) / b
    return (a * generator(forth) + b * generator(back)) / rate**2

  def slope(a, b):
    """Returns the derivative of phi with respect to a."""
    forth, back = rate * (b - a) / a, rate * (a - b) / b
    return (generator(forth) / rate - b / a * first(forth) + first(back)) / rate

  def curvature(a, b):
    """Returns -a b times the mixed second derivative of phi."""
    forth, back = rate * (b - a) / a, rate * (a - b) / b
    return b * (b / a) * second(forth) + a * (a / b) * second(back)

  return value, slope, curvature
