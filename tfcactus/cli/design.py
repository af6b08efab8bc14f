"""`tfcactus design`: solves for certified noise."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import contextlib
import math
import sys
import threading
import time
from typing import Any

from tfcactus import _checks, _format, design as design_lib, noise as noise_lib
from tfcactus.cli import command, design_correlation, design_truncated
from tfcactus.search import optimal

_QUIET_SECONDS = 2.0
"""Seconds between progress messages of a long solve."""

_SOLVED = ('cactus', 'monotone', 'isotropic')
"""Kinds of noise that a budget and an objective determine."""

_PLANNED = ('optimal', 'truncated', 'correlation')
"""Kinds of noise that are designed for steps."""

_TAKEN_BY = {
    'budget': (*_SOLVED, 'optimal'), 'dim': (*_SOLVED, 'optimal'),
    'bins': (*_SOLVED, 'optimal', 'truncated'),
    **dict.fromkeys(('power', 'objective', 'cells', 'tail_ratio', 'solver'), _SOLVED),
    'delta': _PLANNED, 'steps': _PLANNED, 'sampling_prob': ('optimal', 'truncated'),
    'epsilon': ('truncated', 'correlation'),
    **dict.fromkeys(('range', 'utility', 'norm', 'method', 'seed', 'seconds'),
                    ('truncated',)),
    **dict.fromkeys(('bands', 'blocked', 'momentum', 'batches', 'plot'),
                    ('correlation',))}
"""For each argument, the kinds of noise that take it."""

_REQUIRED = {
    'cactus': ('budget',), 'monotone': ('budget',), 'isotropic': ('budget', 'dim'),
    'optimal': ('budget', 'delta', 'sampling_prob', 'steps'),
    'truncated': ('range', 'epsilon', 'steps'), 'correlation': ('steps',)}
"""For each kind of noise, the arguments that it requires."""

_DEFAULTS = {'power': 2.0, 'solver': 'interior-point'}
"""Defaults of the arguments in `_TAKEN_BY`, where they are not None."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds the arguments of all kinds of noise."""
  add = parser.add_argument
  add('mechanism', choices=(*_SOLVED, *_PLANNED),
      help='kind of noise: cactus and monotone for scalar queries, isotropic for '
      'vectors, optimal for least epsilon of a plan, truncated for a bounded range, '
      'correlation for noise correlated over steps (BandMF, DP-FTRL)')
  add('--budget', type=command.number, metavar='C',
      help='bound on E|Z|^power, in units of sensitivity^power')
  add('--power', type=command.number, default=_DEFAULTS['power'],
      help='exponent of the cost |z|^power; default: %(default)s')
  add('--dim', type=int, default=None, help='dimension of the query')
  add('--objective', default=None, metavar='kl|chi2|renyi:A',
      help='divergence to minimise, followed by @Q for releases subsampled with '
      'probability Q; default: kl')
  add('--bins', type=int, help='cells or shells per unit of sensitivity')
  add('--cells', type=int, help='index of the last cell before the geometric tail')
  add('--tail-ratio', type=command.number,
      help='density ratio of neighbouring cells in the tail')
  add('--solver', choices=('interior-point', 'cvxpy'), default=_DEFAULTS['solver'],
      help='solver of the convex program; default: %(default)s')
  add('--delta', type=command.number, help='delta of the plan (optimal, truncated, '
      'correlation)')
  add('--sampling-prob', type=command.number,
      help='sampling probability of the plan (optimal and truncated only)')
  add('--steps', type=int, help='number of steps of the plan (optimal, truncated, '
      'correlation)')
  add('--out', metavar='F.npz',
      help='file to write the table to; F.json for a correlation')
  command.add_json(parser)
  design_truncated.add_arguments(parser)
  design_correlation.add_arguments(parser)


