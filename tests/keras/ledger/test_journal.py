"""Tests that a killed and resumed run counts every step and repeats no noise."""

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
from tests.keras.tiny import inner, MEAN, plan_of, poisson, privatized, X, Y
from tests.representatives import representatives
import tfcactus
from tfcactus.keras import Journal, privatize
from tfcactus.keras.ledger import counts
from tfcactus.keras.ledger.counts import Counts
from tfcactus.sampling import (
  CyclicAllocationSampling,
  OnePassSampling,
  PoissonSampling,
  RandomAllocationSampling,
)

ROOT = pathlib.Path(tfcactus.__file__).parent.parent


pytestmark = pytest.mark.usefixtures('random_sums')


def _counts(steps):
  """Returns counts of some Poisson steps in one segment."""
  return Counts(((7, steps, 0),), PoissonSampling.code)


def _entry(private):
  """Returns (steps, epochs, sampling) of the last entry of a model's journal."""
  entry = private._ledger.counter.journal.entry
  return entry.released_steps, entry.epochs_begun, entry.sampling


def _last_segments(text):
  """Returns the segments of the last entry in the text of a journal."""
  return json.loads(text.splitlines()[-1].split(' ', 1)[1])['segments']


def _lines(folder, word):
  path = folder / 'log'
  lines = path.read_text().splitlines() if path.exists() else []
  return [line for line in lines if line.startswith(word)]


def _run_and_kill(folder, seconds, *arguments):
  """Kills a run after its first released step and a number of seconds."""
  before = len(_lines(folder, 'released'))
  run = subprocess.Popen(
      [sys.executable, '-m', 'tests.keras.killed_run', str(folder), *arguments],
      cwd=ROOT,
      env={**os.environ, 'PYTHONPATH': str(ROOT)})
  deadline = time.monotonic() + 600
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
  model = privatize(inner(), killed_run.plan(), journal=folder / 'journal')
  released = len(_lines(folder, 'released'))
  steps = model.ledger().steps
  assert released <= len(noise) <= steps <= released + 33 * times
  assert model.ledger().sampling == PoissonSampling.code
  assert (model.guarantee().upper >=
          killed_run.plan().guarantee(len(noise)).upper)


@pytest.mark.more
def test_a_killed_run_counts_every_released_step(tmp_path):
  _kill_often(tmp_path, 3)


def _epochs_with_noise(folder):
  """Returns the number of epochs that drew noise, in all runs."""
  words = [line.split()[0] for line in _lines(folder, '')]
  return sum(word == 'noise' and before == 'epoch'
             for before, word in zip(words, words[1:]))


@pytest.mark.parametrize('times,kind,scheme', [
    pytest.param(2, 'cyclic', CyclicAllocationSampling, marks=pytest.mark.more),
    pytest.param(20, 'cyclic', CyclicAllocationSampling, marks=pytest.mark.slow),
    pytest.param(20, 'allocated', RandomAllocationSampling, marks=pytest.mark.slow)])
def test_epochs_of_killed_runs_count_whole(times, kind, scheme, tmp_path):
  draw, plan = random.Random(7), killed_run.plan(kind)
  for _ in range(times):
    _run_and_kill(tmp_path, draw.uniform(0, 0.2), kind)
    journal = Journal(tmp_path / 'journal', plan)
    assert journal.entry.epochs_begun >= _epochs_with_noise(tmp_path) > 0
    journal.close()
  model = privatize(inner(), plan, journal=tmp_path / 'journal')
  epochs = _epochs_with_noise(tmp_path)
  assert model.ledger().sampling == scheme.code
  assert epochs <= model.ledger().epochs <= epochs + times
  assert model.guarantee().upper >= plan.guarantee(epochs, sampling=scheme).upper
  # Each run begins a new epoch and new noise: the rest of an old epoch, or noise that
  # is correlated with the old one, could reveal the old noise.
  assert len(set(_lines(tmp_path, 'noise'))) == len(_lines(tmp_path, 'noise'))


@pytest.mark.slow
def test_a_run_killed_twenty_times_counts_every_released_step(tmp_path):
  _kill_often(tmp_path, 20)


