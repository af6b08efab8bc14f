"""Redraws Figures 1, 3, 4 and appendix F of paper 004, and adds other accountants.

    python -m benchmarks.phi_figures
    python -m benchmarks.phi_figures --quick

Paper 004 is "Optimal Accounting of Differential Privacy via Characteristic Function"
(Zhu, Dong and Wang, AISTATS 2022). Parameters of Figure 3 are those of the authors'
code (github.com/yuxiangw/autodp, papers/Aistats2021-AFA). PLD is dp_accounting's
accountant on its 1e-4 grid. PRV is prv_accountant with error 0.01; it is left out if it
is not installed. Writes results/phi_figures.json and six pictures. --quick leaves out
Figure 3, and writes no numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
import math
from typing import Any

import dp_accounting
from dp_accounting import pld
import numpy as np
from scipy import optimize, special

from benchmarks import _prv, _results
from tfcactus import _format, accounting, noise as noise_lib
from tfcactus.accounting import renyi_tradeoff, views
from tfcactus.accounting.composition.composition import Composition, StepLoss
from tfcactus.pairs import envelope

QUICK = ('--quick',)

RESPONSE = 2.0
"""Epsilon of the randomised response in Figure 1; the text does not state it."""

TESTED = {
    'Gaussian, sigma 1/2': (dp_accounting.GaussianDpEvent(0.5), 1),
    'ten Laplace releases, scale 3': (dp_accounting.LaplaceDpEvent(3.0), 10),
    'DP-SGD, sigma .7, q .02, 500 steps': (dp_accounting.PoissonSampledDpEvent(
        0.02, dp_accounting.GaussianDpEvent(0.7)), 500)}
"""Events whose trade-off functions appendix F draws, and how often each is composed."""

PUBLISHED_FFT = (
    0.5738987073827246, 0.7070330939276875, 0.8213662927173179, 0.92358900507979,
    1.0171625920742302, 1.1041565229625558, 1.1859259173798518, 1.2634158671679698,
    1.3373168083154394, 1.4081514706603082, 1.4763269642671626, 1.54216775460533,
    1.605937390055278, 1.667853467197358)
"""Figure 3c's curve of the Fourier accountant of Koskela et al., from the authors' code
(afa_subsample.py, `fft_lower`), at 200, 300, ... 1500 steps."""

RDP, PLD, PRV, PHI = 'Renyi', 'PLD', 'PRV', 'phi'
STYLES = {PHI: (_results.BLACK, '-', None), RDP: (_results.VERMILION, '--', None),
          PLD: (_results.BLUE, 'none', 'x'), PRV: (_results.GREEN, 'none', '+')}

Steps = Sequence[tuple[dp_accounting.DpEvent, int]]


def phi(steps: Steps, delta: float) -> accounting.Bounds:
  """Returns the bounds on epsilon of this library's accountant."""
  accountant = accounting.PhiAccountant()
  for event, count in steps:
    accountant.compose(event, count)
  return accountant.epsilon_bounds(delta)


def renyi(steps: Steps, delta: float) -> float:
  """Returns epsilon by the Renyi accountant for the dominating pairs of these steps."""
  accountant = accounting.RenyiAccountant()
  for event, count in steps:
    accountant.compose(event, count)
  return accountant.get_epsilon(delta)


def compared(steps: Steps, delta: float, by_pld: float, by_prv: float | None
             ) -> dict[str, Any]:
  """Returns epsilon of one composition by all accountants."""
  bounds = phi(steps, delta)
  return {'phi_lower': bounds.lower, PHI: bounds.upper, PLD: by_pld, PRV: by_prv,
          RDP: renyi(steps, delta)}


def figure_3a() -> list[dict[str, Any]]:
  """Returns epsilon of composed Gaussians at delta 1e-10, with the closed form."""
  rows, delta = [], 1e-10
  for sigma in (30.0, 60.0):
    event = dp_accounting.GaussianDpEvent(sigma)
    for count in range(400, 1121, 80):
      by_pld = pld.PLDAccountant().compose(event, count).get_epsilon(delta)
      by_prv = _prv.epsilon(
          lambda kinds, sigma=sigma: [kinds.GaussianMechanism(sigma)], [count], delta)
      rows.append({'sigma': sigma, 'compositions': count, 'delta': delta,
                   'exact': gaussian_epsilon(sigma / math.sqrt(count), delta),
                   **compared([(event, count)], delta, by_pld, by_prv)})
  return rows


