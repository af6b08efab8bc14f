"""Runs of `python -m training.mnist` that several benchmarks make."""

from __future__ import annotations

from collections.abc import Sequence
import time
from typing import Any, NamedTuple

import tfcactus


class Run(NamedTuple):
  """A finished training run.

  Attributes:
    plan: The privacy plan.
    result: The JSON results of the script.
    guarantee: The guarantee after the run.
    cpu_seconds: CPU time of training, without loading the data.
  """

  plan: tfcactus.PrivacyPlan
  result: dict[str, Any]
  guarantee: tfcactus.Guarantee
  cpu_seconds: float

  @property
  def summary(self) -> dict[str, Any]:
    """Returns test accuracy, upper bound on epsilon, and noise multiplier."""
    return {'accuracy': self.result['test_accuracy'], 'epsilon': self.guarantee.upper,
            'noise_multiplier': self.plan.noise.noise_multiplier}


def train(options: Sequence[str], data: Any = None) -> Run:
  """Trains with these command-line options, on `data` instead of theirs if given."""
  from training import mnist  # pylint: disable=import-outside-toplevel
  args = mnist.parse(options)
  if data is None:
    data = mnist.load_data(args)
  plan = mnist.make_plan(args, data.train[1].size)
  start = time.process_time()
  result, guarantee = mnist.train(args, data, plan)
  return Run(plan, result, guarantee, time.process_time() - start)
