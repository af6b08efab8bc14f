"""Measures epsilon of designed noise against Gaussian and Laplace of equal variance.

    python -m benchmarks.designed_noise

Epsilon is the accountant's upper bound after 14,400 steps with sampling probability
250/60000, at delta 1e-5.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks import _results
import tfcactus
from tfcactus import _format, design
from tfcactus.search import optimal

LONG = 'it designs noise for some twenty settings, and accounts for it'

SETTINGS: dict[str, Any] = {
    'sampling_prob': 250 / 60_000, 'steps': 14_400, 'delta': 1e-5}

GRIDS = {0.1: (869, -0.039528), 0.25: (1200, -0.025), 1.0: (2100, -0.0125)}
"""Cells and log tail ratio of the monotone chi-square references, by variance; they
have 200 cells per unit of sensitivity."""

EXPECTED = {
    'gaussian': (133.38, 20.886, 2.784), 'laplace': (22.69, 7.758, 2.762),
    'cactus': (17.32, 8.581, 2.598), 'monotone KL': (14.98, 7.681, 2.568),
    'monotone chi2': (14.34, 6.895, 2.440)}
"""Epsilon that independent prototypes measured, at variances .1, .25 and 1."""

RADIAL_EXPECTED = {(2, 0.5): -59, (10, 0.5): -35, (20, 0.5): -23, (50, 0.5): -11,
                   (100, 0.5): -5.9, (10, 1.0): -4.9, (100, 1.0): -0.6}
"""Difference of isotropic chi-square noise to the Gaussian in epsilon, in percent, by
dimension and noise multiplier, as independent prototypes measured it."""

REFINED = ((1.0, 1.0, 1), (1.0, 1.0, 3), (1.0, 1.0, 10), (4.0, 1.0, 10),
           (0.25, 0.01, 10), (0.25, 0.01, 100), (1.0, 0.1, 30))
"""Variance, sampling probability and steps of settings with few releases, in which no
divergence decides epsilon."""


def epsilon(noise) -> float:
  """Returns the accountant's upper bound on epsilon."""
  return tfcactus.PrivacyPlan(noise=noise, l2_norm_clip=1.0, num_examples=60_000,
                              **SETTINGS).guarantee().upper


def scalar_cell(budget: float, column: int) -> dict:
  """Returns epsilon of all scalar mechanisms with variance `budget`."""
  cells, log_ratio = GRIDS[budget]
  fine: dict[str, Any] = {'bins': 200, 'cells': 1600, 'tail_ratio': 0.9}
  noises = {
      'gaussian': tfcactus.Gaussian(math.sqrt(budget)),
      'laplace': tfcactus.Laplace(math.sqrt(budget / 2)),
      'cactus': design.Cactus(budget, **fine).solve(),
      'monotone KL': design.Monotone(budget, **fine).solve(),
      'monotone chi2': design.Monotone(
          budget, bins=200, cells=cells, tail_ratio=float(np.exp(log_ratio)),
          objective='chi2').solve()}
  row: dict[str, Any] = {'budget': budget}
  for name, noise in noises.items():
    row[name] = {'epsilon': epsilon(noise), 'expected': EXPECTED[name][column]}
    print(budget, name, row[name], flush=True)
  best = optimal.optimal_noise(variance=budget, bins=200, progress=print,
                               **SETTINGS)
  row['optimal_noise'] = {
      'epsilon': best.epsilon, 'label': best.label,
      'candidates': [list(c) for c in best.candidates]}
  return row


def radial_cell(dim: int, sigma: float) -> dict:
  """Returns epsilon of the Gaussian, of isotropic chi-square and of the best design."""
  gaussian = epsilon(tfcactus.Gaussian(sigma))
  table = design.Isotropic(dim, sigma, objective='chi2').solve()
  designed = epsilon(table)
  row: dict[str, Any] = {
      'dim': dim, 'sigma': sigma, 'gaussian': gaussian,
      'isotropic chi2': designed,
      'expected percent': RADIAL_EXPECTED.get((dim, sigma)),
      'percent': 100 * (designed / gaussian - 1)}
  best = optimal.optimal_noise(noise_multiplier=sigma, dim=dim, **SETTINGS)
  row['optimal_noise'] = {'epsilon': best.epsilon, 'label': best.label}
  print(row, flush=True)
  return row


def refined_cell(variance: float, sampling_prob: float, steps: int) -> dict:
  """Returns what descent on epsilon itself gains over the best certified design."""
  best = optimal.optimal_noise(variance=variance, sampling_prob=sampling_prob,
                               steps=steps, delta=1e-5, bins=50)
  certified = min((c for c in best.candidates if 'refined' not in c.label),
                  key=lambda c: c.epsilon)
  row = {'variance': variance, 'sampling_prob': sampling_prob, 'steps': steps,
         'label': best.label, 'epsilon': best.epsilon,
         'certified label': certified.label,
         'certified epsilon': certified.epsilon,
         'percent': 100 * (best.epsilon / certified.epsilon - 1)}
  print(row, flush=True)
  return row


def large_cell(dim: int, sigma: float, steps: int) -> dict:
  """Returns what the grid of shells costs in large dimensions.

  There the Gaussian is nearly optimal, so that isotropic KL noise can hardly gain.
  """
  settings: dict[str, Any] = {**SETTINGS, 'steps': steps}
  cost = [tfcactus.PrivacyPlan(
      noise=noise, l2_norm_clip=1.0, num_examples=60_000,
      **settings).guarantee().upper for noise in (
          tfcactus.Gaussian(sigma), design.Isotropic(dim, sigma).solve())]
  row = {'dim': dim, 'sigma': sigma, 'steps': steps, 'gaussian': cost[0],
         'isotropic': cost[1], 'percent': 100 * (cost[1] / cost[0] - 1)}
  print(row, flush=True)
  return row


def main() -> None:
  """Computes all cells; writes results/designed_noise.json and the table."""
  _results.parser('designed_noise', __doc__).parse_args()
  result: dict[str, Any] = {
      'settings': SETTINGS, 'scalar': [], 'radial': [], 'refined': [], 'large': []}
  for column, budget in enumerate(GRIDS):
    result['scalar'].append(scalar_cell(budget, column))
    _results.save('designed_noise', result)
  for dim, sigma in RADIAL_EXPECTED:
    result['radial'].append(radial_cell(dim, sigma))
    _results.save('designed_noise', result)
  for cell in REFINED:
    result['refined'].append(refined_cell(*cell))
    _results.save('designed_noise', result)
  for dim, sigma in ((1000, 1.0), (26_010, 1.3), (100_000, 1.0),
                     (1_000_000, 1.0)):
    result['large'].append(large_cell(dim, sigma, 3600))
    _results.save('designed_noise', result)
  show(_results.load('designed_noise'))


def show(found: dict) -> None:
  """Writes the table from the results: a row per setting, a column per mechanism."""
  names = [*EXPECTED, 'optimal_noise']
  rows = [[f'1, {row["budget"] ** 0.5:.3g}'] + [
      _format.upper(row[name]["epsilon"], 5) for name in names]
          for row in found['scalar']]
  rows += [[f'{row["dim"]}, {row["sigma"]:g}', _format.upper(row["gaussian"], 5), '',
            '', '', _format.upper(row["isotropic chi2"], 5),
            _format.upper(row["optimal_noise"]["epsilon"], 5)]
           for row in found['radial']]
  _results.show('designed_noise', _results.markdown(
      ['dim, noise multiplier', 'Gaussian', 'Laplace', 'cactus', 'KL design',
       'chi-square design', '`optimal_noise`'], rows))


if __name__ == '__main__':
  main()
