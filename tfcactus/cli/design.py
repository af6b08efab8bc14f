"""The commands `design`, `plot` and `tables` of the command line."""

from __future__ import annotations

import argparse
import contextlib
import fractions
import json
import math
import sys
import threading
import time
from typing import Any
from typing import Iterator

import dp_accounting
import numpy as np

from tfcactus import _format
from tfcactus import accounting
from tfcactus import design
from tfcactus import noise as noise_lib
from tfcactus.cli import truncated
from tfcactus.noise import library
from tfcactus.search import optimal

_QUIET_SECONDS = 2.0
"""A solve that takes longer says so, this often."""

_CURVE_POINTS = 20


def register(commands: Any) -> None:
  """Adds the subcommands; each sets `run`, a function of the parsed arguments.

  Args:
    commands: What `ArgumentParser.add_subparsers` returned.
  """
  _register_design(commands)
  plot = commands.add_parser(
      'plot', help='draw densities and privacy curves of tables')
  plot.add_argument('tables', nargs='+', metavar='TABLE',
                    help='FILE.npz or the name of a shipped table')
  plot.add_argument('--out', required=True, metavar='P.png')
  plot.add_argument('--sampling-prob', type=_number, default=1.0)
  plot.add_argument('--steps', type=int, default=1)
  plot.set_defaults(run=run_plot)
  tables = commands.add_parser('tables', help='list the shipped noise tables')
  tables.add_argument('--json', action='store_true', help='print JSON')
  tables.set_defaults(run=run_tables)


def _register_design(commands: Any) -> None:
  parser = commands.add_parser(
      'design', help='solve for certified optimal noise')
  add = parser.add_argument
  add('mechanism', choices=(
      'cactus', 'monotone', 'isotropic', 'optimal', 'truncated'))
  add('--budget', type=_number, metavar='C',
      help='bound on E|Z|^power in units of sensitivity^power')
  add('--power', type=_number, default=2.0)
  add('--dim', type=int, default=None, help='dimension of the query')
  add('--objective', default=None, metavar='kl|chi2|renyi:A',
      help='optionally followed by @Q for releases subsampled at rate Q')
  add('--bins', type=int, help='cells or shells per unit (n)')
  add('--cells', type=int, help='index of the last free cell (N)')
  add('--tail-ratio', type=_number, help='density ratio beyond it (r)')
  add('--solver', choices=('interior-point', 'cvxpy'), default='interior-point')
  add('--delta', type=_number, help='of the plan (optimal only)')
  add('--sampling-prob', type=_number,
      help='of the plan (optimal and truncated only)')
  add('--steps', type=int, help='of the plan (optimal and truncated only)')
  add('--out', metavar='F.npz', help='where to write the table')
  add('--json', action='store_true', help='print JSON')
  truncated.add_arguments(parser, _number)
  parser.set_defaults(run=run_design)


def _number(text: str) -> float:
  """A number such as 0.25 or 250/60000."""
  try:
    return float(fractions.Fraction(text))
  except (ValueError, ZeroDivisionError):
    raise argparse.ArgumentTypeError(
        f'Expected a number or a fraction such as 1/4, got {text!r}.') from None


