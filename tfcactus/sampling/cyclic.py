"""Cyclic schemes: steps use fixed groups of examples in turn.

Within its group, an example is Poisson sampled or allocated at random (balls-in-bins).
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Callable, TypeVar

import dp_accounting
import numpy as np

from tfcactus import _checks, _format
from tfcactus.accounting import RandomAllocationDpEvent
from tfcactus.randomness import KeyStream
from tfcactus.sampling import base

_FARTHEST = 0.25
"""Largest relative deviation of the number of batches from the requested number; one
batch more or less is always allowed."""

_Cyclic = TypeVar('_Cyclic', bound='CyclicSampling')


@dataclasses.dataclass(frozen=True)
class CyclicSampling(base.DealtSampling):
  """Cyclic sampling: step t draws from group t mod groups of fixed groups.

  Each example draws its group once, uniformly and independently. Its participations are
  at least `groups` steps apart: noise may be correlated over `groups` steps (bands). A
  draw is an epoch, in which each group has `visits` turns.

  Attributes:
    num_examples: Size of the training set (public).
    num_batches: Batches per epoch (public), a multiple of groups.
    groups: Number of groups: the bands of the noise.
  """

  cyclic = True
  independent = True
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
    """Returns the scheme of 1 / sampling_prob batches, a multiple of the groups."""
    return cls(plan.num_examples, base.whole_batches(plan), plan.groups)

  @classmethod
  def prob_of_batch_size(cls, batch_size: int, num_examples: int, groups: int = 1
                         ) -> float:
    """Returns one over the multiple of groups closest to num_examples / batch_size."""
    groups = _checks.integer('groups', groups, 1)
    batches = 1 / super().prob_of_batch_size(batch_size, num_examples)
    multiple = groups * max(round(batches / groups), 1)
    if multiple > num_examples or abs(multiple - batches) > max(_FARTHEST * batches, 1):
      raise ValueError(
          f'Expected bands with a multiple near {batches:.4g}, the batches of an epoch '
          f'(batch_size={batch_size} of {num_examples} examples), got bands={groups}; '
          'take fewer.')
    return 1 / multiple

  @property
  def visits(self) -> int:
    """Number of batches in an epoch that draw from one group."""
    return self.num_batches // self.groups

  def _of_groups(self, count: int, entering: str) -> str:
    """Describes `count` epochs; `entering` says which sums an example enters."""
    turns = '' if self.groups == 1 else (
        f' over {self.groups} fixed groups of examples in turn')
    return (f'{count} epochs of {self.num_batches} noisy sums{turns}, each example '
            f'{entering}')

  def draw(self, stream: KeyStream) -> list[np.ndarray]:
    """Draws groups and one epoch; only `drawer` keeps the groups for more epochs."""
    return self.drawer(stream)()

  def drawer(self, stream: KeyStream) -> Callable[[], list[np.ndarray]]:
    """Draws the groups; returns a function that draws successive epochs from them."""
    group = stream.integers(self.groups, self.num_examples)
    return lambda: self._epoch(stream, group)

  @abc.abstractmethod
  def _epoch(self, stream: KeyStream, group: np.ndarray) -> list[np.ndarray]:
    """Draws an epoch's batches of indices; group[i] is the group of example i."""


@dataclasses.dataclass(frozen=True)
class CyclicPoissonSampling(CyclicSampling):
  """Cyclic Poisson sampling (BandMF): Poisson sampling of the group of each step.

  A step takes each example of its group with probability groups / num_batches,
  independently. An epoch costs an example `visits` Poisson samples.

  Source: Choquette-Choo et al., "(Amplified) Banded Matrix Factorization" (2023),
  Theorem 4.
  """

  code = 5
  name = 'cyclic_poisson'

  @property
  def group_prob(self) -> float:
    """Probability with which an example of the group enters a batch."""
    return self.groups / self.num_batches

  def _epoch(self, stream: KeyStream, group: np.ndarray) -> list[np.ndarray]:
    # The groups have their turns in the same order, `visits` times over.
    members = [np.flatnonzero(group == each) for each in range(self.groups)]
    return [turn[stream.below(self.group_prob, turn.size)]
            for turn in members * self.visits]

  def event(self, noise_event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    return dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(self.group_prob, noise_event), self.visits)

  def released(self, count: int) -> str:
    of_group = '' if self.groups == 1 else 'of a group '
    return self._of_groups(
        count,
        f'{of_group}taken with probability {_format.upper(self.group_prob)}')


@dataclasses.dataclass(frozen=True)
class CyclicAllocationSampling(CyclicSampling):
  """Cyclic random allocation (balls-in-bins): allocation within groups of examples.

  Each example enters one of its group's batches of an epoch, drawn uniformly and anew
  for each epoch, so that an epoch uses every example once. An epoch costs an example
  random allocation to `visits` batches. The proof follows that for Poisson samples
  (Choquette-Choo et al., "(Amplified) Banded Matrix Factorization", 2023): a group's
  turns are released in disjoint blocks of rows.
  """

  code = 6
  name = 'cyclic_allocation'

  def _epoch(self, stream: KeyStream, group: np.ndarray) -> list[np.ndarray]:
    # A group's turns are `groups` batches apart.
    turn = stream.integers(self.visits, self.num_examples)
    return base.dealt(turn * self.groups + group, self.num_batches)

  def event(self, noise_event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    return RandomAllocationDpEvent(self.visits, noise_event)

  def released(self, count: int) -> str:
    of_group = '' if self.groups == 1 else ' of its group'
    return self._of_groups(
        count, f'in one of the {self.visits}{of_group}, drawn at random in each epoch')
