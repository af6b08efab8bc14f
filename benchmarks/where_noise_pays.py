"""Measures epsilon of the shipped noise tables against Gaussians of equal variance.

    python -m benchmarks.where_noise_pays
"""

from __future__ import annotations

from benchmarks import _results
import tfcactus
from tfcactus import _format
from tfcactus.noise import library

SHOWN = (
    'cactus-budget0.25', 'monotone-chi2-budget0.25', 'monotone-chi2-budget1',
    'isotropic-dim3-sigma0.5', 'isotropic-chi2-dim3-sigma0.5',
    'isotropic-chi2-dim10-sigma0.5', 'isotropic-chi2-dim10-sigma1',
    'isotropic-dim26010-sigma1.3')
"""Tables that README.md shows; results/where_noise_pays.json holds all."""

STEPS, SAMPLING_PROB, DELTA = 3600, 250 / 60_000, 1e-5


def epsilon(noise: tfcactus.noise.Noise) -> float:
  """Returns the upper bound on epsilon after `STEPS` steps on Poisson samples."""
  return tfcactus.PrivacyPlan(
      noise=noise, l2_norm_clip=1.0, num_examples=60_000,
      sampling_prob=SAMPLING_PROB, steps=STEPS, delta=DELTA).guarantee().upper


def main() -> None:
  """Accounts for every shipped noise table; writes the results and the table."""
  _results.parser('where_noise_pays', __doc__).parse_args()
  results = []
  for entry in library.entries():
    table = library.get(entry.name)
    designed = epsilon(table)
    gaussian = epsilon(tfcactus.Gaussian(table.noise_multiplier))
    results.append({
        'name': entry.name, 'dim': table.dim, 'digest': table.digest,
        'noise_multiplier': table.noise_multiplier, 'epsilon': designed,
        'epsilon_gaussian': gaussian})
  _results.save('where_noise_pays', {
      'steps': STEPS, 'sampling_prob': SAMPLING_PROB, 'delta': DELTA,
      'rows': results})
  show(_results.load('where_noise_pays'))


def show(found: dict) -> None:
  """Writes the table from the results."""
  rows = [[f'`{row["name"]}`', str(row['dim']), f'{row["noise_multiplier"]:.4g}',
           _format.upper(row['epsilon']), _format.upper(row['epsilon_gaussian']),
           f'{100 * (row["epsilon"] / row["epsilon_gaussian"] - 1):+.2f} %']
          for row in found['rows'] if row['name'] in SHOWN]
  _results.show('where_noise_pays', _results.markdown(
      ['noise table', 'dimension', 'noise multiplier', 'epsilon', 'epsilon, Gaussian',
       'difference'],
      rows))


if __name__ == '__main__':
  main()
