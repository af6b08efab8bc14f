"""Measures error, width of bounds and time of the accountant and of its peers.

    python -m benchmarks.accountant_speed

Everything runs in one process and one thread; times are medians of CPU time. Peers are
dp_accounting's PLD accountant on its 1e-4 grid, dp_accounting's RDP accountant, and
prv_accountant with error 0.01 and for removal only, if it is installed.
"""

from __future__ import annotations

import os

for _name in ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS'):
  os.environ[_name] = '1'

import functools  # noqa: E402
import math  # noqa: E402
import statistics  # noqa: E402
import time  # noqa: E402
from typing import Any, Callable  # noqa: E402

import dp_accounting  # noqa: E402
from dp_accounting import pld, rdp  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks import _prv, _results  # noqa: E402
from tests.accounting.reference_values import POINTS  # noqa: E402
import tfcactus  # noqa: E402
from tfcactus import _format  # noqa: E402

RARE = (
    (.817, .000522, 114, 1e-11), (1, 1e-4, 15000, 1e-12), (1, 1e-5, 1000, 1e-9),
    (1, .01, 2, 1e-8), (1, .01, 4, 1e-6), (5, .001, 3, 1e-9), (.3, 1e-4, 10, 1e-10))
"""Settings (sigma, q, steps, delta) in which a few rare large privacy losses decide, so
that one tilted contour is not accurate."""


def timed(run: Callable[[], Any], seconds: float) -> tuple[Any, float]:
  """Repeats `run` for some seconds; returns its result and median CPU milliseconds."""
  times: list[float] = []
  start = time.perf_counter()
  while not times or time.perf_counter() - start < seconds:
    begin = time.process_time()
    result = run()
    times.append(time.process_time() - begin)
  return result, 1e3 * statistics.median(times)


def subsampled(sigma: float, prob: float) -> dp_accounting.DpEvent:
  """Returns the event of one step of DP-SGD on a Poisson sample."""
  return dp_accounting.PoissonSampledDpEvent(prob, dp_accounting.GaussianDpEvent(sigma))


def mine(sigma, prob, steps, delta) -> tfcactus.accounting.Bounds:
  """Returns the bounds on epsilon of this library's accountant."""
  return tfcactus.PhiAccountant().compose(
      subsampled(sigma, prob), steps).epsilon_bounds(delta)


def peer_pld(sigma, prob, steps, delta) -> float:
  """Returns epsilon by dp_accounting's PLD accountant, an upper bound."""
  accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
  return accountant.compose(subsampled(sigma, prob), steps).get_epsilon(delta)


def peer_prv(sigma, prob, steps, delta) -> float | None:
  """Returns epsilon by prv_accountant, or None if there is none."""
  return _prv.epsilon(lambda kinds: [kinds.PoissonSubsampledGaussianMechanism(
      noise_multiplier=sigma, sampling_probability=prob)], [steps], delta)


def peer_rdp(sigma, prob, steps, delta) -> float:
  """Returns epsilon by dp_accounting's RDP accountant with its default orders."""
  return rdp.RdpAccountant().compose(
      subsampled(sigma, prob), steps).get_epsilon(delta)


def table_time() -> tuple[tfcactus.accounting.Bounds, float]:
  """Accounts for a noise table of 3,400 atoms in both directions; returns the time."""
  z = np.arange(1601) / 200
  table = tfcactus.ScalarTable.normalized(200, -z * z / 2, math.log(0.9))
  event = dp_accounting.PoissonSampledDpEvent(
      0.00417, tfcactus.NoiseTableDpEvent(table))
  return timed(lambda: tfcactus.PhiAccountant().compose(
      event, 14400).epsilon_bounds(1e-5), 2.0)


def rare_settings() -> list[dict[str, float]]:
  """Returns bounds and times for the settings `RARE`."""
  results = []
  for setting in RARE:
    bounds, own = timed(functools.partial(mine, *setting), 0.5)
    results.append({
        **dict(zip(('sigma', 'sampling_prob', 'steps', 'delta'), setting)),
        **bounds._asdict(), 'milliseconds': own})
  return results


def main() -> None:
  """Measures all settings; writes results/accountant_speed.json and the tables."""
  _results.parser('accountant_speed', __doc__).parse_args()
  results = []
  for sigma, prob, steps, delta, reference in POINTS:
    setting = (sigma, prob, steps, delta)
    bounds, own = timed(functools.partial(mine, *setting), 0.5)
    assert bounds.lower <= reference <= bounds.upper
    upper, slow = timed(functools.partial(peer_pld, *setting), 0.0)
    other, slower = timed(functools.partial(peer_prv, *setting), 0.0)
    lossy, late = timed(functools.partial(peer_rdp, *setting), 0.0)
    results.append({
        'sigma': sigma, 'sampling_prob': prob, 'steps': steps, 'delta': delta,
        'reference': reference, 'lower': bounds.lower,
        'estimate': bounds.estimate, 'upper': bounds.upper, 'milliseconds': own,
        'pld': upper, 'pld_milliseconds': slow, 'prv': other,
        'prv_milliseconds': slower if other is not None else None,
        'rdp': lossy, 'rdp_milliseconds': late})
    print(results[-1], flush=True)
  rare = rare_settings()
  bounds, own = table_time()
  _results.save('accountant_speed', {'points': results, 'rare': rare, 'table': {
      'lower': bounds.lower, 'estimate': bounds.estimate,
      'upper': bounds.upper, 'milliseconds': own}})
  print(f'A table of 3,400 atoms, both directions: {own:.1f} ms, '
        f'[{_format.lower(bounds.lower, 8)}, {_format.upper(bounds.upper, 8)}].')
  show(_results.load('accountant_speed'))


def _setting(row: dict) -> str:
  return (f'{row["sigma"]:g}, {row["sampling_prob"]:.4g}, {row["steps"]:g}, '
          f'{row["delta"]:g}')


def show(found: dict) -> None:
  """Writes the tables from the results."""
  rows = []
  for row in found['points']:
    own, reference, other = row['milliseconds'], row['reference'], row['prv']
    rows.append([
        _setting(row), f'{reference:.12g}', f'{abs(row["estimate"] - reference):.1e}',
        f'{row["upper"] - row["lower"]:.1e}', f'{own:.1f}',
        f'{row["pld"] - reference:+.1e}', f'{row["pld_milliseconds"] / own:.0f} x',
        *(('-', '-') if other is None else (
            f'{other - reference:+.1e}', f'{row["prv_milliseconds"] / own:.0f} x')),
        *((f'{row["rdp"] - reference:+.1e}', f'{row["rdp_milliseconds"] / own:.1f} x')
          if 'rdp' in row else ())])
  _results.show('accountant_speed', _results.markdown(
      ['sigma, q, steps, delta', 'epsilon', 'error', 'upper - lower', 'ms',
       'PLD error', 'PLD time', 'PRV error', 'PRV time', 'RDP error', 'RDP time'
       ][:len(rows[0])], rows))
  _results.show('accountant_rare', _results.markdown(
      ['sigma, q, steps, delta', 'epsilon', 'upper - lower', 'ms'],
      [[_setting(row), f'{row["estimate"]:.12g}', f'{row["upper"] - row["lower"]:.1e}',
        f'{row["milliseconds"]:.0f}'] for row in found['rare']]))


if __name__ == '__main__':
  main()
