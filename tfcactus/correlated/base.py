"""Base classes of strategies, which are matrices that correlate noise, and requests.

Strategies take the place of tree aggregation, which correlates noise by a binary tree.
"""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import json
import math
from typing import Any, Callable, ClassVar

import numpy as np

from tfcactus import _checks
from tfcactus.correlated.workload import PREFIX_SUMS, Workload

TOLERANCE = 1e-9
"""Largest deviation from the identity of C times its inverse, as drawn."""

_LARGEST = 1e6
"""Largest entry of C's inverse: the factor of a draw in the noise."""

Draw = Callable[[], np.ndarray]
"""Function that returns independent normals of shape (dim,)."""


class NoiseRows(abc.ABC):
  """Sampler of correlated noise, step after step. Holds secrets; never save it.

  Whoever has its state, or the numbers that it was given, can subtract the noise.
  """

  @abc.abstractmethod
  def restart(self) -> None:
    """Starts anew: the next step's noise is independent of all earlier noise."""

  @abc.abstractmethod
  def next(self, fresh: Draw, again: Draw | None = None) -> np.ndarray:
    """Returns the noise x of the next step, with C x = z.

    `fresh` draws the z of this step, independent of earlier ones, shape (dim,), which
    may be overwritten. If `Strategy.replays`, `again` repeats the z of the previous
    step; None has the sampler keep what it needs.
    """


class Product(abc.ABC):
  """Product of C with vectors that come step after step. Never save it.

  It keeps vectors of earlier steps, such as sums of gradients, which are secret.
  """

  @abc.abstractmethod
  def restart(self) -> None:
    """Starts anew: the next step is the first one, and earlier vectors are dropped."""

  @abc.abstractmethod
  def next(self, vector: np.ndarray) -> np.ndarray:
    """Returns the sum of the last `bands` vectors, each times its entry of C, (dim,).

    `vector` is that of this step, float64, (dim,). Neither it nor the result may be
    changed until the next call. No term is rounded more than 2 * `bands` times.
    """


