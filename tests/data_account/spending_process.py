"""Script of three processes that spend from an account and are killed.

    python -m tests.data_account.spending_process ACCOUNT LOG KILLS
"""

import os
import random
import signal
import sys
import time

import dp_accounting

from tfcactus import DataAccount


def spend(path, log, seed):
  """Spends from the account until the process is killed."""
  account, draw = DataAccount(path), random.Random(seed)
  log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
  while True:
    if draw.random() < 0.5:
      sigma = draw.uniform(50, 100)
      account.spend(dp_accounting.GaussianDpEvent(sigma), label=f'process {seed}')
      released = f'{sigma!r}'
    else:
      account.spend(account.slots['plan'].event, label='plan')
      released = 'plan'
    os.write(log, f'{released}\n'.encode())  # This is the release.


def main(path, log, kills):
  draw, runs = random.Random(3), []

  def start(seed):
    child = os.fork()
    if not child:
      spend(path, log, seed)
    runs.append(child)

  for seed in range(3):
    start(seed)
  account = DataAccount(path)
  for seed in range(3, 3 + int(kills)):
    seen = len(account.entries)
    while len(account.entries) < seen + 20:
      time.sleep(0.005)
    time.sleep(draw.random() * 0.02)
    victim = runs.pop(draw.randrange(len(runs)))
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)
    start(seed)
  for run in runs:
    os.kill(run, signal.SIGKILL)
    os.waitpid(run, 0)


if __name__ == '__main__':
  main(*sys.argv[1:])
