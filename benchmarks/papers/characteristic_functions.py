"""Items of paper 004: accounting by characteristic functions."""

from __future__ import annotations

import functools
import math
from typing import Any

import dp_accounting
import numpy as np
from scipy import stats

from benchmarks.papers import phi_numbers
from benchmarks.papers.item import (
  Item,
  modules,
  of,
  Paper,
  REPRODUCED,
  run,
  test,
  within,
)
import tfcactus
from tfcactus import _format, accounting, noise as noise_lib, relations
from tfcactus.accounting import views

GAUSSIAN = dp_accounting.GaussianDpEvent(2.0)
SAMPLED = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
PAIR = accounting.DominatingPair.from_masses([0.7, 0.3], [0.3, 0.7])


def _composed(event: Any, count: int, **kwargs: Any) -> accounting.PhiAccountant:
  """Returns a phi accountant that has composed an event."""
  return accounting.PhiAccountant(**kwargs).compose(event, count)


def _divergence() -> str:
  """Compares delta of a Gaussian with the closed form."""
  mu = 0.5
  exact = stats.norm.cdf(-1 / mu + mu / 2) - math.e * stats.norm.cdf(-1 / mu - mu / 2)
  found = _composed(GAUSSIAN, 1).delta_bounds(1.0)
  return (f'Gaussian of 2, delta at epsilon 1: {within(found)}, '
          f'closed form {exact:.8g}')


def _renyi() -> str:
  """Returns epsilon by three conversions of Renyi divergences, and by phi."""
  values = [accounting.RenyiAccountant(conversion=name).compose(
      GAUSSIAN, 10).get_epsilon(1e-5) for name in ('moments', 'tight', 'optimal')]
  return ('ten Gaussians of 2, delta 1e-5: epsilon at most ' + ', '.join(
      _format.upper(value) for value in values) + ' by moments, tight and optimal '
          'conversion; by phi ' + _format.upper(
              _composed(GAUSSIAN, 10).get_epsilon(1e-5)))


def _dominates() -> str:
  """Returns delta of two randomised responses, of which one dominates."""
  mixed = accounting.DominatingPair.from_masses([0.6, 0.4], [0.4, 0.6])
  return (f'delta at epsilon .2: randomised response .7 has '
          f'{PAIR.hockey_stick(0.2):.6g}, randomised response .6 has '
          f'{mixed.hockey_stick(0.2):.6g}')


def _profile() -> str:
  """Compares delta of a pair with that of its profile on a grid."""
  alpha = np.exp(np.linspace(-3, 3, 401))
  back = views.pair_from_profile(alpha, views.privacy_profile(PAIR, alpha))
  return (f'randomised response .7, from 401 points of its profile: delta at epsilon '
          f'.5 {back.hockey_stick(0.5):.8g}, exactly {PAIR.hockey_stick(0.5):.8g}')


def _adaptive() -> str:
  """Returns epsilon of Gaussians composed with randomised responses."""
  found = accounting.PhiAccountant().compose(GAUSSIAN, 3).compose(
      accounting.DominatingPairDpEvent(PAIR), 2)
  return ('three Gaussians of 2 and two randomised responses, delta 1e-5: epsilon ' +
          within(found.epsilon_bounds(1e-5), 6))


def _poisson() -> str:
  """Returns epsilon of Poisson-subsampled Gaussians in both directions."""
  found = {direction: _composed(SAMPLED, 1000, direction=direction).epsilon_bounds(1e-5)
           for direction in ('add', 'remove')}
  return 'sigma 1, q .01, 1,000 steps, delta 1e-5: epsilon ' + '; '.join(
      f'{direction} {within(bounds)}' for direction, bounds in found.items())


def _fixed_size(relation: Any = relations.ADD_OR_REMOVE) -> str:
  """Returns epsilon of Gaussians on samples of fixed size."""
  event = dp_accounting.SampledWithoutReplacementDpEvent(
      1000, 10, dp_accounting.GaussianDpEvent(4.0))
  found = _composed(event, 100, neighboring_relation=relation).epsilon_bounds(1e-5)
  return f'sigma 4, 10 of 1,000 examples, 100 steps: epsilon {within(found, 6)}'


