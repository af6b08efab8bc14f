"""The account of a data set: a budget in a file, spent before anything is released."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import dataclasses
import datetime
import hashlib
import math
import os
import threading
from typing import Any, Callable, TypeVar

import dp_accounting

from tfcactus import (
  _checks,
  _format,
  _record_file,
  accounting,
  guarantee as guarantee_lib,
  relations,
)
from tfcactus.accounting import leaky
from tfcactus.accounting.leaky import Part
from tfcactus.data_account import book as book_lib
from tfcactus.data_account.book import Book, Slot
from tfcactus.guarantee import Guarantee, ReleasedStatistic
from tfcactus.noise.table_file import PathLike
from tfcactus.relations import Relation

_Release = TypeVar('_Release')

_COPY = (
    'Expected {} to be the file that the account was begun in, got a copy: neither '
    'sees what is spent from the other. Use the first. If that is gone, or this one '
    'was moved here, and nothing was spent from another copy since, open it once with '
    'moved=True, or `tfcactus account moved FILE`.')


class DataAccount:
  """A budget of (epsilon, delta) for all that is done with one data set, in a file.

  Everything is entered before it is released: training, searches, statistics. What is
  planned when the account begins has slots, which compose exactly. All else may be
  chosen after seeing earlier results: it is spent from an adaptive part, by a proved
  filter (`tfcactus.accounting.leaky`). What would pass the budget raises ValueError,
  and nothing may then be released. Unused releases of one slot may be spent in another
  run. Nothing else comes back.

  An entry is on disk before `spend` returns: if the process is killed, the file has at
  least what was released. Processes that share an account wait for each other. A file
  that was edited, or copied, is refused. Nothing can check that all that is done with
  the data is entered, nor that the data have no second account.

  Attributes:
    path: Absolute path of the file.
  """

  def __init__(self, path: PathLike, *, epsilon: float | None = None,
               delta: float | None = None, neighboring_relation: Relation | None = None,
               unit: str | None = None, slots: book_lib.Slots | None = None,
               leak: float | None = None, moved: bool = False):
    """Opens an account, or begins one if there is no file.

    Args:
      path: The file. What is given beside a file that exists has to agree with it.
      epsilon: Epsilon of everything together; required to begin an account.
      delta: Delta of everything together; required to begin an account.
      neighboring_relation: The only relation of the account; default add-or-remove.
      unit: Whom the account protects, as in `PrivacyPlan`; default 'example'.
      slots: What is planned: {label: (event, count)}, or {label: event} for one; for
        a plan (plan.step_event, plan.steps). What is left of a slot in the end is lost.
      leak: Probability below `delta`, taken off it for the adaptive part; by default
        0.1 delta. 0 if only slots and unsampled Gaussian noise will be spent.
      moved: Accepts a file in another place than that where it was written last. Say so
        only if nothing was, or will be, spent from another copy.

    Raises:
      ValueError: if an argument is out of range or differs from the file, epsilon or
        delta is missing to begin an account, slots exceed the budget, or the file is
        damaged, of other contents or a copy.
    """
    self.path = os.path.abspath(_checks.path('path', path))
    self._mutex, self._data, self._head = threading.RLock(), b'', ''
    self._read: Book | None = None
    given = {name: value for name, value in (
        ('epsilon', epsilon), ('delta', delta), ('unit', unit), ('leak', leak),
        ('relation', None if neighboring_relation is None else relations.check(
            neighboring_relation).name),
        ('slots', None if slots is None else book_lib.slots_config(slots)),
    ) if value is not None}
    header = {} if os.path.exists(self.path) else self._header(given)
    with self._writing(bool(header), _checks.flag('moved', moved)) as write:
      inode = os.stat(self.path).st_ino
      if self._read is None:
        write({**(header or self._header(given)), 'inode': inode})
      elif self._book.inode != inode:
        write({'kind': 'moved', 'inode': inode})
    for name, value in given.items():
      if self._book.header[name] != value:
        raise ValueError(
            f'Expected {name}={self._book.header[name]!r}, which the account '
            f'{self.path!r} was begun with, got {value!r}; leave it out, or begin '
            'another account for other data.')
    # Another version of the accountant may have other last digits.
    if not self.guarantee().upper <= self._book.epsilon * (1 + 1e-6):
      raise ValueError(f'Expected {self.path!r} to hold slots and a part within its '
                       'epsilon and delta, got more; no account wrote that.')

  def spend(self, event: dp_accounting.DpEvent, count: int = 1, *,
            label: str = 'release', unit: str = 'example') -> None:
    """Enters a release that is about to be made, or raises and enters nothing.

    Args:
      event: Its event; one release of a slot if a slot has the label.
      count: How often it is made.
      label: Who spends, or what for. The label of a slot takes from that slot.
      unit: Whose changes the event accounts for; has to be the account's.

    Raises:
      ValueError: if less is left, the event is not that of the slot or has no known
        cost under the account's relation, the unit is not the account's, or the file is
        gone, edited or a copy.
      OSError: if the file cannot be written.
    """
    self._enter('spend', event, count, label, unit)

  def reserve(self, event: dp_accounting.DpEvent, count: int, *, label: str,
              unit: str = 'example') -> None:
    """Makes a slot from the adaptive part, for `spend` to take from by its label.

    The slot is paid for as a whole. Arguments and errors are those of `spend`. Also
    raises ValueError if a slot has the label, or the event cannot be saved in a file.
    """
    self._enter('reserve', event, count, label, unit)

  def release(self, function: Callable[..., _Release], *args: Any, label: str = '',
              unit: str = 'example', **settings: Any) -> _Release:
    """Runs a function of `tfcactus.release`; enters, then returns what it releases.

    Args:
      function: A function that returns a `Release`, such as `release.histogram`.
      *args: Its arguments.
      label: As for `spend`; by default the function's name.
      unit: As for `spend`: 'user' if sensitivities are for all rows of a user.
      **settings: Its other arguments.

    Raises:
      ValueError: as `spend`, for another function, or if the release is drawn from a
        seed. Nothing is then returned.
    """
    name = getattr(function, '__name__', 'release')
    if not str(getattr(function, '__module__', '')).startswith('tfcactus.release'):
      raise ValueError('Expected a function of tfcactus.release, which changes nothing '
                       f'but what it returns, got {name!r}; spend its event first.')
    found = function(*args, **settings)
    if not isinstance(found, ReleasedStatistic) or found.seeded:
      what = 'noise from a seed' if isinstance(found, ReleasedStatistic) else (
          type(found).__name__)
      raise ValueError('Expected a function of tfcactus.release that draws without a '
                       f'seed, got {name!r}, which returned {what}.')
    self.spend(found.event, label=label or name, unit=unit)
    return found

  @property
  def slots(self) -> dict[str, Slot]:
    """The slots by their labels, as the file has them now."""
    return dict(self._refreshed().slots)

  @property
  def left(self) -> Part:
    """The adaptive part (leak, mu) that is left, as the file has it now."""
    return self._refreshed().left

  @property
  def spent(self) -> Part:
    """The adaptive part (leak, mu) that is spent, as the file has it now."""
    return self._refreshed().spent

  @property
  def entries(self) -> list[dict[str, Any]]:
    """All entries of the file after its header, in order, as plain values."""
    return [dict(entry) for entry in self._refreshed().entries]

  @property
  def head(self) -> str:
    """Checksum of all lines of the file; keep it to notice that a file was set back."""
    self._refreshed()
    return self._head

  @property
  def relation(self) -> dp_accounting.NeighboringRelation:
    """The neighbouring relation."""
    return self._book.relation

  @property
  def unit(self) -> str:
    """Whom the account protects."""
    return self._book.unit

  def guarantee(self) -> Guarantee:
    """Returns the budget as the guarantee of all that is entered, now and later.

    Its delta is the account's, and its epsilon at most the account's.
    """
    book = self._refreshed()
    events, delta = book.events(book.budget)
    found = guarantee_lib.guarantee(
        dp_accounting.NoOpDpEvent(), 1, delta, book.relation, releases=events,
        statement=relations.in_units(
            f'{relations.protected(book.relation, data="the data set")}: everything '
            f'that is entered in the account {self.path!r} ({len(book.entries)} '
            f'entries so far, to {self._head}), now or later, however each is chosen '
            'after seeing the results of the others.', self.unit))
    # The accountant does not hold the leak: the guarantee is given without accountant.
    return dataclasses.replace(
        found, delta=book.delta, steps=len(book.entries), account=None).given(
            *dict.fromkeys(text for entry in book.entries
                           for text in entry.get('conditions', ())))

  def epsilon_if_planned(self) -> float:
    """Returns epsilon, bounded from above, of the entries had they been fixed before.

    Epsilon is at the account's delta. It is no guarantee if entries depend on earlier
    results: then only the budget is.
    """
    book = self._refreshed()
    # The leak that was spent comes off the account's delta.
    events, delta = book.events(book.spent, used=True)
    return accounting.PhiAccountant(book.relation).compose(
        dp_accounting.ComposedDpEvent(events)).get_epsilon(delta)

  def report(self) -> str:
    """Returns who spent what of the adaptive part, and what is left, in words."""
    book, lines = self._refreshed(), [str(self.guarantee()), f'Head: {self._head}']
    for label, slot in book.slots.items():
      lines.append(f'slot {label}: {slot.count - slot.used} of {slot.count} left of '
                   f'{repr(slot.event)[:200]}')
    for entry in book.entries:
      if 'mu' in entry:
        lines.append(f'{entry["time"][:16]} {entry["label"]}: mu <= '
                     f'{_format.upper(entry["mu"])}, leak <= '
                     f'{_format.upper(entry["leak"])}, {entry["count"]} of '
                     f'{entry["what"]}')
      elif entry['kind'] == 'moved':
        lines.append(f'{entry["time"][:16]} moved; who moved it vouches that no '
                     'second copy is in use')
    noise = 'no Gaussian release' if book.left.mu == 0 else (
        'one Gaussian release of noise multiplier '
        f'{_format.upper(leaky.shift(book.relation) / book.left.mu)}')
    return '\n'.join([
        *lines, f'Left for what is chosen later: mu {_format.lower(book.left.mu)} of '
        f'{_format.lower(book.budget.mu)} ({noise}), leak '
        f'{_format.lower(book.left.leak)} of {_format.lower(book.budget.leak)}.',
        'Had this list been fixed before: epsilon <= '
        f'{_format.upper(self.epsilon_if_planned())} at delta '
        f'{_format.upper(book.delta)}. No guarantee if results decided on it.'])

  @property
  def _book(self) -> Book:
    """Returns the contents of the file as last read."""
    assert self._read is not None, 'It was read.'
    return self._read

  def _header(self, given: dict[str, Any]) -> dict[str, Any]:
    """Returns a new account's header; ValueError unless `given` has its budget."""
    if not {'epsilon', 'delta'} <= set(given):
      raise ValueError(
          f'Expected the file of an account at {self.path!r}, found none; to begin an '
          'account, give epsilon and delta.')
    return book_lib.new_header(**given)

  def _refreshed(self) -> Book:
    """Returns the file's contents as they are now; ValueError if it was edited."""
    with self._mutex, open(self.path, 'rb') as file:
      data = file.read()
      self._catch_up(_record_file.complete(data, f'account {self.path!r}'))
      return self._book

  @contextlib.contextmanager
  def _writing(self, create: bool = False, moved: bool = False
              ) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Locks and reads the file, or ValueError; yields a function that appends to it."""
    with self._mutex:
      try:
        file = os.open(self.path, os.O_RDWR | (os.O_CREAT if create else 0), 0o644)
      except FileNotFoundError:
        raise ValueError(
            f'Expected a folder for {self.path!r}, got none; make it.' if create else
            f'Expected the account {self.path!r} to stay where it is, got no file; put '
            'it back.') from None
      try:
        _record_file.lock(file, self.path, wait=True)
        _record_file.whole(file, f'account {self.path!r}', self._catch_up)
        if self._read is not None and self._read.inode != os.fstat(file).st_ino and (
            not moved):
          raise ValueError(_COPY.format(repr(self.path)))

        def write(entry: dict[str, Any]) -> None:
          """Appends an entry with the time, and syncs the file to the disk."""
          now = datetime.datetime.now(datetime.timezone.utc).isoformat(' ', 'seconds')
          if not self._data:
            _record_file.sync_directory(self.path)
          self._catch_up(self._data + _record_file.append(
              file, len(self._data), {**entry, 'time': now}, self._checksum))

        yield write
      finally:
        os.close(file)

  def _checksum(self, text: bytes) -> str:
    """Returns a checksum of a record and of all lines before it."""
    return hashlib.sha256(self._head.encode() + text).hexdigest()[:32]

  def _catch_up(self, data: bytes) -> None:
    """Reads the new lines in `data`, all lines of the file; ValueError if edited."""
    what = f'account {self.path!r}'
    if not data.startswith(self._data):
      raise ValueError(
          f'Expected {what} to only grow, got other contents than before: it was '
          'edited or set back, and no longer shows all that was released. Put the last '
          'version back.')
    for line in data[len(self._data):].splitlines(True):
      record = _record_file.parsed(line, self._checksum, what)
      try:
        if self._read is None:
          self._read = Book(record)
        else:
          self._read.add(record)
      except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f'Expected {what} to hold its own lines, got {line[:80]!r}, which no '
            f'account wrote: {error!r}.') from error
      self._head = line.split(b' ', 1)[0].decode()
      self._data += line

  def _enter(self, kind: str, event: dp_accounting.DpEvent, count: int, label: str,
             unit: str) -> None:
    """Enters an event as 'spend', 'reserve' or the use of a slot; else ValueError."""
    event, count = book_lib.flat(event, count)
    book_lib.check_label(label)
    guarantee_lib.check_unit(event, unit)
    if unit != self.unit:
      raise ValueError(
          f'Expected an event for unit={self.unit!r}, as the account is, got '
          f'{event!r} for unit={unit!r}; enter what one {self.unit} changes, all rows '
          f'together, with unit={self.unit!r}.')
    with self._writing() as write:
      slot = self._book.slots.get(label)
      if slot is None:
        saved = {'event': book_lib.saved(event)} if kind == 'reserve' else {}
        write({'kind': kind, 'label': label, **saved,
               **self._part(event, count, label)})
      elif kind == 'reserve' or not slot.is_for(event):
        raise ValueError(
            f'Expected another label than {label!r}, which is that of a slot for '
            f'{slot.event!r}, got it for {event!r}.')
      elif count > slot.count - slot.used:
        raise ValueError(
            f'Expected at most the {slot.count - slot.used} of {slot.count} releases '
            f'that are left in the slot {label!r}, got {count}. Nothing was entered; '
            'release nothing. Another label takes from the adaptive part.')
      else:
        write({'kind': 'use', 'label': label, 'count': count})

  def _part(self, event: dp_accounting.DpEvent, count: int, label: str
            ) -> dict[str, Any]:
    """Returns the fields of an entry of the adaptive part; ValueError if too large."""
    left, relation = self._book.left, self.relation
    try:
      part = leaky.part(accounting.PhiAccountant(relation).compose(event, count), left)
    except dp_accounting.UnsupportedEventError as error:
      raise ValueError(
          f'Expected an event with a known cost for {relations.label(relation)}, the '
          f'relation of the account, got {event!r}: {error}') from error
    if not (part.leak <= left.leak and part.mu <= left.mu):
      needs = ('no mu at all: its losses may be infinite too often, or the account has '
               'no leak' if part.mu == math.inf else
               f'mu {_format.upper(part.mu)} and leak {_format.upper(part.leak)}')
      raise ValueError(
          f'Expected {label!r} to fit into what is left of the account {self.path!r}, '
          f'mu {_format.lower(left.mu)} and leak {_format.lower(left.leak)}, got '
          f'{count} of {event!r}: the proof finds {needs}. Nothing was entered; '
          'release nothing. Take more noise or fewer steps' + (
              '.' if left.mu == 0 else ': one Gaussian release of noise multiplier '
              f'{_format.upper(leaky.shift(relation) / left.mu)} fits.'))
    conditions = guarantee_lib.conditions(event)
    return {'what': repr(event)[:200], 'count': count, 'leak': part.leak, 'mu': part.mu,
            **({'conditions': conditions} if conditions else {})}
