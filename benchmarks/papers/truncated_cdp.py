"""Items of paper 002: truncated concentrated differential privacy."""

from __future__ import annotations

import functools
import math
from typing import Any

from benchmarks.papers.item import Item, modules, of, Paper, REPRODUCED, run, test
import tfcactus
from tfcactus import _format, accounting, noise as noise_lib
from tfcactus.accounting import truncated_cdp
from tfcactus.noise import sinh_normal
from tfcactus.papers import tcdp
from tfcactus.release import interior, planner, selection, threshold_queries

FIGURES, PICTURES = 'truncated_cdp', 'tcdp_figures'
CLAIM = accounting.TCDP(0.01, 20.0)
BENT = noise_lib.SinhNormal(1 / math.sqrt(2 * 0.01), 20.0)
up, down = _format.upper, _format.lower


def _definitions() -> str:
  """Returns epsilon of a tCDP claim."""
  return (f'({CLAIM.rho:g}, {down(CLAIM.omega)})-tCDP: epsilon '
          f'{up(CLAIM.epsilon(1e-6))} at delta 1e-6')


def _composed() -> str:
  """Returns the composition of two tCDP claims."""
  both = CLAIM.compose(accounting.TCDP(0.02, 15.0))
  return f'(.01, 20) and (.02, 15): ({both.rho:g}, {down(both.omega)})'


def _lemma_6() -> str:
  """Compares epsilon of zCDP, tCDP and the Gaussian itself."""
  gaussian = accounting.PhiAccountant().compose(
      accounting.noise_event(tfcactus.Gaussian(1 / math.sqrt(0.02)))).get_epsilon(1e-6)
  return (f'rho .01, delta 1e-6: epsilon {up(accounting.TCDP(0.01).epsilon(1e-6))} by '
          f'zCDP, {up(CLAIM.epsilon(1e-6))} with omega 20, exactly {up(gaussian)} for '
          'the Gaussian')


def _groups() -> str:
  """Returns the tCDP claim for a group of four records."""
  group = CLAIM.group(4)
  return f'four records of (.01, 20): ({group.rho:g}, {down(group.omega)})'


def _large_groups() -> str:
  """Returns epsilon for a group of forty records, ours and as printed."""
  group = CLAIM.large_group(40)
  return (f'40 records of (.01, 20): epsilon {up(group.epsilon(1e-6), 5)} at 1e-6, as '
          f'printed {up(group.printed_epsilon(1e-6), 5)}')


def _theorem_11() -> str:
  """Returns the claim of Theorem 11, and whether it is proved."""
  claim = accounting.TCDP(0.1).printed_theorem_11(0.1)
  return (f'rho .1, s .1: claims ({claim.claim.rho:.3g}, '
          f'{down(claim.claim.omega, 4)})-tCDP, which is '
          f'{"proved" if claim.proven else "not proved"}')


def _theorem_12() -> str:
  """Returns the claim of Theorem 12, and the exact constants."""
  claim = accounting.TCDP(0.01).subsample(0.01)
  constants = [row['constant'] for row in of(FIGURES, 'theorem_12')]
  return (f'rho .01, s .01: ({claim.rho:.4g}, {down(claim.omega, 5)})-tCDP; exact '
          f'constants of subsampled Gaussians {min(constants):.4g} to '
          f'{max(constants):.4g} (the paper\'s 13)')


def _lemma_15() -> str:
  """Compares a Renyi divergence under sampling with the value by hand."""
  mixed = [0.1 * 0.7 + 0.9 * 0.3, 0.1 * 0.3 + 0.9 * 0.7]
  value = math.log(sum(m * m / q for m, q in zip(mixed, (0.3, 0.7))))
  sampled = accounting.DominatingPair.from_masses(
      mixed, [0.3, 0.7]).renyi_divergence(2.0)
  return f'order 2, randomised response .7, s .1: {sampled:.10g}, by hand {value:.10g}'


def _theorem_17() -> str:
  """Returns epsilon of sinh-normal noise: exact, Renyi and Theorem 17."""
  row = of(FIGURES, 'sinh_normal')[2]
  return (f'rho .01, bend 20, delta 1e-5: epsilon exactly '
          f'{up(row["exact_1e-05"], 5)}, by Renyi divergences '
          f'{up(row["renyi_1e-05"], 5)}, by the theorem '
          f'{up(row["theorem_17_1e-05"], 5)}')


