"""Files of JSON records that are only appended to, one checksummed line a record."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Callable

try:
  import fcntl
except ImportError:  # Windows.
  fcntl = None  # type: ignore[assignment]

Checksum = Callable[[bytes], str]
"""Returns the checksum, hexadecimal digits, of a record's JSON."""

_TORN = re.compile(rb'[0-9a-f]*( (\{.*)?)?\0*', re.DOTALL)
"""Beginnings of a line; a disk may have zeros in place of what was not written."""


def lock(file: int, path: str, *, wait: bool = False) -> None:
  """Locks a descriptor against other processes; OSError if it is locked, unless `wait`.

  Raises ValueError, which names `path`, on Windows, which lacks such locks.
  """
  if fcntl is None:
    raise ValueError(
        f'Expected a system with POSIX file locks for {path!r}, Linux or macOS, got '
        'Windows, where two processes could write at once; use WSL.')
  fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def complete(data: bytes, what: str) -> bytes:
  """Returns the complete lines of a file's bytes.

  Raises ValueError, naming the file as `what`, if an incomplete line follows that no
  record begins with.
  """
  end = data.rfind(b'\n') + 1
  if not _TORN.fullmatch(data[end:]):
    raise _foreign(data[end:], what)
  return data[:end]


def whole(file: int, what: str, read: Callable[[bytes], object]) -> bytes:
  """Returns all complete lines of a file, once `read` has taken them without an error.

  Then cuts off an incomplete last line. Raises as `complete` and `read`.
  """
  # The process that wrote the incomplete line was killed before `append` returned,
  # hence before it released anything on account of that record.
  os.lseek(file, 0, os.SEEK_SET)
  data = b''
  while more := os.read(file, 2**20):
    data += more
  lines = complete(data, what)
  read(lines)
  if len(lines) < len(data):
    os.ftruncate(file, len(lines))
  return lines


def append(file: int, size: int, record: dict[str, Any], checksum: Checksum) -> bytes:
  """Appends a record to a file of `size` bytes and syncs; returns the line.

  Undoes the write and raises on an OSError, such as a full disk: no line may follow
  half a line.
  """
  text = json.dumps(record, sort_keys=True).encode()
  line = checksum(text).encode() + b' ' + text + b'\n'
  try:
    written = 0
    os.lseek(file, size, os.SEEK_SET)
    while written < len(line):
      written += os.write(file, line[written:])
    os.fsync(file)
  except OSError:
    os.ftruncate(file, size)
    raise
  return line


def parsed(line: bytes, checksum: Checksum, what: str) -> dict[str, Any]:
  """Returns the record of a line; ValueError, naming the file as `what`, if damaged."""
  head, _, text = line.rstrip(b'\n').partition(b' ')
  if head != checksum(text).encode():
    raise _foreign(line, what)
  return json.loads(text)


def _foreign(line: bytes, what: str) -> ValueError:
  """Returns the error for a line that is no record of the file named `what`."""
  return ValueError(
      f'Expected {what} to hold its own lines, got {line[:80]!r}, which is damaged '
      'or of another file; what was released can no longer be known from it.')


def identity(status: os.stat_result) -> tuple[int, int]:
  """Returns (device, inode), which identify a file under any name."""
  return status.st_dev, status.st_ino


def sync_directory(path: str) -> None:
  """Syncs the directory of a new file, so that a crash does not lose its name."""
  directory = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
  try:
    os.fsync(directory)
  finally:
    os.close(directory)
