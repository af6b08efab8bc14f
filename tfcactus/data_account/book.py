"""Reads the lines of an account's file, and makes the header of a new one.

A slot holds releases of one event. All else takes a part (leak, mu) of the adaptive
budget, as `accounting.leaky` defines them. An entry of kind 'spend' or 'reserve' takes
a part, 'reserve' for a new slot. 'use' takes from a slot; 'moved' accepts a moved file.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import math
from typing import Any, Union

import dp_accounting

from tfcactus import _checks, _format, accounting, relations
from tfcactus.accounting import calibration, event_configs, leaky
from tfcactus.accounting.leaky import Part

Slots = Mapping[str, Union[dp_accounting.DpEvent, tuple[dp_accounting.DpEvent, int]]]
"""Planned releases: {label: event}, or {label: (event, count)}."""

MOST_NOISE = 1e4
"""Largest noise multiplier of the adaptive part; if more is needed, its mu is zero."""

_ROOM = 1e-12
"""Relative room for the rounding of sums of leaks, and of squares of mu."""


@dataclasses.dataclass(frozen=True)
class Slot:
  """Equal releases that are paid for, of which any number may be left.

  Attributes:
    event: The event of one of them.
    count: How many are paid for.
    used: How many of them were spent.
    planned: Whether the account began with the slot, which is then composed exactly.
  """

  event: dp_accounting.DpEvent
  count: int
  used: int
  planned: bool

  def is_for(self, event: dp_accounting.DpEvent) -> bool:
    """Returns whether `event`, which is not repeated, is that of the slot."""
    return config(event) == event_configs.event_config(self.event)


class Book:
  """Contents of an account's file: header, slots as they are now, and entries."""

  def __init__(self, header: dict[str, Any]):
    """Reads a header; KeyError, TypeError, ValueError, AttributeError if it is none."""
    _checks.integer('version', header['account'], 1, 1)
    self.header = header
    self.delta = _checks.delta(header['delta'])
    self.epsilon = _checks.positive('epsilon', header['epsilon'])
    self.relation = dp_accounting.NeighboringRelation[header['relation']]
    self.budget = Part(_checks.non_negative('leak', header['leak']),
                       _checks.non_negative('mu', header['mu']))
    self.inode, self.unit = header['inode'], check_label(header['unit'], 'unit')
    self.slots = {label: Slot(event_configs.event_from(slot['event']),
                              _checks.integer('count', slot['count'], 1), 0, True)
                  for label, slot in header['slots'].items()}
    self.entries: list[dict[str, Any]] = []
    self._parts: list[Part] = []

  def add(self, entry: dict[str, Any]) -> None:
    """Adds an entry of the file; KeyError, TypeError or ValueError if it is none."""
    kind, label = entry['kind'], entry.get('label')
    if kind == 'moved':
      self.inode = entry['inode']
    elif kind == 'use':
      slot = self.slots[label]
      used = slot.used + _checks.integer('count', entry['count'], 1)
      _checks.integer('used', used, 1, slot.count)
      self.slots[label] = dataclasses.replace(slot, used=used)
    else:
      _checks.choice('kind', kind, ('spend', 'reserve'))
      self._parts.append(Part(_checks.non_negative('leak', entry['leak']),
                              _checks.non_negative('mu', entry['mu'])))
      if any(spent > whole * (1 + _ROOM)
             for spent, whole in zip(self.spent, self.budget)):
        raise ValueError('more was spent than there was')
      if kind == 'reserve':
        self.slots[label] = Slot(
            event_configs.event_from(entry['event']),
            _checks.integer('count', entry['count'], 1), 0, False)
    self.entries.append(entry)

  @property
  def spent(self) -> Part:
    """The part that dominates all adaptive entries together."""
    return Part(math.fsum(one.leak for one in self._parts),
                math.sqrt(math.fsum(one.mu**2 for one in self._parts)))

  @property
  def left(self) -> Part:
    """The part that is left for what is chosen later."""
    return Part(max(self.budget.leak - self.spent.leak, 0.0),
                math.sqrt(max(self.budget.mu**2 - self.spent.mu**2, 0.0)))

  def events(self, part: Part, used: bool = False
             ) -> tuple[list[dp_accounting.DpEvent], float]:
    """Returns the events of planned slots and a part, and the delta to ask them at.

    Counts all releases of the slots, or only the spent ones if `used`.
    """
    # The leak is no event: with it, delta(epsilon) is leak + (1 - leak) times the delta
    # of the events.
    leak, mu = (1 + _ROOM) * part.leak, (1 + _ROOM) * part.mu
    counts = [(slot.event, slot.used if used else slot.count)
              for slot in self.slots.values() if slot.planned]
    found = [dp_accounting.SelfComposedDpEvent(event, n) for event, n in counts if n]
    if mu > 0:
      found.append(dp_accounting.GaussianDpEvent(leaky.shift(self.relation) / mu))
    return found, (self.delta - leak) / (1 - leak)


