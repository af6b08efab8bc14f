"""Measures delta of designed truncated noise against truncated Gaussians.

    python -m benchmarks.truncated_noise

Both have equal utility, and sensitivity is one. Each delta is the accountant's upper
bound for the frozen table. Writes results/truncated_noise.json.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from benchmarks import _results
import tfcactus
from tfcactus import _format, design
from tfcactus.search import truncated

QUICK = ()

CASES = (
    # steps, range, utility, bins, sampling_prob, epsilon
    (8, 200, 25, 2, 1.0, 0.3),
    (8, 60, 20, 4, 1.0, 0.3),
    (16, 140, 35, 1, 1.0, 0.3),
    (128, 800, 100, 1, 1.0, 0.3),
    (128, 400, 100, 1, 1.0, 0.3),
    (1, 8, 2, 20, 0.1, 0.3),
    (16, 16, 4, 5, 0.1, 0.3),
    (128, 40, 10, 4, 0.1, 0.3),
    (1000, 6, 1, 10, 0.01, 1.0),
)


def measure(steps: int, reach: float, utility: float, bins: int,
            sampling_prob: float, epsilon: float) -> dict:
  """Returns delta of both kinds of noise in one case."""
  ask: dict[str, Any] = {
      'epsilon': epsilon, 'steps': steps, 'sampling_prob': sampling_prob}
  cpu = time.process_time()
  found = tfcactus.truncated_noise(reach, utility=utility, bins=bins, **ask)
  cpu = time.process_time() - cpu
  normal = design.TruncatedGaussian(reach, utility=utility, bins=bins).solve()
  p, q = (np.exp(table.log_density) / np.sum(np.exp(table.log_density))
          for table in (found.noise, normal))
  q = q[:p.size]
  return {**ask, 'range': reach, 'utility': utility, 'bins': bins,
          'learned': found.delta.upper, 'omega': found.omega,
          'certified': found.certified, 'cpu_seconds': cpu,
          'seconds': found.seconds, 'monotone': found.noise.monotone,
          'truncated_gaussian': truncated.account(normal, **ask).delta.upper,
          'kl_to_gaussian': float(np.sum(p * np.log(p / q))) if (
              q.size == p.size) else math.inf}


def main() -> None:
  """Measures all cases; writes the results and the table."""
  _results.parser('truncated_noise', __doc__).parse_args()
  rows = [measure(*case) for case in CASES]
  _results.save('truncated_noise', rows)
  show(rows)


def show(rows: list[dict]) -> None:
  """Writes the table from the results."""
  _results.show('truncated_noise', _results.markdown(
      ('steps', 'q', 'epsilon', 'range', 'utility', 'delta, truncated Gaussian',
       'delta, designed', 'optimality', 'CPU s'),
      [[str(row['steps']), f'{row["sampling_prob"]:g}', f'{row["epsilon"]:g}',
        str(row['range']), str(row['utility']),
        _format.upper(row["truncated_gaussian"], 4),
        _format.upper(row["learned"], 4),
        'proved' if row['certified'] else 'local', f'{row["cpu_seconds"]:.1f}']
       for row in rows]))


if __name__ == '__main__':
  main()
