"""Redraws Figures 4, 10, 11 and 14 of paper 001 (DP-SGD) by gradient descent.

    python -m benchmarks.learned_sgd_figures [FIGURE ...]

The noise is for one number under Poisson sampling with probability .1. It is learned
for adding and for removing a record at once. The paper learns on [-500, 500]. Here the
range is four times the utility, where the paper's plateaus begin, with about 60 cells
per side and at most 1,500 epochs; `learned_figures` compares the scale with the
paper's. Each delta is the upper bound of this library's accountant, by default at
epsilon .3.
"""

from __future__ import annotations

import math
from typing import Any

import dp_accounting
import numpy as np

from benchmarks import _bounded, _results
import tfcactus
from tfcactus import accounting, design

LONG = 'gradient descent on some 20 problems'

PROB, STEPS, EPOCHS = 0.1, (1, 8, 128), 1500
COLOURS = _bounded.COLOURS


def _problem(steps: int, norm: int) -> dict[str, Any]:
  """Returns range, cells and utility for this number of releases."""
  utility = 0.35 * math.sqrt(steps) + 0.5
  reach = math.ceil(4 * utility) + 1
  return {'range': reach, 'bins': max(2, min(12, 64 // reach)), 'norm': norm,
          'steps': steps, 'sampling_prob': PROB, 'utility': utility}


def _learned(steps: int, norm: int, loss: str) -> Any:
  """Returns noise learned for this number of releases, norm and loss."""
  return _bounded.learned(loss=loss, epochs=EPOCHS, **_problem(steps, norm))


def _ask(steps: int, norm: int) -> dict[str, Any]:
  """Returns the arguments of `_bounded.delta`."""
  return {'steps': steps, 'norm': norm, 'sampling_prob': PROB}


def _ratios(rows: list[dict], loss: str | None = None) -> list[float]:
  """Returns the Gaussian's utility over the learned noise's; NaN without a Gaussian."""
  return [math.nan if row['gaussian_utility'] is None else
          row['gaussian_utility'] / row['utility']
          for row in rows if loss is None or row['loss'] == loss]


def _compared(steps: int, norm: int, loss: str) -> dict:
  """Returns results of learned noise, designed noise and the Gaussian of its delta."""
  problem = _problem(steps, norm)
  table = _learned(steps, norm, loss)
  delta = _bounded.delta(table, **_ask(steps, norm))
  normal = _bounded.gaussian_of_delta(
      problem['range'], problem['bins'], delta, _ask(steps, norm))
  direct = tfcactus.truncated_noise(
      problem['range'], epsilon=_bounded.EPSILON, bins=problem['bins'],
      utility=problem['utility'], **_ask(steps, norm))
  row = {'steps': steps, 'norm': norm, 'loss': loss, 'delta': delta,
         'utility': _bounded.utility(table, norm), 'direct_delta': direct.delta.upper,
         'gaussian_utility':
             None if normal is None else _bounded.utility(normal, norm)}
  print(row, flush=True)
  return row


def _shapes(axis: Any, norm: int, loss: str) -> None:
  """Draws the densities learned for several numbers of releases."""
  for colour, steps in zip(COLOURS, STEPS):
    axis.semilogy(*_bounded.density(_learned(steps, norm, loss)),
                  drawstyle='steps-mid', color=colour, label=f'n = {steps}')
  axis.set(xlabel='noise / clip norm', ylim=(1e-5, 1),
           title=f'L{norm}, learned, {loss.upper()}')


def figure_4(pyplot: Any) -> dict:
  """Draws densities (4a, b) and the utility of Gaussians of equal delta (4c, d)."""
  figure, axes = pyplot.subplots(1, 3, figsize=(11, 4.2))
  for axis, loss in zip(axes, ('adp', 'ma')):
    _shapes(axis, 1, loss)
  axes[0].set_ylabel('density')
  axes[0].legend(fontsize=8)
  rows = [_compared(steps, 1, loss) for loss in ('adp', 'ma') for steps in STEPS]
  cut = [_cut(steps) for steps in STEPS]
  for loss, style, colour in (('adp', 'o-', COLOURS[0]), ('ma', 's:', COLOURS[1])):
    axes[2].semilogx(STEPS, _ratios(rows, loss), style, color=colour,
                     label=f'4c: {loss.upper()}')
  axes[2].semilogx(STEPS, _ratios(cut), '^--', color=COLOURS[2],
                   label='4d: ADP, both cut')
  axes[2].axhline(1.0, color=_results.GRAY, linewidth=0.8)
  axes[2].set(xlabel='n', title='E|Z| of the Gaussian of equal delta,\nover learned')
  axes[2].legend(fontsize=8)
  _results.save_captioned(
      figure, axes, 'paper001_figure4_learned',
      'Paper 001, Figure 4: q = .1. Above 1 the Gaussian needs more noise; no mark '
      'where no Gaussian in this range reaches that delta. 4d: both cut where the '
      'plateau '
      'at the edge begins, less one.')
  return {'rows': rows, 'cut': cut, 'claims': {
      'learned with ADP needs less E|Z| than the Gaussian, at n': [
          row['steps'] for row in rows if row['loss'] == 'adp' and (
              row['gaussian_utility'] is None or
              row['gaussian_utility'] > row['utility'])],
      'learned with MA, at n': [
          row['steps'] for row in rows if row['loss'] == 'ma' and
          row['gaussian_utility'] and row['gaussian_utility'] > row['utility']]}}


def _cut(steps: int) -> dict:
  """Cuts learned noise one unit before its plateau; compares it with a Gaussian."""
  table = _learned(steps, 1, 'adp')
  y = table.log_density
  plateau = int(np.argmax(y < y[-1] + 0.05)) if y[0] > y[-1] + 0.05 else y.size
  cells = min(max(plateau - table.bins, 2 * table.bins), y.size)
  half = np.exp(y[:cells])
  w = np.concatenate([half[::-1], half])
  kept = tfcactus.ScalarTable.from_cell_masses(table.bins, w / np.sum(w))
  delta = _bounded.delta(kept, **_ask(steps, 1))
  normal = _bounded.gaussian_of_delta(
      cells / table.bins, table.bins, delta, _ask(steps, 1))
  return {'steps': steps, 'range': cells / table.bins, 'delta': delta,
          'utility': kept.moment(1),
          'gaussian_utility': None if normal is None else normal.moment(1)}


def figure_10(pyplot: Any) -> dict:
  """Draws the densities learned for L2, with PDP too."""
  figure, axes = pyplot.subplots(1, 3, figsize=(11, 4.0), sharey=True)
  for axis, loss in zip(axes, ('adp', 'pdp', 'ma')):
    _shapes(axis, 2, loss)
  axes[0].set_ylabel('density')
  axes[2].legend(fontsize=8)
  _results.save_captioned(
      figure, axes, 'paper001_figure10',
      'Paper 001, Figure 10: q = .1. The paper learns for adding and for removing a '
      'record apart as well; here both are learned at once.')
  return {'deltas': {f'{loss}, n = {steps}': _bounded.delta(
      _learned(steps, 2, loss), **_ask(steps, 2))
                     for loss in ('adp', 'pdp', 'ma') for steps in STEPS},
          'claims': {}}


def figure_11(pyplot: Any) -> dict:
  """Draws delta against epsilon in both directions after 128 releases."""
  figure, axes = pyplot.subplots(1, 2, figsize=(10.5, 4.2), sharey=True)
  grid = np.linspace(0.0, 1.0, 26)
  rows = {}
  for axis, loss in zip(axes, ('adp', 'ma')):
    table = _learned(128, 1, loss)
    step = dp_accounting.PoissonSampledDpEvent(PROB, accounting.noise_event(table))
    parts = accounting.PhiAccountant().compose(step, 128).compositions()
    for (name, part), style, colour in zip(sorted(parts.items()), ('-', '--'), COLOURS):
      curve = [part.delta(float(x)).upper for x in grid]
      rows[f'{loss}, {name}'] = dict(zip(map(float, grid), curve))
      axis.semilogy(grid, curve, style, color=colour, label=name)
    axis.axvline(_bounded.EPSILON, color=_results.GRAY, linestyle=':')
    axis.set(xlabel='epsilon', title=f'learned, {loss.upper()}')
    axis.legend()
  axes[0].set_ylabel('delta')
  _results.save_captioned(
      figure, axes, 'paper001_figure11',
      'Paper 001, Figure 11: 128 releases, q = .1, L1. Two directions, of which the '
      'larger counts; noise learned for both at once, at epsilon = .3 (dotted).')
  return {'curves': rows, 'claims': {}}


def figure_14(pyplot: Any) -> dict:
  """Draws densities for L2, Gaussians of equal delta, and the ratio of utilities."""
  figure, axes = pyplot.subplots(1, 3, figsize=(11, 4.2))
  for axis, steps in zip(axes, (8, 128)):
    problem = _problem(steps, 2)
    for loss, colour in zip(('adp', 'ma'), COLOURS):
      axis.semilogy(*_bounded.density(_learned(steps, 2, loss)), color=colour,
                    drawstyle='steps-mid', label=f'learned, {loss.upper()}')
    normal = _bounded.gaussian_of_delta(
        problem['range'], problem['bins'], _bounded.delta(
            _learned(steps, 2, 'adp'), **_ask(steps, 2)), _ask(steps, 2))
    if normal is None:  # No Gaussian has so small a delta: draw that of equal utility.
      normal = design.TruncatedGaussian(
          problem['range'], utility=problem['utility'], bins=problem['bins']).solve()
    axis.semilogy(*_bounded.density(normal), '--', color=_results.BLACK,
                  label='truncated Gaussian')
    axis.set(xlabel='noise / clip norm', ylim=(1e-5, 1), title=f'L2, n = {steps}')
  axes[0].set_ylabel('density')
  axes[0].legend(fontsize=8)
  rows = [_compared(steps, 2, loss) for loss in ('adp', 'ma') for steps in STEPS]
  for loss, style, colour in (('adp', 'o-', COLOURS[0]), ('ma', 's:', COLOURS[1])):
    axes[2].semilogx(STEPS, _ratios(rows, loss), style, color=colour,
                     label=loss.upper())
  axes[2].axhline(1.0, color=_results.GRAY, linewidth=0.8)
  axes[2].set(xlabel='n',
              title='sqrt(E Z^2) of the Gaussian\nof equal delta, over learned')
  axes[2].legend(fontsize=8)
  _results.save_captioned(
      figure, axes, 'paper001_figure14',
      'Paper 001, Figure 14: q = .1, L2. The Gaussian drawn has the delta of ADP, or '
      'its utility where none has that delta.')
  return {'rows': rows, 'claims': {}}


FIGURES = {'11': figure_11, '4': figure_4, '14': figure_14, '10': figure_10}

if __name__ == '__main__':
  _bounded.draw('learned_sgd_figures', __doc__, FIGURES)
