"""Items of paper 000: cactus mechanisms."""

from __future__ import annotations

import functools
import math

import numpy as np

from benchmarks.papers.item import Item, of, Paper, REPRODUCED, run, test
from tfcactus import _format, accounting, design
from tfcactus.noise import scalar_pairs, scalar_table

FIGURES, ACCOUNTS = 'paper_figures', 'cactus_figures'
up = _format.upper


@functools.cache
def _cactus(bins: int = 40, power: float = 2.0, budget: float = 0.25
            ) -> scalar_table.ScalarTable:
  """Returns a cactus table with `bins` cells per unit of sensitivity."""
  return design.Cactus(budget, bins=bins, power=power).solve()


def _epsilon_per_release(count: int) -> float:
  """Returns epsilon / k of k releases, at delta 1e-5."""
  accountant = accounting.PhiAccountant().compose(
      accounting.noise_event(_cactus()), count)
  return accountant.get_epsilon(1e-5) / count


def _limit() -> str:
  """Returns epsilon / k for increasing k, and the KL divergence."""
  found = ', '.join(_format.upper(_epsilon_per_release(count), 5)
                    for count in (1, 100, 10_000))
  return (f'epsilon / k at k = 1, 100, 10,000: at most {found}; '
          f'KL {_cactus().info["objective"]:.5g}')


def _absolute_cost() -> str:
  """Returns KL of designs with bounded E abs(Z), and of Laplace noise."""
  values = [_cactus(power=1.0, budget=budget).info['objective']
            for budget in (0.25, 1.0)]
  laplace = [math.exp(-1 / c) - 1 + 1 / c for c in (0.25, 1.0)]
  return '; '.join(f'E abs(Z) = {c}: KL {v:.5g}, Laplace {other:.5g}'
                   for c, v, other in zip((0.25, 1), values, laplace))


def _mass() -> str:
  """Returns the error of the total mass of a cactus table."""
  table, last = _cactus(), _cactus().log_density.size - 1
  half = np.exp(table.log_density) / table.bins
  tail = half[last] * math.exp(table.log_tail_ratio) / (
      1 - math.exp(table.log_tail_ratio))
  total = half[0] + 2 * (math.fsum(half[1:]) + tail)
  return (f'error of the total mass at n = 40: below '
          f'{max(abs(total - 1), 1e-15):.0e}')


def _shifts() -> str:
  """Returns delta by the full shift and by the worst shift."""
  table = _cactus()
  envelope = max(scalar_pairs.shifted(table, k).hockey_stick(3.0)
                 for k in range(1, table.bins + 1))
  full = scalar_pairs.shifted(table, table.bins).hockey_stick(3.0)
  return (f'delta at epsilon 3, n = 40: {full:.5g} by the full shift, {envelope:.5g} '
          'by the worst shift')


def _moment() -> str:
  """Returns the second moment of a cactus table."""
  return f'E Z^2 = {_cactus().moment(2):.9g}, requested .25'


def _gap(bins: int) -> str:
  """Returns the KL divergence of a design and its lower bound."""
  info = _cactus(bins).info
  return (f'n = {bins}: KL {info["objective"]:.8g}, lower bound '
          f'{_format.lower(info["lower_bound"], 8)}')


def _refined() -> str:
  """Returns the KL divergence on finer and finer grids."""
  return 'KL at n = 10, 20, 40: ' + ', '.join(
      f'{_cactus(bins).info["objective"]:.6g}' for bins in (10, 20, 40))


def _drawn() -> str:
  """Compares the second moment of draws with that of the table."""
  table = _cactus()
  z = table.sample(np.random.default_rng(0), 400_000)
  return (f'E Z^2 of 400,000 draws {np.mean(z * z):.3f}, of the table '
          f'{table.moment(2):.3f}')


def _figure_1() -> str:
  """Returns KL, gap and density peaks of Figure 1."""
  found = of(FIGURES, 'paper 000, figure 1')
  return (f'KL {found["objective"]:.7g} (Gaussian 2), gap '
          f'{_format.upper(found["gap"], 1)}; density peaks at '
          f'{found["local_maxima"][0]:.3g} and {found["local_maxima"][1]:.3g}')


def _figure_2a() -> str:
  """Returns KL at sigma 2 with both tails, and of the Gaussian."""
  row, = (each for each in of(FIGURES, 'paper 000, figure 2a')
          if each['budget'] == 4.0)
  return (f'sigma 2: KL {row["cactus_r9"]:.6g} as printed, {row["cactus"]:.6g} with a '
          f'matched tail, Gaussian {row["gaussian"]:.6g}')


def _figure_2b() -> str:
  """Returns epsilon of 100 releases of a number, published and exact."""
  rows = of(ACCOUNTS, 'figure_2b')
  last = rows[-1]
  below = next(row['steps'] for row in rows
               if row['published_cactus'] < row['number_cactus'])
  return (f'{last["steps"]} releases of a number, delta 1e-3: epsilon '
          f'{up(last["published_cactus"], 5)} by the published account, exactly '
          f'{up(last["number_cactus"], 5)}; the published account is too small from '
          f'{below} releases on; Gaussian {up(last["published_gaussian"], 5)} and '
          f'{up(last["number_gaussian"], 5)}')


def _figure_2c() -> str:
  """Returns epsilon after all steps, published and for numbers and vectors."""
  row = of(ACCOUNTS, 'figure_2c')[-1]
  return (f'{row["steps"]:,} steps, delta 1e-5: epsilon '
          f'{up(row["published_cactus"], 5)} by the published account, '
          f'{up(row["number_cactus"], 5)} for a number, over '
          f'{_format.lower(row["vector_cactus_at_least"], 4)} for a vector; Gaussian '
          f'{up(row["published_gaussian"], 5)} by the published account, '
          f'{up(row["vector_gaussian"], 5)} for a vector')


