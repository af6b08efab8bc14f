"""Base class of cyclic schemes: steps use fixed groups of examples in turn."""

from __future__ import annotations

import abc
import dataclasses
from typing import Callable, TypeVar

import numpy as np

from tfcactus import _checks
from tfcactus.randomness import KeyStream
from tfcactus.sampling import base

_FARTHEST = 0.25
"""Largest relative deviation of the number of batches from the requested number."""

_Cyclic = TypeVar('_Cyclic', bound='CyclicSampling')


@dataclasses.dataclass(frozen=True)
class CyclicSampling(base.DealtSampling):
  """Each example is in one of several groups; step t draws from group t mod groups.

  Each example draws its group once, uniformly and independently, so that an additional
  example moves no other. An example's participations are at least `groups` steps apart:
  noise may be correlated over `groups` steps (bands). A draw is an epoch, in which each
  group has `visits` turns.

  Attributes:
    num_examples: Size of the training set (public).
    num_batches: Batches per epoch (public), a multiple of groups.
    groups: Number of groups: the bands of the noise.
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
  def of_plan(cls: type[_Cyclic], plan: base.PlannedNumbers) -> _Cyclic:
    """Returns the scheme of 1 / sampling_prob batches and plan.groups groups.

    Raises:
      ValueError: if 1 / sampling_prob is not a multiple of groups.
    """
    return cls(plan.num_examples, base.whole_batches(plan), plan.groups)

  @classmethod
  def prob_of_batch_size(cls, batch_size: int, num_examples: int, groups: int = 1
                         ) -> float:
    """Returns one over the multiple of groups next to num_examples / batch_size."""
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
    """Turns of a group in an epoch."""
    return self.num_batches // self.groups

  def _of_groups(self, count: int, whose: str) -> str:
    """Describes in words `count` epochs of noisy sums and who is in them."""
    turns = '' if self.groups == 1 else (
        f' over {self.groups} fixed groups of examples in turn')
    return (f'{count} epochs of {self.num_batches} noisy sums{turns}, each example '
            f'{whose}')

  def draw(self, stream: KeyStream) -> list[np.ndarray]:
    """Draws groups and one epoch; returns its batches."""
    return self.drawer(stream)()

  def drawer(self, stream: KeyStream) -> Callable[[], list[np.ndarray]]:
    """Draws the groups; returns a function that draws successive epochs from them."""
    group = stream.integers(self.groups, self.num_examples)
    return lambda: self._epoch(stream, group)

  @abc.abstractmethod
  def _epoch(self, stream: KeyStream, group: np.ndarray) -> list[np.ndarray]:
    """Returns the batches of an epoch, from the group of each example."""
