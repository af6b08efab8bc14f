"""Tests of workers of a MultiWorkerMirroredStrategy, each in its own process."""

import contextlib
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

_SCRIPT = pathlib.Path(__file__).with_name('workers_run.py')


def _ports(count):
  """Returns free ports; the system gives those below 32,768 to nobody else."""
  ports = []
  for port in random.SystemRandom().sample(range(20_000, 32_000), 1000):
    with socket.socket() as found, contextlib.suppress(OSError):
      found.bind(('127.0.0.1', port))
      ports.append(port)
    if len(ports) == count:
      break
  return ports


def _start(case, workers=2):
  """Starts workers; returns their processes."""
  addresses = [f'127.0.0.1:{port}' for port in _ports(workers)]
  root = str(_SCRIPT.parents[3])
  return [subprocess.Popen(
      [sys.executable, str(_SCRIPT), json.dumps(case)], text=True,
      stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root,
      env={**os.environ, 'PYTHONPATH': root, **({} if workers == 1 else {
          'TF_CONFIG': json.dumps({'cluster': {'worker': addresses},
                                   'task': {'type': 'worker', 'index': index}})})})
          for index in range(workers)]


def _run(workers=2, **case):
  """Runs workers; returns the final report of each."""
  processes = _start(case, workers)
  try:
    found = [process.communicate(timeout=600) for process in processes]
  finally:
    for process in processes:
      process.kill()
  return [json.loads(out.splitlines()[-1]) if out.strip() else {'error': err[-2000:]}
          for out, err in found]


def _check_alike(found):
  assert all('error' not in each for each in found), found
  for each in found[1:]:
    assert {**each, 'worker': 0} == {**found[0], 'worker': 0}


@pytest.mark.slow
@pytest.mark.parametrize('case, tolerance', [
    ({'case': 'cyclic', 'prob': 1 / 12, 'bands': 3}, 1e-6),
    *(({'case': name}, 1e-6) for name in ('poisson', 'fixed', 'shuffled', 'allocated')),
    ({'optimizer': 'adam', 'clipping': 'per_layer'}, 1e-6),
    ({'optimizer': 'rmsprop', 'clipping': 'automatic'}, 1e-6),
    ({'adaptive': True}, 1e-6), ({'adaptive': True, 'whole': True}, 1e-6),
    ({'dtype': 'mixed_bfloat16'}, 2e-2), ({'dtype': 'mixed_float16'}, 2e-2)],
    ids=lambda case: '-'.join(map(str, case.values())) if isinstance(case, dict) else (
        None))