def _figure_2d() -> str:
  """Returns accuracy and epsilon after the last epoch."""
  found = of(ACCOUNTS, 'figure_2d')
  accuracy = {name: 100 * float(np.mean([each[-1] for each in runs]))
              for name, runs in of(ACCOUNTS, 'accuracy').items()}
  return (f'{len(found["published_cactus"])} epochs: {accuracy["cactus"]:.2f} % with '
          f'the cactus, epsilon {up(found["published_cactus"][-1], 4)} as published, '
          f'over {_format.lower(found["vector_cactus_at_least"][-1], 4)} for a vector; '
          f'{accuracy["gaussian"]:.2f} % with the Gaussian, epsilon '
          f'{up(found["vector_gaussian"][-1], 4)}')


def _vectors() -> str:
  """Compares KL of a change in one entry with one spread over four entries."""
  table = _cactus()
  index = np.arange(-400 * 40 // 10, 400 * 40 // 10 + 1) / table.bins
  log_density = table.log_density_at(index)
  def divergence(change: float) -> float:
    moved = table.log_density_at(index + change)
    return float(np.sum(np.exp(log_density) * (log_density - moved)) / table.bins)
  one = max(divergence(k / table.bins) for k in range(1, table.bins + 1))
  four = 4 * divergence(0.5)
  return (f'KL of i.i.d. entries: a change of one in one entry {one:.4g}, spread over '
          f'four {four:.4g}')


def _picture(name: str) -> tuple[str, ...]:
  """Returns the places of a figure: its benchmark and its picture."""
  return ('benchmarks.cactus_figures', f'benchmarks/results/paper000_figure2{name}.png')


PAPER = Paper(
    '000: Alghamdi et al., "Cactus Mechanisms: Optimal Differential Privacy Mechanisms '
    'in the Large-Composition Regime" (ISIT 2022)', (
        Item('(1) to (5): loss, (epsilon, delta), and epsilon / k to KL',
             ('tfcactus.accounting.PhiAccountant', 'tfcactus.pairs.dominating_pair'),
             REPRODUCED,
             test('accounting/composition/test_composition::test_table_reference'),
             _limit),
        Item('Assumption 1: costs', ('tfcactus.design.solvers.cost',), REPRODUCED,
             test('design/test_objectives::test_another_cost_is_met_and_verified'),
             _absolute_cost),
        Item('Definition 1, (13) to (16): step densities with geometric tails',
             ('tfcactus.noise.ScalarTable',), REPRODUCED,
             test('design/test_scalar::test_mass_cost_and_symmetry'), _mass),
        Item('(17), (18): the worst shift k / n',
             ('tfcactus.pairs.envelope', 'tfcactus.noise.scalar_pairs'),
             'corrected: the worst shift may depend on epsilon; the accountant takes '
             'the envelope over all shifts',
             test('noise/test_pairs::test_envelope_is_the_largest_profile_over_shifts'),
             _shifts),
        Item('(19): cost of a cell', ('tfcactus.design.solvers.cost',), REPRODUCED,
             test('design/test_scalar::test_mass_cost_and_symmetry'), _moment),
        Item('Theorem 2, program (20), by an interior-point method (section IV)',
             ('tfcactus.design.Cactus', 'tfcactus.design.solvers.interior_point'),
             REPRODUCED, test('design/test_scalar::test_bound_and_gap'),
             functools.partial(_gap, 40)),
        Item('Theorem 3: finer grids approach the optimum', ('tfcactus.design.Cactus',),
             REPRODUCED, test('design/test_scalar::'
                              'test_cactus_approaches_the_fine_grid_from_above'),
             _refined),
        Item('Remark 3: choice of n, N, r', ('tfcactus.design.scalar',), REPRODUCED,
             test('design/test_scalar::test_tail_default_is_better_than_far_off_tails'),
             functools.partial(_gap, 20)),
        Item('Sampling of the noise', ('tfcactus.noise.ScalarTable',), REPRODUCED,
             test('noise/test_scalar_table::test_tail_is_geometric_and_really_drawn'),
             _drawn),
        Item('Figure 1', ('benchmarks.paper_figures',
                          'benchmarks/results/paper000_figure1.png'),
             REPRODUCED, run('paper_figures'), _figure_1),
        Item('Figure 2a', ('benchmarks.paper_figures',
                           'benchmarks/results/paper000_figure2a.png'),
             'corrected: the printed grid truncates wide noise too early, and is worse '
             'than the Gaussian at sigma 2; a matched tail is not',
             run('paper_figures'),
             _figure_2a),
        Item('Figure 2b', _picture('bc'),
             'corrected: the published account considers the full shift only, and '
             'falls below the exact account of all shifts; both are drawn',
             run(ACCOUNTS), _figure_2b),
        Item('Figure 2c', _picture('bc'),
             'corrected: the published account is for one number; the cost for a '
             'vector is drawn too', run(ACCOUNTS), _figure_2c),
        Item('Figure 2d', _picture('d'),
             'corrected: the accuracies are drawn against the published epsilon and '
             'against a lower bound on epsilon for a vector', run(ACCOUNTS),
             _figure_2d),
        Item('Section IV: the tutorial\'s CNN trained with scalar noise for each '
             'weight',
             ('tfcactus.PrivacyPlan',),
             'corrected: refused for vectors, unless requested as unproven, since a '
             'change that is spread over the entries costs more',
             test('test_plan::test_scalar_noise_for_a_vector_is_refused'), _vectors)),
    'Figures 2b to 2d of the paper have curves and no numbers. Without computational '
    'content: (6) to (12), Theorem 1, Remark 1.')