def gaussian_epsilon(sigma: float, delta: float) -> float:
  """Solves Phi(1/2s - es) - e^e Phi(-1/2s - es) = delta (Balle and Wang, 2018)."""
  def excess(epsilon: float) -> float:
    one, other = (special.log_ndtr(sign * 0.5 / sigma - epsilon * sigma)
                  for sign in (1, -1))
    return one + math.log(-math.expm1(epsilon + other - one)) - math.log(delta)

  return optimize.brentq(excess, 1e-9, 1e3, xtol=1e-14, rtol=1e-14)


def figure_3b() -> list[dict[str, Any]]:
  """Returns epsilon of Gaussians composed with randomised responses, at delta 1e-6."""
  sigma, share, delta, rows = 5.0, 0.52, 1e-6, []
  events = (dp_accounting.GaussianDpEvent(sigma), accounting.DominatingPairDpEvent(
      accounting.DominatingPair.from_masses([share, 1 - share], [1 - share, share])))
  losses = (pld.privacy_loss_distribution.from_gaussian_mechanism(sigma),
            pld.privacy_loss_distribution.from_randomized_response(
                2 * (1 - share), 2))
  for count in (50, 150, 250, 350, 450, 550, 650, 750, 850, 950):
    parts = [loss.self_compose(count) for loss in losses]
    by_pld = parts[0].compose(parts[1]).get_epsilon_for_delta(delta)
    by_prv = _prv.epsilon(lambda kinds: [
        kinds.GaussianMechanism(sigma),
        kinds.PureDPMechanism(math.log(share / (1 - share)))], [count, count], delta)
    rows.append({'compositions': count, 'delta': delta, **compared(
        [(event, count) for event in events], delta, by_pld, by_prv)})
  return rows


def figure_3c() -> list[dict[str, Any]]:
  """Returns epsilon of composed Poisson-subsampled Gaussians at delta 1e-5."""
  sigma, prob, delta, rows = 2.0, 0.02, 1e-5, []
  event = dp_accounting.PoissonSampledDpEvent(
      prob, dp_accounting.GaussianDpEvent(sigma))
  for index, count in enumerate(range(200, 1501, 100)):
    by_pld = pld.PLDAccountant().compose(event, count).get_epsilon(delta)
    by_prv = _prv.epsilon(lambda kinds: [kinds.PoissonSubsampledGaussianMechanism(
        noise_multiplier=sigma, sampling_probability=prob)], [count], delta)
    rows.append({'compositions': count, 'delta': delta,
                 'published': PUBLISHED_FFT[index],
                 **compared([(event, count)], delta, by_pld, by_prv)})
  return rows


def draw_epsilons(pyplot: Any, name: str, title: str, caption: str,
                  groups: dict[str, list], extra: dict[str, str]) -> None:
  """Draws epsilon against compositions, and its distance to the lower bound."""
  figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.6, 5.2))
  for place, (group, rows) in enumerate(groups.items()):
    count = [row['compositions'] for row in rows]
    for key, (color, style, marker) in STYLES.items():
      values = np.array([np.nan if row[key] is None else row[key] for row in rows])
      if np.all(np.isnan(values)):
        continue
      label = None if place else key + (' (this library)' if key == PHI else '')
      left.plot(count, values, color=color, linestyle=style, marker=marker, label=label)
      over = values - np.array([row['phi_lower'] for row in rows])
      if not place:
        right.semilogy(count, np.maximum(over, 1e-16), color=color, linestyle=style,
                       marker=marker, label=key)
    for key, label in extra.items():
      left.plot(count, [row[key] for row in rows], 'o', color=_results.GRAY,
                fillstyle='none', markersize=9, label=None if place else label)
    if group:
      left.annotate(group, (count[-1], rows[-1][PHI]), xytext=(-50, -34),
                    textcoords='offset points', fontsize=9)
  left.set(xlabel='compositions', ylabel=f'epsilon at delta {rows[0]["delta"]!r}')
  right.set(xlabel='compositions', ylabel='epsilon less the proved lower bound')
  left.legend(loc='upper left', fontsize=8.5)
  figure.suptitle(title)
  _results.save_captioned(figure, [left, right], name, caption)


