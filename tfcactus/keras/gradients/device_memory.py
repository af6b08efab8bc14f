"""How much memory a physical batch may take on the devices of this process."""

from __future__ import annotations

import os
import pathlib
from typing import List

import tensorflow as tf
from tensorflow.python.client import device_lib

from tfcactus.keras import replicas

_GROUPS = (pathlib.Path('/sys/fs/cgroup/memory.max'),
           pathlib.Path('/sys/fs/cgroup/memory/memory.limit_in_bytes'))
"""Where containers of Linux say what they may take."""

_HOST_SHARE, _GPU_SHARE = 1 / 16, 1 / 2
"""A host has more to do; a GPU's memory is there for steps."""

_HOST_ENOUGH = 2**30
"""More hardly makes steps faster on cores: by a quarter of these rows ResNet-20 takes
17.2 rather than 15.2 ms for an example, WRN-16-4 52.9 rather than 49.8
(benchmarks.step_memory)."""


def for_steps() -> int:
  """Bytes that a physical batch may take on each replica.

  It follows from what the machine has rather than from what is free at the moment:
  physical batches of another size round sums otherwise, and runs would not repeat.
  """
  gpus = tf.config.list_logical_devices('GPU')
  if gpus:
    return int(_GPU_SHARE * min(_gpu_limits(), default=2 * _HOST_ENOUGH))
  here = replicas.shares().here
  return int(min(_HOST_ENOUGH, _HOST_SHARE * _host_limit()) / here)


def _host_limit() -> int:
  """Bytes that this process may take of the memory of its host."""
  try:
    limits = [os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')]
  except (AttributeError, ValueError, OSError):  # Windows says it otherwise.
    limits = [int(_HOST_ENOUGH / _HOST_SHARE)]
  for path in _GROUPS:
    try:
      limits.append(int(path.read_text(encoding='ascii')))
    except (OSError, ValueError):  # Not there, or 'max'.
      continue
  return min(limits)


def _gpu_limits() -> List[int]:
  """Bytes that TensorFlow may take of each GPU; none where it does not tell."""
  try:
    return [int(device.memory_limit) for device in device_lib.list_local_devices()
            if device.device_type == 'GPU' and device.memory_limit]
  except (RuntimeError, ValueError, tf.errors.OpError):
    return []  # Where GPUs are split into logical devices, for one.