def test_two_workers_train_as_one_device(case, tolerance):
  one, = _run(1, seed=7, **case)
  two = _run(2, seed=7, **case)
  _check_alike(two)
  for key in ('steps', 'epochs', 'sampling'):
    assert two[0][key] == one[key]
  assert one['steps'] >= 20 and two[0]['workers'] == 2
  for key, values in one['logs'].items():
    np.testing.assert_allclose(two[0]['logs'][key], values, rtol=10 * tolerance)
  for a, b in zip(one['weights'], two[0]['weights']):
    np.testing.assert_allclose(b, a, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize('whole', [False, True])
def test_shares_of_noise_add_up_to_the_noise(whole):
  case = {'noise': 3.0, 'width': 12_000, 'optimizer': 'plain', 'steps_per_epoch': 1,
          'epochs': 1, 'seed': 11, 'whole': whole}
  chief, split = _run(2, **case), _run(2, split=True, **case)
  one, = _run(1, split=True, **case)
  for found in (chief, split):
    _check_alike(found)
  assert split[0]['digest'] != chief[0]['digest']
  for found in (*chief, *split, one):
    # Equal shares would give a factor of 1.41, one share alone .71.
    assert abs(found['moved'] / 3 - 1) < 0.02
  assert 'multiplier of 2.12' in split[0]['condition'] and not one['condition']


@pytest.mark.slow
def test_workers_whose_gradients_have_other_bits_are_refused():
  for each in _run(2, whole=True, rows=[8, 16]):
    assert 'the same bits of gradients of random rows on all' in each['error']


@pytest.mark.slow
def test_workers_with_different_split_noise_are_refused():
  for each in _run(2, split=[0]):
    assert 'the same split_noise, got True, False' in each['error']


@pytest.mark.slow
def test_workers_without_a_seed_draw_alike_and_stop_together():
  found = _run(2, case='poisson', noise=2.0, target=1.0, epochs=9)
  _check_alike(found)
  assert 0 < found[0]['steps'] < 90
  assert found[0]['logs']['epsilon'][-1] <= 1.0


@pytest.mark.more
def test_workers_with_parts_of_the_examples_report_one_epsilon(tmp_path):
  found = _run(2, case='parts', noise=2.0, journal=str(tmp_path / 'journal'))
  _check_alike(found)
  assert found[0]['steps'] == 20 and 'epsilon' in found[0]['logs']
  lines = (tmp_path / 'journal').read_text().splitlines()
  (_, steps, _), = json.loads(lines[-1].split(' ', 1)[1])['segments']
  assert steps == 20


@pytest.mark.slow
@pytest.mark.parametrize('case, words', [
    ('same parts', 'in two parts would count twice'),
    ('other data', 'same examples in the same order'),
    ('other kind', 'the same kind of batches')])
def test_workers_with_different_batches_are_refused(case, words):
  for each in _run(2, case=case):
    assert words in each['error']


@pytest.mark.slow
@pytest.mark.parametrize('disturb, words', [
    ('journal', ['to stay the file that this run writes', 'another that could not']),
    ('full', ['File too large', 'another that could not']),
    ('weights', ['to count it likewise'] * 2)])
def test_a_failure_of_one_worker_stops_all_before_the_step(
    tmp_path, disturb, words):
  # More steps than the journal counts ahead.
  found = _run(2, case='poisson', disturb=disturb, journal=str(tmp_path / 'journal'),
               steps=200, epochs=8)
  for each, expected in zip(found, words):
    assert expected in each['error']


@pytest.mark.slow
def test_a_killed_run_resumes_from_its_backup_with_all_steps_counted(tmp_path):
  case = {'case': 'poisson', 'noise': 2.0, 'journal': str(tmp_path / 'journal'),
          'backup': str(tmp_path / 'backup'), 'epochs': 4, 'steps': 200}
  rng = np.random.default_rng(3)
  most = _kill_one({**case, 'announce': True, 'epochs': 15}, rng, least=25)
  found = _run(2, **{**case, 'epochs': 16})
  _check_alike(found)
  # Steps before the kill are counted, and saved epochs are not repeated.
  assert most < found[0]['steps'] <= most + 160 + 32
  assert 0 < len(found[0]['logs']['loss']) < 16


def _kill_one(case, rng, least=1):
  """Kills one of two workers at a random moment; returns the most steps seen.

  Args:
    case: The case of the script.
    rng: Generator of the moment.
    least: Number of steps to wait for first.
  """
  processes, seen, lock = _start(case), [0], threading.Lock()

  def watch(process):
    for line in process.stdout:
      if line.startswith('released '):
        with lock:
          seen.append(int(line.split()[1]))

  threads = [threading.Thread(target=watch, args=(each,)) for each in processes]
  for each in threads:
    each.start()
  victim, wait = processes[rng.integers(2)], rng.exponential(0.3)
  while max(seen) < least and all(each.poll() is None for each in processes):
    time.sleep(0.02)
  time.sleep(wait)
  victim.send_signal(signal.SIGKILL)
  time.sleep(rng.exponential(0.2))
  for each in processes:  # Cluster managers kill the rest of a job as well.
    each.kill()
    each.wait()
  for each in threads:
    each.join()
  return max(seen)


@pytest.mark.slow
def test_killed_workers_count_every_released_step(tmp_path):
  rng, journal, most, kills = np.random.default_rng(1), str(tmp_path / 'journal'), 0, 20
  case = {'case': 'poisson', 'journal': journal, 'announce': True, 'epochs': 400}
  for _ in range(kills):
    before = most
    most = max(most, _kill_one(case, rng))
    # Each run resumed from the count, and got further.
    assert most > before
  found = _run(2, case='poisson', journal=journal, epochs=1)
  _check_alike(found)
  # Ten steps more; at most a block of the journal is counted too much each time.
  assert most + 10 <= found[0]['steps'] <= most + 10 + 32
