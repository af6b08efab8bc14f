"""Random allocation (balls-in-bins) within groups of examples that take turns."""

from __future__ import annotations

import dataclasses

import dp_accounting
import numpy as np

from tfcactus.accounting import RandomAllocationDpEvent
from tfcactus.randomness import KeyStream
from tfcactus.sampling import base, cyclic


@dataclasses.dataclass(frozen=True)
class CyclicAllocationSampling(cyclic.CyclicSampling):
  """Each example enters one of its group's batches of an epoch, uniformly.

  The batch is drawn anew for each epoch, so that an epoch uses every example once. For
  a group, an epoch costs random allocation to `visits` batches. The proof follows that
  for Poisson samples (Choquette-Choo et al., "(Amplified) Banded Matrix Factorization",
  2023): a group's turns are released in disjoint blocks of rows.
  """

  code = 6
  name = 'cyclic_allocation'

  def _epoch(self, stream: KeyStream, group: np.ndarray) -> list[np.ndarray]:
    turn = stream.integers(self.visits, self.num_examples)
    return base.dealt(turn * self.groups + group, self.num_batches)

  def event(self, noise_event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    """Returns random allocation to the visits of a group."""
    return RandomAllocationDpEvent(self.visits, noise_event)

  def released(self, count: int) -> str:
    """Describes in words the releases of `count` draws."""
    of_group = '' if self.groups == 1 else ' of its group'
    return self._of_groups(
        count, f'in one of the {self.visits}{of_group}, drawn at random in each epoch')
