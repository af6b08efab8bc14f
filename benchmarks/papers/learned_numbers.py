"""Results of paper 001's figures, as text from results/*.json."""

from __future__ import annotations

from benchmarks.papers.item import of
from tfcactus import _format

FIGURES = 'truncated_figures'


def _ratios(rows: list[dict], loss: str | None = None) -> str:
  """Returns the ratios of the Gaussian's utility to the learned noise's, as text."""
  return ', '.join('-' if row['gaussian_utility'] is None else
                   f'{row["gaussian_utility"] / row["utility"]:.3f}'
                   for row in rows if loss is None or row['loss'] == loss)


def _by_loss(rows: list[dict]) -> str:
  """Returns the ratios of `_ratios` for ADP and for MA, as text."""
  return '; '.join(f'{loss.upper()} {_ratios(rows, loss)}' for loss in ('adp', 'ma'))


def figure_1() -> str:
  """Returns delta of the staircase and of noise that reproduces it."""
  tables = of(FIGURES, 'figure 1', 'tables')
  rows = {name: _format.upper(tables[name]['delta'], 5) for name in (
      'truncated staircase', 'sigmoid adp', 'sigmoid pdp', 'sigmoid ma',
      'linear program')}
  return ('delta: ' + ', '.join(f'{name} {value}' for name, value in rows.items()) +
          f'; E abs(x) {tables["truncated staircase"]["utility"]:.5g} (the paper\'s '
          '1.884)')


def towers() -> str:
  """Returns utility and delta of pointy towers."""
  found = of(FIGURES, 'figure 1')
  row = found['tables']['linear program, full shift only']
  return ('at E abs(x) from '
          f'{_format.upper(found["least utility of pointy towers"], 5)} on (the '
          'paper\'s 1.879), delta of the full shift is at most that of the staircase; '
          f'delta of all shifts {_format.upper(row["delta"], 4)}')


def figure_2() -> str:
  """Returns delta of learned noise over that of the staircase."""
  found = of('learned_figures', 'figure 2')
  ratio = found["delta over the staircase's at epsilon .3"]
  return 'delta over that of the staircase: ' + ', '.join(
      f'{name.split()[-1]} {value:.4f}' for name, value in ratio.items()) + (
          ' (the paper\'s ADP: within 1e-2)')


def figure_3() -> str:
  """Returns the least ratio of designed to truncated Gaussian delta."""
  found = of(FIGURES, 'figure 3', 'claims')
  return 'least ratio of designed to truncated Gaussian delta at n = 8, 16, 128: ' + (
      '; '.join(f'L{norm} ' + ', '.join(
          f'{found[f"L{norm}: least ratio of deltas by n"][n]:.3f}'
          for n in ('8', '16', '128')) for norm in (1, 2)))


def figure_3c() -> str:
  """Returns KL of designed noise to the truncated Gaussian."""
  last = of(FIGURES, 'figure 3', 'curves', 'kl')[-1]
  return (f'KL to the truncated Gaussian at n = {last["steps"]}: '
          f'{_format.upper(last["kl"], 3)} (the paper\'s: below 1e-4)')


def figure_3_learned() -> str:
  """Returns the largest ratio of learned to designed delta."""
  found = of('learned_figures', 'figure 3', 'claims')
  ratios = found['largest ratio of learned to designed delta']
  return 'largest ratio of learned to designed delta: ' + ', '.join(
      f'n = {n}: {value:.3g}' for n, value in ratios.items())


def figure_4() -> str:
  """Returns ratios of utility at equal delta: Gaussian over designed noise."""
  ratios = of(FIGURES, 'figure 4', 'claims', 'ratios')
  return ('E abs(x) of the Gaussian of equal delta over that of the designed noise, n '
          '= 1, 8, 16, 32, 64, 128 (-: no Gaussian has that delta): ' + ', '.join(
              '-' if ratio is None else f'{ratio:.3f}' for ratio in ratios))