def run_design(args: argparse.Namespace) -> None:
  """Solves, reports and writes.

  Raises:
    ValueError: if an argument does not suit the mechanism.
    SolverError: if the design could not be certified; nothing is written.
  """
  if args.out is not None and not args.out.endswith('.npz'):
    raise ValueError(f'Expected --out to end in ".npz", got {args.out!r}.')
  if args.mechanism == 'truncated':
    truncated.run(args)
    return
  truncated.refuse_arguments(args)
  if args.budget is None:
    raise ValueError(
        f'Expected --budget with "design {args.mechanism}", got none.')
  begun = time.perf_counter()
  with _progress(f'designing {args.mechanism} noise'):
    if args.mechanism == 'optimal':
      found = _search(args)
      table, extra = found.noise, {
          'label': found.label, 'epsilon': found.epsilon,
          'certified': found.certified, 'searched': found.searched,
          'candidates': [list(c) for c in found.candidates
                         if math.isfinite(c.epsilon)]}
    else:
      table, extra = _request(args).solve(), {}
  seconds = time.perf_counter() - begun
  info = getattr(table, 'info', {})
  report = {key: info.get(key) for key in (
      'objective', 'lower_bound', 'gap', 'iterations')}
  report.update(seconds=seconds, digest=table.digest, **extra)
  if args.out is not None:
    if not hasattr(table, 'save'):
      raise ValueError(
          f'Expected a table to write to {args.out!r}, but the best noise found '
          f'is closed-form ({table.name}): it needs no file.')
    table.save(args.out)
  print(json.dumps(report) if args.json else _told(args, table, report))


def _told(args: argparse.Namespace, table: Any, report: dict[str, Any]) -> str:
  lines = []
  if 'epsilon' in report:
    lines.append(f'{report["label"]}: {report["certified"]}; searched: '
                 f'{report["searched"]}.')
  if report['objective'] is not None:
    lines.append(
        f'objective {_format.upper(report["objective"], 10)}, no table of this '
        f'grid below {_format.lower(report["lower_bound"], 10)} (gap '
        f'{_format.upper(report["gap"], 2)}); '
        f'{report["iterations"]} iterations, {report["seconds"]:.2f} s')
  lines.append(f'digest {table.digest}' + (
      f', written to {args.out}' if args.out else ''))
  return '\n'.join(lines)


def _request(args: argparse.Namespace) -> Any:
  """The design that the arguments ask for."""
  for name in ('delta', 'sampling_prob', 'steps'):
    if getattr(args, name) is not None:
      raise ValueError(
          f'Expected --{name.replace("_", "-")} with "design optimal" only, got '
          f'it with {args.mechanism!r}; give the objective a rate, as in '
          '--objective chi2@0.004.')
  shared = {'power': args.power, 'bins': args.bins, 'cells': args.cells,
            'tail_ratio': args.tail_ratio, 'solver': args.solver,
            'objective': args.objective or 'kl'}
  if args.mechanism == 'isotropic':
    if args.dim is None:
      raise ValueError('Expected --dim with "design isotropic", got none.')
    return design.Isotropic(args.dim, budget=args.budget, **shared)
  if args.dim not in (None, 1):
    raise ValueError(
        f'Expected --dim 1 for {args.mechanism} noise, which protects scalar '
        f'queries, got {args.dim}; use "design isotropic".')
  kind = {'cactus': design.Cactus, 'monotone': design.Monotone}
  return kind[args.mechanism](args.budget, **shared)


def _search(args: argparse.Namespace) -> optimal.OptimalNoise:
  missing = [name for name in ('delta', 'sampling_prob', 'steps')
             if getattr(args, name) is None]
  unused = [name for name in ('objective', 'cells', 'tail_ratio')
            if getattr(args, name) is not None]
  if missing or unused or args.power != 2 or args.solver != 'interior-point':
    raise ValueError(
        'Expected --delta, --sampling-prob and --steps with "design optimal", '
        'power 2, and no objective, cells, tail ratio or solver: it chooses '
        f'them. Missing: {missing or "none"}, not used: {unused or "none"}.')
  dim = args.dim or 1
  return optimal.optimal_noise(
      delta=args.delta, sampling_prob=args.sampling_prob, steps=args.steps,
      variance=args.budget / dim, dim=dim, bins=args.bins)


@contextlib.contextmanager
def _progress(what: str) -> Iterator[None]:
  """Tells on stderr, now and then, that a long solve is under way."""
  done = threading.Event()
  begun = time.perf_counter()

  def tell():
    while not done.wait(_QUIET_SECONDS):
      print(f'\r{what}: {time.perf_counter() - begun:.0f} s', end='',
            file=sys.stderr, flush=True)

  thread = threading.Thread(target=tell, daemon=True)
  thread.start()
  try:
    yield
  finally:
    done.set()
    thread.join()
    if time.perf_counter() - begun > _QUIET_SECONDS:
      print(file=sys.stderr)