def response() -> tuple[accounting.DominatingPair, np.ndarray, np.ndarray]:
  """Returns Figure 1's randomised response, orders from 1/2, and its divergences."""
  truth = 1 / (1 + math.exp(-RESPONSE))
  pair = accounting.DominatingPair.from_masses(
      [truth, 1 - truth], [1 - truth, truth])
  orders = np.concatenate([np.linspace(0.5, 0.999, 200), 1 + np.geomspace(
      1e-3, 1e4, 600)])
  return pair, orders, np.array([pair.renyi_divergence(order) for order in orders])


def figure_1(pyplot: Any) -> dict[str, Any]:
  """Draws randomised response, the Gaussian of its rho, and what rho implies."""
  pair, orders, divergence = response()
  rho = float(np.max(divergence / orders))
  sigma, x = 1 / math.sqrt(2 * rho), np.linspace(1e-3, 1 - 1e-3, 400)
  implied, own = (renyi_tradeoff.tradeoff_from_renyi(
      orders, known, x, known) for known in (rho * orders, divergence))
  lines = {'Gaussian': special.ndtr(special.ndtri(1 - x) - 1 / sigma),
           'randomised response': views.tradeoff(pair, x),
           'what their Renyi divergences imply': implied}
  epsilon = np.linspace(0, 4, 81)
  profiles = {
      'Gaussian': np.array([_delta(dp_accounting.GaussianDpEvent(sigma), e)
                            for e in epsilon]),
      'randomised response': views.privacy_profile(pair, np.exp(epsilon)),
      'what their Renyi divergences imply': _profile_of(
          x, lines['what their Renyi divergences imply'], epsilon)}
  figure, axes = pyplot.subplots(1, 2, figsize=(9.6, 5.0))
  looks = ((_results.BLUE, '-'), (_results.BLACK, '--'), (_results.VERMILION, ':'))
  for (color, style), name in zip(looks, lines):
    axes[0].plot(x, lines[name], style, color=color, label=name, linewidth=2)
    axes[1].plot(epsilon, profiles[name], style, color=color, label=name, linewidth=2)
  axes[0].set(xlabel='false positive rate', ylabel='least false negative rate',
              xlim=(0, 1), ylim=(0, 1), title='trade-off function')
  axes[1].set(xlabel='epsilon', ylabel='delta', xlim=(0, 4), ylim=(0, None),
              title='privacy profile')
  axes[0].legend(loc='upper right', fontsize=9)
  figure.suptitle('Paper 004, Figure 1: no conversion of Renyi divergences gives the '
                  "Gaussian's epsilon")
  _results.save_captioned(
      figure, axes, 'paper004_figure1',
      f'Both keep D_a <= {rho:.4g} a at all orders a: randomised response of epsilon '
      f'{RESPONSE:g} and the Gaussian of sigma {sigma:.4g}. What holds for both '
      '(dotted) touches randomised response, so that it cannot be raised to the '
      "Gaussian's.")
  exact = lines['randomised response']
  at = int(np.searchsorted(epsilon, 1.0))
  return {'rho': rho, 'sigma': sigma, 'touching': float(np.min(exact - implied)),
          'own': float(np.max(exact - own)),
          'delta_at_epsilon_1': {name: float(p[at]) for name, p in profiles.items()}}


def _delta(event: dp_accounting.DpEvent, epsilon: float) -> float:
  return accounting.PhiAccountant().compose(event).get_delta(float(epsilon))


