"""Redraws Figures 1 and 2 of paper 002, and draws its lower and upper bounds.

    python -m benchmarks.tcdp_figures

Paper 002 is "Composable and Versatile Privacy via Truncated CDP" (Bun, Dwork, Rothblum
and Steinke, STOC 2018). Its Figure 1 sketches the tail of the privacy loss that each
definition permits, and calls itself a caricature. Here the exact bounds are drawn, and
tails of mechanisms that satisfy them. Writes results/tcdp_figures.json and three
pictures.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import optimize, special

from benchmarks import _results
from tfcactus import noise as noise_lib
from tfcactus.accounting import truncated_cdp
from tfcactus.noise import sinh_normal
from tfcactus.papers import tcdp

QUICK = ()

EPSILON = 0.5
"""Epsilon of pure DP in Figure 1; the other definitions have comparable parameters."""
RHO, OMEGA, FAILURE = 0.5 * EPSILON**2, 6.0, 1e-6
LOSSES = np.linspace(0, 6, 601)

BOUNDS_RHO, BOUNDS_OMEGA = 1e-4, 80.0
"""Parameters of the third picture. Corollary 18 needs omega >= 1 / sqrt(2 rho)."""
DOMAINS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of bins in the third picture, as powers of ten."""
TABLE_POWERS = (2, 8, 32, 128, 256)
BENDS = tuple(np.geomspace(320, 1600, 12))
"""Bends that are tried for sinh-normal noise."""


def definitions() -> dict[str, np.ndarray]:
  """Returns the bound on P(Z > loss) of each definition."""
  guarantee = truncated_cdp.TCDP(RHO, OMEGA)
  return {
      'pure DP': tcdp.pure_dp(EPSILON, LOSSES),
      'zCDP': tcdp.truncated_cdp_tail(truncated_cdp.TCDP(RHO), LOSSES),
      'truncated CDP': tcdp.truncated_cdp_tail(guarantee, LOSSES),
      'Renyi DP of order omega': tcdp.renyi_dp(OMEGA, RHO * OMEGA, LOSSES),
      'approximate DP': tcdp.approximate_dp(
          guarantee.epsilon(FAILURE), FAILURE, LOSSES),
      'approximate zCDP': tcdp.approximate_zcdp(RHO, FAILURE, LOSSES)}


def mechanisms() -> dict[str, np.ndarray]:
  """Returns P(Z > loss) of mechanisms that satisfy one of the definitions."""
  gaussian = special.ndtr(-(LOSSES - RHO) / math.sqrt(2 * RHO))
  noise = _sinh_normal()
  pair = noise.dominating_pair().lower
  order = np.argsort(pair.loss)
  above = np.append(np.cumsum(pair.p[order][::-1])[::-1], 0.0)
  tail = above[np.searchsorted(pair.loss[order], LOSSES, side='right')]
  return {'Gaussian': gaussian, 'sinh-normal': tail + pair.p_inf}


def _sinh_normal() -> noise_lib.SinhNormal:
  """Returns noise of the least bend that is (`RHO`, `OMEGA`)-tCDP.

  Its sigma^2 is 1.1 times that of the Gaussian with `RHO`.
  """
  sigma = 1 / math.sqrt(2 * RHO)
  for bend in np.linspace(1, 12, 111) * sigma:
    noise = noise_lib.SinhNormal(sigma * math.sqrt(1.1), float(bend))
    if OMEGA < sinh_normal.renyi_limit(noise) and truncated_cdp.certificate(
        lambda order, noise=noise: sinh_normal.renyi_divergence(noise, order), OMEGA,
        orders=200).rho <= RHO:
      return noise
  raise ValueError('Expected some bend to do.')


STYLES = {
    'pure DP': (_results.BLACK, '-', f'pure DP, epsilon {EPSILON:g}'),
    'zCDP': (_results.BLUE, '-', f'zCDP, rho {RHO:g}'),
    'truncated CDP': (_results.VERMILION, '-', f'truncated CDP, omega {OMEGA:g}'),
    'Renyi DP of order omega': (_results.ORANGE, '--',
                                f'Renyi DP, order {OMEGA:g}'),
    'approximate DP': (_results.GREEN, '-.', f'approximate DP, delta {FAILURE:g}'),
    'approximate zCDP': (_results.PURPLE, ':', f'approximate zCDP, delta {FAILURE:g}')}