def _proposition_4() -> str:
  """Compares rho of sinh-normal noise by the theorem with the exact one."""
  bound = tcdp.sinh_normal_bound(BENT)
  exact = truncated_cdp.certificate(
      functools.partial(sinh_normal.renyi_divergence, BENT), bound.omega)
  return (f'sigma^2 = 1 / (2 rho), rho .01, bend 20: rho {bound.rho:.4g} by the '
          f'theorem, exactly {up(exact.rho, 4)}, omega {down(bound.omega, 4)}')


def _corollary_18() -> str:
  """Returns the largest error of a histogram."""
  error = tcdp.histogram_error(0.1, 10.0, num_bins=1000, beta=0.05)
  return (f'rho .1, omega 10, 1,000 bins: errors up to {up(error)} with probability '
          '.95')


def _gap(method: str, options: int = 10**6) -> str:
  """Returns gap and success rate of Gap-Max with sinh-normal noise."""
  row, = (each for each in of('gap_max', 'rows') if (
      each['releases'], each['noise'], each['options'], each['method']) == (
          100, 'sinh-normal', options, method))
  return (f'100 releases, epsilon 1, a million options: gap {up(row["gap"], 5)}, '
          f'success rate {row["success"]["share"]:.4f} in '
          f'{row["success"]["runs"]:,} runs')


def _against_gaussian() -> str:
  """Compares gaps with sinh-normal and Gaussian noise."""
  rows = {row['noise']: row['gap'] for row in of('gap_max', 'rows') if (
      row['releases'], row['options'], row['method']) == (
          1000, 10**30, 'obvious-answer')}
  return (f'1,000 releases, 1e30 options: gap {up(rows["sinh-normal"], 5)} with '
          f'sinh-normal noise, {up(rows["Gaussian"], 5)} with Gaussian noise')


def _lemma_23() -> str:
  """Returns the least gap, and the gap of Lemma 23."""
  gap = selection.smallest_gap(BENT, num_options=1000, beta=0.05)
  return (f'1,000 options, sinh-normal: the gap found with probability .95 is '
          f'{up(gap, 6)}; with the lemma\'s 4 t + 2, probability .999, '
          f'{up(4 * float(-BENT.quantile(1e-3)) + 2, 5)}')


def _interior() -> str:
  """Returns queries and rank errors of medians by both methods."""
  rows = {(row['size'], row['method']): row for row in of(FIGURES, 'medians')}
  one, two = (rows[2**62, method] for method in interior.METHODS)
  return (f'median of 2^62 values at epsilon 1: {two["questions"]} queries and rank '
          f'error {up(two["planned_error"], 4)}; binary search {one["questions"]} '
          f'queries and {up(one["planned_error"], 4)}')


def _thresholds() -> str:
  """Returns levels and noise of a sketch for threshold queries."""
  levels = threshold_queries.num_levels(2**20)
  noise = planner.noise_for_epsilon('gaussian', 1.0, 1e-6, releases=levels)
  return (f'2^20 values at epsilon 1: {levels} levels, each with Gaussian noise of '
          f'{up(noise.noise_multiplier, 5)}')


def _histogram() -> str:
  """Returns the Gaussian noise of a histogram."""
  noise = planner.noise_for_epsilon('gaussian', 1.0, 1e-6)
  return f'epsilon 1 at 1e-6: Gaussian noise of {up(noise.noise_multiplier, 5)} a count'


def _basic() -> str:
  """Returns rho of pure DP and of a Gaussian."""
  pure, gaussian = accounting.TCDP.from_pure_dp(1.0), accounting.TCDP.from_zcdp(0.5)
  return (f'epsilon 1 gives rho {pure.rho:g}; a Gaussian of 1 has rho .5, epsilon '
          f'{up(gaussian.epsilon(1e-6))} at 1e-6')


def _tails() -> str:
  """Returns tails of the privacy loss under four definitions."""
  tails = (tcdp.pure_dp(0.5, 4.0),
           tcdp.truncated_cdp_tail(accounting.TCDP(0.125), 4.0),
           tcdp.truncated_cdp_tail(accounting.TCDP(0.125, 6.0), 4.0),
           tcdp.renyi_dp(6.0, 0.75, 4.0))
  return ('P(loss > 4) at most ' + ', '.join(up(float(tail), 3) for tail in tails) +
          ' under .5-DP, .125-zCDP, (.125, 6)-tCDP, (6, .75)-RDP')