def run_tables(args: argparse.Namespace) -> None:
  """Lists the shipped tables with certificate and digest."""
  rows = []
  for entry in library.entries():
    table = library.get(entry.name)
    rows.append({
        'name': entry.name, 'kind': table.kind, 'dim': table.dim,
        'noise_multiplier': table.noise_multiplier, 'monotone': table.monotone,
        **{key: table.info.get(key) for key in (
            'objective', 'lower_bound', 'gap')}, 'digest': table.digest})
  if args.json:
    print(json.dumps(rows))
    return
  print(f'{"name":36s} {"dim":>6s} {"sigma":>9s} {"objective":>14s} '
        f'{"bound":>14s} {"gap":>8s} digest')
  for row in rows:
    print(f'{row["name"]:36s} {row["dim"]:6d} {row["noise_multiplier"]:9.6g} '
          f'{_format.upper(row["objective"], 9):>14s} '
          f'{_format.lower(row["lower_bound"], 9):>14s} '
          f'{_format.upper(row["gap"], 2):>8s} {row["digest"]}')


def run_plot(args: argparse.Namespace) -> None:
  """Draws densities against the Gaussian of equal variance, and delta(eps).

  Raises:
    ImportError: if matplotlib is not installed.
    ValueError: if a table is unknown or unreadable.
  """
  try:
    import matplotlib  # pylint: disable=import-outside-toplevel
    matplotlib.use('Agg')
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel
  except ImportError as error:
    raise ImportError(
        "tfcactus plot needs matplotlib: pip install 'tfcactus[plot]'."
    ) from error
  tables = [noise_lib.load(name) if name.endswith('.npz') else library.get(name)
            for name in args.tables]
  figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5))
  seen = set()
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
                  f'{args.sampling_prob:.4g}')
  for axis in (left, right):
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)
  figure.tight_layout()
  figure.savefig(args.out, dpi=120)
  pyplot.close(figure)
  print(f'written to {args.out}')


def _densities(table: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Points, the table's density there, and the normal's of equal variance."""
  sigma, dim = table.noise_multiplier, table.dim
  if table.kind == 'scalar':
    reach = np.ceil(8 * sigma * table.bins)
    middle = 0.5 if table.edge_at_zero else 0.0
    x = (np.arange(-reach, reach + 1) + middle) / table.bins
    log_normal = -0.5 * (x / sigma)**2 - np.log(sigma * np.sqrt(2 * np.pi))
    return x, np.exp(table.log_density_at(x)), np.exp(log_normal)
  inner = np.append(0.0, table.radii[:-1])
  kept = (table.shell_mass > 1e-12) & (np.arange(inner.size) > 0)
  x = 0.5 * (inner + table.radii)[kept]
  density = (table.shell_mass / (table.radii - inner))[kept]
  log_chi = ((dim - 1) * np.log(x / sigma) - 0.5 * (x / sigma)**2 -
             (0.5 * dim - 1) * np.log(2) - math.lgamma(0.5 * dim) - np.log(sigma))
  return x, density, np.exp(log_chi)


def _curve(axis: Any, args: argparse.Namespace, noise: Any,
           style: dict[str, Any]) -> None:
  event = accounting.noise_event(noise)
  if args.sampling_prob != 1:
    event = dp_accounting.PoissonSampledDpEvent(args.sampling_prob, event)
  accountant = accounting.PhiAccountant()
  accountant.compose(event, args.steps)
  top = accountant.get_epsilon(1e-9)
  top = top if math.isfinite(top) else accountant.get_epsilon(1e-3)
  epsilon = np.linspace(0.0, top, _CURVE_POINTS)
  axis.semilogy(epsilon, [max(accountant.get_delta(e), 1e-12) for e in epsilon],
                **style)
