"""Tests of --checkpoint and --resume: a run that was killed or ended continues."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.training import killed_training
import tfcactus
from tfcactus import sampling
from training import checkpoints, datasets, mnist, networks

ROOT = pathlib.Path(__file__).parent.parent.parent
STEPS = 15
"""Batches of an epoch: 1,500 digits in batches of 100."""

BEGUN = ['--dataset', 'digits', '--batch-size', '100', '--mechanism', 'gaussian',
         '--verbose', '0']


@pytest.fixture(autouse=True)
def small(monkeypatch):
  monkeypatch.setattr(networks, 'build', killed_training.linear)


def _lines(log):
  return log.read_text().splitlines() if log.exists() else []


def _killed(tmp_path, after, *arguments):
  """Kills a run after a number of lines of its log; returns all lines."""
  log = tmp_path / 'log'
  run = subprocess.Popen(
      [sys.executable, '-m', 'tests.training.killed_training', str(log), str(after),
       *BEGUN, '--checkpoint', str(tmp_path / 'run'), *arguments],
      cwd=ROOT, env={**os.environ, 'PYTHONPATH': str(ROOT)})
  deadline = time.monotonic() + 600
  while len(_lines(log)) < after:
    assert run.poll() is None and time.monotonic() < deadline
    time.sleep(0.005)
  run.send_signal(signal.SIGKILL)
  run.wait()
  return _lines(log)


def _resumed(tmp_path, monkeypatch, *arguments):
  """Resumes a run; returns its results, and its model and state at the start."""
  seen = {}
  behind = mnist.completed_epochs

  def spy(args, model, steps_per_epoch):
    seen.update(model=model, weights=killed_training.digest(model),
                iterations=int(model.optimizer.iterations.numpy()))
    return behind(args, model, steps_per_epoch)

  monkeypatch.setattr(mnist, 'completed_epochs', spy)
  path = tmp_path / 'result.json'
  assert mnist.main(['--resume', str(tmp_path / 'run'), '--json', str(path),
                     *arguments]) == 0
  return json.loads(path.read_text()), seen


def test_a_killed_run_continues_from_its_checkpoint_and_counts_all_releases(
    tmp_path, monkeypatch, capsys):
  lines = _killed(tmp_path, 2 * (STEPS + 1) + 7, '--epochs', '6',
                  '--noise-multiplier', '1.5')
  released = lines.count('released')
  saved = [line.split()[1] for line in lines if line.startswith('saved')]
  epochs = len(saved)
  assert epochs >= 2 and released > epochs * STEPS  # Steps after the checkpoint.
  found, seen = _resumed(tmp_path, monkeypatch)
  assert f'Goes on after epoch {epochs} of 6; ' in capsys.readouterr().out
  # The weights are those of the last checkpoint, and so is the schedule of rates.
  assert seen['weights'] == saved[-1] != killed_training.digest(seen['model'])
  assert seen['iterations'] == epochs * STEPS
  optimizer = seen['model'].optimizer
  assert int(optimizer.iterations.numpy()) == 6 * STEPS
  assert optimizer.get_config()['learning_rate']['config']['decay_steps'] == 6 * STEPS
  # The count may exceed the releases by a block of the journal and a step.
  least = released + (6 - epochs) * STEPS
  assert least <= found['steps'] <= least + 33
  plan = tfcactus.PrivacyPlan(
      noise=tfcactus.Gaussian(1.5), l2_norm_clip=1.0, num_examples=1500,
      sampling_prob=1 / STEPS, steps=6 * STEPS, delta=1e-5)
  assert found['epsilon']['upper'] == plan.guarantee(found['steps']).upper
  assert found['proven'] and not found['seeded']
  assert found['parameters']['epochs'] == 6


def _broken_off(tmp_path, monkeypatch, *arguments):
  """Ends a run in its second epoch as a kill does: nothing more is saved."""

  class Breaking(checkpoints.Saving):

    def on_epoch_begin(self, epoch, logs=None):
      self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
      if (self.epoch, batch) == (1, 6):
        raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(checkpoints, 'Saving', Breaking)
    assert mnist.main([*BEGUN, '--checkpoint', str(tmp_path / 'run'),
                       '--target-epsilon', '2', *arguments]) == 130


@pytest.mark.more
def test_a_budget_ends_an_interrupted_run_earlier(
    tmp_path, monkeypatch, capsys):
  _broken_off(tmp_path, monkeypatch, '--epochs', '3')
  assert capsys.readouterr().err.endswith(
      f"--resume {tmp_path / 'run'} goes on from here.\n")
  found, seen = _resumed(tmp_path, monkeypatch)
  assert seen['iterations'] == STEPS and found['steps'] == 3 * STEPS
  assert 1.99 < found['epsilon']['upper'] <= 2
  # The journal had counted a block of 32 steps, of which 15 were saved.
  assert int(seen['model'].optimizer.iterations.numpy()) == 3 * STEPS - 17


@pytest.mark.parametrize('arguments,scheme', [
    pytest.param(('--sampling', 'allocation'), sampling.RandomAllocationSampling,
                 marks=pytest.mark.slow),
    pytest.param(('--bands', '3'), sampling.CyclicAllocationSampling,
                 marks=pytest.mark.more)])
def test_an_interrupted_epoch_counts_as_a_whole(
    tmp_path, monkeypatch, arguments, scheme):
  _broken_off(tmp_path, monkeypatch, '--epochs', '4', *arguments)
  found, seen = _resumed(tmp_path, monkeypatch)
  # The budget ends it an epoch earlier.
  assert found['epsilon']['upper'] == seen['model'].plan.guarantee(
      4, sampling=scheme).upper <= 2
  assert seen['iterations'] == STEPS
  assert int(seen['model'].optimizer.iterations.numpy()) == 3 * STEPS


@pytest.fixture(scope='module')
def ended(tmp_path_factory):
  """Returns a folder with a run of one epoch."""
  folder = tmp_path_factory.mktemp('ended')
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(networks, 'build', killed_training.linear)
    assert mnist.main([*BEGUN, '--epochs', '1', '--target-epsilon', '2', '--run-card',
                       str(folder / 'card.json'), '--checkpoint',
                       str(folder / 'run')]) == 0
  return folder / 'run'


def _refused(capsys, *arguments):
  assert mnist.main(arguments) == 2
  err = capsys.readouterr().err
  assert 'Traceback' not in err and len(err.splitlines()) == 1
  return err


@pytest.mark.more
def test_a_run_that_ended_continues_and_its_card_counts_all_steps(ended, capsys):
  assert 'Expected more --epochs than the 1 ' in _refused(
      capsys, '--resume', str(ended))
  assert 'raise the budget' in _refused(
      capsys, '--resume', str(ended), '--epochs', '2')
  assert mnist.main(['--resume', str(ended), '--epochs', '2',
                     '--target-epsilon', '3']) == 0
  card = json.loads((ended.parent / 'card.json').read_text())
  assert card['released_steps'] == 2 * STEPS and 2 < card['epsilon']['upper'] <= 3
  out = capsys.readouterr().out
  assert f'Goes on after epoch 1 of 2; {STEPS} steps count as released' in out
  assert '30 noisy sums' in out
  # The new options are kept for the next resumption.
  assert 'more --epochs than the 2 ' in _refused(capsys, '--resume', str(ended))


@pytest.mark.parametrize('arguments,words', [
    (('--noise-multiplier', '2'), 'Expected no --noise-multiplier, as the run in'),
    (('--mechanism', 'isotropic'), 'Expected --mechanism gaussian'),
    (('--batch-size', '50'), 'Expected --batch-size 100'),
    (('--l2-norm-clip', '2'), 'Expected --l2-norm-clip 1.0'),
    (('--sampling', 'allocation'), 'Expected --sampling poisson'),
    (('--bands', '3'), 'Expected no --bands'),
    (('--delta', '1e-6'), 'Expected --delta 1e-05'),
    (('--dataset', 'mnist'), 'Expected --dataset digits'),
    (('--held-out', '100'), 'Expected --held-out 0'),
    (('--learning-rate', '1'), 'Expected --learning-rate 0.5'),
    (('--optimizer', 'drop-in'), 'Expected --optimizer privatize'),
    (('--seed', '1'), 'Expected no --seed'),
    (('--recipe', 'best'), 'Expected no --recipe')])
def test_another_plan_or_model_is_refused_by_its_option(
    ended, capsys, arguments, words):
  found = _refused(capsys, '--resume', str(ended), '--epochs', '5', *arguments)
  assert words in found and 'leave it out, or begin a run of its own' in found


def test_data_of_another_size_are_refused(ended, monkeypatch, capsys):
  monkeypatch.setattr(datasets, 'load', lambda *args: datasets.hold_out(
      datasets.digits(), 300))
  assert 'num_examples=1500' in _refused(
      capsys, '--resume', str(ended), '--epochs', '5')


def test_folders_without_a_run_or_with_one_are_refused(ended, tmp_path, capsys):
  assert 'which holds one; go on with --resume' in _refused(
      capsys, *BEGUN, '--checkpoint', str(ended))
  assert '--resume to be a folder in which' in _refused(
      capsys, '--resume', str(tmp_path / 'none'))
  (tmp_path / 'file').write_text('x')
  assert '--checkpoint to be a folder that can be written' in _refused(
      capsys, *BEGUN, '--checkpoint', str(tmp_path / 'file'))
  half = tmp_path / 'half'
  half.mkdir()
  shutil.copy(ended / 'options.json', half)
  assert 'a folder with model.keras' in _refused(capsys, '--resume', str(half))
  (half / 'options.json').write_text('{')
  assert '--resume to be a folder in which' in _refused(capsys, '--resume', str(half))
  with pytest.raises(SystemExit):
    mnist.parse(['--resume', str(ended), '--checkpoint', 'other'])
  assert 'exclude each other' in capsys.readouterr().err


def test_a_run_without_its_journal_or_moved_is_refused(ended, tmp_path, capsys):
  arguments = '--epochs', '5', '--target-epsilon', '9'
  copy = tmp_path / 'run'
  shutil.copytree(ended, copy)  # Neither journal would count what the other does.
  assert 'Expected the journal' in _refused(capsys, '--resume', str(copy), *arguments)
  (tmp_path / 'link').symlink_to(ended)
  assert 'more --epochs than' in _refused(
      capsys, '--resume', str(tmp_path / 'link'), '--epochs', '1')
  shutil.move(ended / 'journal', tmp_path / 'journal')
  try:
    assert 'put the folder back' in _refused(capsys, '--resume', str(ended), *arguments)
  finally:
    shutil.move(tmp_path / 'journal', ended / 'journal')


@pytest.mark.parametrize('arguments,words', [
    (('--seed', '1'), 'no --seed with --checkpoint'),
    (('--strategy', 'multi-worker'), 'TF_CONFIG'),
    (('--optimizer', 'drop-in'), 'no --checkpoint with --optimizer')])
def test_options_that_cannot_be_resumed_are_refused(tmp_path, capsys, arguments, words):
  assert words in _refused(
      capsys, *BEGUN, '--checkpoint', str(tmp_path / 'run'), *arguments)
  assert not (tmp_path / 'run').exists()