def _profile_of(x: np.ndarray, y: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
  """Returns delta = max over x of 1 - y - e^epsilon x (Lemma 44)."""
  return np.maximum(np.max(1 - y - np.exp(epsilon)[:, None] * x, axis=1), 0.0)


def figure_4(pyplot: Any) -> dict[str, Any]:
  """Draws both directions of a Poisson sample, and the single pair for both."""
  sigma, prob, delta = 1.0, 0.2, 1e-5
  add, remove = noise_lib.Gaussian(sigma).dominating_pair().poisson(prob)
  both = envelope.envelope_of([add, remove])
  alpha = np.linspace(0, 2.5, 251)
  profiles = {'added': views.privacy_profile(add.upper, alpha),
              'removed': views.privacy_profile(remove.upper, alpha),
              'either (Proposition 29)': views.privacy_profile(both.upper, alpha)}
  counts = (1, 2, 4, 8, 16, 32, 64, 128)
  apart = [phi([(dp_accounting.PoissonSampledDpEvent(
      prob, dp_accounting.GaussianDpEvent(sigma)), k)], delta).upper for k in counts]
  together = [Composition(((StepLoss.of(both), k),)).epsilon(delta) for k in counts]
  figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.6, 5.0))
  looks = ((_results.BLUE, '-'), (_results.VERMILION, '--'), (_results.BLACK, ':'))
  for (color, style), (name, value) in zip(looks, profiles.items()):
    left.plot(alpha, value - np.maximum(1 - alpha, 0), style, color=color, label=name,
              linewidth=2)
  left.set(xlabel='alpha = e^epsilon', ylabel='H(alpha) less max(1 - alpha, 0)',
           title='one step', xlim=(0, 2.5))
  left.legend(loc='upper right', fontsize=9)
  excess = 100 * (np.array([bounds.lower for bounds in together]) / apart - 1)
  right.plot(counts, excess, 'o-', color=_results.BLACK)
  right.set(xlabel='compositions', xscale='log', ylim=(0, None),
            ylabel='epsilon of the pair of both: % above', title='many steps')
  figure.suptitle('Paper 004, Figure 4: compose both directions apart; one pair for '
                  'both costs more')
  _results.save_captioned(
      figure, [left, right], 'paper004_figure4',
      f'The Gaussian of sigma {sigma:g} under Poisson sampling with probability '
      f'{prob:g} (the parameters of the paper are not in its text). A removed record '
      'costs more at alpha above one, an added one below. Right: the larger of both, '
      f'composed apart, against the pair of their maximum, at delta {delta:g}.')
  return {'compositions': counts, 'apart': apart,
          'together': [bounds.upper for bounds in together]}


def appendix_f(pyplot: Any) -> dict[str, Any]:
  """Draws trade-off functions by Renyi divergences, with and without orders below 1."""
  x = np.linspace(0, 1, 201)
  figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.6, 5.0))
  found = {}
  for color, (name, (event, count)) in zip(
      (_results.BLACK, _results.BLUE, _results.VERMILION), TESTED.items()):
    account, by_phi = (kind().compose(event, count) for kind in (
        accounting.RenyiAccountant, accounting.PhiAccountant))
    losses = np.append(0.0, np.geomspace(1e-3, phi([(event, count)], 1e-6).upper, 200))
    certified = views.tradeoff(views.composed_pair(by_phi, losses), x)
    above, all_orders = (account.tradeoff(x, below_one=which)
                         for which in (False, True))
    right.plot(x, certified - above, ':', color=color, linewidth=2)
    right.plot(x, certified - all_orders, '-', color=color, label=name)
    if not found:
      left.plot(x, certified, '-', color=_results.BLACK, label='certified (phi)')
      left.plot(x, all_orders, '--', color=_results.VERMILION, linewidth=2,
                label='implied by orders from 1/2')
      left.plot(x, above, ':', color=_results.BLUE, linewidth=2,
                label='implied by orders above 1')
    found[name] = {'gained_below_one': float(np.max(all_orders - above)),
                   'lost': float(np.max(certified - all_orders)),
                   'lost_above_one': float(np.max(certified - above))}
  left.set(xlabel='false positive rate', ylabel='least false negative rate',
           xlim=(0, 0.5), ylim=(0, 1), title=next(iter(TESTED)))
  right.set(xlabel='false positive rate', xlim=(0, 0.5), ylim=(0, 0.22),
            ylabel='false negative rate below the certified one',
            title='what is lost (dotted: with orders above 1)')
  for axis in (left, right):
    axis.legend(loc='upper right', fontsize=9)
  figure.suptitle('Paper 004, appendix F: orders below one matter, and do not suffice')
  _results.save_captioned(
      figure, [left, right], 'paper004_appendix_f',
      'All curves are proved: no test has a smaller false negative rate. Those of '
      'Renyi divergences lie below the certified one; orders below one raise them most '
      'where there is little noise.')
  return found