def _approximate_tails() -> str:
  """Returns tails of the privacy loss under approximate definitions."""
  one, other = (float(tail) for tail in (
      tcdp.approximate_dp(2.0, 1e-6, 3.0),
      tcdp.approximate_zcdp(0.125, 1e-6, 4.0)))
  return (f'P(loss > 3) at most {up(one, 4)} under (2, 1e-6)-DP; P(loss > 4) at most '
          f'{up(other, 4)} under 1e-6-approximate .125-zCDP')


def _figure_1() -> str:
  """Returns the tails of Figure 1 at the largest saved loss."""
  losses, tails = of(PICTURES, 'losses'), of(PICTURES, 'tails')
  return f'P(loss > {losses[-1]:g}): ' + ', '.join(
      f'{name} {up(tail[-1], 3)}' for name, tail in tails.items())


def _figure_2() -> str:
  """Returns log densities of Figure 2."""
  found = of(PICTURES, 'figure_2')
  at = {z: i for i, z in enumerate(found['z'])}
  return 'log density at 0, 1, 2, 4: ' + '; '.join(
      f'{name} ' + ', '.join(f'{found[key][at[z]]:.5g}' for z in (0.0, 1.0, 2.0, 4.0))
      for name, key in (('Z', 'normal'), ('arsinh(Z)', 'sinh_normal')))


def _exponential() -> str:
  """Returns error, rho and epsilon of the exponential mechanism."""
  event = accounting.ExponentialMechanismDpEvent(1.0)
  ten = accounting.PhiAccountant().compose(event, 10).get_epsilon(1e-6)
  # With sensitivity one, a score is multiplied by half of epsilon.
  below = 2 * selection.shortfall(10**6, 0.05)
  return (f'epsilon 1, a million options: score within {up(below, 4)} of the best with '
          f'probability .95; rho {accounting.TCDP.from_bounded_range(1.0).rho:g} (the '
          f'paper\'s .5); ten releases: epsilon {up(ten)} at 1e-6')


def _theorem_26() -> str:
  """Returns bounds on mutual information, ours and as printed."""
  guarantee = accounting.TCDP(1e-4, 80.0)
  return ('(1e-4, 80)-tCDP, 50 and 200 records: mutual information in nats at most '
          ) + ' and '.join(
      f'{up(tcdp.mutual_information(guarantee, n), 4)} (as printed '
      f'{up(tcdp.printed_mutual_information(guarantee, n), 4)})' for n in (50, 200))


def _corollary_27() -> str:
  """Returns necessary and sufficient numbers of records."""
  row, = (each for each in of(PICTURES, 'histograms') if each['power'] == 32)
  return (f'(1e-4, 80)-tCDP, 1e32 bins: {row["lower"]} records are necessary, as '
          f'printed {math.ceil(row["lower_printed"])}; {math.ceil(row["upper"])} are '
          f'sufficient, by Corollary 18 {math.ceil(row["upper_printed"])}')


def _tested(name: str) -> str:
  """Returns the pytest node of a test of tCDP."""
  return test(f'accounting/test_truncated_cdp::{name}')


def _picture(name: str) -> tuple[str, ...]:
  """Returns the places of a figure: its benchmark and its picture."""
  return ('benchmarks.tcdp_figures', f'benchmarks/results/paper002_{name}.png')


