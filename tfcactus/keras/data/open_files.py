"""Open files of examples, with checks that they have not changed."""

from __future__ import annotations

from collections.abc import Sequence
import os
from typing import Any, Callable
import zlib

import numpy as np
import tensorflow as tf


class OpenFiles:
  """Files kept open for drawing examples, with a check that they stay unchanged.

  A file that is deleted, or replaced under its name, stays readable in its old state.
  `descriptors` are the open files of `paths`.
  """

  def __init__(self, paths: Sequence[str]):
    """Opens the files; ValueError if two are one file, OSError if one is unreadable."""
    self.paths = tuple(paths)
    self.descriptors: list[int] = []
    found: dict[tuple[int, int], str] = {}
    for path in self.paths:
      self.descriptors.append(os.open(path, os.O_RDONLY))
      state = os.fstat(self.descriptors[-1])
      other = found.setdefault((state.st_dev, state.st_ino), path)
      if len(found) < len(self.descriptors):
        raise ValueError(
            f'Expected files that differ, got {other!r} and {path!r}, which are one '
            'file: each of its examples would count twice. Name the file once.')
    self._states = self._now()

  def check_unchanged(self) -> None:
    """Raises ValueError if a file has another size or modification time by now."""
    for path, state, now in zip(self.paths, self._states, self._now()):
      if state != now:
        raise changed(path, 'its bytes and its modification time in nanoseconds are '
                      f'{now}, not {state}')

  def _now(self) -> list[tuple[int, int]]:
    """Returns (size in bytes, modification time in nanoseconds) of each file."""
    states = map(os.fstat, self.descriptors)
    return [(state.st_size, state.st_mtime_ns) for state in states]

  def __del__(self, close: Callable[[int], None] = os.close) -> None:
    # At exit the module `os` may be gone; the default argument is not.
    for descriptor in self.descriptors:
      close(descriptor)


def changed(path: str, how: str) -> ValueError:
  """Returns the error for a file that has changed."""
  return ValueError(
      f'Expected files that stay as they are, got {path!r}, which has changed since '
      f'it was opened or stored: {how}. The guarantee is for the same examples in '
      'all steps. Write other examples to other files, and train anew on those.')


def row_checksums(rows: Any) -> np.ndarray:
  """Returns the CRC-32 of each example over all arrays of `rows`; uint32, (rows,)."""
  arrays = [np.ascontiguousarray(array) for array in tf.nest.flatten(rows)]
  count = len(arrays[0])
  data = np.concatenate([
      array.reshape(-1).view(np.uint8).reshape(count, array.nbytes // max(count, 1))
      for array in arrays], axis=1)
  return np.array([zlib.crc32(row) for row in data], np.uint32)
