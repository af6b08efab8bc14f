"""Laws (no accountant) of the secret number K of runs of a search.

A search repeats a private run K times and shows the best result. `tuning` computes its
cost from f(x) = E x^K and the derivative f'.

Source: Papernot and Steinke, "Hyperparameter Tuning with Renyi Differential Privacy"
(ICLR 2022), for the truncated negative binomial law and the Poisson law.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
import dataclasses
import functools
import math
from typing import Any

import numpy as np
from scipy import optimize, special

from tfcactus import _checks, _format, _numerics

MOST = 10_000
"""Largest public number of runs, and largest `eta` or rate of a law."""

ROUNDOFF = 1e-11
"""Bound on the relative error of a computed f': a power or an exponential with a few
times MOST roundings in its exponent, or MOST steps of Horner's rule."""

_LEAST_GAMMA = 1e-12
"""Least parameter gamma of the negative binomial law: its rounding is then harmless."""

LEAST_MEAN = 1e-300
"""Least mean number of runs, and least rate or probability of a law: products with
smaller ones lose the digits that `ROUNDOFF` counts on."""


class RunLaw(abc.ABC):
  """Base class of laws of the number of runs K, by the function f(x) = E x^K."""

  @abc.abstractmethod
  def generating(self, x: np.ndarray) -> np.ndarray:
    """Returns f(x) = E x^K at `x` in [0, 1], any shape."""

  @abc.abstractmethod
  def derivative(self, x: np.ndarray) -> np.ndarray:
    """Returns f'(x) = E K x^(K-1) at `x` in [0, 1], any shape, within `ROUNDOFF`."""

  @abc.abstractmethod
  def probabilities(self, most: int) -> np.ndarray:
    """Returns the probabilities of K = 0, 1, ..., most; shape (most + 1,)."""

  @property
  def most(self) -> float:
    """The largest possible number of runs; inf if there is none."""
    return math.inf

  @property
  def expected(self) -> float:
    """The mean number of runs."""
    return float(self.derivative(np.ones(1))[0])

  def quantile(self, u: float) -> int:
    """Returns the smallest k with P(K <= k) > u, for a uniform `u` in [0, 1).

    The probability of more than 2^24 runs is given to 2^24 runs.
    """
    most = 64
    while True:
      most = int(min(2 * most, self.most, 2**24))
      below = np.cumsum(self.probabilities(most))
      if u < below[-1] or most in (self.most, 2**24):
        return int(np.searchsorted(below[:-1], u, side='right'))

  def __str__(self) -> str:
    least = '' if self.most == math.inf else f' and at most {self.most}'
    mean = _format.upper(float(f'{self.expected:.12g}'))  # Without rounding of sums.
    return f'{type(self).__name__} (mean {mean}{least})'

  def capped(self, most: int) -> ListedRuns:
    """Returns the law of min(K, most), `most` being public, from 1 to 10,000."""
    most = int(min(_checks.integer('most', most, 1, MOST), self.most))
    probability = self.probabilities(most)
    probability[most] = max(1 - math.fsum(probability[:most]), 0.0)
    return ListedRuns(tuple(np.trim_zeros(probability / math.fsum(probability), 'b')))