def draw_figure_3(pyplot: Any, parts: dict[str, list]) -> None:
  """Draws Figures 3a, 3b and 3c."""
  both = {f'sigma = {sigma:g}': [row for row in parts['3a'] if row['sigma'] == sigma]
          for sigma in (30, 60)}
  draw_epsilons(
      pyplot, 'paper004_figure3a', "Paper 004, Figure 3a: the phi accountant is the "
      "Gaussian's closed form; Renyi is not",
      'Gaussians of sigma 30 and 60 at delta 1e-10. Right, for sigma 30: PLD errs by '
      'its grid, PRV by the error that it was asked for, Renyi by its conversion.',
      both, {'exact': 'closed form'})
  draw_epsilons(
      pyplot, 'paper004_figure3b',
      'Paper 004, Figure 3b: continuous and discrete mechanisms in one composition',
      'As many Gaussians of sigma 5 as randomised responses of truth .52, at delta '
      '1e-6. Right: what each accountant adds.',
      {'': parts['3b']}, {})
  worst = max(row['published'] - row[PHI] for row in parts['3c'])
  draw_epsilons(
      pyplot, 'paper004_figure3c',
      'Paper 004, Figure 3c: subsampled Gaussians; phi, PLD and PRV agree',
      'sigma 2, sampling probability .02, delta 1e-5. The published curve, of both a '
      f'lower and an upper bound, lies up to {_format.upper(worst, 2)} above the '
      'proved upper bound here, which PLD confirms.', {'': parts['3c']},
      {'published': 'published, Fourier accountant'})


def show(parts: dict[str, Any]) -> None:
  """Writes the table from the results: the last point of each curve of Figure 3."""
  up, rows = functools.partial(_format.upper, digits=7), []
  for name, setting, row in (
      ('3a', 'Gaussian, sigma 30', [r for r in parts['3a'] if r['sigma'] == 30][-1]),
      ('3b', 'Gaussian and randomised response', parts['3b'][-1]),
      ('3c', 'subsampled Gaussian', parts['3c'][-1])):
    rows.append([name, setting, str(row['compositions']),
                 _format.lower(row['phi_lower'], 11), _format.upper(row[PHI], 11)] +
                ['' if row[key] is None else up(row[key])
                 for key in (PLD, PRV, RDP)])
  _results.show('phi_figures', _results.markdown(
      ['figure', 'mechanism', 'compositions', 'phi, lower', 'phi, upper', PLD, PRV,
       RDP], rows))


def main() -> None:
  """Draws all figures; writes results/phi_figures.json and the table."""
  parser = _results.parser('phi_figures', __doc__)
  parser.add_argument('--quick', action='store_true',
                      help='leave out Figure 3, and write no numbers')
  quick = parser.parse_args().quick
  pyplot = _results.pyplot()
  drawn = {'figure_1': figure_1(pyplot), 'figure_4': figure_4(pyplot),
           'appendix_f': appendix_f(pyplot)}
  if quick:
    print(drawn)
    return
  parts = {'3a': figure_3a(), '3b': figure_3b(), '3c': figure_3c()}
  draw_figure_3(pyplot, parts)
  _results.save('phi_figures', {**drawn, **parts})
  if all(row[PRV] is None for rows in parts.values() for row in rows):
    print('prv_accountant is left out: it is not installed, or it failed.')
  show(parts)


if __name__ == '__main__':
  main()
