"""Measures how far the printed bounds of paper 002 are from exact accounting.

    python -m benchmarks.truncated_cdp

Paper 002 is "Composable and Versatile Privacy via Truncated CDP". Writes
results/truncated_cdp.json with epsilon of sinh-normal noise, exactly, by its Renyi
divergences and by Theorem 17; the constant of Theorem 12 for subsampled Gaussians; and
rank errors of private medians by binary search and by the recursion of Theorem 25, at
equal exact epsilon.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from benchmarks import _results
from tfcactus import _format, accounting, noise as noise_lib
from tfcactus.accounting import truncated_cdp
from tfcactus.accounting.composition.losses.gaussian import GaussianLoss
from tfcactus.accounting.renyi import RenyiAccountant
from tfcactus.noise import sinh_normal
from tfcactus.papers import tcdp
from tfcactus.randomness import SystemRandom
from tfcactus.release import interior, planner

CASES = ((0.1, 8 / math.sqrt(0.1)), (0.01, 10.0), (0.01, 20.0), (0.01, 80.0),
         (0.001, 8 / math.sqrt(0.001)))
DOMAINS = (2**10, 2**20, 2**40, 2**62)
ORDERS = 1 + np.geomspace(0.05, 200, 600)
RUNS = 2000


def sinh_normal_costs() -> list[dict]:
  """Returns epsilon of sinh-normal noise: exact, by Renyi and by Theorem 17."""
  rows = []
  for rho, bend in CASES:
    noise = noise_lib.SinhNormal(1 / math.sqrt(2 * rho), bend)
    printed = tcdp.sinh_normal_bound(noise)
    exact = truncated_cdp.certificate(
        functools.partial(sinh_normal.renyi_divergence, noise), printed.omega)
    renyi = RenyiAccountant(orders=list(ORDERS)).compose(accounting.noise_event(noise))
    rows.append({
        'rho': rho, 'bend': bend, 'rho_exact_over_rho': exact.rho / rho,
        **{f'{kind}_{delta:g}': value(delta) for delta in (1e-5, 1e-10)
           for kind, value in (
               ('exact', functools.partial(sinh_normal.epsilon, noise)),
               ('renyi', renyi.get_epsilon), ('theorem_17', printed.epsilon))}})
  return rows


def theorem_12_constants() -> list[dict]:
  """Returns sup D_a / (s^2 rho a) of subsampled Gaussians; the theorem has 13."""
  rows = []
  for rho, s in ((0.01, 1e-3), (0.05, 1e-3), (0.001, 0.01), (0.01, 0.01)):
    claim = truncated_cdp.TCDP(rho).subsample(s)
    orders = 1 + np.geomspace(1e-3, claim.omega - 1, 200)
    worst = max(float(np.max(
        GaussianLoss(math.sqrt(2 * rho), s, direction).cumulants(orders - 1)[0] /
        (orders - 1) / (s * s * rho * orders))) for direction in ('add', 'remove'))
    rows.append({'rho': rho, 'sampling_prob': s, 'omega': claim.omega,
                 'constant': worst})
  return rows


def medians() -> list[dict]:
  """Returns planned and measured rank errors of medians at epsilon 1, delta 1e-6."""
  rows = []
  for size in DOMAINS:
    for method in interior.METHODS:
      noise = planner.noise_for_epsilon(
          'gaussian', 1.0, 1e-6, releases=interior.num_queries(size, method))
      planned = interior.planned_error(noise, size, 0.5, 0.05, method)
      records = size // 3 + np.random.default_rng(0).integers(
          0, size // 3, int(40 * planned))
      balance = interior.Balance.of(records, 0.5, size)
      if method == 'binary-search':
        answers = interior.binary_search_draws(
            balance, noise, SystemRandom(1), RUNS)
      else:
        answers = interior.recursion_draws(
            balance, planned, noise, SystemRandom(1), RUNS)
      error = np.maximum(np.maximum(
          -balance(answers), balance(answers - 1)), 0)
      rows.append({
          'size': size, 'method': method, 'noise': noise.noise_multiplier,
          'questions': interior.num_queries(size, method),
          'planned_error': planned, 'failed': float(np.mean(error > planned)),
          'median_error': float(np.median(error))})
  return rows


def main() -> None:
  """Measures all parts; writes the results and the tables."""
  _results.parser('truncated_cdp', __doc__).parse_args()
  costs, constants, rows = (
      sinh_normal_costs(), theorem_12_constants(), medians())
  _results.save('truncated_cdp', {
      'sinh_normal': costs, 'theorem_12': constants, 'medians': rows})
  for row in constants:
    print(row)
  show(_results.load('truncated_cdp'))


def show(found: dict) -> None:
  """Writes the tables from the results."""
  _results.show('sinh_normal', _results.markdown(
      ['sigma', 'bend', 'epsilon, exact', 'by Renyi divergences', 'by Theorem 17'],
      [[f'{1 / math.sqrt(2 * row["rho"]):.4g}', f'{row["bend"]:.4g}'] + [
          _format.upper(row[kind + "_1e-05"], 5) for kind in (
              'exact', 'renyi', 'theorem_17')] for row in found['sinh_normal']]))
  _results.show('medians', _results.markdown(
      ['values', 'method', 'queries', 'rank error', 'share above (at most 0.05)'],
      [[f'2^{row["size"].bit_length() - 1}', row['method'],
        str(row['questions']), _format.upper(row["planned_error"], 4),
        f'{row["failed"]:.4f}'] for row in found['medians']]))


if __name__ == '__main__':
  main()