@dataclasses.dataclass(frozen=True)
class NegativeBinomialRuns(RunLaw):
  """Truncated negative binomial number of runs: at least one, with a heavy tail.

  f(x) = (u^-eta - 1) / (gamma^-eta - 1), where u = 1 - x + gamma x; gamma is in (0, 1).

  Attributes:
    mean: Mean number of runs, at least 1 + 1e-9.
    eta: Shape, in (-1, 10,000]: 1 is the geometric law, 0 the logarithmic one. With a
      smaller shape a search costs less epsilon at the same mean, and K varies more.
  """

  mean: float
  eta: float

  def __post_init__(self) -> None:
    # At a smaller mean, gamma is hardly another float than one.
    if _checks.real('mean', self.mean) < 1 + 1e-9:
      raise ValueError(f'Expected mean > 1, by 1e-9 at least, got mean={self.mean!r}; '
                       'for one run, do not search.')
    if not -1 < _checks.real('eta', self.eta) <= MOST:
      raise ValueError(f'Expected eta in (-1, {MOST}], got eta={self.eta!r}.')
    if self._mean_at(math.log(_LEAST_GAMMA)) < self.mean:
      raise ValueError(
          f'Expected a mean that the law with eta={self.eta!r} can reach in float64, '
          f'got mean={self.mean!r}; lower the mean or raise eta.')

  @functools.cached_property
  def gamma(self) -> float:
    """The parameter gamma of f that gives the mean."""
    return math.exp(optimize.brentq(lambda t: self._mean_at(t) - self.mean,
                                    math.log(_LEAST_GAMMA), -1e-15, xtol=1e-15))

  # With (u^-eta - 1) / (gamma^-eta - 1) = (gamma / u)^eta (1 - u^eta) / (1 - gamma^eta)
  # nothing overflows for a large eta.

  def generating(self, x: np.ndarray) -> np.ndarray:
    log_gamma = math.log(self.gamma)
    # 1 - gamma is exact where gamma is near one, and a sum near one is not.
    log_u = (np.log1p((self.gamma - 1) * x) if self.gamma > 0.5 else
             np.log((1 - x) + self.gamma * x))
    return np.exp(self.eta * (log_gamma - log_u)) * _power(self.eta, log_u) / _power(
        self.eta, log_gamma)

  def derivative(self, x: np.ndarray) -> np.ndarray:
    u = (1 - x) + self.gamma * x
    return (1 - self.gamma) / u * (self.gamma / u)**self.eta / _power(
        self.eta, math.log(self.gamma))

  def probabilities(self, most: int) -> np.ndarray:
    # P(K = k + 1) / P(K = k) is (k + eta) / (k + 1) (1 - gamma).
    k, log_gamma = np.arange(1, most), math.log(self.gamma)
    first = math.log((1 - self.gamma) / _power(self.eta, log_gamma))
    ratio = np.log((k + self.eta) / (k + 1) * (1 - self.gamma))
    return np.append(0.0, np.exp(np.cumsum(np.append(
        first + self.eta * log_gamma, ratio))))

  def _mean_at(self, log_gamma: float) -> float:
    """Returns the mean of the law with the parameter gamma = exp(log_gamma)."""
    return math.expm1(-log_gamma) / float(_power(self.eta, log_gamma))


def _power(eta: float, log_u: Any) -> Any:
  """Returns (1 - u^eta) / eta, and its limit -log u near eta = 0."""
  # Products with a smaller eta may lose digits, or vanish.
  return -np.expm1(eta * log_u) / eta if abs(eta) > LEAST_MEAN else -log_u


@dataclasses.dataclass(frozen=True)
class LogarithmicRuns(NegativeBinomialRuns):
  """Logarithmic number of runs with a given mean: at least one. A good default."""

  eta: float = dataclasses.field(default=0.0, init=False)


@dataclasses.dataclass(frozen=True)
class GeometricRuns(NegativeBinomialRuns):
  """Geometric number of runs: after each run a coin says whether to go on."""

  eta: float = dataclasses.field(default=1.0, init=False)


@dataclasses.dataclass(frozen=True)
class PoissonRuns(RunLaw):
  """Poisson number of runs, concentrated around its mean.

  Attributes:
    rate: Mean of the Poisson law, from 1e-300 to 10,000.
    at_least_one: Whether the law is that of a Poisson number given that it is at least
      one. Without this, a search may show nothing.
  """

  rate: float
  at_least_one: bool = False

  def __post_init__(self) -> None:
    if not LEAST_MEAN <= _checks.positive('rate', self.rate) <= MOST:
      raise ValueError(
          f'Expected rate from {LEAST_MEAN:g} to {MOST}, got rate={self.rate!r}.')

  @property
  def _share(self) -> float:
    """The probability of a Poisson number that the law admits: at least one, or any."""
    return -math.expm1(-self.rate) if self.at_least_one else 1.0

  def generating(self, x: np.ndarray) -> np.ndarray:
    # Given at least one run, the numerator is the difference from its value at x = 0.
    some = -np.expm1(-self.rate * x) if self.at_least_one else 1.0
    return np.exp(self.rate * (x - 1)) * some / self._share

  def derivative(self, x: np.ndarray) -> np.ndarray:
    return self.rate * np.exp(self.rate * (x - 1)) / self._share

  def probabilities(self, most: int) -> np.ndarray:
    k = np.arange(most + 1)
    poisson = np.exp(k * math.log(self.rate) - self.rate - special.gammaln(k + 1))
    if self.at_least_one:
      poisson[0] = 0.0
    return poisson / self._share


