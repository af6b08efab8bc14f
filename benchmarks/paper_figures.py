"""Redraws Figures 1 and 2a of paper 000 and Figures 1 and 2 of paper 003.

    python -m benchmarks.paper_figures

Writes results/paper_figures.json and one picture per figure. Paper 000 is "Cactus
Mechanisms" (ISIT 2022), paper 003 is "Optimal Multidimensional Differentially Private
Mechanisms" (ISIT 2023), both by Alghamdi et al.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks import _results
import tfcactus
from tfcactus import design

FAULTS = {
    'paper 000, figure 2a':
        'r = .9 with N/n = 8 truncates too early for wide noise: at sigma = 2 the '
        'printed grid does worse than the Gaussian, and a tail matched to the '
        'budget does not.',
    'paper 003, figure 1':
        'Printed with r = .9: a tail slope of 42 per unit where about 8 is optimal. '
        'The radius looks the same on a linear scale, but privacy losses reach 40; '
        'r = .98 has a KL of 1.9481 instead of 1.9744.',
    'paper 003, figure 2':
        'The printed curves come out at delta = 1e-5 with r = .98, not at the '
        'printed delta = 1e-8 with r = .9, whose epsilon is above the Gaussian\'s '
        'from a few steps on.'}
"""Errors in the printed parameters, by figure."""

STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 350, 500, 750, 1000, 1500, 2000)

BUDGETS = (0.05, 0.1, 0.175, 0.25, 0.375, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)


def figure_1_of_000(pyplot) -> dict:
  """Draws the cactus density at C = .25, n = 200, N = 1600, r = .9."""
  table = design.Cactus(0.25, bins=200, cells=1600, tail_ratio=0.9).solve()
  z = np.arange(-900, 901) / table.bins
  half = table.log_density[:800]
  peaks = np.flatnonzero((half[1:-1] > half[:-2]) & (half[1:-1] > half[2:])) + 1
  figure, axis = pyplot.subplots(figsize=(6.4, 4.4))
  axis.semilogy(z, np.exp(table.log_density_at(z)), label='cactus')
  axis.semilogy(z, np.exp(-2 * z * z) * math.sqrt(2 / math.pi), '--',
                label='Gaussian of equal variance')
  axis.set(xlabel='z / sensitivity', ylabel='density', ylim=(1e-8, 20),
           title='Paper 000, Figure 1: C = .25, n = 200, N = 1600, r = .9')
  axis.legend(loc='upper right')
  _results.save_captioned(
      figure, [axis], 'paper000_figure1',
      'As printed; no fault found. KL '
      f'{table.info["objective"]:.7f}, the Gaussian\'s is 2.')
  return {'objective': table.info['objective'], 'gap': table.info['gap'],
          'local_maxima': [float(x) for x in peaks / table.bins]}


def figure_2a_of_000(pyplot) -> list[dict]:
  """Draws the largest KL divergence against sigma: both cactus grids, Gaussian."""
  rows = []
  for budget in BUDGETS:
    printed = design.Cactus(budget, bins=200, cells=1600, tail_ratio=0.9).solve()
    matched = design.Cactus(budget, bins=100).solve()
    rows.append({'budget': budget, 'sigma': math.sqrt(budget),
                 'gaussian': 0.5 / budget,
                 'cactus_r9': printed.info['objective'],
                 'cactus': matched.info['objective']})
  figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.6, 4.6))
  sigma = np.array([row['sigma'] for row in rows])
  gaussian = 0.5 / sigma**2
  drawn = (('cactus_r9', 'x-', 'cactus, printed grid (r = .9)'),
           ('cactus', 'o:', 'cactus, tail matched to the budget'))
  left.semilogy(sigma, gaussian, 's--', color='tab:gray', label='Gaussian',
                markersize=4)
  for key, style, label in drawn:
    values = np.array([row[key] for row in rows])
    left.semilogy(sigma, values, style, label=label, markersize=5)
    right.plot(sigma, 100 * (values / gaussian - 1), style, label=label,
               markersize=5)
  left.set(xlabel='sigma / sensitivity', ylabel='largest KL divergence',
           title='Paper 000, Figure 2a')
  right.axhline(0, color='tab:gray', linestyle='--', label='Gaussian')
  right.set(xlabel='sigma / sensitivity', ylabel='KL less the Gaussian\'s, %',
            title='The same, wide noise enlarged', xlim=(0.9, 2.05),
            ylim=(-1.4, 0.9))
  left.legend(loc='upper right')
  right.legend(loc='lower right')
  _results.save_captioned(figure, [left, right], 'paper000_figure2a',
                          FAULTS['paper 000, figure 2a'])
  return rows


def figure_1_of_003(pyplot, tables: dict) -> dict:
  """Draws the density of the radius in ten dimensions: both tails, Gaussian."""
  figure, axes = pyplot.subplots(1, 2, figsize=(9.6, 4.6))
  radius = np.linspace(1e-3, 6, 2000)
  log_chi = (9 * np.log(2 * radius) - 2 * radius**2 - 4 * math.log(2) -
             math.lgamma(5) + math.log(2))
  for axis in axes:
    for ratio, table in tables.items():
      x = table.radii - 0.5 * table.width
      axis.plot(x, table.shell_mass / table.width,
                '-' if ratio == 0.98 else ':', label=f'isotropic, r = {ratio:g}')
    axis.plot(radius, np.exp(log_chi), '--', color='tab:gray', label='Gaussian')
    axis.set(xlabel='|z| / sensitivity', ylabel='density of the radius')
    axis.legend(loc='upper right')
  axes[0].set(xlim=(0, 4), ylim=(0, 1.35),
              title='Paper 003, Figure 1: m = 10, n = 400, N = 1200')
  axes[1].set(xlim=(0, 5.5), ylim=(1e-12, 30), yscale='log',
              title='The same, logarithmic')
  _results.save_captioned(figure, axes, 'paper003_figure1',
                          FAULTS['paper 003, figure 1'])
  return {str(r): {'objective': t.info['objective'], 'gap': t.info['gap']}
          for r, t in tables.items()}


def figure_2_of_003(pyplot, tables: dict) -> dict:
  """Draws epsilon against compositions in ten dimensions, at both deltas."""
  noises = {'isotropic, r = .98': (tables[0.98], 'tab:blue', '-'),
            'isotropic, r = .9': (tables[0.9], 'tab:orange', ':'),
            'Gaussian': (tfcactus.Gaussian(0.5), 'tab:gray', '--')}
  figure, axes = pyplot.subplots(1, 2, figsize=(9.6, 4.6), sharey=True)
  curves = {}
  for axis, delta in zip(axes, (1e-5, 1e-8)):
    for name, (noise, color, style) in noises.items():
      plan = tfcactus.PrivacyPlan(
          noise=noise, l2_norm_clip=1.0, num_examples=1000, sampling_prob=1e-3,
          steps=2000, delta=delta)
      values = [plan.guarantee(steps).upper for steps in STEPS]
      curves[f'{name}, delta={delta:g}'] = values
      axis.plot(STEPS, values, style, color=color, label=name)
    axis.set(xlabel='compositions', yscale='log', ylim=(0.1, 60),
             xlim=(0, 2000), title='delta = 1e-5, where the printed curves lie'
             if delta == 1e-5 else 'delta = 1e-8, as printed')
    axis.legend(loc='lower right')
  axes[0].set_ylabel('epsilon')
  figure.suptitle('Paper 003, Figure 2: m = 10, sigma = .5, q = .001')
  _results.save_captioned(figure, axes, 'paper003_figure2',
                          FAULTS['paper 003, figure 2'])
  return {'steps': STEPS, 'epsilon': curves}


def main() -> None:
  """Draws all figures and writes results/paper_figures.json."""
  _results.parser('paper_figures', __doc__).parse_args()
  pyplot = _results.pyplot()
  tables = {ratio: design.Isotropic(10, 0.5, bins=400, cells=1200,
                                    tail_ratio=ratio).solve()
            for ratio in (0.98, 0.9)}
  result: dict[str, Any] = {'faults in the printed parameters': FAULTS}
  for name, draw in (
      ('paper 000, figure 1', figure_1_of_000),
      ('paper 000, figure 2a', figure_2a_of_000),
      ('paper 003, figure 1', lambda plot: figure_1_of_003(plot, tables)),
      ('paper 003, figure 2', lambda plot: figure_2_of_003(plot, tables))):
    result[name] = draw(pyplot)
    print(name, result[name], flush=True)
    _results.save('paper_figures', result)


if __name__ == '__main__':
  main()
