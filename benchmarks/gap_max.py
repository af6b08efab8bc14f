"""Measures the gap that Gap-Max needs, for four kinds of noise at equal epsilon.

    python -m benchmarks.gap_max

The total of epsilon 1 at delta 1e-6 is spent on 1, 10, 100 or 1000 releases, and each
noise is calibrated to it by the exact accountant. Sinh-normal and truncated Laplace
noise have a second parameter, chosen best for each number k of options. The gap is that
between the best and the second best score at which the best option is found with
probability 0.95, for both methods. Success rates are measured at exactly this gap for k
from 1e2 to 1e6. Writes results/gap_max.json and a picture.
"""

from __future__ import annotations

import functools
import math
import time
from typing import Any, Callable

import numpy as np

from benchmarks import _results
from tfcactus import _format, accounting, audit, noise as noise_lib
from tfcactus.accounting import calibration
from tfcactus.randomness import SystemRandom
from tfcactus.release import planner, selection
from tfcactus.release.result import repeated

EPSILON, DELTA, BETA = 1.0, 1e-6, 0.05
RELEASES = (1, 10, 100, 1000)
MEASURED = (10**2, 10**3, 10**4, 10**5, 10**6)
COMPUTED = MEASURED + tuple(10**i for i in (9, 12, 15, 20, 25, 30))
BENDS = np.concatenate([np.geomspace(1.0, 8.0, 13), [12, 20, 40, 100]])
"""Ratios of bend to sigma that are tried for sinh-normal noise."""
REACHES = np.linspace(1.0, 26.0, 26)
"""Ratios of half-width to scale that are tried for truncated Laplace noise."""
RUNS = {10**2: 4000, 10**3: 4000, 10**4: 1000, 10**5: 400, 10**6: 100}
"""Number of runs of the histogram method by k; the obvious-answer method, which is
faster, is run 20,000 times."""


def truncated_laplace(scale: float, reach: float) -> noise_lib.ScalarTable:
  """Returns a table of Laplace noise truncated at `reach` times its scale."""
  bins = max(int(math.ceil(40 / scale)), 4)
  cells = max(int(round(reach * scale * bins)), bins + 1)
  return noise_lib.ScalarTable.normalized(
      bins, -np.arange(cells + 1) / (bins * scale), -math.inf)


def _bent(ratio: float, size: float) -> noise_lib.SinhNormal:
  return noise_lib.SinhNormal(size, size * ratio)


def families(releases: int) -> dict[str, list]:
  """Returns the candidates within the budget, by kind of noise."""
  found = {name: [planner.noise_for_epsilon(
      name.lower(), EPSILON, DELTA, releases=releases)]
           for name in ('Laplace', 'Gaussian')}
  found.update({'truncated Laplace': [], 'sinh-normal': []})
  gaussian = found['Gaussian'][0].noise_multiplier
  for ratio in BENDS:
    noise = _least(functools.partial(_bent, ratio), 0.9 * gaussian,
                   6 * gaussian, releases)
    if noise is not None:
      found['sinh-normal'].append(noise)
  laplace = found['Laplace'][0].noise_multiplier / math.sqrt(2)
  for reach in REACHES:
    noise = _least(functools.partial(truncated_laplace, reach=reach),
                   0.9 * laplace, 4 * laplace, releases)
    if noise is not None:
      found['truncated Laplace'].append(noise)
  return found


def _least(make: Callable[[float], noise_lib.Noise], low: float, high: float,
           releases: int) -> noise_lib.Noise | None:
  """Returns the least noise in [low, high] within the budget, to 1e-4, or None."""
  cost = calibration.account(lambda size: repeated(
      accounting.noise_event(make(size)), releases), DELTA)
  try:
    return make(calibration.calibrate_noise(
        EPSILON, cost, low=low, high=high, tolerance=1e-4))
  except ValueError:
    return None


