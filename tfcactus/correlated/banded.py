"""Banded Toeplitz strategies: every column has the same few coefficients."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tfcactus import _checks
from tfcactus.correlated import base
from tfcactus.correlated.workload import PREFIX_SUMS, quotient, Workload

_NODES = 400
"""Largest number of steps whose noise is evaluated if learning rates vary."""


class BandedToeplitz(base.Strategy):
  """Banded Toeplitz strategy matrix (BandMF).

  Column t has the coefficients in rows t, t + 1, ...

  Attributes:
    coefficients: Shape (bands,), the first one positive; their Euclidean norm is at
      most one. A single coefficient is one.
  """

  kind = 'banded_toeplitz'
  period = 1
  _numbers: tuple[float, ...]

  def __init__(self, coefficients: Any):
    """Raises ValueError unless `coefficients` are as above and pass `check_growth`."""
    numbers = _checks.vector('coefficients', coefficients)
    if numbers[0] <= 0 or (numbers.size == 1 and numbers[0] != 1):
      raise ValueError(
          'Expected coefficients of which the first is positive, and one if it is the '
          f'only one, got {numbers[0]!r}.')
    object.__setattr__(self, '_numbers', tuple(numbers.tolist()))
    self._check()

  @property
  def coefficients(self) -> np.ndarray:
    """The coefficients of each column, shape (bands,)."""
    return np.array(self._numbers)

  @property
  def bands(self) -> int:
    return len(self._numbers)

  def column(self, step: int, steps: int) -> np.ndarray:
    column = np.zeros(steps - step)
    column[:self.bands] = self._numbers[:steps - step]
    return column

  def inverse_column(self, step: int, steps: int) -> np.ndarray:
    return quotient(_impulse(steps - step), self.coefficients)

  def errors(self, steps: int, workload: Workload = PREFIX_SUMS) -> np.ndarray:
    if workload.learning_rates:
      return super().errors(steps, workload)
    steps = _checks.integer('steps', steps, 1)
    # All columns of the inverse are shifts of the first.
    moved = workload.moved(self.inverse_column(0, steps), np.ones(steps))
    return np.sqrt(np.cumsum(moved**2))

  def rows(self) -> base.NoiseRows:
    return _BandedRows(self.coefficients)

  def product(self) -> base.Product:
    return _BandedProduct(self.coefficients)

  def fields(self) -> dict[str, Any]:
    return {'coefficients': list(self._numbers)}


class _Ring:
  """Ring buffer of the last bands - 1 vectors, for sums c_1 v_(t-1) + c_2 v_(t-2)..."""

  def __init__(self, coefficients: np.ndarray):
    self._first, self._others = coefficients[0], coefficients[1:]
    self._kept: np.ndarray | None = None
    self._place = 0

  def restart(self) -> None:
    """Drops all vectors."""
    self._kept = None

  def _earlier(self, like: np.ndarray) -> Any:
    """Returns the sum over the vectors kept, of `like`'s shape; 0.0 with one band."""
    count = self._others.size
    if not count:
      return 0.0
    if self._kept is None:
      self._kept, self._place = np.zeros((count, *like.shape)), 0
    # Row (place - i) holds the vector of i steps before.
    weights = np.empty(count)
    weights[(self._place - 1 - np.arange(count)) % count] = self._others
    # No BLAS: its threads go on spinning beside the training.
    return np.einsum('i,i...->...', weights, self._kept)

  def _keep(self, vector: np.ndarray) -> None:
    """Keeps a vector in place of the oldest."""
    if self._kept is not None:
      self._kept[self._place] = vector
      self._place = (self._place + 1) % self._others.size


class _BandedRows(_Ring, base.NoiseRows):
  """Draws x_t = (z_t - c_1 x_(t-1) - ...) / c_0 from fresh z; keeps bands - 1 x."""

  def next(self, fresh: base.Draw, again: base.Draw | None = None) -> np.ndarray:
    del again
    noise = fresh()
    noise -= self._earlier(noise)
    noise /= self._first
    self._keep(noise)
    return noise


class _BandedProduct(_Ring, base.Product):
  """Returns c_0 v_t + c_1 v_(t-1) + ...; keeps bands - 1 vectors."""

  def next(self, vector: np.ndarray) -> np.ndarray:
    found = self._first * vector
    found += self._earlier(vector)
    self._keep(vector)
    return found


@dataclasses.dataclass(frozen=True)
class BandedStrategy(base.Correlation):
  """Request for the banded Toeplitz matrix (BandMF) of least error.

  Attributes:
    bands: As `Correlation.bands`; drawing keeps bands - 1 vectors of the model's size.
    workload: The workload whose error is minimised.

  Source: Kalinin and Lampert, "Banded Square Root Matrix Factorization" (2024), for the
  coefficients that the search starts from; McKenna, "Scaling up the Banded Matrix
  Factorization Mechanism" (2024), for the error that it minimises.
  """

  workload: Workload = PREFIX_SUMS

  def __post_init__(self) -> None:
    super().__post_init__()
    if not isinstance(self.workload, Workload):
      raise ValueError(
          'Expected workload=tfcactus.correlated.Workload(...), got '
          f'workload={self.workload!r}.')

  def solve(self, steps: int) -> BandedToeplitz:
    steps = self._check_steps(steps)
    if self.bands == 1:
      return BandedToeplitz([1.0])
    from scipy import optimize  # pylint: disable=import-outside-toplevel
    error = (_rated if self.workload.learning_rates else _constant)(
        steps, self.workload)

    def objective(others: np.ndarray) -> tuple[float, np.ndarray]:
      """Returns log(squared norm * mean squared error), and gradient, for c_0 = 1."""
      coefficients = np.append(1.0, others)
      with np.errstate(all='ignore'):
        value, gradient = error(coefficients)
      if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
        return 1e100, np.zeros_like(others)  # So large that the search turns back.
      length = coefficients @ coefficients
      return (float(np.log(length) + np.log(value)),
              2 * others / length + gradient[1:] / value)

    order = np.arange(1, self.bands)
    start = np.cumprod((order - 0.5) / order)  # Power series of (1 - x)^(-1/2).
    found = optimize.minimize(objective, start, jac=True, method='L-BFGS-B', options={
        'maxiter': 2000, 'maxfun': 3000, 'ftol': 1e-15, 'gtol': 1e-10})
    best = min((found.x, start), key=lambda others: objective(others)[0])
    return BandedToeplitz(base.unit(np.append(1.0, best)))