def draw_figure_1(pyplot: Any, bounds: dict, laws: dict) -> None:
  """Draws tails of the privacy loss: bounds and mechanisms."""
  figure, axis = pyplot.subplots(figsize=(9.6, 5.8))
  for name, (color, style, label) in STYLES.items():
    with np.errstate(divide='ignore'):
      axis.semilogy(LOSSES, np.where(bounds[name] > 0, bounds[name], 1e-30), style,
                    color=color, label=label, linewidth=2)
  for name, marker in (('Gaussian', 'o'), ('sinh-normal', '^')):
    axis.semilogy(LOSSES, np.maximum(laws[name], 1e-30), marker, color=_results.GRAY,
                  markevery=25, markersize=5, fillstyle='none', label=f'{name} noise')
  axis.axvline(2 * RHO * (OMEGA - 1) + RHO, color=_results.GRAY, linewidth=0.8)
  axis.annotate('rho + 2 rho (omega - 1)', (2 * RHO * (OMEGA - 1) + RHO, 3e-15),
                xytext=(4, 0), textcoords='offset points', fontsize=9)
  axis.set(xlabel='loss, nats', ylabel='P(privacy loss > loss)', ylim=(1e-16, 3),
           xlim=(0, 6), title='Paper 002, Figure 1: truncated CDP is subgaussian up to '
           'a point, subexponential beyond')
  axis.legend(loc='upper right', fontsize=9)
  _results.save_captioned(
      figure, [axis], 'paper002_figure1',
      'Lines: the largest tail that a definition permits, drawn as bounds, not as a '
      'caricature. Marks: what noise that keeps zCDP (Gaussian) and truncated CDP '
      '(sinh-normal) has.')


def draw_figure_2(pyplot: Any) -> dict[str, list[float]]:
  """Draws the densities of a normal variable of variance two and of its arsinh."""
  z = np.linspace(-6, 6, 1201)
  normal = noise_lib.Gaussian(math.sqrt(2)).log_density_at(z)
  bent = noise_lib.SinhNormal(math.sqrt(2), 1.0).log_density_at(z)
  figure, axes = pyplot.subplots(1, 2, figsize=(9.6, 4.6))
  for axis, value in zip(axes, (np.exp, lambda x: x)):
    axis.plot(z, value(normal), color=_results.BLUE, label='Z, normal, variance 2',
              linewidth=2)
    axis.plot(z, value(bent), '--', color=_results.VERMILION, label='arsinh(Z)',
              linewidth=2)
    axis.set(xlabel='z')
  axes[0].set(ylabel='density', title='density', xlim=(-6, 6))
  axes[1].set(ylabel='log density', title='its logarithm', ylim=(-16, 0.5),
              xlim=(-6, 6))
  axes[1].legend(loc='lower center', fontsize=9)
  figure.suptitle('Paper 002, Figure 2: sinh-normal noise has doubly exponentially '
                  'light tails')
  _results.save_captioned(
      figure, axes, 'paper002_figure2', 'As printed: sigma^2 = 2, A = 1. At A below '
      'sigma, as here, the law has two peaks: the library draws it, and refuses to '
      'account for it.')
  return {'z': list(z[::100]), 'normal': list(normal[::100]),
          'sinh_normal': list(bent[::100])}


def least_sinh_normal(bend: float) -> noise_lib.SinhNormal | None:
  """Returns the least noise with this bend for the third picture's guarantee, or None.

  A replaced record changes two counts by one each. This costs as much as a change of
  one count by two.
  """
  def excess(sigma: float) -> float:
    noise = noise_lib.SinhNormal(sigma, bend)
    if BOUNDS_OMEGA >= sinh_normal.renyi_limit(noise, shift=2.0):
      return math.inf
    return truncated_cdp.certificate(
        lambda order: sinh_normal.renyi_divergence(noise, order, shift=2.0),
        BOUNDS_OMEGA, orders=60).rho / BOUNDS_RHO - 1

  if excess(bend) > 0:
    return None
  low = 2 / math.sqrt(2 * BOUNDS_RHO)  # The Gaussian's sigma, a lower bound.
  sigma = optimize.brentq(excess, 0.99 * low, bend, xtol=1e-3)
  return noise_lib.SinhNormal(min(sigma + 2e-3, bend), bend)


