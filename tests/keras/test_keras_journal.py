"""A run that is killed and resumed forgets no step and repeats no noise."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import killed_run
import tfcactus
from tfcactus.keras import Journal
from tfcactus.keras import PoissonBatches
from tfcactus.keras import privatize
from tfcactus.keras.journal import Entry
from tfcactus.keras.sampling import Sampling

ROOT = pathlib.Path(tfcactus.__file__).parent.parent
_LOSS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _lines(folder, word):
  path = folder / 'log'
  lines = path.read_text().splitlines() if path.exists() else []
  return [line for line in lines if line.startswith(word)]


def _run_and_kill(folder, seconds):
  """Kills a run so many seconds after its first released step."""
  before = len(_lines(folder, 'released'))
  run = subprocess.Popen(
      [sys.executable, '-m', 'tests.keras.killed_run', str(folder)], cwd=ROOT,
      env={**os.environ, 'PYTHONPATH': str(ROOT)})
  deadline = time.monotonic() + 120
  while len(_lines(folder, 'released')) == before:
    assert run.poll() is None and time.monotonic() < deadline
    time.sleep(0.01)
  time.sleep(seconds)
  run.send_signal(signal.SIGKILL)
  run.wait()


def _kill_often(folder, times):
  draw = random.Random(7)
  for _ in range(times):
    _run_and_kill(folder, draw.uniform(0, 0.5))
    journal = Journal(folder / 'journal', killed_run.plan())
    assert journal.entry.steps >= len(_lines(folder, 'noise'))
    journal.close()
  counted = [int(line.split()[1]) for line in _lines(folder, 'counted')]
  assert counted == sorted(counted) and counted[0] == 0 < counted[1]
  noise = _lines(folder, 'noise')
  assert len(set(noise)) == len(noise)
  model = privatize(tf.keras.Sequential([
      tf.keras.layers.Input((6,)), tf.keras.layers.Dense(3)]),
                    killed_run.plan(), journal=folder / 'journal')
  released = len(_lines(folder, 'released'))
  steps = model.ledger().steps
  assert released <= len(noise) <= steps <= released + 33 * times
  assert model.ledger().sampling == Sampling.POISSON
  assert (model.guarantee().upper >=
          killed_run.plan().guarantee(len(noise)).upper)


def test_a_killed_run_counts_every_released_step(tmp_path):
  _kill_often(tmp_path, 3)


@pytest.mark.slow
def test_a_run_killed_twenty_times_counts_every_released_step(tmp_path):
  _kill_often(tmp_path, 20)


def _private(plan, path, **kwargs):
  tf.keras.utils.set_random_seed(1)
  model = tf.keras.Sequential([tf.keras.layers.Input((6,)),
                               tf.keras.layers.Dense(3)])
  private = privatize(model, plan, journal=path, **kwargs)
  private.compile('sgd', _LOSS)
  return private


def _data():
  rng = np.random.default_rng(0)
  return rng.normal(size=(40, 6)).astype(np.float32), rng.integers(0, 3, 40)


def test_blocks_are_on_disk_before_their_steps_and_an_orderly_end_is_exact(
    make_plan, tmp_path):
  path = tmp_path / 'journal'
  private = _private(make_plan(), path)
  seen = []
  look = tf.keras.callbacks.LambdaCallback(
      on_train_batch_end=lambda batch, logs: seen.append(path.read_text()))
  private.fit(PoissonBatches(*_data(), 0.25), verbose=0, callbacks=[look])
  assert '"steps": 32' in seen[0] and len(set(seen)) == 1
  assert private._books.journal.entry == Entry(4, 0, Sampling.POISSON)
  private._books.journal.close()
  resumed = _private(make_plan(), path)
  assert resumed.ledger() == private.ledger()
  resumed.train_on_batch(*_data())
  assert resumed._books.journal.entry == Entry(36, 0, Sampling.UNKNOWN)
  resumed._books.journal.close()
  assert _private(make_plan(), path).ledger().sampling == Sampling.UNKNOWN


def test_epochs_of_a_plain_fit_are_counted_when_they_begin(make_plan, tmp_path):
  private = _private(make_plan(), tmp_path / 'journal')

  def stop(batch, logs):
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    private.fit(*_data(), batch_size=20, verbose=0, callbacks=[
        tf.keras.callbacks.LambdaCallback(on_train_batch_end=stop)])
  assert private._books.journal.entry == Entry(32, 1, Sampling.EACH_EXAMPLE_ONCE)


def test_a_torn_last_line_is_cut_and_damage_is_not_excused(make_plan, tmp_path):
  path = tmp_path / 'journal'
  journal = Journal(path, make_plan())
  journal.reserve(Entry(1, 0, 1))
  journal.close()
  whole = path.read_bytes()
  for cut in range(1, len(whole.splitlines()[-1])):
    path.write_bytes(whole[:-cut])
    journal = Journal(path, make_plan())
    assert journal.entry == Entry()
    journal.reserve(Entry(2, 0, 1))
    journal.close()
    journal = Journal(path, make_plan())
    assert journal.entry == Entry(33, 0, 1)
    journal.close()
  path.write_bytes(whole.replace(b'"steps": 32', b'"steps": 12'))
  with pytest.raises(ValueError, match='damaged'):
    Journal(path, make_plan())


def test_journals_are_refused_in_words(make_plan, tmp_path):
  path = tmp_path / 'journal'
  private = _private(make_plan(), path)
  with pytest.raises(ValueError, match='another run'):
    _private(make_plan(), path)
  private._books.journal.close()
  with pytest.raises(ValueError, match='of another'):
    _private(make_plan(l2_norm_clip=2.0), path)
  with pytest.raises(ValueError, match='no seed'):
    _private(make_plan(), tmp_path / 'other', seed=1)
  private = _private(make_plan(), tmp_path / 'third')
  with pytest.raises(ValueError, match='without a seed'):
    private.fit(PoissonBatches(*_data(), 0.25, seed=1))
  with pytest.raises(ValueError, match='block >= 1'):
    Journal(tmp_path / 'fourth', make_plan(), block=0)
