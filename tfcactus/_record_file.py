"""Files of JSON records that are only appended to, one checksummed line a record."""

from __future__ import annotations

import json
import os
from typing import Any, Callable

try:
  import fcntl
except ImportError:  # Windows.
  fcntl = None  # type: ignore[assignment]

Checksum = Callable[[bytes], str]
"""Returns the checksum, without spaces, of a record's JSON."""


def lock(file: int, path: str, *, wait: bool = False) -> None:
  """Locks a descriptor against other processes; OSError if it is locked, unless `wait`.

  Raises ValueError, which names `path`, on Windows, which lacks such locks.
  """
  if fcntl is None:
    raise ValueError(
        f'Expected a system with POSIX file locks for {path!r}, Linux or macOS, got '
        'Windows, where two processes could write at once; use WSL.')
  fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def whole(file: int) -> bytes:
  """Returns all complete lines of a file; cuts off an incomplete last line."""
  # Its process was killed before `append` returned, hence before it released anything
  # on account of that record.
  os.lseek(file, 0, os.SEEK_SET)
  data = b''
  while more := os.read(file, 2**20):
    data += more
  end = data.rfind(b'\n') + 1
  if end < len(data):
    os.ftruncate(file, end)
  return data[:end]


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
    raise ValueError(
        f'Expected {what} to hold its own lines, got {line[:80]!r}, which is damaged '
        'or of another file; what was released can no longer be known from it.')
  return json.loads(text)


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