def flat(event: dp_accounting.DpEvent, count: int) -> tuple[dp_accounting.DpEvent, int]:
  """Returns one release of a repeated event, and its number; ValueError if no event."""
  count = _checks.integer('count', count, 1)
  while isinstance(event, dp_accounting.SelfComposedDpEvent):
    event, count = event.event, count * _checks.integer('count', event.count, 1)
  if not isinstance(event, dp_accounting.DpEvent):
    raise ValueError(
        f'Expected event to be a DpEvent of dp_accounting, got {event!r}; a plan has '
        'plan.step_event, once for each of plan.steps, a release its event.')
  return event, count


def config(event: dp_accounting.DpEvent) -> dict[str, Any] | None:
  """Returns an event's config, a dict for JSON; None if it cannot be read back."""
  try:
    found = event_configs.event_config(event)
    return found if type(event_configs.event_from(found)) is type(event) else None
  except (TypeError, ValueError, AttributeError):
    return None


def saved(event: dp_accounting.DpEvent) -> dict[str, Any]:
  """Returns the config of an event; ValueError if the event has none."""
  found = config(event)
  if found is None:
    raise ValueError(f'Expected a slot for an event that can be saved in a file, got '
                     f'{event!r}; spend it without a slot.')
  return found


def check_label(label: object, name: str = 'label') -> str:
  """Returns a label, called `name`; ValueError unless it is text on one line."""
  if not isinstance(label, str) or not label or not label.isprintable():
    raise ValueError(f'Expected {name} to be words on one line, got {label!r}.')
  return label


def slots_config(slots: Slots) -> dict[str, Any]:
  """Returns {label: {'event': config, 'count': n}}; ValueError for other slots."""
  if not isinstance(slots, Mapping):
    raise ValueError('Expected slots to be a dict {label: (event, count)}, got '
                     f'{slots!r}.')
  found = {}
  for label, slot in slots.items():
    one, times = slot if isinstance(slot, tuple) and len(slot) == 2 else (slot, 1)
    event, count = flat(one, times)
    found[check_label(label)] = {'event': saved(event), 'count': count}
  return found


def new_header(*, epsilon: float, delta: float,
               relation: str = relations.ADD_OR_REMOVE.name, unit: str = 'example',
               slots: dict[str, Any] | None = None, leak: float | None = None
               ) -> dict[str, Any]:
  """Returns the header of a new account; ValueError if slots exceed the budget.

  Its `mu` is what epsilon and delta allow beside the slots and the leak; zero if that
  is less than noise of `MOST_NOISE` takes.
  """
  delta = _checks.delta(delta)
  # With a tenth of delta, a few runs take about the least budget.
  leak = 0.1 * delta if leak is None else _checks.non_negative('leak', leak)
  if leak >= delta:
    raise ValueError(f'Expected leak below delta={delta!r}, got {leak!r}.')
  header = {'account': 1, 'delta': delta,
            'epsilon': _checks.positive('epsilon', epsilon), 'relation': relation,
            'unit': unit, 'leak': leak, 'mu': 0.0, 'slots': slots or {}}
  book = Book({**header, 'inode': 0})

  def cost(noise: float) -> float:
    """Returns epsilon of the slots and an adaptive part of this noise multiplier."""
    events, at = book.events(Part(leak, leaky.shift(book.relation) / noise))
    return accounting.PhiAccountant(book.relation).compose(
        dp_accounting.ComposedDpEvent(events)).get_epsilon(at)

  planned = cost(math.inf)  # Without an adaptive part.
  if not planned <= book.epsilon:
    raise ValueError(
        f'Expected slots within epsilon={book.epsilon!r} at delta={delta!r} less '
        f'leak={leak!r}, got epsilon {_format.upper(planned)}; raise epsilon or plan '
        'less.')
  if cost(MOST_NOISE) <= book.epsilon:
    header['mu'] = leaky.shift(book.relation) / calibration.calibrate_noise(
        book.epsilon, cost, low=1e-2, high=MOST_NOISE)
  return header