def _phi() -> str:
  """Compares phi of a Gaussian pair with the closed form."""
  t = np.array([1.0])
  pair = noise_lib.Gaussian(2.0).dominating_pair(1).upper
  exact = complex(np.exp(0.125j - 0.125))
  value = complex(np.exp(pair.log_phi(t))[0])
  return (f'Gaussian of 2, t = 1: {value.real:.5f} + {value.imag:.5f} i by atoms; '
          f'closed form {exact.real:.5f} + {exact.imag:.5f} i')


def _phi_composed() -> str:
  """Compares log phi of two randomised responses with twice that of one."""
  joint = accounting.DominatingPair.from_masses(
      [0.49, 0.21, 0.21, 0.09], [0.09, 0.21, 0.21, 0.49])
  one, two = (complex(pair.log_phi(np.array([0.7]))[0]) for pair in (PAIR, joint))
  return (f'real part of log phi(.7) of two randomised responses {two.real:.8f}, twice '
          f'one {2 * one.real:.8f}')


def _laplace() -> str:
  """Returns epsilon of composed Laplace releases."""
  event = accounting.noise_event(tfcactus.Laplace(5.0))
  return 'Laplace of 5, delta 1e-5: epsilon ' + ', '.join(
      f'{count} times {within(_composed(event, count).epsilon_bounds(1e-5), 13)}'
      for count in (2, 30, 100))


def _binomial() -> str:
  """Compares delta of composed randomised responses with the binomial law."""
  accountant = _composed(accounting.DominatingPairDpEvent(PAIR), 20)
  k = np.arange(21)
  p = stats.binom.pmf(k, 20, 0.7)
  exact = float(np.sum(np.maximum(p - math.exp(2.0) * p[::-1], 0.0)))
  return (f'twenty randomised responses, delta at epsilon 2: '
          f'{within(accountant.delta_bounds(2.0))}, by the binomial law {exact:.8g}')


def _afa() -> str:
  """Returns the largest width and the shortest time of the accountant's bounds."""
  widest = max(row['upper'] - row['lower'] for row in of('accountant_speed', 'points'))
  fastest = min(row['milliseconds'] for row in of('accountant_speed', 'points'))
  return (f'seven settings: bounds at most {_format.upper(widest, 2)} apart, in '
          f'{fastest:.1f} ms at the fastest')


def _fuzz() -> str:
  """Returns how many bounds were wrong in random settings."""
  found = of('accountant_fuzz')
  return f'{found["settings"]:,} random settings: {len(found["wrong"])} wrong bounds'


def _runtime() -> str:
  """Returns the slowdown of other accountants against the phi accountant."""
  rows = of('accountant_speed', 'points')
  slower = {name: [row[f'{name.lower()}_milliseconds'] / row['milliseconds']
                   for row in rows] for name in ('PLD', 'PRV', 'RDP')
            if rows[0].get(f'{name.lower()}_milliseconds')}
  return 'seven settings, CPU time over that of the phi accountant: ' + ', '.join(
      f'{name} {min(times):.0f} to {max(times):.0f}' for name, times in slower.items())


def _tradeoff() -> str:
  """Compares delta of a pair with that of its trade-off function on a grid."""
  x = np.linspace(0, 1, 201)
  back = views.pair_from_tradeoff(x, views.tradeoff(PAIR, x))
  return (f'randomised response .7, from 201 points of its trade-off: delta at '
          f'epsilon .5 {back.hockey_stick(0.5):.8g}, exactly '
          f'{PAIR.hockey_stick(0.5):.8g}')


def _cdf() -> str:
  """Returns the distribution function of a loss below and at an atom."""
  pair, loss = PAIR, math.log(7 / 3)
  below, at = views.loss_cdf(pair, np.array([loss - 1e-9, loss]))
  return (f'distribution function of randomised response .7: {below:.6g} below its '
          f'larger loss, {at:.6g} at it')


def _composed_cdf() -> str:
  """Compares the distribution function of a composed loss with the exact one."""
  part = _composed(GAUSSIAN, 4, direction='remove').compositions()['remove']
  exact = stats.norm.cdf(1.0, 0.5, 1.0)
  found = views.composed_loss_cdf(part, 1.0)
  return (f'four Gaussians of 2, losses up to 1: {within(found)}, '
          f'exactly {exact:.8g}')


