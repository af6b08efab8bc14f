"""`tfcactus tables` and `tfcactus plot`: noise tables and their privacy curves."""

from __future__ import annotations

import argparse
import math
from typing import Any

import dp_accounting
import numpy as np

from tfcactus import _format, accounting, noise as noise_lib
from tfcactus.audit import pictures
from tfcactus.cli import command, steps
from tfcactus.cli.command import Command
from tfcactus.noise import library


def _list(args: argparse.Namespace) -> None:
  """Prints the shipped tables with their certificates."""
  rows: list[dict[str, Any]] = []
  for entry in library.entries():
    table = library.get(entry.name)
    rows.append({
        'name': entry.name, 'kind': table.kind, 'dim': table.dim,
        'noise_multiplier': table.noise_multiplier, 'monotone': table.monotone,
        **{key: table.info.get(key) for key in (
            'objective', 'lower_bound', 'gap')}, 'digest': table.digest})
  command.show(args, rows, '\n'.join([
      f'{"name":36s} {"dim":>6s} {"sigma":>9s} {"objective":>14s} '
      f'{"bound":>14s} {"gap":>8s} digest',
      *(f'{row["name"]:36s} {row["dim"]:6d} {row["noise_multiplier"]:9.6g} '
        f'{_format.upper(row["objective"], 9):>14s} '
        f'{_format.lower(row["lower_bound"], 9):>14s} '
        f'{_format.upper(row["gap"], 2):>8s} {row["digest"]}' for row in rows)]))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of `tfcactus plot`."""
  add = parser.add_argument
  add('tables', nargs='+', metavar='TABLE',
      help='FILE.npz or the name of a shipped table')
  add('--out', required=True, metavar='P.png', help='file to write the picture to')
  add('--sampling-prob', type=command.number, default=1.0,
      help='sampling probability of the privacy curves; default: %(default)s')
  add('--steps', type=int, default=1,
      help='number of steps of the privacy curves; default: %(default)s')


def _run(args: argparse.Namespace) -> None:
  """Draws densities, and delta by epsilon, beside Gaussians of equal variance."""
  left, right = pictures.axes(2, 12)
  tables = [steps.named_table(name) for name in args.tables]
  seen: set[tuple[int | None, float]] = set()  # (dim, sigma) of Gaussians drawn.
  for name, table in zip(args.tables, tables):
    colour = f'C{len(left.get_lines()) % 10}'
    sigma = table.noise_multiplier
    x, density, normal = _densities(table)
    label = name.rsplit('/', 1)[-1].removesuffix('.npz')
    left.semilogy(x, density, color=colour, label=label, drawstyle='steps-mid')
    if (table.dim, round(sigma, 9)) not in seen:
      left.semilogy(x, normal, '--', color=colour, linewidth=0.9,
                    label=f'Gaussian, sigma {sigma:.4g}, dim {table.dim}')
    _curve(right, args, table, {'color': colour, 'label': label})
    if round(sigma, 9) not in {size for _, size in seen}:
      _curve(right, args, noise_lib.Gaussian(sigma), {
          'color': colour, 'linestyle': '--', 'linewidth': 0.9,
          'label': f'Gaussian, sigma {sigma:.4g}'})
    seen.add((table.dim, round(sigma, 9)))
  radial = any(table.kind == 'radial' for table in tables)
  left.set(xlabel='|z| / sensitivity' if radial else 'z / sensitivity',
           ylabel='density of the radius' if radial else 'density',
           title='Noise')
  left.set_ylim(bottom=max(left.get_ylim()[0], 1e-12))
  right.set(xlabel='epsilon', ylabel='delta (upper bound)',
            title=f'{args.steps} step(s) at sampling probability '
                  f'{_format.upper(args.sampling_prob, 4)}')
  for axis in (left, right):
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)
  left.figure.savefig(args.out, dpi=120)
  print(f'written to {args.out}')


def _densities(table: library.Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns points, a table's density there, and that of a Gaussian of equal variance.

  Points are in units of sensitivity. For a radial table they are radii, and densities
  are of the radius.
  """
  sigma = table.noise_multiplier
  if isinstance(table, noise_lib.ScalarTable):
    reach = np.ceil(8 * sigma * table.bins)
    middle = 0.5 if table.edge_at_zero else 0.0
    x = (np.arange(-reach, reach + 1) + middle) / table.bins
    log_normal = -0.5 * (x / sigma)**2 - np.log(sigma * np.sqrt(2 * np.pi))
    return x, np.exp(table.log_density_at(x)), np.exp(log_normal)
  dim, inner = table.dim, np.append(0.0, table.radii[:-1])
  # The central ball has no inner radius, and shells of less mass would not be seen.
  kept = (table.shell_mass > 1e-12) & (np.arange(inner.size) > 0)
  x = 0.5 * (inner + table.radii)[kept]
  density = (table.shell_mass / (table.radii - inner))[kept]
  # The radius of a Gaussian over sigma has the chi distribution.
  log_chi = ((dim - 1) * np.log(x / sigma) - 0.5 * (x / sigma)**2 -
             (0.5 * dim - 1) * np.log(2) - math.lgamma(0.5 * dim) - np.log(sigma))
  return x, density, np.exp(log_chi)


def _curve(axis: Any, args: argparse.Namespace, noise: noise_lib.Noise,
           style: dict[str, Any]) -> None:
  """Plots upper bounds on the delta of all steps, at least 1e-12, by epsilon."""
  event = accounting.noise_event(noise)
  if args.sampling_prob != 1:
    event = dp_accounting.PoissonSampledDpEvent(args.sampling_prob, event)
  accountant = accounting.PhiAccountant()
  accountant.compose(event, args.steps)
  # Bounded noise has no epsilon at a delta below the probability of infinite losses.
  tops = (accountant.get_epsilon(delta) for delta in (1e-9, 1e-3))
  top = next(filter(math.isfinite, tops), 10.0)
  epsilon = np.linspace(0.0, top, 20)
  axis.semilogy(epsilon, [max(accountant.get_delta(e), 1e-12) for e in epsilon],
                **style)


COMMAND = Command(
    'plot', 'draw the densities and the privacy curves of noise tables',
    _add_arguments, _run)

LIST = Command(
    'tables', 'list the noise tables that come with the package',
    command.add_json, _list)