def figure_4_learned() -> str:
  """Returns ratios of utility at equal delta: Gaussian over learned noise."""
  return ('E abs(x) of the Gaussian of equal delta over that of learned noise, n = 1, '
          '8, 128: ' + _by_loss(of('learned_sgd_figures', 'figure 4', 'rows')))


def figure_4d() -> str:
  """Returns ratios of utility for truncated learned noise."""
  return ('both truncated, E abs(x) of the Gaussian over that of learned noise, n = 1, '
          '8, 128: ' + _ratios(of('learned_sgd_figures', 'figure 4', 'cut')))


def figure_5() -> str:
  """Returns learned delta over that of the staircase, by range."""
  return 'learned delta over that of the staircase, ranges 3, 5, 10: ' + ', '.join(
      f'{row["learned"] / row["staircase"]:.4f}'
      for row in of('learned_figures', 'figure 5', 'rows'))


def figure_6() -> str:
  """Returns the spread of the loss over ten seeds."""
  runs = of(FIGURES, 'figure 6', 'runs')
  return 'standard deviation over mean of the loss, ten seeds: ' + ', '.join(
      f'{loss.upper()} {100 * row["final_loss_spread"]:.2g} %'
      for loss, row in runs.items()) + ' (the paper\'s: below 1 %)'


def figure_7() -> str:
  """Returns the least delta of truncated Gaussians and its sigma."""
  rows = {row['steps']: row for row in of('learned_figures', 'figure 7', 'rows')}
  return ', '.join(f'n = {n}: least delta {_format.upper(rows[n]["least_delta"], 3)} '
                   f'at sigma {rows[n]["sigma"]:.3g}' for n in (32, 64, 128))


def figure_8() -> str:
  """Returns utility and delta of collapsed noise."""
  row = of('learned_figures', 'figure 8', 'collapsed')
  return f'E abs(x) {row["utility"]:.3f}, delta {_format.upper(row["delta"], 4)}'


def figure_9() -> str:
  """Returns the least delta with weight decay over that without."""
  found = of('learned_figures', 'figure 9', 'claims')
  ratios = found['least delta with decay over that without, by norm and loss']
  return 'least delta with weight decay over that without: ' + ', '.join(
      f'{name} {value:.2g}' for name, value in ratios.items())


def figure_10() -> str:
  """Returns delta of noise learned for L2."""
  found = of('learned_sgd_figures', 'figure 10', 'deltas')
  return 'delta: ' + ', '.join(f'{name} {_format.upper(value, 3)}'
                               for name, value in found.items())


def figure_11() -> str:
  """Returns delta in both directions near epsilon .3."""
  curves = of('learned_sgd_figures', 'figure 11', 'curves')
  found = []
  for name, curve in curves.items():
    near = min(curve, key=lambda epsilon: abs(float(epsilon) - 0.3))
    found.append(f'{name} {_format.upper(curve[near], 4)}')
  return f'delta at epsilon {float(near):.2f}: ' + ', '.join(found)


def figure_12() -> str:
  """Returns KL of learned noise to the Gaussian of equal utility."""
  return 'KL to the Gaussian of equal utility: ' + ', '.join(
      f'{row["loss"].upper()}, n = {row["steps"]}: {row["kl"]:.2g}'
      for row in of('learned_figures', 'figure 12', 'rows'))


def figure_13() -> str:
  """Returns learned over designed delta at four epsilons."""
  rows = of('learned_figures', 'figure 13', 'rows')
  return 'learned over designed delta, epsilon .1, .3, .5, 1, U = 40: ' + ', '.join(
      f'{row["learned"] / row["direct"]:.3g}' for row in rows if row['utility'] == 40)


def figure_14() -> str:
  """Returns ratios of utility for L2: Gaussian over learned noise."""
  return ('sqrt(E x^2) of the Gaussian of equal delta over that of learned noise, n = '
          '1, 8, 128: ' + _by_loss(of('learned_sgd_figures', 'figure 14', 'rows')))