def histograms() -> list[dict[str, float]]:
  """Returns lower and upper bounds on the number of records for a histogram."""
  guarantee = truncated_cdp.TCDP(BOUNDS_RHO, BOUNDS_OMEGA)
  zcdp = truncated_cdp.TCDP(BOUNDS_RHO)
  # A replaced record moves two counts by one: sqrt(2) in all.
  gaussian = noise_lib.Gaussian(math.sqrt(2) / math.sqrt(2 * BOUNDS_RHO))
  found = [noise for bend in BENDS if (noise := least_sinh_normal(bend))]
  rows = []
  for power in DOMAINS:
    bins = 10**power
    rows.append({
        'power': power, 'lower': tcdp.fewest_records(guarantee, bins),
        'lower_printed': tcdp.printed_fewest_records(guarantee, bins),
        'lower_zcdp': tcdp.fewest_records(zcdp, bins),
        'upper_printed': 2 * tcdp.histogram_error(
            BOUNDS_RHO, BOUNDS_OMEGA, num_bins=bins, beta=0.5),
        'upper': min(2 * noise.max_error(bins, 0.5) for noise in found),
        'upper_gaussian': 2 * gaussian.max_error(bins, 0.5)})
  return rows


HISTOGRAM_LINES = (
    ('upper_printed', 'enough: Corollary 18', _results.SKY, '-'),
    ('upper', 'enough: least sinh-normal noise', _results.BLUE, '-'),
    ('upper_gaussian', 'enough under zCDP: Gaussian', _results.GRAY, '--'),
    ('lower_zcdp', 'needed under zCDP', _results.GRAY, ':'),
    ('lower', 'needed: fewest_records', _results.VERMILION, '-'),
    ('lower_printed', 'needed: Corollary 27', _results.ORANGE, '--'))


def draw_histograms(pyplot: Any, rows: list) -> None:
  """Draws lower and upper bounds on the number of records, against bins."""
  figure, axis = pyplot.subplots(figsize=(9.6, 5.6))
  for key, label, color, style in HISTOGRAM_LINES:
    axis.plot([row['power'] for row in rows], [row[key] for row in rows], style,
              color=color, label=label, linewidth=2)
  axis.set(xlabel='bins of the histogram, powers of ten', ylabel='records',
           xscale='log', yscale='log', ylim=(50, 9000),
           title='Paper 002, section 6: a histogram takes about omega log log(bins) '
           'records')
  axis.set_xticks(DOMAINS, [str(power) for power in DOMAINS])
  axis.minorticks_off()
  axis.legend(loc='upper left', fontsize=9, ncol=2)
  _results.save_captioned(
      figure, [axis], 'paper002_lower_bounds',
      f'Records n with which the largest error stays below n / 2 with probability 1/2, '
      f'under truncated CDP (rho {BOUNDS_RHO:g}, omega {BOUNDS_OMEGA:g}). Under zCDP '
      'the square root of log(bins) is needed, and the curves cross: light tails pay '
      'for very many bins.')


def show(found: dict[str, Any]) -> None:
  """Writes the table from the results."""
  _results.show('tcdp_figures', _results.markdown(
      ['bins', 'needed: Corollary 27', '`fewest_records`', 'enough: sinh-normal noise',
       'Corollary 18', 'zCDP: needed', 'enough: Gaussian'],
      [[f'1e{row["power"]}', f'{max(row["lower_printed"], 1):.0f}', str(row['lower'])] +
       [f'{math.ceil(row[key])}' for key in (
           'upper', 'upper_printed', 'lower_zcdp', 'upper_gaussian')]
       for row in found['histograms'] if row['power'] in TABLE_POWERS]))


def main() -> None:
  """Draws all figures; writes results/tcdp_figures.json and the table."""
  _results.parser('tcdp_figures', __doc__).parse_args()
  pyplot = _results.pyplot()
  bounds, laws, rows = definitions(), mechanisms(), histograms()
  draw_figure_1(pyplot, bounds, laws)
  draw_histograms(pyplot, rows)
  shown = [int(np.searchsorted(LOSSES, x)) for x in (1, 2, 4)]
  found = {
      'losses': [float(LOSSES[i]) for i in shown], 'tails': {
          name: [float(tail[i]) for i in shown] for name, tail in (
              *bounds.items(), *laws.items())},
      'figure_2': draw_figure_2(pyplot), 'histograms': rows}
  _results.save('tcdp_figures', found)
  show(found)


if __name__ == '__main__':
  main()
