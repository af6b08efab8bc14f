"""Random allocation within groups of examples that take turns."""

from __future__ import annotations

import dataclasses
from typing import List

import dp_accounting
import numpy as np

from tfcactus.accounting import RandomAllocationDpEvent
from tfcactus.randomness import KeyStream
from tfcactus.sampling import base
from tfcactus.sampling import cyclic


@dataclasses.dataclass(frozen=True)
class CyclicAllocationSampling(cyclic.CyclicSampling):
  """Each example goes into one of its group's batches of an epoch, uniformly.

  Drawn anew for each epoch, which so uses every example once. It costs a group an
  epoch of random allocation to as many batches as it has turns: the blocks of rows that
  the turns are released in are disjoint, and the same holds for them as for Poisson
  samples (Choquette-Choo et al., "(Amplified) Banded Matrix Factorization", 2023).
  """

  code = 6
  name = 'cyclic_allocation'

  def _epoch(self, stream: KeyStream, group: np.ndarray) -> List[np.ndarray]:
    turn = stream.integers(self.visits, self.num_examples)
    return base.dealt(turn * self.groups + group, self.num_batches)

  def event(self, noise_event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    """Random allocation to the visits of a group."""
    return RandomAllocationDpEvent(self.visits, noise_event)

  def released(self, count: int) -> str:
    """As `SamplingScheme.released`."""
    of_group = '' if self.groups == 1 else ' of its group'
    return self._of_groups(
        count, f'in one of the {self.visits}{of_group}, drawn at random in each epoch')