_CLASS = 'accounting.truncated_cdp.TCDP'
_ITEMS: tuple[tuple[str, tuple[str, ...], str, str, Any], ...] = (
    ('Definitions 1, 7', modules(_CLASS), REPRODUCED,
     _tested('test_certificates_are_least_and_sound'), _definitions),
    ('Lemma 2: composition', modules(_CLASS, 'accounting.TCDPAccountant'), REPRODUCED,
     _tested('test_composition_keeps_the_least_omega'), _composed),
    ('Lemmas 6, 8: (epsilon, delta)', modules(_CLASS), REPRODUCED,
     _tested('test_lemma_6'), _lemma_6),
    ('Section 1.3: tails of the privacy loss', modules(
        'papers.tcdp.pure_dp', 'papers.tcdp.truncated_cdp_tail',
        'papers.tcdp.renyi_dp'), REPRODUCED,
     test('papers/test_loss_tails::test_truncated_cdp_as_the_paper_writes_it'),
     _tails),
    ('Section 1.3: tails under approximate definitions', modules(
        'papers.tcdp.approximate_dp',
        'papers.tcdp.approximate_zcdp'),
     'corrected: the paper states them up to constants, which are given here',
     test('papers/test_loss_tails::test_approximate_dp_is_attained'),
     _approximate_tails),
    ('Figure 1', _picture('figure1'),
     'corrected: the paper draws a caricature; here the exact bounds are drawn, and '
     'noise that satisfies them', run(PICTURES), _figure_1),
    ('Section 2.2: groups', modules(_CLASS), REPRODUCED, _tested('test_groups'),
     _groups),
    ('Propositions 9, 10: large groups', modules('accounting.truncated_cdp.LargeGroup'),
     REPRODUCED, _tested('test_large_groups'), _large_groups),
    ('Section 2.3: pure DP, Gaussian', modules(_CLASS), REPRODUCED,
     _tested('test_accountant_by_hand'), _basic),
    ('Proposition 3, Theorem 11: subsampling', modules(_CLASS),
     'corrected: it does not always follow from Theorem 12; it is available as a '
     'labelled claim, and no accountant uses it',
     _tested('test_theorem_11_does_not_follow_from_theorem_12'), _theorem_11),
    ('Theorem 12, condition (5)', modules('accounting.truncated_cdp.condition_5'),
     REPRODUCED, _tested('test_theorem_12_bounds_the_subsampled_gaussian_with_room'),
     _theorem_12),
    ('Lemma 15: exact subsampling',
     modules('pairs.dominating_pair.DominatingPair'), REPRODUCED,
     _tested('test_lemma_15'), _lemma_15),
    ('Proposition 4: sinh-normal noise', modules('SinhNormal', 'noise.sinh_normal'),
     REPRODUCED,
     test('accounting/test_sinh_normal::test_renyi_divergence_against_quadrature'),
     _proposition_4),
    ('Figure 2', _picture('figure2'), REPRODUCED, run(PICTURES), _figure_2),
    ('Theorem 17', modules('papers.tcdp.sinh_normal_bound'), REPRODUCED,
     run(FIGURES), _theorem_17),
    ('Corollary 18: histograms', modules('papers.tcdp.histogram_noise'),
     'corrected: false for omega below 1 / sqrt(2 rho), where it is checked or refused',
     test('accounting/test_sinh_normal::'
          'test_corollary_18_as_printed_is_false_and_refused'), _corollary_18),
    ('Section 5: the exponential mechanism', modules(
        'release.exponential_mechanism', 'accounting.ExponentialMechanismDpEvent'),
     REPRODUCED, test('accounting/test_exponential::test_many_options_attain_it'),
     _exponential),
    ('Proposition 5, Problem 19, Theorem 20: Gap-Max',
     modules('release.gap_max', 'release.smallest_gap'), REPRODUCED, run('gap_max'),
     _against_gaussian),
    ('Algorithm 21: generalised histogram, top-m', modules('release.top_m'), REPRODUCED,
     run('gap_max'), functools.partial(_gap, 'histogram')),
    ('Algorithm 22: obvious answer', modules('release.gap_max'), REPRODUCED,
     run('gap_max'), functools.partial(_gap, 'obvious-answer')),
    ('Lemma 23', modules('release.selection.obvious_answer_success'), REPRODUCED,
     test('release/test_selection::'
          'test_obvious_answer_is_right_exactly_as_often_as_computed'), _lemma_23),
    ('Problem 24, Theorem 25: interior points', modules('release.interior_point'),
     'corrected: the paper leaves its constants open; here they are derived',
     run(FIGURES), _interior),
    ('Theorem 26: mutual information of records and answer', modules(
        'papers.tcdp.mutual_information',
        'papers.tcdp.printed_mutual_information'), REPRODUCED,
     test('papers/test_packing::'
          'test_theorem_26_is_at_least_the_divergence_of_its_proof'), _theorem_26),
    ('Corollary 27: lower bounds on records',
     (*modules('papers.tcdp.fewest_records',
               'papers.tcdp.printed_fewest_records'),
      *_picture('lower_bounds')), REPRODUCED, run(PICTURES), _corollary_27),
    ('Threshold queries', modules('release.thresholds', 'release.threshold_sketch'),
     REPRODUCED, test('release/test_threshold_queries::'
                      'test_errors_hold_as_often_as_stated'), _thresholds),
    ('Histograms', modules('release.histogram'), REPRODUCED,
     test('release/test_additive_noise::test_histogram_counts'), _histogram))

PAPER = Paper(
    '002: Bun, Dwork, Rothblum and Steinke, "Composable and Versatile Privacy via '
    'Truncated CDP" (STOC 2018)', tuple(Item(*each) for each in _ITEMS),
    'Without computational content: Lemmas 13 and 14. Noise whose variance depends on '
    'the data is named in the paper, without a theorem.')