def _lemma_23() -> str:
  """Compares a Renyi divergence with the value by hand."""
  value = PAIR.renyi_divergence(3.0)
  exact = 0.5 * math.log(0.7**3 / 0.3**2 + 0.3**3 / 0.7**2)
  return f'order 3, randomised response .7: {value:.10g}, by hand {exact:.10g}'


def _infinite() -> str:
  """Returns delta of composed pairs with mass at infinite loss."""
  pair = accounting.DominatingPair.from_masses([0.5, 0.49, 0.01], [0.4, 0.6, 0.0])
  accountant = _composed(accounting.DominatingPairDpEvent(pair), 10)
  return (f'mass .01 at infinity, ten times, delta at epsilon 5: '
          f'{within(accountant.delta_bounds(5.0), 6)}; '
          f'1 - .99^10 = {1 - 0.99**10:.6f}')


def _optimal() -> str:
  """Compares epsilon by the best conversion of divergences with the exact one."""
  event = accounting.DominatingPairDpEvent(PAIR)
  by_renyi = accounting.RenyiAccountant(
      conversion='optimal', orders=list(1 + np.geomspace(0.01, 1e4, 400))).compose(
          event).get_epsilon(0.05)
  exact = math.log((0.7 - 0.05) / 0.3)
  return (f'randomised response .7, delta .05: epsilon {_format.upper(by_renyi)} by '
          f'Renyi divergences, exactly {exact:.6g}')


def _figure(name: str) -> tuple[str, ...]:
  """Returns the places of a figure: its benchmark and its picture."""
  return ('benchmarks.phi_figures', f'benchmarks/results/paper004_figure{name}.png')


