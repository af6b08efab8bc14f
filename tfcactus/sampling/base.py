"""What a sampling scheme is: which examples each step takes, and what that is worth."""

from __future__ import annotations

import abc
import dataclasses
import functools
from typing import Callable
from typing import ClassVar
from typing import List
from typing import Optional
from typing import Protocol
from typing import Tuple
from typing import Type
from typing import TypeVar

import dp_accounting
import numpy as np

from tfcactus import _checks
from tfcactus import relations
from tfcactus.randomness import KeyStream
from tfcactus.relations import Relation

_Scheme = TypeVar('_Scheme', bound='SamplingScheme')


class PlannedNumbers(Protocol):
  """What a scheme reads of a `PrivacyPlan`."""

  @property
  def num_examples(self) -> int:
    """Size of the training set."""

  @property
  def sampling_prob(self) -> float:
    """Expected share of the examples in a batch."""

  @property
  def groups(self) -> int:
    """Into which examples are to be split, of which steps take turns: or one."""


@dataclasses.dataclass(frozen=True)
class Numbers:
  """What a scheme reads of a plan, without one; as `PlannedNumbers`."""

  num_examples: int
  sampling_prob: float
  groups: int = 1


class SamplingScheme(abc.ABC):
  """Chooses batches, states what a draw costs, and for whom that is proved.

  A *draw* is what the accountant composes: one batch, or, where a scheme deals out
  all examples at once, the batches of an epoch. A new scheme is one file with a
  subclass, and one line in `tfcactus.sampling.SCHEMES`; `tests/conformance` then
  checks that what it draws is what it states.

  Attributes:
    code: What counters and journals keep the scheme by: a number from 1 to 999
      that no other scheme has or ever had.
    name: What run cards call it.
    relations: The neighbouring relations its event is proved for; the first is
      the default.
    unproved: Why there are no others, a clause.
    draws_epochs: Whether a draw is the batches of an epoch; else one batch.
    cyclic: Whether fixed groups of examples take turns, as noise that is correlated
      over steps needs it.
    also_public: What a guarantee takes as public besides num_examples and
      sampling_prob, in words.
    groups: Into which examples are split, of which steps take turns; one if not.
    num_examples: Size of the training set (public).
  """

  code: ClassVar[int]
  name: ClassVar[str]
  relations: ClassVar[Tuple[dp_accounting.NeighboringRelation, ...]] = (
      relations.ADD_OR_REMOVE, relations.ZERO_OUT, relations.REPLACE)
  unproved: ClassVar[str] = ''
  draws_epochs: ClassVar[bool] = False
  cyclic: ClassVar[bool] = False
  also_public: ClassVar[Tuple[str, ...]] = ()
  groups: int = 1

  num_examples: int

  @classmethod
  @abc.abstractmethod
  def of_plan(cls: Type[_Scheme], plan: PlannedNumbers) -> _Scheme:
    """The scheme that a plan of these numbers is trained by.

    Raises:
      ValueError: if there is none.
    """

  @classmethod
  def prob_of_batch_size(cls, batch_size: int, num_examples: int, groups: int = 1
                         ) -> float:
    """The sampling_prob of a plan whose batches hold so many examples on average.

    Args:
      batch_size: Examples, on average.
      num_examples: Size of the training set.
      groups: Of a cyclic scheme, the bands of the noise.

    Raises:
      ValueError: if there are fewer examples, or none.
    """
    del groups
    num_examples = _checks.integer('num_examples', num_examples, 1)
    return checked_size(batch_size, num_examples) / num_examples

  @classmethod
  def of_batch_size(cls: Type[_Scheme], batch_size: int, num_examples: int,
                    groups: int = 1) -> _Scheme:
    """The scheme whose batches hold so many examples on average.

    Args:
      batch_size: As for `prob_of_batch_size`.
      num_examples: As for `prob_of_batch_size`.
      groups: As for `prob_of_batch_size`.

    Raises:
      ValueError: as `prob_of_batch_size` and `of_plan`.
    """
    prob = cls.prob_of_batch_size(batch_size, num_examples, groups)
    return cls.of_plan(
        Numbers(_checks.integer('num_examples', num_examples, 1), prob, groups))

  def of_part(self: _Scheme, size: int) -> _Scheme:
    """What draws of a part of the examples what this does, whatever else is drawn.

    Args:
      size: Examples in the part.

    Raises:
      ValueError: if examples do not enter by themselves.
    """
    raise ValueError(
        f'Expected Poisson batches of a part of {size} examples, got '
        f'{type(self).__name__}, whose examples are not drawn each by itself; give '
        'all examples to each worker.')

  @property
  @abc.abstractmethod
  def batches_per_epoch(self) -> int:
    """Batches in which an epoch sees each example once (on average)."""

  @abc.abstractmethod
  def draw(self, stream: KeyStream) -> List[np.ndarray]:
    """Draws afresh.

    Args:
      stream: Of random numbers.

    Returns:
      The indices of the examples in each batch of the draw, int64; one batch,
      or `batches_per_epoch` of them if `draws_epochs`.
    """

  def drawer(self, stream: KeyStream) -> Callable[[], List[np.ndarray]]:
    """Returns what makes one draw after the other, of what is settled once if any."""
    return functools.partial(self.draw, stream)

  @abc.abstractmethod
  def event(self, noise_event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    """What a draw costs.

    Args:
      noise_event: What one noisy sum costs an example known to be in it.
    """

  @abc.abstractmethod
  def released(self, count: int) -> str:
    """What `count` draws released, in words."""

  @abc.abstractmethod
  def check_plan(self, plan: PlannedNumbers) -> None:
    """Refuses a plan that accounts for other batches.

    Raises:
      ValueError: naming what differs.
    """

  @classmethod
  def check_relation(cls, value: Optional[Relation] = None
                     ) -> dp_accounting.NeighboringRelation:
    """The relation meant by `value`, or the default one.

    Args:
      value: As for `tfcactus.relations.check`, or None.

    Raises:
      ValueError: if it is none that the scheme's event is proved for.
    """
    if value is None:
      return cls.relations[0]
    relation = relations.check(value)
    if relation not in cls.relations:
      proved = ' or '.join(
          name for name, known in relations.NAMES.items() if known in cls.relations)
      raise ValueError(
          f'Expected neighboring_relation {proved}, got '
          f'{relations.label(relation)}: {cls.unproved}.')
    return relation

  def constants(self, plan: PlannedNumbers) -> str:
    """What a guarantee of a plan takes as public, in words."""
    *first, last = (f'num_examples={plan.num_examples}',
                    f'sampling_prob={plan.sampling_prob:.6g}', *self.also_public)
    return f'{", ".join(first)} and {last}'

  def _check_examples(self, plan: PlannedNumbers) -> None:
    """Refuses a plan of another num_examples, or of other groups."""
    if plan.groups != self.groups:
      raise ValueError(
          f'Expected batches with groups={plan.groups}, as many as the noise of the '
          f'plan has bands, got groups={self.groups}; use '
          'CyclicBatches(x, y, plan=plan).')
    if self.num_examples != plan.num_examples:
      raise ValueError(
          f'Expected batches with num_examples={plan.num_examples!r} as in the '
          f'plan, got num_examples={self.num_examples!r}; make both from the '
          'same numbers.')


@dataclasses.dataclass(frozen=True)
class SizedSampling(SamplingScheme):
  """A scheme that is its number of examples and the size of a batch.

  Attributes:
    num_examples: Size of the training set (public).
    batch_size: Examples to a batch.
  """

  num_examples: int
  batch_size: int

  def __post_init__(self) -> None:
    _checks.integer('num_examples', self.num_examples, 1)
    object.__setattr__(
        self, 'batch_size', checked_size(self.batch_size, self.num_examples))


def checked_size(batch_size: object, num_examples: int, name: str = 'batch_size'
                 ) -> int:
  """A batch size, or a number of batches, that num_examples allow.

  Raises:
    ValueError: if it is none.
  """
  size = _checks.integer(name, batch_size, 1)
  if size > num_examples:
    raise ValueError(
        f'Expected {name} of at most num_examples={num_examples}, got {name}={size}.')
  return size



@dataclasses.dataclass(frozen=True)
class DealtSampling(SamplingScheme):
  """A scheme that makes so many batches of each epoch, as a whole.

  Attributes:
    num_examples: Size of the training set (public).
    num_batches: Batches to an epoch (public).
  """

  relations = (relations.ADD_OR_REMOVE, relations.ZERO_OUT)
  draws_epochs = True

  num_examples: int
  num_batches: int

  def __post_init__(self) -> None:
    _checks.integer('num_examples', self.num_examples, 1)
    object.__setattr__(self, 'num_batches', checked_size(
        self.num_batches, self.num_examples, 'num_batches'))

  @property
  def batches_per_epoch(self) -> int:
    """num_batches."""
    return self.num_batches

  def check_plan(self, plan: PlannedNumbers) -> None:
    """Refuses a plan of another num_examples, number of batches or of groups."""
    self._check_examples(plan)
    planned = whole_batches(plan)
    if self.num_batches != planned:
      raise ValueError(
          f'Expected batches with num_batches={planned}, one over the plan\'s '
          f'sampling_prob, got num_batches={self.num_batches}; make both from the same '
          'numbers.')


def whole_batches(plan: PlannedNumbers) -> int:
  """The batches of an epoch, of a plan with 1 / sampling_prob of them.

  Raises:
    ValueError: if that is not a whole number.
  """
  batches = max(round(1 / plan.sampling_prob), 1)
  if plan.sampling_prob != 1 / batches:
    raise ValueError(
        'Expected sampling_prob to be one over a whole number, the batches of an '
        f'epoch, got sampling_prob={plan.sampling_prob!r}; take 1 / {batches}.')
  return batches


def dealt(batch: np.ndarray, num_batches: int) -> List[np.ndarray]:
  """The examples of each batch, ascending, where each example's batch is given."""
  order = np.argsort(batch, kind='stable')
  ends = np.cumsum(np.bincount(batch, minlength=num_batches))
  return np.split(order, ends[:-1])
