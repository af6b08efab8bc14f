"""Tests of --strategy of the training script, each run in a process."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest

from training import mnist

_ROOT = pathlib.Path(__file__).parents[2]


def _start(path, strategy, config=None):
  return subprocess.Popen(
      [sys.executable, '-m', 'training.mnist', '--dataset', 'digits', '--epochs', '1',
       '--batch-size', '100', '--mechanism', 'gaussian', '--strategy', strategy,
       '--verbose', '2', '--seed', '1', '--json', str(path)],
      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=_ROOT,
      env={**os.environ, 'PYTHONPATH': str(_ROOT),
           **({} if config is None else {'TF_CONFIG': json.dumps(config)})})


def _ended(processes):
  try:
    return [process.communicate(timeout=200) for process in processes]
  finally:
    for process in processes:
      process.kill()


def _result(path):
  found = json.loads(path.read_text())
  assert found['steps'] == 15 and found['proven']
  return found


@pytest.mark.slow
def test_mirrored_gives_what_one_device_gives(tmp_path):
  runs = {name: _start(tmp_path / name, name) for name in ('none', 'mirrored')}
  for out, err in _ended(runs.values()):
    assert 'epsilon <=' in out, err[-2000:]
  one, two = (_result(tmp_path / name) for name in runs)
  assert two['epsilon'] == one['epsilon']
  assert two['test_accuracy'] == pytest.approx(one['test_accuracy'], abs=0.01)
  assert two['parameters']['strategy'] == 'mirrored'


@pytest.mark.slow
def test_of_two_workers_the_chief_alone_writes(tmp_path):
  with socket.socket() as first, socket.socket() as second:
    for each in (first, second):
      each.bind(('127.0.0.1', 0))
    hosts = [f'127.0.0.1:{each.getsockname()[1]}' for each in (first, second)]
  runs = [_start(tmp_path / str(index), 'multi-worker', {
      'cluster': {'worker': hosts}, 'task': {'type': 'worker', 'index': index}})
          for index in range(2)]
  for out, err in _ended(runs):
    assert 'epsilon <=' in out, err[-2000:]
  assert 0 < _result(tmp_path / '0')['epsilon']['upper'] < 2
  assert not (tmp_path / '1').exists()


@pytest.mark.parametrize('config', ['', '{', '{}', '[]', '{"cluster": {}, "task": {}}'])
def test_workers_without_a_config_are_refused_in_words(monkeypatch, capsys, config):
  monkeypatch.setenv('TF_CONFIG', config)
  assert mnist.main(['--strategy', 'multi-worker', '--dataset', 'digits']) == 2
  assert 'TF_CONFIG to name the workers' in capsys.readouterr().err
