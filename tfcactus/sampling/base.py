"""Base classes of sampling schemes: which examples each step uses, at what cost."""

from __future__ import annotations

import abc
import dataclasses
import functools
from typing import Callable, ClassVar, Protocol, TypeVar

import dp_accounting
import numpy as np

from tfcactus import _checks, relations
from tfcactus.randomness import KeyStream
from tfcactus.relations import Relation

_Scheme = TypeVar('_Scheme', bound='SamplingScheme')
_Dealt = TypeVar('_Dealt', bound='DealtSampling')


class PlannedNumbers(Protocol):
  """The numbers of a `PrivacyPlan` that a scheme reads."""

  @property
  def num_examples(self) -> int:
    """Size of the training set."""

  @property
  def sampling_prob(self) -> float:
    """Expected share of the examples in a batch."""

  @property
  def groups(self) -> int:
    """Groups of examples that steps use in turn: the bands of the noise, or one."""


@dataclasses.dataclass(frozen=True)
class Numbers:
  """The numbers that a scheme reads, given directly instead of by a `PrivacyPlan`."""

  num_examples: int
  sampling_prob: float
  groups: int = 1


class SamplingScheme(abc.ABC):
  """Draws batches, states the cost of a draw and the relations it is proved for.

  A draw is one batch or, for a scheme that deals out all examples at once, all batches
  of an epoch. A new scheme is one file with a subclass, and one line in
  `tfcactus.sampling.SCHEMES`; `tests/conformance` then checks draws against their cost.

  Attributes:
    code: Number of the scheme in counters and journals: from 1 to 999, never used for
      another scheme.
    name: Name of the scheme in run cards.
    relations: The neighbouring relations for which the event is proved; the first is
      the default.
    unproved: Reason why other relations are missing, a clause.
    draws_epochs: Whether a draw is all batches of an epoch; else one batch.
    cyclic: Whether steps use fixed groups of examples in turn, as noise that is
      correlated over steps requires.
    independent: Whether each example enters batches independently of the others.
    rows_alike: Whether `event` says how all rows of one person are sampled together, so
      that several rows have an exact account (`rows_of_one`); else it is for each row
      by itself.
    also_public: Facts that a guarantee takes as public besides num_examples and
      sampling_prob, in words.
    groups: Number of groups of examples that steps use in turn; one without groups.
    num_examples: Size of the training set (public).
  """

  code: ClassVar[int]
  name: ClassVar[str]
  relations: ClassVar[tuple[dp_accounting.NeighboringRelation, ...]] = (
      relations.ADD_OR_REMOVE, relations.ZERO_OUT, relations.REPLACE)
  unproved: ClassVar[str] = ''
  draws_epochs: ClassVar[bool] = False
  cyclic: ClassVar[bool] = False
  independent: ClassVar[bool] = False
  rows_alike: ClassVar[bool] = False
  also_public: ClassVar[tuple[str, ...]] = ()
  groups: int = 1

  num_examples: int

  @classmethod
  @abc.abstractmethod
  def of_plan(cls: type[_Scheme], plan: PlannedNumbers) -> _Scheme:
    """Returns the scheme for training with a plan of these numbers, or ValueError."""

  @classmethod
  def prob_of_batch_size(cls, batch_size: int, num_examples: int, groups: int = 1
                         ) -> float:
    """Returns the sampling_prob of a plan with this expected batch size.

    `groups` are the bands of the noise, for cyclic schemes only. Raises ValueError if
    batch_size is below one or above num_examples, or if a cyclic scheme has no multiple
    of groups near num_examples / batch_size.
    """
    del groups
    num_examples = _checks.integer('num_examples', num_examples, 1)
    return checked_size(batch_size, num_examples) / num_examples

  @classmethod
  def of_batch_size(cls: type[_Scheme], batch_size: int, num_examples: int,
                    groups: int = 1) -> _Scheme:
    """Returns the scheme with this expected batch size.

    Arguments and errors are those of `prob_of_batch_size` and `of_plan`.
    """
    prob = cls.prob_of_batch_size(batch_size, num_examples, groups)
    return cls.of_plan(Numbers(int(num_examples), prob, groups))

  def of_part(self: _Scheme, size: int) -> _Scheme:
    """Returns the scheme for `size` of the examples; ValueError unless Poisson."""
    raise ValueError(
        f'Expected Poisson batches of a part of {size} examples, got '
        f'{type(self).__name__}, which does not draw a part; give all examples to each '
        'worker.')

  def beside(self: _Scheme, count: int) -> _Scheme:
    """Returns a scheme for `count` other records, drawn as often as examples, or less.

    Its draws have at most as many batches. It may be for more than `count` records:
    leave out indices from `count` on. Raises ValueError if it would draw no record.
    """
    return dataclasses.replace(self, num_examples=count)  # type: ignore[type-var]

  @property
  @abc.abstractmethod
  def batches_per_epoch(self) -> int:
    """Batches in an epoch, which uses each example once, or about once on average."""

  def most_steps(self, draws: int) -> int:
    """Returns the largest number of steps that `draws` draws can be released in."""
    if not self.draws_epochs:
      return draws
    # A pass may have more batches than planned, smaller ones: one an example at most.
    return draws * max(self.batches_per_epoch, self.num_examples)

  @abc.abstractmethod
  def draw(self, stream: KeyStream) -> list[np.ndarray]:
    """Returns a new draw: int64 indices of the examples in each of its batches."""

  def drawer(self, stream: KeyStream) -> Callable[[], list[np.ndarray]]:
    """Returns a function that makes successive draws.

    Choices that stay the same in all draws, such as groups, are drawn by this call.
    """
    return functools.partial(self.draw, stream)

  @abc.abstractmethod
  def event(self, noise_event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    """Returns the event of one draw.

    `noise_event` is that of one noisy sum for an example known to be in that sum.
    """

  @abc.abstractmethod
  def released(self, count: int) -> str:
    """Describes in words the releases of `count` draws."""

  @abc.abstractmethod
  def check_plan(self, plan: PlannedNumbers) -> None:
    """Raises ValueError, naming the difference, if the plan is for other batches."""

  @classmethod
  def check_relation(cls, value: Relation | None = None
                     ) -> dp_accounting.NeighboringRelation:
    """Returns the relation that `value` is or names, for None the default relation.

    Raises ValueError if it is no relation, or the event is not proved for it.
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
    """Describes in words the numbers that a guarantee of a plan takes as public."""
    # With all digits: epsilon is that of this probability, and no other.
    *first, last = (f'num_examples={plan.num_examples}',
                    f'sampling_prob={plan.sampling_prob!r}', *self.also_public)
    return f'{", ".join(first)} and {last}'

  def _check_examples(self, plan: PlannedNumbers) -> None:
    """Raises ValueError if num_examples or groups differ from the plan's."""
    if plan.groups != self.groups:
      raise ValueError(
          f'Expected batches with groups={plan.groups}, as many as the noise of the '
          f'plan has bands, got groups={self.groups}; use '
          'CyclicBatches(x, y, plan=plan).')
    if self.num_examples != plan.num_examples:
      raise ValueError(
          f'Expected batches with num_examples={plan.num_examples!r} as in the plan, '
          f'got num_examples={self.num_examples!r}; make both from the same numbers.')


@dataclasses.dataclass(frozen=True)
class SizedSampling(SamplingScheme):
  """Base class of schemes given by a number of examples and a batch size.

  Raises ValueError unless 1 <= batch_size <= num_examples.
  """

  num_examples: int
  batch_size: int

  def __post_init__(self) -> None:
    object.__setattr__(self, 'num_examples', _checks.integer(
        'num_examples', self.num_examples, 1))
    object.__setattr__(
        self, 'batch_size', checked_size(self.batch_size, self.num_examples))


def checked_size(batch_size: object, num_examples: int, name: str = 'batch_size'
                 ) -> int:
  """Returns `batch_size` as an integer; ValueError unless in [1, num_examples]."""
  size = _checks.integer(name, batch_size, 1)
  if size > num_examples:
    raise ValueError(
        f'Expected {name} of at most num_examples={num_examples}, got {name}={size}.')
  return size


@dataclasses.dataclass(frozen=True)
class DealtSampling(SamplingScheme):
  """Base class of schemes that split every epoch into a fixed number of batches.

  Raises ValueError unless 1 <= num_batches <= num_examples.
  """

  relations = (relations.ADD_OR_REMOVE, relations.ZERO_OUT)
  unproved = ('the new value of a replaced example is in the batches of the old one, '
              'and no account of that is known here')
  draws_epochs = True

  num_examples: int
  num_batches: int

  def __post_init__(self) -> None:
    object.__setattr__(self, 'num_examples', _checks.integer(
        'num_examples', self.num_examples, 1))
    object.__setattr__(self, 'num_batches', checked_size(
        self.num_batches, self.num_examples, 'num_batches'))

  def beside(self: _Dealt, count: int) -> _Dealt:
    # A scheme is for at least as many examples as batches.
    return dataclasses.replace(self, num_examples=max(count, self.num_batches))

  @property
  def batches_per_epoch(self) -> int:
    return self.num_batches

  def check_plan(self, plan: PlannedNumbers) -> None:
    self._check_examples(plan)
    planned = whole_batches(plan)
    if self.num_batches != planned:
      raise ValueError(
          f'Expected batches with num_batches={planned}, one over the plan\'s '
          f'sampling_prob, got num_batches={self.num_batches}; make both from the same '
          'numbers.')


def whole_batches(plan: PlannedNumbers) -> int:
  """Returns the batches per epoch, 1 / sampling_prob; ValueError unless whole."""
  batches = max(round(min(1 / plan.sampling_prob, 2.0**53)), 1)
  if plan.sampling_prob != 1 / batches:
    raise ValueError(
        'Expected sampling_prob to be one over a whole number, the batches of an '
        f'epoch, got sampling_prob={plan.sampling_prob!r}; take 1 / {batches}.')
  return batches


def dealt(batch: np.ndarray, num_batches: int) -> list[np.ndarray]:
  """Returns each batch's example indices, ascending; batch[i] is example i's batch."""
  # Sorted by batch; the stable sort keeps indices of one batch ascending.
  order = np.argsort(batch, kind='stable')
  ends = np.cumsum(np.bincount(batch, minlength=num_batches))
  return np.split(order, ends[:-1])