def _private(plan, path, **kwargs):
  return privatized(plan, inner(seed=1), loss=MEAN, journal=path, **kwargs)


def test_blocks_are_written_before_their_steps_and_exact_counts_at_the_end(
    make_plan, tmp_path):
  path = tmp_path / 'journal'
  private = _private(make_plan(), path)
  seen = []
  look = tf.keras.callbacks.LambdaCallback(
      on_train_batch_end=lambda batch, logs: seen.append(path.read_text()))
  private.fit(poisson(), verbose=0, callbacks=[look])
  assert _last_segments(seen[0])[0][1:] == [32, 0] and len(set(seen)) == 1
  assert _entry(private) == (4, 0, PoissonSampling.code)
  private._ledger.counter.journal.close()
  resumed = _private(make_plan(), path)
  assert resumed.ledger() == private.ledger()
  resumed.train_on_batch(X, Y)
  assert _entry(resumed) == (36, 0, counts.UNKNOWN)
  resumed._ledger.counter.journal.close()
  assert _private(make_plan(), path).ledger().sampling == counts.UNKNOWN


def test_a_block_is_reserved_for_steps_alone(tmp_path):
  journal, total = Journal(tmp_path / 'j', plan_of(), block=32), Counts()
  for step in range(40):
    if step % 4 == 0:  # Another model of the variables takes steps too.
      total = total.later(9, 1, 0)
    total = total.later(7, 1, step % 4 == 0)
    journal.reserve(total, 7)
  assert journal.entry.segments == ((7, 64, 10), (9, 10, 0))


def test_epochs_over_arrays_are_counted_when_they_begin(make_plan, tmp_path):
  private = _private(make_plan(), tmp_path / 'journal')

  def stop(batch, logs):
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    private.fit(X, Y, batch_size=20, verbose=0, callbacks=[
        tf.keras.callbacks.LambdaCallback(on_train_batch_end=stop)])
  assert _entry(private) == (32, 1, OnePassSampling.code)


@pytest.mark.parametrize('path, plan, words', [
    (None, plan_of(), 'Expected path to be a path, got path=None'),
    ('j', None, 'Expected plan to be a PrivacyPlan, got plan=None')])
def test_other_things_than_a_path_and_a_plan_are_refused(
    path, plan, words, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match=words):
    Journal(path, plan)
  assert not list(tmp_path.iterdir())


def test_a_torn_last_line_is_cut_and_other_damage_raises(make_plan, tmp_path):
  path = tmp_path / 'journal'
  journal = Journal(path, make_plan())
  journal.reserve(_counts(1), 7)
  journal.close()
  whole = path.read_bytes()
  for cut in range(1, len(whole.splitlines()[-1])):
    path.write_bytes(whole[:-cut])
    journal = Journal(path, make_plan())
    assert journal.entry == Counts()
    journal.reserve(_counts(2), 7)
    journal.close()
    journal = Journal(path, make_plan())
    assert journal.entry == _counts(33)
    journal.close()
  path.write_bytes(whole.replace(b'[7, 32, 0]', b'[7, 12, 0]'))
  with pytest.raises(ValueError, match='damaged'):
    Journal(path, make_plan())


@pytest.mark.parametrize('text', [
    'my learning rates: 0.1', 'first\nlast', '1234abcd {"of": "another"}\n1234'])
def test_a_file_that_is_no_journal_stays_as_it_is(make_plan, tmp_path, text):
  path = tmp_path / 'notes.txt'
  path.write_text(text)
  with pytest.raises(ValueError, match='of another file'):
    Journal(path, make_plan())
  with pytest.raises(ValueError, match='of another file'):
    Journal.peek(path, make_plan())
  assert path.read_text() == text


def test_a_refused_journal_is_free_for_its_own_plan(make_plan, tmp_path):
  path = tmp_path / 'journal'
  Journal(path, make_plan()).close()
  with pytest.raises(ValueError, match='of another'):
    Journal(path, make_plan(l2_norm_clip=0.125))
  Journal(path, make_plan()).close()


