"""What a strategy is: how the noise of steps is correlated, and what that leaves."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import json
import math
from typing import Any
from typing import Callable
from typing import ClassVar
from typing import Dict
from typing import Optional

import numpy as np

from tfcactus import _checks
from tfcactus.correlated.workload import PREFIX_SUMS
from tfcactus.correlated.workload import Workload

TOLERANCE = 1e-9
"""How far C times its inverse, as it is drawn by, may be from the identity."""

_LARGEST = 1e6
"""Times what is drawn that noise may grow to."""

_NORM_ROOM = 1 - 2.0**-40
"""Columns are made so long: no rounding takes them beyond one."""

Draw = Callable[[], np.ndarray]


class NoiseRows(abc.ABC):
  """Makes the noise of one step after the other. Holds secrets; not to be saved.

  Whoever has what it holds, or the numbers it was given, can subtract noise.
  """

  @abc.abstractmethod
  def restart(self) -> None:
    """Begins anew: the next step's noise is independent of all before it."""

  @abc.abstractmethod
  def next(self, fresh: Draw, again: Optional[Draw] = None) -> np.ndarray:
    """Returns the noise of the next step, x with C x = z.

    Args:
      fresh: Draws z, independent of all before, shape (dim,); may be overwritten.
      again: Draws the z of the step before once more; None where it is to be kept.
    """


class Strategy(abc.ABC):
  """A lower triangular matrix C; step t gets row t of its inverse times normals.

  With noise x, C x = z of independent normals z of the noise multiplier, the released
  sums are as private as C applied to the clipped sums is under independent noise: for
  lower triangular C and Gaussian z that holds for gradients that depend on what was
  released before. In column t are the rows that see step t. If no column is longer
  than one and no example takes part twice within `bands` steps, then each of its
  participations is released in rows of its own, with sensitivity of at most one.

  Immutable: attributes cannot be set, and arrays are made anew. When one is made, the
  recursion that draws by it is compared with C. Plans take those of this library alone.

  Attributes:
    kind: What files call it.
    bands: Rows that a column reaches over, the diagonal included.

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
    """Rows that a column reaches over."""

  @property
  def buffers(self) -> int:
    """Vectors of the model's size that drawing keeps."""
    return self.bands - 1

  @property
  def replays(self) -> bool:
    """Whether drawing needs no more than the draw before, which can be repeated."""
    return False

  @property
  @abc.abstractmethod
  def period(self) -> int:
    """After so many steps columns repeat, but for their end."""

  @abc.abstractmethod
  def column(self, step: int, steps: int) -> np.ndarray:
    """A column of C from the diagonal on, shape (steps - step,)."""

  @abc.abstractmethod
  def inverse_column(self, step: int, steps: int) -> np.ndarray:
    """A column of C's inverse from the diagonal on, shape (steps - step,)."""

  @abc.abstractmethod
  def rows(self) -> NoiseRows:
    """What draws by it."""

  @abc.abstractmethod
  def fields(self) -> Dict[str, Any]:
    """The numbers that it is, ready for JSON."""

  def matrix(self, steps: int) -> np.ndarray:
    """C, dense, of so many steps."""
    steps = _checks.integer('steps', steps, 1)
    matrix = np.zeros((steps, steps))
    for step in range(steps):
      matrix[step:, step] = self.column(step, steps)
    return matrix

  def errors(self, steps: int, workload: Workload = PREFIX_SUMS) -> np.ndarray:
    """Standard deviation of the weights after each step, per noise multiplier.

    Each step divides by nothing here: it is of sums, at a learning rate of one.
    """
    rates = workload.rates(_checks.integer('steps', steps, 1))
    total = np.zeros(steps)
    for step in range(steps):
      total[step:] += workload.moved(
          self.inverse_column(step, steps), rates[step:])**2
    return np.sqrt(total)

  def error(self, steps: int, workload: Workload = PREFIX_SUMS) -> float:
    """Root mean square of `errors`, over steps."""
    return float(np.sqrt(np.mean(self.errors(steps, workload)**2)))

  @property
  def statement(self) -> str:
    """What a guarantee says of it, a sentence after others; '' of independent noise."""
    if self.bands == 1:
      return ''
    return (f' Noise is correlated over {self.bands} steps ({self.kind} '
            f'{self.digest}): this is for whole epochs, no single step has a guarantee '
            'of its own.')

  @property
  def digest(self) -> str:
    """16 hex digits naming the matrix."""
    text = json.dumps({'kind': self.kind, **self.fields()}, sort_keys=True)
    return hashlib.sha256(f'tfcactus/correlated/1/{text}'.encode()).hexdigest()[:16]

  def to_config(self) -> Dict[str, Any]:
    """All of it, ready for JSON; `from_config` gets it back."""
    return {'kind': self.kind, 'digest': self.digest, **self.fields()}

  def _check(self) -> None:
    """Compares columns with one, and what is drawn by with C.

    Raises:
      ValueError: if a column is longer than one, or C times its inverse is not one.
    """
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
    # Column by column: each is what z would have to be for x to be a unit vector.
    rows, given = self.rows(), iter(columns.copy())
    found = np.stack([rows.next(lambda: next(given)) for _ in columns])
    off = np.max(np.abs(found - np.eye(2 * size)[:, :period]))
    if not (off <= TOLERANCE and reach < size):
      raise ValueError(
          f'Expected a matrix of {size} bands that can be drawn by in float64, got one '
          f'by which the identity comes out {off:.1e} off; use less correlation.')
    self.check_growth(20 * size)

  def check_growth(self, steps: int) -> None:
    """Refuses a matrix by which noise grows without end.

    Raises:
      ValueError: if it grows a million times in so many steps.
    """
    with np.errstate(all='ignore'):
      grown = max(float(np.max(np.abs(self.inverse_column(step, steps))))
                  for step in range(min(self.period, steps)))
    if not grown <= _LARGEST:
      raise ValueError(
          f'Expected a matrix by which noise does not grow, got {grown:.1e} times what '
          f'is drawn within {steps} steps; use less correlation.')

  def __eq__(self, other: object) -> bool:
    return isinstance(other, Strategy) and self.digest == other.digest

  def __hash__(self) -> int:
    return hash(self.digest)

  def __repr__(self) -> str:
    return f'{type(self).__name__}({self.bands} bands, {self.digest})'


