"""Draws the noise of the next step in a thread while the device works on the step."""

from __future__ import annotations

from concurrent import futures
import os
import threading
from typing import Callable

import numpy as np

FROM = 2**17
"""Coordinates from which on noise is drawn ahead; fewer take a few milliseconds."""

MOST = 2**27
"""Coordinates, 1 GB, that may wait to be asked for. Others are drawn when asked for."""

MOST_OF_HOST = 2**24
"""Coordinates up to which noise is drawn ahead without a GPU: a host that computes the
steps itself has no core to spare, and 128 MB is little beside what its steps take."""

Slot = tuple[int, int]
"""Number of a part of a sum, and number of its coordinates."""


class NoiseAhead:
  """Draws, made one ahead for each part of a sum that steps ask for again and again.

  A draw is handed out once, to the process that made it. A draw that nobody asks for,
  as after the last step, is thrown away: noise is no release. One thread makes all
  draws, in the order of requests, so that seeds repeat.
  """

  def __init__(self, draw: Callable[[int], np.ndarray]):
    """Initialises; `draw` returns fresh noise for a number of coordinates."""
    self._draw = draw
    self._lock = threading.Lock()
    self._begin()

  def _begin(self) -> None:
    """Starts anew in this process, with no draws waiting."""
    self._pid = os.getpid()
    self._waiting: dict[Slot, futures.Future[np.ndarray]] = {}
    # The pool starts its thread at the first draw.
    self._thread = futures.ThreadPoolExecutor(1, 'tfcactus noise')

  def take(self, slot: Slot) -> np.ndarray:
    """Returns noise for a part, float64, and has the next draw made, up to `MOST`."""
    with self._lock:
      if os.getpid() != self._pid:
        self._begin()  # The parent process may use what it drew.
      found = self._waiting.pop(slot, None)
      try:
        found = found or self._thread.submit(self._draw, slot[1])
        if slot[1] + sum(size for _, size in self._waiting) <= MOST:
          self._waiting[slot] = self._thread.submit(self._draw, slot[1])
      except RuntimeError:
        pass  # Python ends pools with the main thread; another thread may still train.
    return self._draw(slot[1]) if found is None else found.result()

  def drop(self) -> None:
    """Throws away what waits, and so frees its memory."""
    with self._lock:
      self._waiting.clear()
