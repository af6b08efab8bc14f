"""Strategies of `tf.distribute`, with which a script trains on devices and machines."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from typing import Any

import tensorflow as tf

from tfcactus.keras.distribution import replicas

STRATEGIES = ('none', 'mirrored', 'multi-worker')
"""Values of --strategy."""


def scope(name: str) -> contextlib.AbstractContextManager[Any]:
  """Returns the scope of a strategy, in which models must be created."""
  return contextlib.nullcontext() if name == 'none' else opened(name).scope()


@functools.cache
def opened(name: str) -> Any:
  """Returns a strategy of `STRATEGIES`; must precede all other use of TensorFlow.

  'mirrored' takes all GPUs, or two logical CPU devices if there are fewer than two
  GPUs. 'multi-worker' takes the machines of TF_CONFIG; raises ValueError if it names no
  workers.
  """
  if name == 'none':
    return tf.distribute.get_strategy()
  if name == 'multi-worker':
    _check_config(os.environ.get('TF_CONFIG', ''))
    return tf.distribute.MultiWorkerMirroredStrategy()
  if len(tf.config.list_physical_devices('GPU')) > 1:
    return tf.distribute.MirroredStrategy()
  cpu, = tf.config.list_physical_devices('CPU')
  if tf.config.get_logical_device_configuration(cpu) is None:
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
  return tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])


def is_chief(name: str) -> bool:
  """Returns whether this process is the one that writes results."""
  return replicas.worker(opened(name)) == 0


def _check_config(text: str) -> None:
  """Raises ValueError unless the value of TF_CONFIG has a cluster and a task."""
  try:
    config = json.loads(text)
    known = config['cluster'] and config['task']
  except (ValueError, KeyError, TypeError):
    known = None
  if not known:
    raise ValueError(
        'Expected TF_CONFIG to name the workers with --strategy multi-worker, as in '
        '{"cluster": {"worker": ["host1:12345", "host2:12345"]}, "task": {"type": '
        f'"worker", "index": 0}}}}, got {text!r}; see docs/distribution.md.')