@dataclasses.dataclass(frozen=True)
class BinomialRuns(RunLaw):
  """Binomial number of runs.

  Attributes:
    trials: Largest number of runs, at most 10,000.
    prob: Probability of each trial to be a run, in [1e-300, 1].
  """

  trials: int
  prob: float

  def __post_init__(self) -> None:
    _checks.integer('trials', self.trials, 1, MOST)
    if _checks.sampling_prob(self.prob, 'prob') < LEAST_MEAN:
      raise ValueError(f'Expected prob >= {LEAST_MEAN:g}, got prob={self.prob!r}.')

  @property
  def most(self) -> float:
    return self.trials

  def generating(self, x: np.ndarray) -> np.ndarray:
    with np.errstate(divide='ignore'):  # The log of zero is -inf.
      return np.exp(self.trials * np.log1p(self.prob * (x - 1)))

  def derivative(self, x: np.ndarray) -> np.ndarray:
    return self.trials * self.prob * (
        (1 - self.prob) + self.prob * x)**(self.trials - 1)

  def probabilities(self, most: int) -> np.ndarray:
    k = np.arange(most + 1)
    possible = np.exp(_numerics.log_binomial(
        np.minimum(k, self.trials), self.trials, self.prob))
    return np.where(k > self.trials, 0.0, possible)


@dataclasses.dataclass(frozen=True)
class FixedRuns(BinomialRuns):
  """Always `trials` runs, a number which may be public."""

  prob: float = dataclasses.field(default=1.0, init=False)


@dataclasses.dataclass(frozen=True)
class ListedRuns(RunLaw):
  """A law given by its probabilities, such as a law with a public cap.

  Attributes:
    probability: Probabilities of 0, 1, 2, ... runs, at most 10,000; their sum is one.
  """

  probability: Sequence[float]

  def __post_init__(self) -> None:
    given = _checks.vector('probability', self.probability)
    if not 2 <= given.size <= MOST + 1 or np.any(given < 0) or given[-1] == 0:
      raise ValueError(
          f'Expected probabilities of 0, 1, ... runs, the last of at most {MOST} runs '
          f'positive and none negative, got {given.size} of them, the least '
          f'{float(np.min(given))!r} and the last {float(given[-1])!r}.')
    check_sum(given, 'probabilities')
    object.__setattr__(self, 'probability', tuple(given.tolist()))
    if self.expected < LEAST_MEAN:
      raise ValueError(
          f'Expected a mean of at least {LEAST_MEAN:g} runs, got {self.expected!r}.')

  @property
  def most(self) -> float:
    return len(self.probability) - 1

  def generating(self, x: np.ndarray) -> np.ndarray:
    return np.polynomial.polynomial.polyval(x, self.probability)

  def derivative(self, x: np.ndarray) -> np.ndarray:
    weights = np.arange(len(self.probability)) * np.array(self.probability)
    return np.polynomial.polynomial.polyval(x, weights[1:])

  def probabilities(self, most: int) -> np.ndarray:
    given = np.array(self.probability[:most + 1])
    return np.append(given, np.zeros(most + 1 - given.size))


def check_sum(probabilities: Iterable[float], what: str) -> None:
  """Raises ValueError unless probabilities, named `what`, sum to one within 1e-12."""
  total = math.fsum(probabilities)
  if not abs(total - 1) <= 1e-12:
    raise ValueError(f'Expected {what} that sum to 1, got a sum of {total!r}; divide '
                     'them by it.')
