"""Precomputed noise tables that come with the package, solved and certified.

Names read mechanism[-dimM]-sigmaS or mechanism-budgetC. `python -m
tfcactus.design.build_library` makes the tables.
"""

from __future__ import annotations

import functools
from importlib import resources
import re
from typing import NamedTuple

import numpy as np

from tfcactus import _checks, noise
from tfcactus.noise import Table

_NAME = re.compile(
    r'(?P<mechanism>[a-z][a-z0-9-]*?)(-dim(?P<dim>\d+))?-'
    r'(?P<measure>sigma|budget)(?P<value>[0-9.]+)\.npz')

_MATCH = 1e-9
"""Largest relative difference of noise multipliers between a request and a shipped
table that answers it."""


class Entry(NamedTuple):
  """Properties of a shipped table, read from its name.

  Attributes:
    name: Name of the table.
    mechanism: Name of its mechanism.
    dim: Dimension of the query; 1 for scalar tables.
    noise_multiplier: Standard deviation of a coordinate over sensitivity.
  """

  name: str
  mechanism: str
  dim: int
  noise_multiplier: float


def names() -> list[str]:
  """Returns the names of all shipped tables, sorted."""
  return sorted(entry.name for entry in _entries())


def entries() -> list[Entry]:
  """Returns all shipped tables, sorted by mechanism, dimension and noise multiplier."""
  return list(_entries())


def get(name: str) -> Table:
  """Loads a shipped table by its name.

  Args:
    name: One of `names()`.

  Returns:
    The table; the same object for the same name.

  Raises:
    ValueError: if there is no such table.
  """
  if not isinstance(name, str) or name not in names():
    raise ValueError(
        f'Expected the name of a shipped table, got {name!r}. Shipped: '
        f'{", ".join(names())}.')
  return _load(name)


def find(mechanism: str, dim: int = 1, noise_multiplier: float | None = None,
         budget: float | None = None) -> Table:
  """Loads the shipped table whose noise multiplier is the requested one to 1e-9.

  Args:
    mechanism: 'cactus', 'cactus-paper' (on the grid of the paper's figures),
      'monotone', 'monotone-chi2', 'isotropic' or 'isotropic-chi2'.
    dim: Dimension of the query.
    noise_multiplier: Standard deviation of a coordinate over sensitivity. Exactly
      one of `noise_multiplier` and `budget` is given.
    budget: E|Z|^2 in units of sensitivity^2, that is dim * noise_multiplier^2.

  Raises:
    ValueError: if an argument is out of range, or no shipped table meets the request;
      then the message lists the mechanism's tables and the call that solves a new one.
  """
  dim = _checks.count('dim', dim)
  if (noise_multiplier is None) == (budget is None):
    raise ValueError(
        'Expected exactly one of noise_multiplier and budget, got '
        f'noise_multiplier={noise_multiplier!r} and budget={budget!r}.')
  sigma = (_checks.positive('noise_multiplier', noise_multiplier) if budget is None
           else float(np.sqrt(_checks.positive('budget', budget) / dim)))
  mechanisms = sorted({entry.mechanism for entry in _entries()})
  if mechanism not in mechanisms:
    raise ValueError(
        f'Expected mechanism to be one of {", ".join(mechanisms)}, got '
        f'mechanism={mechanism!r}.')
  for entry in _entries():
    if (entry.mechanism == mechanism and entry.dim == dim and
        abs(entry.noise_multiplier / sigma - 1) <= _MATCH):
      return get(entry.name)
  shipped = ', '.join(
      f'dim={entry.dim} noise_multiplier={entry.noise_multiplier:.12g}'
      for entry in _entries() if entry.mechanism == mechanism)
  raise ValueError(
      f'Expected a request that a shipped {mechanism} table answers, got dim={dim} '
      f'noise_multiplier={sigma:.12g} (budget {dim * sigma**2:.12g}). Shipped: '
      f'{shipped}. Solve one with {_recipe(mechanism, dim, sigma)}.')


@functools.cache
def _load(name: str) -> Table:
  """Loads a shipped table, once per name."""
  with resources.as_file(_folder() / f'{name}.npz') as path:
    return noise.load(path)


def _recipe(mechanism: str, dim: int, sigma: float) -> str:
  """Returns the call that solves a table that is not shipped."""
  objective = ", objective='chi2'" if mechanism.endswith('-chi2') else ''
  isotropic = mechanism.startswith('isotropic')
  if isotropic or dim != 1:
    note = '' if isotropic else f': {mechanism} noise is for scalar queries only'
    return f'tfcactus.design.Isotropic({dim}, {sigma:.12g}{objective}).solve(){note}'
  if mechanism == 'cactus-paper':
    objective = ', bins=200, cells=1600, tail_ratio=0.9'
  kind = 'Cactus' if mechanism.startswith('cactus') else 'Monotone'
  return f'tfcactus.design.{kind}({sigma**2:.12g}{objective}).solve()'


@functools.cache
def _entries() -> tuple[Entry, ...]:
  """Returns all shipped tables, sorted as in `entries`; reads only file names."""
  shipped = []
  for item in _folder().iterdir():
    parts = _NAME.fullmatch(item.name)
    if parts is not None:
      dim, value = int(parts['dim'] or 1), float(parts['value'])
      sigma = value if parts['measure'] == 'sigma' else float(np.sqrt(value / dim))
      shipped.append(Entry(parts[0][:-len('.npz')], parts['mechanism'], dim, sigma))
  return tuple(sorted(shipped, key=lambda entry: entry[1:]))


def _folder():
  """Returns the directory of the shipped tables, which may be inside an archive."""
  return resources.files('tfcactus.noise') / 'tables'
