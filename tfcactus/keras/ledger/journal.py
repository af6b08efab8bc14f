"""A write-ahead journal: steps are written to disk before they are released."""

from __future__ import annotations

import dataclasses
import os
import threading
from typing import Any
import zlib

from tfcactus import _checks, _record_file, sampling
from tfcactus.keras.ledger import counts
from tfcactus.keras.ledger.counts import Counts
from tfcactus.noise.table_file import PathLike
from tfcactus.plan import PrivacyPlan

_lock = threading.RLock()
_open: dict[tuple[int, int], Journal] = {}
"""Open journals of this process, by device and inode."""


class Journal:
  """Write-ahead log of steps on disk, so that a killed run loses no count.

  Before a step runs, a block of steps is reserved: written and synced to disk. A run
  that is killed and resumed with its journal therefore counts at least every released
  update, and at most one block more. A run that ends normally writes the exact count.

  Only one process at a time can open a journal. Opening the file again in that process,
  as by running a notebook cell again, moves the journal with its counts to the new
  object; the old one then releases no more steps. A file that was removed, replaced or
  written by others is detected before a step is released, and so is a full disk. The
  journal holds no weights.

  Attributes:
    path: The file.
    block: How many steps are reserved at a time.
    entry: The `Counts` on disk: upper bounds on what was released.
  """

  def __init__(self, path: PathLike, plan: PrivacyPlan, block: int = 32):
    """Opens the journal; creates the file if there is none.

    Args:
      path: The file.
      plan: The `PrivacyPlan` of the run.
      block: How many steps to reserve at a time. A crash over-counts by at most one
        block; each block costs one sync of the disk.

    Raises:
      ValueError: if the file belongs to another plan, is open in another process, or is
        not a journal.
      OSError: if the file cannot be read or written.
    """
    self.path = _checks.path('path', path)
    _checks.plan(plan)
    self.block = _checks.integer('block', block, 1)
    self._pid, self._place = os.getpid(), os.path.abspath(self.path)
    with _lock:
      self._take_over(plan)
      self._closed = False
      self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
      try:
        self._read(plan)
      except BaseException:
        os.close(self._file)
        raise
      _open[_record_file.identity(os.fstat(self._file))] = self

  def _read(self, plan: PrivacyPlan) -> None:
    """Locks and reads the open file, or begins it if it is empty."""
    try:
      _record_file.lock(self._file, self.path)
    except OSError as error:
      raise ValueError(
          f'Expected journal {self.path!r} to be free, got one that another '
          'run has open; give each run a journal of its own.') from error

    def read(lines: bytes) -> None:
      """Sets `entry` to the last one in `lines`."""
      self.entry = _last_entry(self.path, lines, plan)

    data = _record_file.whole(self._file, f'journal {self.path!r}', read)
    self._size, self._last = len(data), b''.join(data.splitlines(True)[-1:])
    if not data:
      _record_file.sync_directory(self.path)
      self._append(_header(plan))

  def _take_over(self, plan: PrivacyPlan) -> None:
    """Closes the file if this process has it open; ValueError if plans differ."""
    try:
      before = _open.get(_record_file.identity(os.stat(self.path)))
    except FileNotFoundError:
      return
    if before is not None and before._pid == os.getpid():  # pylint: disable=protected-access
      Journal.peek(self.path, plan)  # Raises if the plan differs.
      before.close()

  @staticmethod
  def peek(path: PathLike, plan: PrivacyPlan) -> Counts | None:
    """Returns the last entry of the file at `path`; None if there is no such file.

    Counts are zero if no entry is complete. The journal may be open elsewhere.

    Raises:
      ValueError: if the file belongs to another plan or is not a journal.
    """
    try:
      with open(path, 'rb') as file:
        data = file.read()
    except FileNotFoundError:
      return None
    return _last_entry(path, data, plan)

  def reserve(self, wanted: Counts, segment: int) -> None:
    """Writes counts of at least `wanted` to disk before a step of `segment`.

    Adds a block of steps to the segment where the entry has fewer than `wanted`.

    Raises:
      RuntimeError: in a forked process, whose steps would not be counted; or if the
        file was closed, removed, replaced or written by others.
      OSError: if the file cannot be written.
    """
    if os.getpid() != self._pid:
      raise RuntimeError(
          'Expected steps in the process that opened the journal, got a fork; '
          'open another journal there.')
    with _lock:
      reserved = self.entry.of_segment(segment)
      if wanted.of_segment(segment).released_steps > reserved.released_steps:
        wanted = wanted.later(segment, self.block - 1)
      self.settle(wanted.merged(reserved))

  def settle(self, exact: Counts) -> None:
    """Writes the exact count, maybe lower; to be called when no step is running.

    Raises RuntimeError and OSError as `reserve`, but not for a fork.
    """
    with _lock:
      self._check_place()
      if exact != self.entry:
        self._append(exact._asdict())
        self.entry = exact

  def close(self) -> None:
    """Closes the file, so that another run can open it."""
    with _lock:
      if not self._closed:
        self._closed = True
        _open.pop(_record_file.identity(os.fstat(self._file)), None)
        os.close(self._file)

  def _check_place(self) -> None:
    """Raises RuntimeError if the file is closed, moved, replaced or edited."""
    if self._closed:
      raise RuntimeError(
          f'Expected journal {self.path!r} to be open, got one that was closed, or '
          'that a later model of this process took over: that model counts the '
          'steps of both. Train it, or open the journal anew with '
          'privatize(..., journal=...).')
    opened = os.fstat(self._file)
    try:
      at_path = os.stat(self._place)
    except FileNotFoundError:
      at_path = None
    if at_path is None or (
        _record_file.identity(at_path) != _record_file.identity(opened)):
      became = 'none' if at_path is None else 'another file'
    elif opened.st_size != self._size or self._last != os.pread(
        self._file, len(self._last), self._size - len(self._last)):
      became = 'other contents'
    else:
      return
    raise RuntimeError(
        f'Expected journal {self.path!r} to stay the file that this run writes, '
        f'got {became}: a resumed run would not count its steps. At most '
        f'{self.entry.released_steps} steps and {self.entry.epochs_begun} passes '
        'were released so far; begin a new run with a journal that nothing else '
        'moves, edits or copies over, and add the cost of these steps to that run.')

  def _append(self, record: dict[str, Any]) -> None:
    """Appends a record and syncs; undoes it on an OSError."""
    self._last = _record_file.append(self._file, self._size, record, _checksum)
    self._size += len(self._last)