def unit(column: np.ndarray) -> np.ndarray:
  """A column made as long as one allows: one alone is one."""
  if column.size == 1:
    return np.ones(1)
  return column * (_NORM_ROOM / math.sqrt(math.fsum((column * column).tolist())))


def _squared_norm(column: np.ndarray) -> float:
  """At least the squared norm of the column."""
  if np.array_equal(column[column != 0], [1.0]):
    return 1.0
  # Each square is rounded once, and their sum.
  return math.fsum((column * column).tolist()) * (1 + 4 * 2.0**-53)


@dataclasses.dataclass(frozen=True)
class Correlation(abc.ABC):
  """A request for a strategy, which a plan solves for its number of steps.

  Attributes:
    bands: Rows that a column of the strategy reaches over, the diagonal included:
      examples are split into as many groups, of which each step takes one. One is
      independent noise.
  """

  bands: int

  def __post_init__(self) -> None:
    object.__setattr__(self, 'bands', _checks.integer('bands', self.bands, 1))

  def _check_steps(self, steps: int) -> int:
    """The steps, if there are as many as bands.

    Raises:
      ValueError: if there are not.
    """
    steps = _checks.integer('steps', steps, 1)
    if self.bands > steps:
      raise ValueError(
          f'Expected at most as many bands as steps, got bands={self.bands} of '
          f'{steps} steps.')
    return steps

  @abc.abstractmethod
  def solve(self, steps: int) -> Strategy:
    """The strategy of least error after so many steps.

    Raises:
      ValueError: if there are fewer steps than bands.
    """