def _constant(steps: int, workload: Workload) -> Any:
  """Returns a function from coefficients to (mean squared error, its gradient).

  The learning rate is constant.
  """
  # After step t, the noise in a weight is the sum of B_i z_(t - i) over i = 0, ..., t,
  # with standard normals z. B is the running sum of the power series of 1 / C(x), where
  # C is the polynomial of the coefficients; momentum divides the series by
  # 1 - momentum x.
  weights = np.arange(steps, 0, -1) / steps

  def error(coefficients: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns the mean squared error, and its gradient of shape (bands,)."""
    moved = np.cumsum(workload.with_momentum(quotient(_impulse(steps), coefficients)))
    pulled = weights * moved
    # The derivative of B by coefficient k is minus `slopes`, shifted by k.
    slopes = quotient(moved, coefficients)
    gradient = [-2 * pulled[shift:] @ slopes[:steps - shift]
                for shift in range(coefficients.size)]
    return float(pulled @ moved), np.array(gradient)

  return error


def _rated(steps: int, workload: Workload) -> Any:
  """Returns a function from coefficients to (mean squared error, its gradient).

  Learning rates vary over steps.
  """
  # The draws of at most `_NODES` steps are evaluated: errors vary smoothly, and each
  # stands for the draws since the one before it.
  rates = workload.rates(steps)
  nodes = np.unique(np.linspace(0, steps - 1, min(steps, _NODES)).round().astype(int))
  gaps = np.diff(np.concatenate([[-1], nodes]))
  later = np.concatenate([rates, np.zeros(steps)])
  # Row n has the rates of node n and of the steps after it, zero beyond the last step.
  windows = np.lib.stride_tricks.sliding_window_view(later, steps)[nodes]
  within = np.arange(steps) < (steps - nodes)[:, None]
  weights = within * (gaps / steps)[:, None]

  def error(coefficients: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns the mean squared error, and its gradient of shape (bands,)."""
    # moved[n, i]: how far a unit draw of node n has moved a weight i steps later.
    series = workload.with_momentum(quotient(_impulse(steps), coefficients))
    moved = np.cumsum(windows * series, axis=1)
    pulled = 2 * weights * moved
    value = 0.5 * float(np.sum(pulled * moved))
    # Derivatives of the error by `moved`, by its summands, and by entries of `series`.
    back = np.cumsum(pulled[:, ::-1], axis=1)[:, ::-1]
    of_series = np.sum(windows * back, axis=0)
    # The derivative of `series` by coefficient k is minus `slopes`, shifted by k.
    slopes = quotient(series, coefficients)
    gradient = [-of_series[shift:] @ slopes[:steps - shift]
                for shift in range(coefficients.size)]
    return value, np.array(gradient)

  return error


def _impulse(size: int) -> np.ndarray:
  """Returns (1, 0, ..., 0), shape (size,): the power series of one."""
  impulse = np.zeros(size)
  impulse[0] = 1.0
  return impulse


def min_separation_sensitivity_squared(
    coefficients: np.ndarray, steps: int, *, min_separation: int,
    max_participations: int) -> float:
  """Returns an upper bound on the squared sensitivity of a Toeplitz strategy.

  The sensitivity is the largest norm of the change of C times the sums, if one example
  changes each sum that it takes part in by a norm of one. The bound is attained if the
  coefficients are non-negative and do not grow; otherwise it is the bound for larger
  coefficients that do not grow.

  Args:
    coefficients: Shape (bands,), the first column of C; zero beyond.
    steps: Number of steps.
    min_separation: Least number of steps from one participation to the next.
    max_participations: Largest number of participations of one example.

  Raises:
    ValueError: if a number is out of range.

  Source: McMahan et al., "A Hassle-free Algorithm for Private Learning in Practice"
  (2024), Theorem 2.
  """
  steps = _checks.count('steps', steps)
  column = np.zeros(steps)
  given = np.abs(_checks.vector('coefficients', coefficients))[:steps]
  # Larger coefficients that do not grow have inner products at least as large.
  given = np.maximum.accumulate(given[::-1])[::-1]
  column[:given.size] = given
  separation = _checks.integer('min_separation', min_separation, 1)
  times = min(_checks.integer('max_participations', max_participations, 1),
              -(-steps // separation))
  total = np.zeros(steps)
  for index in range(times):
    start = index * separation
    total[start:] += column[:steps - start]
  # The factor makes up for the rounding of both sums.
  return float(total @ total) * (1 + 2.0**-52 * (steps + times))
