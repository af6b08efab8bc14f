"""Poisson sampling within groups of examples that take turns."""

from __future__ import annotations

import dataclasses

import dp_accounting
import numpy as np

from tfcactus.randomness import KeyStream
from tfcactus.sampling import cyclic


@dataclasses.dataclass(frozen=True)
class CyclicPoissonSampling(cyclic.CyclicSampling):
  """A step takes each example of its group with probability groups / num_batches.

  Examples enter independently. For a group, an epoch costs `visits` Poisson samples.
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
    members = [np.flatnonzero(group == each) for each in range(self.groups)]
    batches = []
    for step in range(self.num_batches):
      found = members[step % self.groups]
      batches.append(found[stream.below(self.group_prob, found.size)])
    return batches

  def event(self, noise_event: dp_accounting.DpEvent) -> dp_accounting.DpEvent:
    """Returns the composition of a group's visits, each a Poisson sample."""
    return dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(self.group_prob, noise_event), self.visits)

  def released(self, count: int) -> str:
    """Describes in words the releases of `count` draws."""
    of_group = '' if self.groups == 1 else 'of a group '
    return self._of_groups(
        count, f'{of_group}taken with probability {self.group_prob:.6g}')
