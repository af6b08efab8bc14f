"""Samples of records (no accountant) that steps run on."""

from __future__ import annotations

import dataclasses

import dp_accounting
import numpy as np

from tfcactus import relations
from tfcactus.pairs import groups


class Unsupported(Exception):
  """Raised for an event that cannot be composed; names the event and the reason."""

  def __init__(self, event: dp_accounting.DpEvent, message: str):
    super().__init__(message)
    self.event = event
    self.message = message


@dataclasses.dataclass(frozen=True)
class Sample:
  """The sample of records that a step uses, and the neighbouring relation."""

  # The neighbouring relation. A zeroed record counts as removed, a restored one as
  # added.
  relation: dp_accounting.NeighboringRelation
  sampling_prob: float = 1.0  # Expected share of the records in the sample.
  fixed_size: bool = False  # Whether the sample has a fixed size; else Poisson.
  # Number of records in which neighbours differ: all the rows of one person.
  rows: int = 1
  # For several rows and a fixed size, (size of the sample, number of records).
  drawn: tuple[int, int] | None = None

  @property
  def displaces(self) -> bool:
    """Returns whether a record that enters the sample displaces another one."""
    return self.fixed_size and self.relation != relations.ZERO_OUT

  def check_rows(self, event: dp_accounting.DpEvent) -> None:
    """Raises Unsupported unless noise has an exact account for all the `rows`."""
    if self.rows == 1:
      return
    if self.fixed_size and (self.relation != relations.ADD_OR_REMOVE or self.drawn and
                            self.drawn[0] > self.drawn[1] - self.rows):
      raise Unsupported(event, (
          'several rows have an exact account under samples of fixed size only if they '
          'are added or removed, and the other records are enough for a sample'))
    if self.sampling_prob < 1 and self.relation == relations.REPLACE:
      raise Unsupported(event, 'several replaced rows have no exact account in samples')

  @property
  def log_weights(self) -> np.ndarray:
    """Logs of the probabilities that 0, 1, ... all rows are in the sample."""
    if self.drawn is not None:
      return groups.fixed_size_weights(self.rows, *self.drawn)
    return groups.poisson_weights(self.rows, self.sampling_prob)
