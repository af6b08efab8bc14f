"""Draws the picture of docs/choosing.md, of what benchmarks.designed_noise measured."""

from __future__ import annotations

import json
import pathlib

import matplotlib

ROOT = pathlib.Path(__file__).parent.parent
SIGMA = 0.5


def points() -> dict[int, dict[str, float]]:
  """Epsilon by dimension, of the Gaussian and of the best design that was found."""
  path = ROOT / 'benchmarks' / 'results' / 'designed_noise.json'
  found = json.loads(path.read_text(encoding='utf-8'))
  scalar = next(row for row in found['scalar'] if row['budget'] == SIGMA**2)
  return {1: {'Gaussian': scalar['gaussian']['epsilon'],
              'designed': scalar['optimal_noise']['epsilon']},
          **{row['dim']: {'Gaussian': row['gaussian'],
                          'designed': row['optimal_noise']['epsilon']}
             for row in found['radial'] if row['sigma'] == SIGMA}}


def main() -> None:
  """Draws it."""
  matplotlib.use('Agg')
  from matplotlib import pyplot
  found = points()
  figure, axis = pyplot.subplots(figsize=(6, 3.2))
  for name in ('Gaussian', 'designed'):
    axis.semilogx(list(found), [each[name] for each in found.values()], 'o-',
                  label=name)
  axis.set(xlabel='dimension', ylabel='epsilon', ylim=(0, None),
           title='14,400 steps at the same standard deviation')
  axis.set_xticks(list(found), [str(dim) for dim in found])
  axis.minorticks_off()
  axis.grid(alpha=0.3)
  axis.legend()
  figure.tight_layout()
  figure.savefig(ROOT / 'docs' / 'images' / 'choosing.png', dpi=80)


if __name__ == '__main__':
  main()
