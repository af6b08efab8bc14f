"""What came out in the figures of paper 001, from results."""

from __future__ import annotations

from benchmarks.papers.item import of
from tfcactus import _format

FIGURES = 'truncated_figures'


def figure_1() -> str:
  """The staircase."""
  tables = of(FIGURES, 'figure 1', 'tables')
  rows = {name: _format.upper(tables[name]['delta'], 5) for name in (
      'truncated staircase', 'sigmoid adp', 'sigmoid pdp', 'sigmoid ma',
      'linear program')}
  return ('delta: ' + ', '.join(f'{name} {value}' for name, value in rows.items()) +
          f'; E abs(x) {tables["truncated staircase"]["utility"]:.5g} (the paper\'s '
          '1.884)')


def towers() -> str:
  """Pointy towers."""
  found = of(FIGURES, 'figure 1')
  row = found['tables']['linear program, full shift only']
  return ('from E abs(x) '
          f'{_format.upper(found["least utility of pointy towers"], 5)} on (the '
          f'paper\'s '
          f'1.879) they protect whole changes as the staircase does; delta of all '
          f'changes '
          f'{_format.upper(row["delta"], 4)}')


def figure_2() -> str:
  """Figure 2."""
  found = of('learned_figures', 'figure 2')
  ratio = found["delta over the staircase's at epsilon .3"]
  return 'delta over the staircase\'s: ' + ', '.join(
      f'{name.split()[-1]} {value:.4f}' for name, value in ratio.items()) + (
          ' (the paper\'s ADP: within 1e-2)')


def figure_3() -> str:
  """Figure 3."""
  found = of(FIGURES, 'figure 3', 'claims')
  return 'designed delta over the truncated Gaussian\'s, least at n = 8, 16, 128: ' + (
      '; '.join(f'L{norm} ' + ', '.join(
          f'{found[f"L{norm}: least ratio of deltas by n"][n]:.3f}'
          for n in ('8', '16', '128')) for norm in (1, 2)))


def figure_3c() -> str:
  """Figure 3c."""
  last = of(FIGURES, 'figure 3', 'curves', 'kl')[-1]
  return (f'KL to the truncated Gaussian at n = {last["steps"]}: '
          f'{_format.upper(last["kl"], 3)} (the paper\'s: below 1e-4)')


def figure_3_learned() -> str:
  """Figure 3, learned."""
  found = of('learned_figures', 'figure 3', 'claims')
  ratios = found['largest ratio of learned to designed delta']
  return 'learned over designed delta, worst at n: ' + ', '.join(
      f'{n}: {value:.3g}' for n, value in ratios.items())


def figure_4() -> str:
  """Figure 4."""
  ratios = of(FIGURES, 'figure 4', 'claims', 'ratios')
  return ('E abs(x) of the Gaussian of equal delta over the designed noise\'s, n = '
          '1, 8, '
          '16, 32, 64, 128 (-: none reaches it): ' + ', '.join(
              '-' if ratio is None else f'{ratio:.3f}' for ratio in ratios))


def figure_4_learned() -> str:
  """Figure 4, learned."""
  found = of('learned_sgd_figures', 'figure 4', 'rows')
  return 'Gaussian over learned, n = 1, 8, 128: ' + '; '.join(
      f'{loss.upper()} ' + ', '.join(
          '-' if row['gaussian_utility'] is None else
          f'{row["gaussian_utility"] / row["utility"]:.3f}'
          for row in found if row['loss'] == loss) for loss in ('adp', 'ma'))


def figure_4d() -> str:
  """Figure 4d."""
  return 'both cut, Gaussian over learned, n = 1, 8, 128: ' + ', '.join(
      '-' if row['gaussian_utility'] is None else
      f'{row["gaussian_utility"] / row["utility"]:.3f}'
      for row in of('learned_sgd_figures', 'figure 4', 'cut'))


def figure_5() -> str:
  """Figure 5."""
  return 'learned delta over the staircase\'s in ranges 3, 5, 10: ' + ', '.join(
      f'{row["learned"] / row["staircase"]:.4f}'
      for row in of('learned_figures', 'figure 5', 'rows'))


def figure_6() -> str:
  """Figure 6."""
  runs = of(FIGURES, 'figure 6', 'runs')
  return 'std / mean of the loss over ten seeds: ' + ', '.join(
      f'{loss.upper()} {100 * row["final_loss_spread"]:.2g} %'
      for loss, row in runs.items()) + ' (the paper\'s: below 1 %)'


def figure_7() -> str:
  """Figure 7."""
  rows = {row['steps']: row for row in of('learned_figures', 'figure 7', 'rows')}
  return ', '.join(f'n = {n}: least delta {_format.upper(rows[n]["least_delta"], 3)} '
                   f'at '
                   f'sigma {rows[n]["sigma"]:.3g}' for n in (32, 64, 128))


def figure_8() -> str:
  """Figure 8."""
  row = of('learned_figures', 'figure 8', 'collapsed')
  return f'E abs(x) {row["utility"]:.3f}, delta {_format.upper(row["delta"], 4)}'


def figure_9() -> str:
  """Figure 9."""
  found = of('learned_figures', 'figure 9', 'claims')
  ratios = found['least delta with decay over that without, by norm and loss']
  return 'least delta with decay of the weight over that without: ' + ', '.join(
      f'{name} {value:.2g}' for name, value in ratios.items())


def figure_10() -> str:
  """Figure 10."""
  found = of('learned_sgd_figures', 'figure 10', 'deltas')
  return 'delta: ' + ', '.join(f'{name} {_format.upper(value, 3)}'
                               for name, value in found.items())


def figure_11() -> str:
  """Figure 11."""
  curves = of('learned_sgd_figures', 'figure 11', 'curves')
  found = []
  for name, curve in curves.items():
    near = min(curve, key=lambda epsilon: abs(float(epsilon) - 0.3))
    found.append(f'{name} {_format.upper(curve[near], 4)}')
  return f'delta at epsilon {float(near):.2f}: ' + ', '.join(found)


def figure_12() -> str:
  """Figure 12."""
  return 'KL to the Gaussian of equal utility: ' + ', '.join(
      f'{row["loss"].upper()}, n = {row["steps"]}: {row["kl"]:.2g}'
      for row in of('learned_figures', 'figure 12', 'rows'))


def figure_13() -> str:
  """Figure 13."""
  rows = of('learned_figures', 'figure 13', 'rows')
  return 'learned over designed delta at epsilon .1, .3, .5, 1, U = 40: ' + ', '.join(
      f'{row["learned"] / row["direct"]:.3g}' for row in rows if row['utility'] == 40)


def figure_14() -> str:
  """Figure 14."""
  found = of('learned_sgd_figures', 'figure 14', 'rows')
  return 'Gaussian over learned sqrt(E x^2), n = 1, 8, 128: ' + '; '.join(
      f'{loss.upper()} ' + ', '.join(
          '-' if row['gaussian_utility'] is None else
          f'{row["gaussian_utility"] / row["utility"]:.3f}'
          for row in found if row['loss'] == loss) for loss in ('adp', 'ma'))
