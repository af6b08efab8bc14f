"""A run that is killed and resumed forgets no step and repeats no noise."""

import fcntl
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import killed_run
import tfcactus
from tfcactus.keras import Journal, PoissonBatches, privatize
from tfcactus.keras.ledger import counts
from tfcactus.keras.ledger.counts import Counts
from tfcactus.sampling import (
  CyclicAllocationSampling,
  OnePassSampling,
  PoissonSampling,
  RandomAllocationSampling,
)

ROOT = pathlib.Path(tfcactus.__file__).parent.parent
_LOSS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _lines(folder, word):
  path = folder / 'log'
  lines = path.read_text().splitlines() if path.exists() else []
  return [line for line in lines if line.startswith(word)]


def _run_and_kill(folder, seconds, *arguments):
  """Kills a run so many seconds after its first released step."""
  before = len(_lines(folder, 'released'))
  run = subprocess.Popen(
      [sys.executable, '-m', 'tests.keras.killed_run', str(folder), *arguments],
      cwd=ROOT,
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
    assert journal.entry.released_steps >= len(_lines(folder, 'noise'))
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
  assert model.ledger().sampling == PoissonSampling.code
  assert (model.guarantee().upper >=
          killed_run.plan().guarantee(len(noise)).upper)


def test_a_killed_run_counts_every_released_step(tmp_path):
  _kill_often(tmp_path, 3)


def _epochs_with_noise(folder):
  """How many epochs drew noise, of all runs."""
  words = [line.split()[0] for line in _lines(folder, '')]
  return sum(word == 'noise' and before == 'epoch'
             for before, word in zip(words, words[1:]))


@pytest.mark.parametrize('times,kind,scheme', [
    (2, 'cyclic', CyclicAllocationSampling),
    pytest.param(20, 'cyclic', CyclicAllocationSampling, marks=pytest.mark.slow),
    pytest.param(20, 'allocated', RandomAllocationSampling, marks=pytest.mark.slow)])
def test_epochs_that_are_broken_off_count_whole(times, kind, scheme, tmp_path):
  draw, plan = random.Random(7), killed_run.plan(kind)
  for _ in range(times):
    _run_and_kill(tmp_path, draw.uniform(0, 0.2), kind)
    journal = Journal(tmp_path / 'journal', plan)
    assert journal.entry.epochs_begun >= _epochs_with_noise(tmp_path) > 0
    journal.close()
  model = privatize(tf.keras.Sequential([
      tf.keras.layers.Input((6,)), tf.keras.layers.Dense(3)]),
                    plan, journal=tmp_path / 'journal')
  epochs = _epochs_with_noise(tmp_path)
  assert model.ledger().sampling == scheme.code
  assert epochs <= model.ledger().epochs <= epochs + times
  assert model.guarantee().upper >= plan.guarantee(epochs, sampling=scheme).upper
  # A new epoch after each kill: never the rest of one that was drawn before, nor
  # what noise that is correlated with it could be subtracted by.
  assert len(set(_lines(tmp_path, 'noise'))) == len(_lines(tmp_path, 'noise'))


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
  assert '"released_steps": 32' in seen[0] and len(set(seen)) == 1
  assert private._ledger.counter.journal.entry[:3] == (4, 0, PoissonSampling.code)
  private._ledger.counter.journal.close()
  resumed = _private(make_plan(), path)
  assert resumed.ledger() == private.ledger()
  resumed.train_on_batch(*_data())
  assert resumed._ledger.counter.journal.entry[:3] == (36, 0, counts.UNKNOWN)
  resumed._ledger.counter.journal.close()
  assert _private(make_plan(), path).ledger().sampling == counts.UNKNOWN


def test_epochs_of_a_plain_fit_are_counted_when_they_begin(make_plan, tmp_path):
  private = _private(make_plan(), tmp_path / 'journal')

  def stop(batch, logs):
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    private.fit(*_data(), batch_size=20, verbose=0, callbacks=[
        tf.keras.callbacks.LambdaCallback(on_train_batch_end=stop)])
  assert private._ledger.counter.journal.entry[:3] == (32, 1, OnePassSampling.code)


def test_a_torn_last_line_is_cut_and_damage_is_not_excused(make_plan, tmp_path):
  path = tmp_path / 'journal'
  journal = Journal(path, make_plan())
  journal.reserve(Counts(1, 0, 1))
  journal.close()
  whole = path.read_bytes()
  for cut in range(1, len(whole.splitlines()[-1])):
    path.write_bytes(whole[:-cut])
    journal = Journal(path, make_plan())
    assert journal.entry == Counts()
    journal.reserve(Counts(2, 0, 1))
    journal.close()
    journal = Journal(path, make_plan())
    assert journal.entry[:3] == (33, 0, 1)
    journal.close()
  path.write_bytes(whole.replace(b'"released_steps": 32', b'"released_steps": 12'))
  with pytest.raises(ValueError, match='damaged'):
    Journal(path, make_plan())


def test_a_cell_that_is_run_again_takes_the_journal_over(make_plan, tmp_path):
  path = tmp_path / 'journal'
  first = _private(make_plan(), path)
  first.fit(PoissonBatches(*_data(), 0.25), verbose=0)
  with pytest.raises(ValueError, match='of another'):
    _private(make_plan(l2_norm_clip=2.0), path)
  first.fit(PoissonBatches(*_data(), 0.25), verbose=0)  # Refused, it took nothing.
  again = _private(make_plan(), path)
  assert again.guarantee().steps == 8
  with pytest.raises(Exception, match='took over'):
    first.fit(PoissonBatches(*_data(), 0.25), verbose=0)
  again.fit(PoissonBatches(*_data(), 0.25), verbose=0)
  assert again.guarantee().steps == 12
  assert '"released_steps": 12' in path.read_text().splitlines()[-1]


def test_journals_are_refused_in_words(make_plan, tmp_path):
  path = tmp_path / 'journal'
  _private(make_plan(), path)._ledger.counter.journal.close()
  with open(path, 'rb') as other:  # As another process does.
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(ValueError, match='another run'):
      _private(make_plan(), path)
  with pytest.raises(ValueError, match='of another'):
    _private(make_plan(l2_norm_clip=2.0), path)
  with pytest.raises(ValueError, match='no seed'):
    _private(make_plan(), tmp_path / 'other', seed=1)
  private = _private(make_plan(), tmp_path / 'third')
  with pytest.raises(ValueError, match='without a seed'):
    private.fit(PoissonBatches(*_data(), 0.25, seed=1))
  with pytest.raises(ValueError, match='block >= 1'):
    Journal(tmp_path / 'fourth', make_plan(), block=0)


def _removed(path):
  os.remove(path)


def _edited(path):
  """As by an editor, or rsync: a copy is moved to its place."""
  copy = path.with_suffix('.new')
  copy.write_bytes(path.read_bytes())
  os.replace(copy, path)


def _extended(path):
  with open(path, 'ab') as file:
    file.write(b'\n')


def _overwritten(path):
  data = path.read_bytes()
  with open(path, 'r+b') as file:
    file.write(data[:-9] + b'#' * 8 + b'\n')


@pytest.mark.parametrize('change', [_removed, _edited, _extended, _overwritten])
def test_a_journal_that_others_change_stops_the_run(make_plan, tmp_path, change):
  path = tmp_path / 'journal'
  private = _private(make_plan(), path)
  seen = []

  def after(batch, logs):
    seen.append([w.tobytes() for w in private.inner.get_weights()])
    if len(seen) == 2:
      change(path)

  with pytest.raises(Exception, match='to stay the file.*At most 32 steps'):
    private.fit(PoissonBatches(*_data(), 0.25), verbose=0, callbacks=[
        tf.keras.callbacks.LambdaCallback(on_train_batch_end=after)])
  # Before the third step was released.
  assert len(seen) == 2
  assert [w.tobytes() for w in private.inner.get_weights()] == seen[-1]


def test_a_journal_removed_after_the_last_step_is_noticed(make_plan, tmp_path):
  path = tmp_path / 'journal'
  private = _private(make_plan(), path)
  with pytest.raises(RuntimeError, match='got none'):
    private.fit(PoissonBatches(*_data(), 0.25), verbose=0, callbacks=[
        tf.keras.callbacks.LambdaCallback(
            on_train_end=lambda logs: os.remove(path))])


@pytest.mark.parametrize('written', [0, 7])
def test_a_full_disk_stops_before_weights_move(
    make_plan, tmp_path, monkeypatch, written):
  path = tmp_path / 'journal'
  private = _private(make_plan(), path)
  before = private.inner.get_weights()[0]
  write = os.write
  parts = [written] if written else []

  def full(file, data):
    if parts:
      return write(file, data[:parts.pop()])
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(os, 'write', full)
  with pytest.raises(Exception, match='No space left'):
    private.fit(PoissonBatches(*_data(), 0.25), verbose=0)
  monkeypatch.undo()
  np.testing.assert_array_equal(private.inner.get_weights()[0], before)
  # Room again: nothing torn stands in the file.
  private.fit(PoissonBatches(*_data(), 0.25), verbose=0)
  private._ledger.counter.journal.close()
  assert Journal(path, make_plan()).entry.released_steps == private.releases >= 4


_GOOD = Counts(3, 0, 1)._asdict()


@pytest.mark.parametrize('record', [
    {**_GOOD, 'released_steps': 3.7}, {**_GOOD, 'released_steps': True},
    {**_GOOD, 'released_steps': -1}, {**_GOOD, 'sampling': 9},
    {**_GOOD, 'plan_number': -2}, {**_GOOD, 'stages': 2},
    {'released_steps': 3, 'epochs_begun': 0}, [3, 0, 1], 3])
def test_entries_that_no_run_wrote_are_refused(make_plan, tmp_path, record):
  path = tmp_path / 'journal'
  Journal(path, make_plan()).close()
  text = json.dumps(record).encode()
  good = json.dumps(Counts(9, 0, 1)._asdict()).encode()
  with open(path, 'ab') as file:
    for line in (text, good):
      file.write(b'%08x %s\n' % (zlib.crc32(line), line))
  for look in (Journal, Journal.peek):
    with pytest.raises(ValueError, match='whole numbers of at least zero'):
      look(path, make_plan())
