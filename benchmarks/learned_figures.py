"""Redraws Figures 2, 3, 5, 7, 8, 9, 12 and 13 of paper 001 by gradient descent.

    python -m benchmarks.learned_figures [FIGURE ...]

Paper 001 is Sommer et al., "Learning Numeric Optimal Differentially Private Truncated
Additive Mechanisms" (2021). These figures are about queries of bounded sensitivity;
`learned_sgd_figures` draws those about DP-SGD. The paper learns noise on 60,000 points
with 10,000 sigmoids, and takes 25 days on eight A100. Here there is one sigmoid per
cell, with 100 to 500 cells per side and at most 5,000 epochs, or 15,000 for Figure 3
(in the paper: 15,000, or 100,000 with 'ma'). Writes results/learned_figures.json and a
picture per figure. Each delta is the upper bound of this library's accountant.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks import _bounded, _results
from tfcactus import _format, design

LONG = 'gradient descent on some 100 problems'

EPSILON = _bounded.EPSILON
COLOURS = _bounded.COLOURS
ADP, PDP, MA = (f'learned, {loss}' for loss in ('ADP', 'PDP', 'MA'))
STAIRS: dict[str, Any] = {'range': 5, 'norm': 1, 'bins': 20, 'utility': 1.884781}
DIRECT, NORMAL = 'designed (direct)', 'truncated Gaussian'


def figure_2(pyplot: Any) -> dict:
  """Draws delta against epsilon for the staircase and for noise learned at .3."""
  staircase = design.Staircase(EPSILON, range=5, bins=20).solve()
  tables = {ADP: _bounded.learned(loss='adp', **STAIRS),
            PDP: _bounded.learned(loss='pdp', **STAIRS),
            MA: _bounded.learned(loss='ma', **STAIRS)}
  grid = np.append(np.linspace(0.02, 1.5, 38), EPSILON)
  grid.sort()
  exact = np.array([_bounded.delta(staircase, epsilon=x) for x in grid])
  curves = {name: np.array([_bounded.delta(table, epsilon=x) for x in grid])
            for name, table in tables.items()}
  figure, (left, right) = pyplot.subplots(1, 2, figsize=(10.5, 4.2))
  left.plot(grid, exact, color=_results.BLACK, linewidth=3, alpha=0.35,
            label='truncated staircase')
  for i, (name, values) in enumerate(curves.items()):
    left.plot(grid, values, ('-', '--', ':')[i], color=COLOURS[i], label=name)
  right.plot(grid, 100 * (curves[ADP] / exact - 1), color=COLOURS[0], label=ADP)
  right.axhline(0, color=_results.GRAY, linewidth=0.8)
  left.set(xlabel='epsilon', ylabel='delta', title='ADP covers the staircase')
  right.set(xlabel='epsilon', ylabel='delta above the staircase\'s, %',
            title='By how much it differs')
  for axis in (left, right):
    axis.axvline(EPSILON, color=_results.GRAY, linestyle=':', linewidth=0.9)
    axis.legend()
  _results.save_captioned(
      figure, (left, right), 'paper001_figure2',
      'Paper 001, Figure 2: range 5, one release, designed for epsilon = .3 (dotted); '
      '100 cells a side. PDP and MA minimise other bounds, and cost more.')
  at = {name: float(values[grid == EPSILON][0] / exact[grid == EPSILON][0])
        for name, values in curves.items()}
  return {'delta over the staircase\'s at epsilon .3': at,
          'worst of ADP, at any epsilon': float(np.max(curves[ADP] / exact)),
          'claims': {'ADP within 1 % of the staircase at .3': at[ADP] < 1.01}}


def figure_3(pyplot: Any) -> dict:
  """Draws delta against utility for learned and designed noise, and KL to Gaussians."""
  drawn = _results.load('truncated_figures')['figure 3']['curves']
  figure, axes = pyplot.subplots(1, 3, figsize=(11, 4.4))
  rows = []
  for axis, norm in zip(axes, (1, 2)):
    for colour, steps in zip(COLOURS, (1, 8, 16, 128)):
      known = drawn[f'L{norm}, n={steps}']
      for row in known[1::3]:
        table = _bounded.learned(range=500, bins=1, norm=norm, steps=steps,
                                 utility=row['utility'], epochs=15_000)
        rows.append({'norm': norm, 'steps': steps, **row,
                     'learned': _bounded.delta(table, steps=steps, norm=norm)})
        print(rows[-1], flush=True)
      for key, style in (('direct', '-'), ('truncated_gaussian', '--')):
        axis.loglog(*zip(*[(row['utility'], row[key]) for row in known]), style,
                    color=colour)
      own = [row for row in rows if (row['norm'], row['steps']) == (norm, steps)]
      axis.loglog([row['utility'] for row in own], [row['learned'] for row in own], 'o',
                  color=colour, label=f'n = {steps}')
    axis.set(xlabel='E|Z|' if norm == 1 else 'sqrt(E Z^2)', ylabel='delta',
             ylim=(1e-7, 1), title=f'Figure 3{"ab"[norm - 1]}: L{norm}')
    axis.legend(fontsize=8)
  far = [_shape(steps) for steps in (1, 8, 32, 128)]
  for key, style, colour in (('learned', 'o', COLOURS[0]), ('direct', '-', COLOURS[1])):
    axes[2].loglog([row['steps'] for row in far], [row[key] for row in far],
                   style + ('-' if style == 'o' else ''), color=colour, label=key)
  axes[2].axhline(1e-4, color=_results.GRAY, linewidth=0.8)
  axes[2].set(xlabel='n', ylabel='KL to the truncated Gaussian', title='Figure 3c: L2')
  axes[2].legend(fontsize=8)
  _results.save_captioned(
      figure, axes, 'paper001_figure3_learned',
      'Paper 001, Figure 3, range 500: learned by gradient descent (dots) beside '
      'designed (lines) and truncated Gaussian noise (dashed); 15,000 epochs.')
  return {'rows': rows, 'kl': far, 'claims': {
      'learned noise is nowhere better than designed, by more than 1 %': all(
          row['learned'] > 0.99 * row['direct'] for row in rows),
      'largest ratio of learned to designed delta': {
          str(steps): max(row['learned'] / row['direct'] for row in rows
                          if row['steps'] == steps) for steps in (1, 8, 16, 128)}}}


def _shape(steps: int) -> dict:
  """Returns KL of learned and designed noise to the Gaussian of equal utility."""
  utility = round(100 / math.sqrt(128 / steps))
  reach = 4 * utility
  normal = design.TruncatedGaussian(reach, utility=utility, bins=1).solve()
  learned = _bounded.learned(range=reach, bins=1, steps=steps, utility=utility,
                             epochs=15_000)
  direct = design.Truncated(reach, utility, EPSILON, steps=steps, bins=1).solve()
  return {'steps': steps, 'utility': utility, 'range': reach,
          'learned': _bounded.divergence(learned, normal),
          'direct': _bounded.divergence(direct, normal)}


def figure_5(pyplot: Any) -> dict:
  """Draws learned noise and the truncated staircase in three ranges.

  The paper claims that truncation moves mass to the middle.
  """
  figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.9), sharey=True)
  rows = []
  for axis, reach in zip(axes, (3, 5, 10)):
    staircase = design.Staircase(EPSILON, range=reach, bins=20).solve()
    learned = _bounded.learned(loss='adp', range=reach, norm=1, bins=20,
                               utility=staircase.moment(1))
    axis.semilogy(*_bounded.density(staircase), drawstyle='steps-mid',
                  color=_results.BLACK, linewidth=3, alpha=0.35,
                  label='truncated staircase')
    axis.semilogy(*_bounded.density(learned), drawstyle='steps-mid',
                  color=COLOURS[0], label=ADP)
    axis.set(xlabel='noise / sensitivity', title=f'range {reach}')
    rows.append({'range': reach, 'utility': learned.moment(1),
                 'staircase': _bounded.delta(staircase, norm=1),
                 'learned': _bounded.delta(learned, norm=1)})
  axes[0].set_ylabel('density')
  axes[2].legend(fontsize=8)
  _results.save_captioned(
      figure, axes, 'paper001_figure5',
      'Paper 001, Figure 5: one release, epsilon = .3, equal E|Z|, 20 cells per unit. '
      'In the paper mass moves from the cut to the middle, more so in wider ranges; at '
      'equal E|Z| none does.')
  return {'rows': rows, 'claims': {
      'learned delta within 2 % of the staircase': all(
          row['learned'] < 1.02 * row['staircase'] for row in rows)}}


def figure_7(pyplot: Any) -> dict:
  """Draws delta of truncated Gaussians against sigma: it rises for large sigma."""
  figure, axis = pyplot.subplots(figsize=(7, 4.6))
  rows = []
  for i, steps in enumerate((1, 2, 4, 8, 16, 32, 64, 128)):
    points = []
    for sigma in np.geomspace(0.5, 500, 40):
      table = design.TruncatedGaussian(500, scale=float(sigma), bins=2).solve()
      points.append((float(sigma), _bounded.delta(table, steps=steps)))
    axis.loglog(*zip(*points), ('-', '--')[i % 2], color=COLOURS[i // 2],
                label=f'n = {steps}')
    sigma, least = min(points, key=lambda point: point[1])
    rows.append({'steps': steps, 'sigma': sigma, 'least_delta': least})
  axis.set(xlabel='standard deviation before the cut / sensitivity',
           ylabel='delta at epsilon .3', ylim=(1e-9, 1.2),
           title='Wider noise costs more again where it is cut')
  axis.legend(fontsize=8, ncols=2)
  _results.save_captioned(
      figure, [axis], 'paper001_figure7',
      'Paper 001, Figure 7: truncated Gaussians on [-500, 500].')
  return {'rows': rows, 'claims': {'delta rises again at every n': all(
      row['sigma'] < 490 for row in rows)}}


def figure_8(pyplot: Any) -> dict:
  """Draws noise that collapsed under a large constant weight on utility."""
  staircase = design.Staircase(EPSILON / 4, range=100, bins=2).solve()
  collapsed = _bounded.trained(1500, loss='ma', weight=2.0, halving=0, range=100,
                               bins=2, norm=1, steps=4)
  figure, axis = pyplot.subplots(figsize=(7, 4.4))
  axis.semilogy(*_bounded.density(staircase), drawstyle='steps-mid',
                color=_results.BLACK, label='staircase for epsilon / 4')
  axis.semilogy(*_bounded.density(collapsed), '--', drawstyle='steps-mid',
                color=_results.VERMILION, label='learned, MA, constant weight 2')
  axis.set(xlabel='noise / sensitivity', ylabel='density',
           ylim=(1e-4, 3), title='Too much weight on utility: nothing is hidden')
  axis.legend(fontsize=8)
  rows = {name: {'utility': table.moment(1),
                 'delta': _bounded.delta(table, steps=4, norm=1)}
          for name, table in (('staircase', staircase), ('collapsed', collapsed))}
  _results.save_captioned(
      figure, [axis], 'paper001_figure8',
      'Paper 001, Figure 8: four releases, epsilon = .3; here range 100. E|Z|, '
      'delta: ' + '; '.join(
          f'{name} {row["utility"]:.3g}, {_format.upper(row["delta"], 3)}'
          for name, row in rows.items()) + '.')
  return {**rows, 'claims': {
      'its delta is above .9': rows['collapsed']['delta'] > 0.9}}


WEIGHTS = (2.0, 0.2, 0.02, 2e-3, 2e-4)


def figure_9(pyplot: Any) -> dict:
  """Draws delta against utility for many weights, with and without weight decay."""
  figure, axes = pyplot.subplots(2, 3, figsize=(11, 7), sharex='row', sharey=True)
  rows = []
  for norm, across in zip((1, 2), axes):
    known = _frontier(norm)
    for axis, loss in zip(across, ('adp', 'pdp', 'ma')):
      axis.semilogy(*zip(*known), '--', color=_results.BLACK, label=NORMAL)
      for halving, style, colour in ((400, 'o', COLOURS[0]), (0, 'x', COLOURS[1])):
        for weight in WEIGHTS:
          table = _bounded.trained(3000, range=100, bins=1, norm=norm, steps=8,
                                   loss=loss, weight=weight, halving=halving,
                                   least_weight=weight / 100)
          rows.append({'norm': norm, 'loss': loss, 'weight': weight,
                       'decay': halving > 0, 'utility': _bounded.utility(table, norm),
                       'delta': _bounded.delta(table, steps=8, norm=norm)})
        found = [row for row in rows[-len(WEIGHTS):] if row['delta'] < 0.9]
        axis.semilogy([row['utility'] for row in found],
                      [row['delta'] for row in found], style, color=colour,
                      label='weight ' + ('decays' if halving else 'constant'))
      axis.set(title=f'L{norm}, {loss.upper()}', xlabel=(
          'E|Z|' if norm == 1 else 'sqrt(E Z^2)'))
    across[0].set_ylabel('delta at epsilon .3')
  axes[0, 0].legend(fontsize=8)
  _results.save_captioned(
      figure, axes.ravel(), 'paper001_figure9',
      'Paper 001, Figure 9: eight releases, weights .0002 to 2; collapsed noise (delta '
      'above .9) left out, as there. Here range 100, 100 cells, decay to a hundredth.'
      ' All are accounted alike, as approximate DP.')
  return {'rows': rows, 'claims': {
      'collapsed, of those with decay and of those without': [
          sum(row['delta'] > 0.9 for row in rows if row['decay'] is decay)
          for decay in (True, False)],
      'least delta with decay over that without, by norm and loss': {
          f'L{norm}, {loss}': min(row['delta'] for row in rows if (
              row['norm'], row['loss'], row['decay']) == (norm, loss, True)) / min(
                  row['delta'] for row in rows if (
                      row['norm'], row['loss'], row['decay']) == (norm, loss, False))
          for norm in (1, 2) for loss in ('adp', 'pdp', 'ma')}}}


def _frontier(norm: int) -> list[tuple[float, float]]:
  """Returns (utility, delta) of truncated Gaussians after eight releases."""
  points = []
  for sigma in np.geomspace(1, 60, 30):
    table = design.TruncatedGaussian(100, scale=float(sigma), bins=1).solve()
    points.append((_bounded.utility(table, norm),
                   _bounded.delta(table, steps=8, norm=norm)))
  return points


def figure_12(pyplot: Any) -> dict:
  """Draws densities of learned noise and of Gaussians of equal utility."""
  figure, axes = pyplot.subplots(1, 2, figsize=(10.5, 4.2))
  rows = []
  for axis, steps in zip(axes, (8, 128)):
    utility = round(100 / math.sqrt(128 / steps))
    normal = design.TruncatedGaussian(4 * utility, utility=utility, bins=1).solve()
    axis.semilogy(*_bounded.density(normal), '--', color=_results.BLACK, label=NORMAL)
    for colour, loss in zip(COLOURS, ('adp', 'ma')):
      table = _bounded.learned(range=4 * utility, bins=1, steps=steps, utility=utility,
                               **({} if loss == 'adp' else {'loss': loss}))
      axis.semilogy(*_bounded.density(table), color=colour, drawstyle='steps-mid',
                    label=f'learned, {loss.upper()}')
      rows.append({'steps': steps, 'loss': loss, 'utility': utility,
                   'kl': _bounded.divergence(table, normal)})
    axis.set(xlabel='noise / sensitivity', ylabel='density', ylim=(1e-7, 0.1),
             title=f'n = {steps}, sqrt(E Z^2) = {utility}')
    axis.legend(fontsize=8)
  _results.save_captioned(
      figure, axes, 'paper001_figure12',
      'Paper 001, Figure 12: noise learned for n releases looks like a Gaussian of '
      'equal utility; here in ranges of four times the utility.')
  return {'rows': rows, 'claims': {}}


def figure_13(pyplot: Any) -> dict:
  """Draws delta against epsilon after 128 releases, L2."""
  figure, axis = pyplot.subplots(figsize=(7.5, 4.6))
  known = _results.load('truncated_figures')['figure 3']['curves']['other epsilons']
  rows = []
  for colour, utility in zip(COLOURS, (40.0, 80.0)):
    here = [row for row in known if row['utility'] == utility]
    for key, style, label in (('truncated_gaussian', '--', NORMAL),
                              ('direct', '-', DIRECT)):
      axis.semilogy(*zip(*[(row['epsilon'], row[key]) for row in here]), style,
                    color=colour, label=f'{label}, U = {utility:g}')
    for row in here if utility == 40 else ():
      table = _bounded.learned(range=500, bins=1, steps=128, utility=utility,
                               epsilon=row['epsilon'])
      rows.append({**row, 'learned': _bounded.delta(
          table, epsilon=row['epsilon'], steps=128)})
      print(rows[-1], flush=True)
  axis.semilogy([row['epsilon'] for row in rows], [row['learned'] for row in rows],
                'o', color=COLOURS[0], label=f'{ADP}, U = 40')
  axis.set(xlabel='epsilon', ylabel='delta', title='128 releases, L2, range 500')
  axis.legend(fontsize=8)
  _results.save_captioned(
      figure, [axis], 'paper001_figure13',
      'Paper 001, Figure 13: noise learned by gradient descent (dots) at four '
      'epsilons. Designed and Gaussian noise nearly coincide at U = 40, and part at U '
      '= 80, where the cut of the Gaussian begins to tell.')
  return {'rows': rows, 'claims': {'largest ratio of learned to designed delta': max(
      row['learned'] / row['direct'] for row in rows)}}


FIGURES = {'2': figure_2, '7': figure_7, '8': figure_8, '5': figure_5, '12': figure_12,
           '9': figure_9, '3': figure_3, '13': figure_13}


if __name__ == '__main__':
  _bounded.draw('learned_figures', __doc__, FIGURES)
