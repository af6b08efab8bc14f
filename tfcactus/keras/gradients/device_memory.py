"""The memory that a physical batch may take on the devices of this process."""

from __future__ import annotations

import os
import pathlib

import tensorflow as tf
from tensorflow.python.client import device_lib

from tfcactus.keras.distribution import replicas

_GROUPS = (pathlib.Path('/sys/fs/cgroup/memory.max'),
           pathlib.Path('/sys/fs/cgroup/memory/memory.limit_in_bytes'))
"""Files in which Linux states the memory limit of a container."""

_HOST_SHARE, _GPU_SHARE = 1 / 16, 1 / 2
"""A host serves other purposes too; a GPU's memory is for training steps."""

_HOST_ENOUGH = 2**30
"""More memory hardly makes steps faster on a CPU: with a quarter of these rows
ResNet-20 takes 17.2 rather than 15.2 ms per example, WRN-16-4 52.9 rather than 49.8
(benchmarks.step_memory)."""


def for_steps() -> int:
  """Returns the bytes that a physical batch may take on each replica.

  The result depends on installed memory, not on free memory: another physical batch
  size rounds sums differently, and runs would not repeat.
  """
  gpus = tf.config.list_logical_devices('GPU')
  if gpus:
    return int(_GPU_SHARE * min(_gpu_limits(), default=2 * _HOST_ENOUGH))
  here = replicas.shares().here
  return int(min(_HOST_ENOUGH, _HOST_SHARE * _host_limit()) / here)


def _host_limit() -> int:
  """Returns the bytes of host memory that this process may take."""
  try:
    limits = [os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')]
  except (AttributeError, ValueError, OSError):  # Windows has no sysconf.
    limits = [int(_HOST_ENOUGH / _HOST_SHARE)]
  for path in _GROUPS:
    try:
      limits.append(int(path.read_text(encoding='ascii')))
    except (OSError, ValueError):  # The file is missing, or holds 'max'.
      continue
  return min(limits)


def _gpu_limits() -> list[int]:
  """Returns the bytes that TensorFlow may take of each GPU; [] if unknown."""
  try:
    return [int(device.memory_limit) for device in device_lib.list_local_devices()
            if device.device_type == 'GPU' and device.memory_limit]
  except (RuntimeError, ValueError, tf.errors.OpError):
    return []  # For example if GPUs are split into logical devices.
