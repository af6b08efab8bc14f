"""Tests of the memory that a physical batch may take."""

import types

import pytest
import tensorflow as tf

from tfcactus.keras.distribution import replicas
from tfcactus.keras.gradients import physical_batch

_GB = 2**30


@pytest.fixture(name='host')
def host_fixture(monkeypatch, tmp_path):
  """Sets the memory of the machine and the limits of its container."""
  def host(total, *groups):
    monkeypatch.setattr(
        physical_batch.os, 'sysconf',
        lambda name: 4096 if name == 'SC_PAGE_SIZE' else total // 4096)
    paths = [tmp_path / str(index) for index in range(len(groups))]
    for path, text in zip(paths, groups):
      path.write_text(text)
    monkeypatch.setattr(
        physical_batch, '_CONTAINER_LIMITS', (tmp_path / 'none', *paths))
    monkeypatch.setattr(tf.config, 'list_logical_devices', lambda kind: [])
  return host


@pytest.mark.parametrize('total, groups, found', [
    (24 * _GB, (), _GB), (8 * _GB, (), _GB // 2), (24 * _GB, ('max\n',), _GB),
    (24 * _GB, ('max\n', str(4 * _GB)), _GB // 4),
    (8 * _GB, (str(2**63 - 4096),), _GB // 2)])
def test_a_batch_takes_a_part_of_the_containers_memory(host, total, groups, found):
  host(total, *groups)
  assert physical_batch.memory_for_steps() == found


def test_replicas_of_a_host_share_it(host, monkeypatch):
  host(8 * _GB)
  monkeypatch.setattr(replicas, 'shares', lambda: replicas.Shares(8, 4, 4))
  assert physical_batch.memory_for_steps() == _GB // 8


@pytest.mark.parametrize('limits, found', [
    ([16 * _GB, 24 * _GB], 8 * _GB), ([], _GB), (None, _GB)])
def test_a_batch_takes_half_of_the_smallest_gpu(monkeypatch, limits, found):
  def devices():
    if limits is None:
      raise RuntimeError('GPUs are split already')
    return [types.SimpleNamespace(device_type=kind, memory_limit=limit)
            for kind, limit in (('CPU', 256), *(('GPU', limit) for limit in limits))]

  monkeypatch.setattr(tf.config, 'list_logical_devices', lambda kind: ['GPU:0'])
  monkeypatch.setattr(physical_batch.device_lib, 'list_local_devices', devices)
  assert physical_batch.memory_for_steps() == found


def test_an_unknown_amount_of_memory_gives_one_gigabyte(host, monkeypatch):
  host(8 * _GB)
  monkeypatch.delattr(physical_batch.os, 'sysconf')
  assert physical_batch.memory_for_steps() == _GB


def test_this_machine_has_memory():
  assert 2**20 < physical_batch.memory_for_steps() < 2**40
