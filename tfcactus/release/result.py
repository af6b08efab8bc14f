"""`Release`: a published private statistic with its event and error bounds."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import dp_accounting

from tfcactus import _checks, _format, accounting, guarantee as guarantee_lib, relations


@dataclasses.dataclass(frozen=True, eq=False)
class Release(guarantee_lib.ReleasedStatistic):
  """A private statistic. All its fields may be published.

  Attributes:
    value: The published value.
    event: Its privacy cost, for any dp_accounting accountant: compose it with training,
      or pass the release to a `PrivacyPlan` as one of its `releases`.
    mechanism: The mechanism, in words.
    error_kind: What `error` measures, in words.
    seeded: Whether the noise came from a seed and is reproducible.
    error_bound: The function behind `error`, of a beta that is checked.
  """

  value: Any
  event: dp_accounting.DpEvent
  mechanism: str
  error_kind: str
  seeded: bool
  error_bound: Callable[[float], float] = dataclasses.field(repr=False)

  def error(self, beta: float) -> float:
    """Returns a bound that the error exceeds with probability at most beta.

    The bound comes from the law of the noise, in units of the query; see `error_kind`.
    It does not depend on the data, and may be infinite.
    """
    return float(self.error_bound(_checks.delta(beta, 'beta')))

  def guarantee(self, delta: float,
                neighboring_relation: relations.Relation = relations.ADD_OR_REMOVE
                ) -> guarantee_lib.Guarantee:
    """Returns the guarantee of this release, without any other release or training.

    Args:
      delta: In (0, 1).
      neighboring_relation: 'add-or-remove'; 'replace', at twice the sensitivity; or
        'zero-out', at once the sensitivity: a record is replaced by one that no query
        counts. dp_accounting's relations will do too.

    Returns:
      Bounds on epsilon at `delta`. If the noise came from a seed, the printed form and
      the statement say so.
    """
    relation = relations.check(neighboring_relation)
    found = guarantee_lib.guarantee(
        self.event, 1, delta, relation,
        statement=relations.protected(relation, 'record', 'the data') +
        f': {self.mechanism}.')
    return found.seeded_by('noise') if self.seeded else found

  def tcdp(self, delta: float) -> accounting.TCDP:
    """Returns the truncated CDP of this release with the least epsilon at `delta`.

    Raises ValueError if there is none, as losses may be infinite.
    """
    return accounting.TCDPAccountant().compose(self.event).best(delta)

  def report(self, delta: float, beta: float = 0.05) -> str:
    """Returns guarantee (add-or-remove), truncated CDP bound and accuracy, in words."""
    guarantee = self.guarantee(delta)
    lines = [f'{self.mechanism}: {guarantee}']
    try:
      truncated = self.tcdp(delta)
      lines.append(f'by truncated CDP: {truncated}, epsilon '
                   f'{_format.upper(truncated.epsilon(delta))}')
    except ValueError:
      lines.append('by truncated CDP: none, as losses may be infinite')
    lines.append(f'{self.error_kind}: {_format.upper(self.error(beta))} with '
                 f'probability {_format.complement(beta)}')
    if self.seeded:
      lines.append('Drawn from a seed: an experiment, not a release.')
    return '\n'.join(lines)


def repeated(event: dp_accounting.DpEvent, count: int) -> dp_accounting.DpEvent:
  """Returns the event of `count` releases with this event."""
  return event if count == 1 else dp_accounting.SelfComposedDpEvent(event, count)