FIGURES = phi_numbers.FIGURES
_PAIR = 'pairs.dominating_pair.DominatingPair'
_PHI = 'papers.levy.PhiFunction'
_VIEWS = 'accounting.views'
_C = 'accounting/composition/test_composition'
_ITEMS: tuple[tuple[str, tuple[str, ...], str, str, Any], ...] = (
    ('Definitions 1 to 5, Lemma 5: profile, trade-off, losses', modules(_PAIR, _VIEWS),
     REPRODUCED, test(f'{_C}::test_composed_gaussians_are_one_gaussian'), _divergence),
    ('Definition 6: Renyi DP and conversions',
     modules('accounting.RenyiAccountant'), REPRODUCED,
     test('accounting/test_renyi::test_conversions_are_ordered_and_sound'), _renyi),
    ('Definition 7, Proposition 8: dominating pairs', modules(_PAIR), REPRODUCED,
     test('noise/test_pairs::test_full_shift_dominates_smaller_ones_if_monotone'),
     _dominates),
    ('Lemma 9, Corollary 25: pairs from profiles',
     modules(f'{_VIEWS}.pair_from_profile'), REPRODUCED,
     test('accounting/test_views::test_profile_points_give_a_dominating_pair'),
     _profile),
    ('Theorem 10: adaptive composition', modules('accounting.Composition'), REPRODUCED,
     test(f'{_C}::test_random_discrete_pairs_against_enumeration'), _adaptive),
    ('Section 4.1 (1), Lemmas 27, 28: Poisson sampling', modules(
        f'{_PAIR}.poisson', 'sampling.PoissonSampling'), REPRODUCED,
     test(f'{_C}::test_subsampled_gaussian_reference'), _poisson),
    ('Section 4.1 (2), Lemma 30: samples of fixed size, add or remove',
     modules('accounting.event_steps', 'sampling.FixedSizeSampling'), REPRODUCED,
     test('accounting/test_event_steps::'
          'test_fixed_size_add_remove_is_poisson_at_shift_two'), _fixed_size),
    ('Proposition 29, Corollary 31: samples of fixed size, replace',
     modules('pairs.overlap'),
     REPRODUCED, test('accounting/test_event_steps::'
                      'test_fixed_size_replace_is_above_both_directions'),
     functools.partial(_fixed_size, relations.REPLACE)),
    ('Definition 11: phi', modules(f'{_PAIR}.log_phi'), REPRODUCED,
     test('accounting/composition/losses/test_gaussian::test_moments_and_phi'), _phi),
    ('Proposition 12: phi of a composition', modules(f'{_PAIR}.log_phi'),
     REPRODUCED, test('accounting/test_views::test_loss_distribution_and_phi'),
     _phi_composed),
    ('Lemma 32: randomised response',
     modules('accounting.randomized_response_event'), REPRODUCED,
     test(f'{_C}::test_randomised_response_is_binomial'), _binomial),
    ('Lemma 33: Laplace', modules('accounting.composition.losses.laplace.log_moment',
                                  f'{_PHI}.laplace'), REPRODUCED,
     test('accounting/composition/test_mixed_contours::'
          'test_laplace_moments_against_mpmath'), phi_numbers.laplace),
    ('Laplace, composed', modules('accounting.composition.laplace_sum'),
     'corrected: phi does not decay; its residues are summed in exact integers in '
     'place of a quadrature',
     test('accounting/composition/test_laplace_sum::'
          'test_sums_over_atoms_and_uniform_variables'), _laplace),
    ('Lemma 34: Gaussian', modules('accounting.composition.losses.gaussian',
                                   f'{_PHI}.gaussian'), REPRODUCED,
     test('accounting/composition/losses/test_gaussian::test_moments_and_phi'), _phi),
    ('Algorithm 1, Theorem 16, Lemma 17: Levy\'s formula',
     modules('papers.levy.LevyComposition'),
     'corrected: a sum with bounds on all errors in place of a quadrature that is '
     'assumed to be exact', test('papers/test_levy::test_gaussians'),
     phi_numbers.levys_formula),
    ('Levy\'s formula for a phi that the user supplies', modules(_PHI), REPRODUCED,
     test('papers/test_levy::test_a_phi_of_ones_own'), phi_numbers.own_phi),
    ('Algorithm 1 in the accountant, in place of Lemma 41',
     modules('accounting.composition.contour'),
     'corrected: a tilted contour with bounds on all errors', run('accountant_speed'),
     _afa),
    ('Errors of Algorithm 1 against other methods', modules('accounting.PhiAccountant'),
     REPRODUCED, run('accountant_fuzz'), _fuzz),
    ('Figure 1', _figure('1'),
     'in part: at an epsilon chosen here, since the paper\'s text states none',
     run(FIGURES), phi_numbers.figure_1),
    ('Experiment 1, Figure 3a: Gaussians', _figure('3a'), REPRODUCED, run(FIGURES),
     phi_numbers.experiment_1),
    ('Experiment 2, Figure 3b: Gaussians and randomised response',
     (*modules('accounting.composition.discrete_contours'), *_figure('3b')),
     'in part: compared with PLD and PRV in place of the Fourier accountant',
     run(FIGURES), phi_numbers.experiment_2),
    ('Experiment 3, Figure 3c: Poisson-sampled Gaussians', _figure('3c'),
     'corrected: the published curve of the Fourier accountant lies above the proved '
     'upper bound, which PLD confirms', run(FIGURES), phi_numbers.experiment_3),
    ('Figure 4, Proposition 29 for Poisson samples: one pair for both directions',
     (*modules('pairs.envelope.envelope_of'), *_figure('4')),
     'in part: at parameters chosen here', run(FIGURES), phi_numbers.figure_4),
    ('Table of runtimes', ('benchmarks.accountant_speed',),
     'in part: in settings chosen here, with PLD and PRV in place of the Fourier '
     'accountant',
     run('accountant_speed'), _runtime),
    ('Figure 2, Lemmas 18 to 22, 24, 45 to 47: conversions', modules(_VIEWS),
     REPRODUCED, test('accounting/test_views::test_round_trips'), _cdf),
    ('Appendix B: from a distribution function of the loss',
     modules('papers.conversions.pair_from_loss_cdf'), REPRODUCED,
     test('papers/test_conversions::'
          'test_a_distribution_function_becomes_a_pair'), phi_numbers.from_loss_cdf),
    ('Appendix B: from Renyi divergences',
     modules('papers.conversions.profile_from_renyi'),
     'in part: an upper bound on the profile, from divergences at some orders; an '
     'exact inversion would need all orders', test('papers/test_conversions::'
                                         'test_renyi_divergences_become_a_profile'),
     phi_numbers.from_renyi),
    ('Appendix B: Post\'s formula', modules('papers.conversions.profile_by_post'),
     'in part: for losses bounded from below, by differences in place of derivatives; '
     'the width of the proved bounds falls with the square root of the number of '
     'differences',
     test('papers/test_post_formula::test_bounds_hold_and_close'),
     phi_numbers.posts_formula),
    ('Appendix B: any other inverse Laplace transform',
     modules('accounting.composition.contour'), REPRODUCED,
     test(f'{_C}::test_subsampled_gaussian_reference'), phi_numbers.tilted_contour),
    ('Appendix B: phi and Renyi divergences, imaginary and real orders',
     modules('accounting.composition.losses.laplace.log_moment', f'{_PHI}.laplace'),
     REPRODUCED, test('accounting/composition/test_mixed_contours::'
                      'test_laplace_moments_against_mpmath'),
     phi_numbers.imaginary_orders),
    ('Appendix B: from phi to a trade-off function, Levy\'s formula and Lemma 21',
     modules('papers.levy.LevyComposition.loss_cdf', f'{_VIEWS}.tradeoff'),
     'corrected: a proved lower bound, from a grid of losses',
     test('papers/test_conversions::'
          'test_phi_to_distribution_function_to_pair'), phi_numbers.phi_to_tradeoff),
    ('Appendix B: the distribution function of a composition\'s loss',
     modules(f'{_VIEWS}.composed_loss_cdf'), REPRODUCED,
     test('accounting/test_views::test_composed_loss_distribution_of_gaussians'),
     _composed_cdf),
    ('Lemma 44: pairs from trade-offs', modules(f'{_VIEWS}.pair_from_tradeoff'),
     REPRODUCED, test('accounting/test_views::test_profile_and_tradeoff_are_conjugate'),
     _tradeoff),
    ('Lemma 23: Renyi divergence', modules(f'{_PAIR}.renyi_divergence'), REPRODUCED,
     test('accounting/test_views::test_renyi_divergence'), _lemma_23),
    ('Examples 13, 15, Lemma 36, Proposition 37: mass at infinity', modules(_PAIR),
     REPRODUCED, test('pairs/test_dominating_pair::test_toy_of_truncated_noise'),
     _infinite),
    ('Definition 35: discrete mechanisms', modules(f'{_PAIR}.from_masses'), REPRODUCED,
     test('accounting/test_event_steps::test_discrete_pairs_are_events'), _binomial),
    ('Example 14: a variance that depends on the data',
     modules('pairs.continuous.continuous_pair'), REPRODUCED,
     test('pairs/test_continuous::test_variance_that_depends_on_the_data'),
     phi_numbers.example_14),
    ('Algorithm 2, Definition 38, Lemma 39, Corollary 40, Theorem 43: densities on a '
     'grid', modules('pairs.continuous.continuous_pair', 'pairs.cells'),
     'corrected: masses of cells by distribution functions in place of Riemann sums, '
     'which are bounds for monotone integrands only',
     test('pairs/test_continuous::test_cauchy_noise'), phi_numbers.own_densities),
    ('Appendix F.1: the trade-off function that Renyi divergences imply',
     modules('accounting.renyi.tradeoff_from_renyi'), REPRODUCED,
     run(FIGURES), phi_numbers.touching),
    ('Appendix F: orders below one matter',
     (*modules('accounting.RenyiAccountant'), 'benchmarks.phi_figures',
      'benchmarks/results/paper004_appendix_f.png'), REPRODUCED, run(FIGURES),
     phi_numbers.below_one),
    ('Appendix F.2, F.3: the best conversion for one mechanism',
     modules('accounting.renyi'),
     'in part: the bounds are proved; that no better ones exist is the paper\'s '
     'conjecture; epsilon uses orders above one',
     test('accounting/test_renyi_tradeoff::test_randomised_response_is_found_again'),
     lambda: f'{_optimal()}; {phi_numbers.best_conversion()}'))

PAPER = Paper(
    '004: Zhu, Dong and Wang, "Optimal Accounting of Differential Privacy via '
    'Characteristic Function" (AISTATS 2022)', tuple(Item(*each) for each in _ITEMS),
    'Not implemented: double quadrature (Lemma 42); sums with bounded errors take its '
    'place. Theorem 26 restates Theorem 10.')