def test_a_new_model_of_one_process_takes_the_journal_over(make_plan, tmp_path):
  path = tmp_path / 'journal'
  first = _private(make_plan(), path)
  first.fit(poisson(), verbose=0)
  with pytest.raises(ValueError, match='of another'):
    _private(make_plan(l2_norm_clip=2.0), path)
  first.fit(poisson(), verbose=0)  # The refused model took nothing.
  again = _private(make_plan(), path)
  assert again.guarantee().steps == 8
  with pytest.raises(Exception, match='took over'):
    first.fit(poisson(), verbose=0)
  again.fit(poisson(), verbose=0)
  assert again.guarantee().steps == 12
  assert {each[1] for each in _last_segments(path.read_text())} == {4, 8}


def test_journals_tell_arithmetic_and_dim_apart(tmp_path):
  plans = plan_of(), *(plan_of(arithmetic='integer', dim=dim) for dim in (None, 21))
  for number, plan in enumerate(plans):
    path = tmp_path / f'journal{number}'
    Journal(path, plan).close()
    for other in plans:
      if other is plan:
        assert Journal.peek(path, other) == Counts()
        continue
      with pytest.raises(ValueError, match='of another'):
        Journal.peek(path, other)


def test_journals_of_other_runs_plans_and_seeded_runs_are_refused(make_plan, tmp_path):
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
    private.fit(poisson(seed=1))
  with pytest.raises(ValueError, match='block >= 1'):
    Journal(tmp_path / 'fourth', make_plan(), block=0)


def _removed(path):
  os.remove(path)


def _edited(path):
  """Moves a copy in the file's place, as editors and rsync do."""
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


@representatives('change', [_removed, _edited, _extended, _overwritten], 2)
def test_a_change_of_the_journal_stops_the_run(make_plan, tmp_path, change):
  path = tmp_path / 'journal'
  private = _private(make_plan(), path)
  seen = []

  def after(batch, logs):
    seen.append([w.tobytes() for w in private.inner.get_weights()])
    if len(seen) == 2:
      change(path)

  with pytest.raises(Exception, match='to stay the file.*At most 32 steps'):
    private.fit(poisson(), verbose=0, callbacks=[
        tf.keras.callbacks.LambdaCallback(on_train_batch_end=after)])
  # The third step was not released.
  assert len(seen) == 2
  assert [w.tobytes() for w in private.inner.get_weights()] == seen[-1]


def test_a_journal_removed_after_the_last_step_is_noticed(make_plan, tmp_path):
  path = tmp_path / 'journal'
  private = _private(make_plan(), path)
  with pytest.raises(RuntimeError, match='got none'):
    private.fit(poisson(), verbose=0, callbacks=[
        tf.keras.callbacks.LambdaCallback(
            on_train_end=lambda logs: os.remove(path))])


@representatives('written', [7, 0])
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
    private.fit(poisson(), verbose=0)
  monkeypatch.undo()
  np.testing.assert_array_equal(private.inner.get_weights()[0], before)
  # With room again, the file holds no torn line.
  private.fit(poisson(), verbose=0)
  private._ledger.counter.journal.close()
  assert Journal(path, make_plan()).entry.released_steps == private.released_steps >= 4


_GOOD = _counts(3)._asdict()


@pytest.mark.parametrize('record', [
    *({**_GOOD, 'segments': segments} for segments in (
        [[7, 3.7, 0]], [[7, True, 0]], [[7, -1, 0]], [[7, 3]], [7, 3, 0], [3], 7, {})),
    {**_GOOD, 'sampling': 9}, {**_GOOD, 'sampling': 1.0},
    {**_GOOD, 'plan_number': -2}, {**_GOOD, 'stages': 2},
    {'segments': [[7, 3, 0]], 'sampling': 0}, [[[7, 3, 0]], 1], 3])
def test_entries_that_no_run_wrote_are_refused(make_plan, tmp_path, record):
  path = tmp_path / 'journal'
  Journal(path, make_plan()).close()
  text = json.dumps(record).encode()
  good = json.dumps(_counts(9)._asdict()).encode()
  with open(path, 'ab') as file:
    for line in (text, good):
      file.write(b'%08x %s\n' % (zlib.crc32(line), line))
  for look in (Journal, Journal.peek):
    with pytest.raises(ValueError, match='whole numbers of at least zero'):
      look(path, make_plan())
