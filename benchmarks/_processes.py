"""Child processes in which benchmarks measure, and clocks of what they measure."""

from __future__ import annotations

from collections.abc import Mapping
import json
import resource
import subprocess
import sys
import time
from typing import Any, Callable


def peak_megabytes() -> float:
  """Returns the largest memory that this process has held, in units of 2**20 bytes."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(name: str, *arguments: str, python: str = sys.executable
            ) -> dict[str, Any]:
  """Runs a benchmark in a child process; returns the JSON of its last output line."""
  output = subprocess.run(
      [python, '-m', f'benchmarks.{name}', *arguments],
      check=True, capture_output=True, text=True).stdout
  return json.loads(output.splitlines()[-1])


def by_turns(calls: Mapping[Any, Callable[[], object]], rounds: int
             ) -> dict[Any, list[float]]:
  """Returns the CPU seconds of `rounds` calls of each function, which take turns."""
  seconds: dict[Any, list[float]] = {name: [] for name in calls}
  for _ in range(rounds):
    for name, call in calls.items():
      start = time.process_time()
      call()
      seconds[name].append(time.process_time() - start)
  return seconds


def step_clock(ends: list[float], now: Callable[[], float] = time.process_time) -> Any:
  """Returns a Keras callback that appends to `ends` the time at each step's end."""
  import tensorflow as tf  # pylint: disable=import-outside-toplevel
  return tf.keras.callbacks.LambdaCallback(
      on_train_batch_end=lambda batch, logs: ends.append(now()))


class Worker:
  """A child process that answers each input line with one line of JSON.

  The child process is `python -m benchmarks.NAME --serve CONTENDER`.
  """

  def __init__(self, name: str, contender: str, python: str = sys.executable):
    self._process = subprocess.Popen(
        [python, '-m', f'benchmarks.{name}', '--serve', contender],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

  def ask(self, line: object = '') -> dict[str, Any]:
    """Sends a line; returns the answer."""
    assert self._process.stdin and self._process.stdout
    self._process.stdin.write(f'{line}\n')
    self._process.stdin.flush()
    return json.loads(self._process.stdout.readline())

  def close(self) -> None:
    """Ends the child process, if it has not ended yet."""
    if self._process.poll() is None:
      self._process.communicate()