class Strategy(abc.ABC):
  """Strategy matrix C (DP-MF, DP-FTRL): lower triangular, its inverse correlates noise.

  The noise x satisfies C x = z, where z are independent normals whose standard
  deviation is the noise multiplier. The noisy sums are then as private as C times the
  clipped sums plus z. For lower triangular C and Gaussian z this holds for gradients
  that depend on earlier releases. Column t of C is nonzero in those rows of the product
  to which step t contributes. If no column has a norm above one and no example takes
  part twice within `bands` steps, then each participation of an example is released in
  rows of its own, with sensitivity of at most one.

  Immutable: attributes cannot be set, and arrays are made anew. When a strategy is
  made, its sampler and product are compared with C. Plans accept this library's
  strategies only.

  Attributes:
    kind: Name of the kind of strategy in files.

  Source: Choquette-Choo et al., "(Amplified) Banded Matrix Factorization" (2023),
  Theorems 4 and 5; adaptivity: Denisov et al. (2022).
  """

  kind: ClassVar[str]

  def __setattr__(self, name: str, value: object) -> None:
    raise AttributeError(
        f'Expected a {type(self).__name__} to stay as it was checked, got another '
        f'{name}; make another one.')

  @property
  @abc.abstractmethod
  def bands(self) -> int:
    """Rows that a column reaches over, the diagonal included."""

  @property
  def buffers(self) -> int:
    """Vectors of the model's size that drawing keeps; twice that in whole numbers."""
    return self.bands - 1

  @property
  def replays(self) -> bool:
    """True if the noise of a step is made of two draws: its own and the one before."""
    return False

  @property
  @abc.abstractmethod
  def period(self) -> int:
    """Number of steps after which columns repeat; the last step cuts columns off."""

  @abc.abstractmethod
  def column(self, step: int, steps: int) -> np.ndarray:
    """Returns column `step` of C from the diagonal on, shape (steps - step,)."""

  @abc.abstractmethod
  def inverse_column(self, step: int, steps: int) -> np.ndarray:
    """Returns column `step` of C's inverse from the diagonal, shape (steps - step,)."""

  @abc.abstractmethod
  def rows(self) -> NoiseRows:
    """Returns a sampler of noise that is correlated by this strategy."""

  @abc.abstractmethod
  def product(self) -> Product:
    """Returns the product of C with vectors that come step after step."""

  @abc.abstractmethod
  def fields(self) -> dict[str, Any]:
    """Returns the constructor's arguments by name, ready for JSON."""

  def matrix(self, steps: int) -> np.ndarray:
    """Returns C as a dense matrix, shape (steps, steps)."""
    steps = _checks.integer('steps', steps, 1)
    matrix = np.zeros((steps, steps))
    for step in range(steps):
      matrix[step:, step] = self.column(step, steps)
    return matrix

  def errors(self, steps: int, workload: Workload = PREFIX_SUMS) -> np.ndarray:
    """Returns standard deviations of the noise in a weight by step, shape (steps,).

    They are per noise multiplier and clipping norm, for sums and for learning rates of
    root mean square one.
    """
    rates = workload.rates(_checks.integer('steps', steps, 1))
    total = np.zeros(steps)
    for step in range(steps):
      total[step:] += workload.moved(self.inverse_column(step, steps), rates[step:])**2
    return np.sqrt(total)

  def error(self, steps: int, workload: Workload = PREFIX_SUMS) -> float:
    """Returns the root mean square of `errors` over steps."""
    return float(np.sqrt(np.mean(self.errors(steps, workload)**2)))

  @property
  def statement(self) -> str:
    """The sentence about correlation in a guarantee; '' for independent noise."""
    if self.bands == 1:
      return ''
    return (f' Noise is correlated over {self.bands} steps ({self.kind} '
            f'{self.digest}): this is for whole epochs, no single step has a guarantee '
            'of its own.')

  @property
  def digest(self) -> str:
    """16 hex digits that identify the matrix."""
    text = json.dumps({'kind': self.kind, **self.fields()}, sort_keys=True)
    return hashlib.sha256(f'tfcactus/correlated/1/{text}'.encode()).hexdigest()[:16]

  def to_config(self) -> dict[str, Any]:
    """Returns the whole strategy, ready for JSON; `from_config` restores it."""
    return {'kind': self.kind, 'digest': self.digest, **self.fields()}

  def _check(self) -> None:
    """Raises ValueError unless columns have norm <= 1, and sampler and product fit."""
    size, period = self.bands, self.period
    columns = np.zeros((2 * size, period))
    for step in range(period):
      columns[step:, step] = self.column(step, 2 * size)
    if not (np.all(np.isfinite(columns)) and np.all(columns[np.diag_indices(period)])):
      raise ValueError(
          'Expected a matrix of finite numbers without zeros on its diagonal, got '
          f'{self.fields()}; use less correlation.')
    longest = max(map(_squared_norm, columns.T))
    if not longest <= 1:
      raise ValueError(
          'Expected columns of a norm of at most one, which the noise is for, got '
          f'{math.sqrt(longest):.17g}; divide by it.')
    reach = max(int(np.flatnonzero(column)[-1]) - step
                for step, column in enumerate(columns.T))
    # The sampler must turn each column of C into a unit vector, and the product the
    # unit vector into the column. All columns are tried at once.
    sampler, draws = self.rows(), iter(columns.copy())
    inverted = np.stack([sampler.next(lambda: next(draws)) for _ in columns])
    product, identity = self.product(), np.eye(2 * size, period)
    multiplied = np.stack([product.next(row) for row in identity])
    off = np.max(np.abs([inverted - identity, multiplied - columns]))
    if not (off <= TOLERANCE and reach < size):
      raise ValueError(
          f'Expected a matrix of {size} bands whose inverse float64 can apply, got one '
          f'whose product with its inverse is {off:.1e} off the identity; use less '
          'correlation.')
    self.check_growth(20 * size)  # A first look; `solved` checks all steps of a plan.

  def check_growth(self, steps: int) -> None:
    """Raises ValueError if noise would grow: by factors of a million, or not finite.

    Factors are the entries of the inverse of C within `steps` steps.
    """
    with np.errstate(all='ignore'):
      grown = max(float(np.max(np.abs(self.inverse_column(step, steps))))
                  for step in range(min(self.period, steps)))
    if not grown <= _LARGEST:
      raise ValueError(
          f'Expected a matrix whose noise does not grow beyond {_LARGEST:.0e} times a '
          f'draw, got {grown:.1e} times within {steps} steps; use less correlation.')

  def __eq__(self, other: object) -> bool:
    return isinstance(other, Strategy) and self.digest == other.digest

  def __hash__(self) -> int:
    return hash(self.digest)

  def __repr__(self) -> str:
    return f'{type(self).__name__}({self.bands} bands, {self.digest})'


def unit(column: np.ndarray) -> np.ndarray:
  """Returns the column scaled to a norm just below one; a single number becomes one."""
  if column.size == 1:
    return np.ones(1)
  # The norm is 1 - 2^-40, which no rounding takes beyond one.
  return column * ((1 - 2.0**-40) / math.sqrt(math.fsum((column * column).tolist())))


def _squared_norm(column: np.ndarray) -> float:
  """Returns an upper bound on the squared norm of the column."""
  if np.array_equal(column[column != 0], [1.0]):
    return 1.0
  # An entry, a product of at most column.size / 2 factors, has as many roundings, which
  # its square counts twice. The square and the sum are rounded once each.
  return math.fsum((column * column).tolist()) * (
      1 + 1.01 * (column.size + 4) * 2.0**-53)


@dataclasses.dataclass(frozen=True)
class Correlation(abc.ABC):
  """Request for a strategy, which a plan solves for its number of steps.

  Attributes:
    bands: Rows that a column of the strategy reaches over, the diagonal included. The
      examples are split into `bands` groups, and each step draws from one group. One
      band is independent noise.
  """

  bands: int

  def __post_init__(self) -> None:
    object.__setattr__(self, 'bands', _checks.integer('bands', self.bands, 1))

  def _check_steps(self, steps: int) -> int:
    """Returns `steps`; raises ValueError if there are fewer steps than bands."""
    steps = _checks.integer('steps', steps, 1)
    if self.bands > steps:
      raise ValueError(
          f'Expected at most as many bands as steps, got bands={self.bands} of '
          f'{steps} steps.')
    return steps

  @abc.abstractmethod
  def solve(self, steps: int) -> Strategy:
    """Returns the strategy of about the least `Strategy.error` over `steps` steps.

    Raises ValueError if there are fewer steps than bands.
    """