def _checksum(text: bytes) -> str:
  """Returns the CRC-32 of a record, in hex."""
  return f'{zlib.crc32(text):08x}'


def _entry(path: PathLike, record: dict[str, Any]) -> Counts:
  """Returns the counts of a record; raises ValueError if a number is invalid."""
  lowest = {**dict.fromkeys(Counts._fields[1:], 0), 'plan_number': counts.OTHER_PLANS}
  segments = record.get('segments') if isinstance(record, dict) else None
  if not (isinstance(segments, list) and set(record) == set(Counts._fields) and all(
      isinstance(each, list) and len(each) == 3 and all(
          _is_whole(value, 0) for value in each) for each in segments) and all(
              _is_whole(record[name], least) for name, least in lowest.items()) and (
                  record['sampling'] in (counts.NONE, counts.UNKNOWN, counts.MIXED) or
                  sampling.of_code(record['sampling']) is not None)):
    raise ValueError(
        f'Expected journal {os.fspath(path)!r} to hold entries of '
        f'{", ".join(Counts._fields)}, whole numbers of at least zero (and of a known '
        f'sampling), got {record!r}, which no run wrote; what was released can no '
        'longer be known from it.')
  return Counts.of_json(record)


def _is_whole(value: Any, least: int) -> bool:
  """Returns whether a parsed value is an int, no boolean, of at least `least`."""
  return type(value) is int and value >= least


def _last_entry(path: PathLike, data: bytes, plan: PrivacyPlan) -> Counts:
  """Returns the last complete entry, else `Counts()`.

  Raises ValueError for the journal of another plan, or damaged lines.
  """
  what = f'journal {os.fspath(path)!r}'
  records = [_record_file.parsed(line, _checksum, what)
             for line in _record_file.complete(data, what).splitlines()]
  if records and records[0] != _header(plan):
    raise ValueError(
        f'Expected journal {os.fspath(path)!r} of the plan that is trained by, '
        f'{_header(plan)}, got the journal of another, {records[0]}; choose '
        'another file for another run.')
  # Every record is checked, to detect lines that others inserted.
  entries = [_entry(path, record) for record in records[1:]]
  return entries[-1] if entries else Counts()


def _header(plan: PrivacyPlan) -> dict[str, Any]:
  """Returns the first record of a journal: the fields that set a step's cost."""
  rule = plan.adaptive_clipping
  # Keys that older journals lack are left out of plans without the feature.
  correlation = {} if plan.strategy is None else {
      'correlation': plan.strategy.digest}
  unit = {} if plan.unit == 'example' else {'unit': plan.unit}
  counted = {} if plan.noisy_accuracy is None else {
      'noisy_accuracy': dataclasses.asdict(plan.noisy_accuracy)}
  whole = {} if plan.arithmetic == 'float' else {
      'arithmetic': plan.arithmetic, 'dim': plan.dim}
  return {**correlation, **unit, **counted, **whole,
          'adaptive_clipping': None if rule is None else dataclasses.asdict(rule),
          'noise': plan.noise.digest, 'l2_norm_clip': plan.l2_norm_clip,
          'num_examples': plan.num_examples,
          'sampling_prob': plan.sampling_prob}
