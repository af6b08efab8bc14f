"""What cyclic schemes share: fixed groups of examples, of which steps take turns."""

from __future__ import annotations

import abc
import dataclasses
from typing import Callable
from typing import List
from typing import Type
from typing import TypeVar

import numpy as np

from tfcactus import _checks
from tfcactus.randomness import KeyStream
from tfcactus.sampling import base

_FARTHEST = 0.25
"""By which share the number of batches may differ from that asked for."""

_Cyclic = TypeVar('_Cyclic', bound='CyclicSampling')


@dataclasses.dataclass(frozen=True)
class CyclicSampling(base.DealtSampling):
  """Each example is in one of several groups, and step t takes from group t mod groups.

  The group is drawn once, for each example by itself and uniformly, so that one more
  moves no other. From one time an example takes part to the next there are at least
  as many steps as groups: noise may be correlated over as many. A draw is an epoch, in
  which each group has its turn `visits` times.

  Attributes:
    num_examples: Size of the training set (public).
    num_batches: Batches to an epoch (public), a multiple of groups.
    groups: Bands of the noise.
  """

  unproved = ('of a replaced example the new value is in the group and the batches of '
              'the old one, and no account of that is known here')
  cyclic = True
  also_public = ('the numbers of batches and of groups',)

  groups: int = 1

  def __post_init__(self) -> None:
    super().__post_init__()
    batches = self.num_batches
    groups = _checks.integer('groups', self.groups, 1)
    if batches % groups:
      above = -(-batches // groups) * groups
      raise ValueError(
          'Expected num_batches to be a multiple of groups, each of which has its turn '
          f'equally often in an epoch, got num_batches={batches} and groups={groups}; '
          f'take num_batches={above}, or as many bands as divide {batches}.')
    object.__setattr__(self, 'groups', groups)

  @classmethod
  def of_plan(cls: Type[_Cyclic], plan: base.PlannedNumbers) -> _Cyclic:
    """Of 1 / sampling_prob batches and as many groups as the noise has bands.

    Raises:
      ValueError: if the first is not a whole number, or no multiple of the second.
    """
    return cls(plan.num_examples, base.whole_batches(plan), plan.groups)

  @classmethod
  def prob_of_batch_size(cls, batch_size: int, num_examples: int, groups: int = 1
                         ) -> float:
    """One over the multiple of groups next to num_examples / batch_size."""
    batches = 1 / super().prob_of_batch_size(batch_size, num_examples)
    found = groups * max(round(batches / groups), 1)
    if found > num_examples or abs(found - batches) > max(_FARTHEST * batches, 1):
      raise ValueError(
          f'Expected bands that go with about {batches:.4g} batches an epoch (of '
          f'batch_size={batch_size} of {num_examples} examples), each of as many '
          f'groups having its turn equally often, got bands={groups}; take fewer.')
    return 1 / found

  @property
  def visits(self) -> int:
    """How often a group has its turn in an epoch."""
    return self.num_batches // self.groups

  def _of_groups(self, count: int, whose: str) -> str:
    """So many epochs of noisy sums, and who is in them, in words."""
    turns = '' if self.groups == 1 else (
        f' over {self.groups} fixed groups of examples in turn')
    return (f'{count} epochs of {self.num_batches} noisy sums{turns}, each example '
            f'{whose}')

  def draw(self, stream: KeyStream) -> List[np.ndarray]:
    """The batches of an epoch, of groups drawn for it."""
    return self.drawer(stream)()

  def drawer(self, stream: KeyStream) -> Callable[[], List[np.ndarray]]:
    """Draws the groups, and returns what draws one epoch after the other of them."""
    group = stream.integers(self.groups, self.num_examples)
    return lambda: self._epoch(stream, group)

  @abc.abstractmethod
  def _epoch(self, stream: KeyStream, group: np.ndarray) -> List[np.ndarray]:
    """The batches of an epoch; the group of each example is given."""