def measured(noise, options: int, gap: float, method: str, purpose: str) -> dict:
  """Returns the success rate on scores whose best exceeds the rest by `gap`."""
  rng = SystemRandom(0, purpose)
  scores = np.zeros(options, np.int64)
  fine = 2.0**20
  scores[options // 3] = math.ceil(gap * fine)
  if method == 'obvious-answer':
    right = selection.obvious_answer_draws(
        scores, fine, noise, rng, 20_000) == options // 3
  else:
    batch = max(min(RUNS[options], 10**7 // options), 1)
    right = np.concatenate([
        selection.top_m_draws(scores, 1, fine, noise, rng, batch)[:, 0] ==
        options // 3 for _ in range(RUNS[options] // batch)])
  interval = audit.clopper_pearson(int(np.sum(right)), right.size)
  return {'share': float(np.mean(right)), 'runs': right.size,
          'interval': list(interval)}


def main() -> None:
  """Measures all gaps; writes results/gap_max.json, the table and the picture."""
  _results.parser('gap_max', __doc__).parse_args()
  results: dict[str, Any] = {
      'epsilon': EPSILON, 'delta': DELTA, 'beta': BETA, 'rows': []}
  for releases in RELEASES:
    begun = time.process_time()
    found = families(releases)
    for name, candidates in found.items():
      for options in COMPUTED:
        for method in selection.METHODS:
          gaps = [selection.smallest_gap(
              noise, num_options=options, beta=BETA, method=method)
                  for noise in candidates]
          best = int(np.argmin(gaps))
          row = {'releases': releases, 'noise': name, 'options': options,
                 'method': method, 'gap': gaps[best],
                 'parameters': _parameters(candidates[best])}
          if options in MEASURED:
            purpose = f'{releases} {name} {options} {method}'
            row['success'] = measured(
                candidates[best], options, gaps[best], method, purpose)
            if method == 'obvious-answer':
              paper = 4 * float(-candidates[best].quantile(1 / options)) + 2
              row['paper_gap'] = paper
              row['paper_success'] = measured(
                  candidates[best], options, paper, method, purpose + ' paper')
          results['rows'].append(row)
    print(f'{releases} releases: {time.process_time() - begun:.0f} s', flush=True)
    _results.save('gap_max', results)
  show(_results.load('gap_max'))
  _draw(results)


def _parameters(noise) -> dict:
  """Returns the parameters of a noise by name."""
  if isinstance(noise, noise_lib.SinhNormal):
    return {'sigma': noise.sigma, 'bend': noise.bend}
  if isinstance(noise, noise_lib.ScalarTable):
    return {'std': noise.std, 'reach': (noise.log_density.size - 0.5) * noise.width}
  return {'std': noise.std}


def crossing(results: dict, releases: int) -> float:
  """Returns the least k at which sinh-normal's gap is 1 % below the Gaussian's."""
  gaps = {(row['noise'], row['options']): row['gap'] for row in results['rows']
          if row['releases'] == releases and row['method'] == 'obvious-answer'}
  for options in COMPUTED:
    if gaps['sinh-normal', options] < 0.99 * gaps['Gaussian', options]:
      return options
  return math.inf


def show(results: dict) -> None:
  """Writes the table from the results."""
  table = []
  for releases in RELEASES:
    for options in (10**2, 10**4, 10**6, 10**15, 10**30):
      cells = {row['noise']: row for row in results['rows']
               if row['releases'] == releases and row['options'] == options and
               row['method'] == 'obvious-answer'}
      table.append([str(releases), f'1e{round(math.log10(options))}'] + [
          _format.upper(cells[name]["gap"], 4) for name in (
              'Laplace', 'Gaussian', 'truncated Laplace', 'sinh-normal')] + [
                  f'{cells["sinh-normal"]["success"]["share"]:.4f}'
                  if 'success' in cells['sinh-normal'] else ''])
  _results.show('gap_max', _results.markdown(
      ['releases', 'k', 'Laplace', 'Gaussian', 'truncated Laplace',
       'sinh-normal', 'success rate, sinh-normal'], table))
  below = [row for row in results['rows'] if 'success' in row and (
      row['success']['interval'][1] < 1 - BETA or
      'paper_success' in row and
      row['paper_success']['interval'][1] < 1 - 1 / row['options'])]
  print('Success rates that are below the stated probability (interval at 1e-3): '
        f'{below or "none"}')
  for releases in RELEASES:
    print(f'{releases} releases: sinh-normal noise needs a smaller gap than Gaussian '
          f'noise from k = {crossing(results, releases):.0e} on')


def _draw(results: dict) -> None:
  """Draws the gap against k, for each number of releases."""
  figure, axes = _results.pyplot().subplots(1, len(RELEASES), figsize=(15, 4.2))
  styles = {'Laplace': 'C2-.', 'Gaussian': 'C0--', 'truncated Laplace': 'C1:',
            'sinh-normal': 'C3-'}
  for axis, releases in zip(axes, RELEASES):
    for name, style in styles.items():
      rows = [row for row in results['rows']
              if row['releases'] == releases and row['noise'] == name and
              row['method'] == 'obvious-answer']
      axis.semilogx([row['options'] for row in rows],
                    [row['gap'] for row in rows], style, label=name)
    gaussian = max(row['gap'] for row in results['rows']
                   if row['releases'] == releases and row['noise'] == 'Gaussian')
    axis.set(title=f'{releases} release{"s" if releases > 1 else ""}',
             xlabel='options k', ylim=(0, 1.25 * gaussian))
    axis.grid(alpha=0.3)
  axes[0].set_ylabel('gap found with probability 0.95, in sensitivities')
  axes[0].legend(fontsize=8)
  figure.suptitle('Gap-Max by the obvious-answer mechanism, total epsilon 1 at '
                  'delta 1e-6, exactly accounted')
  _results.save_figure(figure, 'gap_max')


if __name__ == '__main__':
  main()