def _check(args: argparse.Namespace) -> None:
  """Raises ValueError unless the arguments are those of the kind of noise."""
  for name, kinds in _TAKEN_BY.items():
    if args.mechanism not in kinds and getattr(args, name) != _DEFAULTS.get(name):
      remedy = '; give the objective a rate, as in --objective chi2@0.004' if (
          args.mechanism in _SOLVED and name in _REQUIRED['optimal']) else ''
      raise ValueError(
          f'Expected {command.option(name)} with "design {" or ".join(kinds)}" only, '
          f'got it with {args.mechanism!r}{remedy}.')
  command.require(args, f'design {args.mechanism}', *_REQUIRED[args.mechanism])


def _run(args: argparse.Namespace) -> None:
  """Designs the kind of noise asked for, writes it to --out and reports."""
  _check(args)
  suffix = '.json' if args.mechanism == 'correlation' else '.npz'
  if args.out is not None and not args.out.endswith(suffix):
    raise ValueError(f'Expected --out to end in "{suffix}", got {args.out!r}.')
  if args.mechanism == 'correlation':
    with _progress('designing a correlation'):
      design_correlation.run(args)
    return
  if args.mechanism == 'truncated':
    design_truncated.run(args)
    return
  begun = time.perf_counter()
  with _progress(f'designing {args.mechanism} noise'):
    table, extra = (_search(args) if args.mechanism == 'optimal' else
                    (_request(args).solve(), {}))
  seconds = time.perf_counter() - begun
  info = getattr(table, 'info', {})
  report = {**{key: info.get(key) for key in (
      'objective', 'lower_bound', 'gap', 'iterations')},
            'seconds': seconds, 'digest': table.digest, **extra}
  if args.out is not None:
    if not hasattr(table, 'save'):
      raise ValueError(
          f'Expected a table to write to {args.out!r}, but the best noise found '
          f'is closed-form ({table.name}): it needs no file.')
    table.save(args.out)
  command.show(args, report, _told(args, table, report))


def _told(args: argparse.Namespace, table: noise_lib.Noise,
          report: dict[str, Any]) -> str:
  """Returns the report in words."""
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


def _request(args: argparse.Namespace
             ) -> design_lib.Cactus | design_lib.Monotone | design_lib.Isotropic:
  """Returns the request of the arguments for one of `_SOLVED`."""
  shared: dict[str, Any] = {
      'power': args.power, 'bins': args.bins, 'cells': args.cells,
      'tail_ratio': args.tail_ratio, 'solver': args.solver,
      'objective': args.objective or 'kl'}
  if args.mechanism == 'isotropic':
    return design_lib.Isotropic(args.dim, budget=args.budget, **shared)
  if args.dim not in (None, 1):
    raise ValueError(
        f'Expected --dim 1 for {args.mechanism} noise, which protects scalar '
        f'queries, got {args.dim}; use "design isotropic".')
  kind = design_lib.Cactus if args.mechanism == 'cactus' else design_lib.Monotone
  return kind(args.budget, **shared)


def _search(args: argparse.Namespace) -> tuple[noise_lib.Noise, dict[str, Any]]:
  """Returns the noise of least epsilon, and the report of the search."""
  dim = 1 if args.dim is None else _checks.integer('--dim', args.dim, 1)
  found = optimal.optimal_noise(
      delta=args.delta, sampling_prob=args.sampling_prob, steps=args.steps,
      variance=args.budget / dim, dim=dim, bins=args.bins)
  return found.noise, {
      'label': found.label, 'epsilon': found.epsilon,
      'certified': found.certified, 'searched': found.searched,
      'candidates': [list(c) for c in found.candidates
                     if math.isfinite(c.epsilon)]}


@contextlib.contextmanager
def _progress(what: str) -> Iterator[None]:
  """Context that prints the time elapsed on stderr, every `_QUIET_SECONDS`."""
  done = threading.Event()
  begun = time.perf_counter()

  def tell() -> None:
    """Prints the time until `done` is set."""
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


COMMAND = command.Command(
    'design', 'solve for a noise table, or for noise correlated over steps',
    _add_arguments, _run)
