"""Noise correlated over steps (banded matrix factorization, BandMF, DP-FTRL).

Each step releases its clipped sum plus noise that partly cancels the noise of earlier
steps, so that less noise adds up in the weights. A guarantee is for whole epochs. A
strategy is the matrix that correlates noise; a request solves for one.
"""

from __future__ import annotations

from collections.abc import Mapping
import json
import os
from typing import Any, Union

from tfcactus import _checks
from tfcactus.correlated.banded import (
  BandedStrategy,
  BandedToeplitz,
  min_separation_sensitivity_squared,
)
from tfcactus.correlated.base import Correlation, NoiseRows, Product, Strategy
from tfcactus.correlated.blocked import BlockedBidiagonal, BlockedStrategy
from tfcactus.correlated.workload import Workload

__all__ = [
    'BandedStrategy', 'BandedToeplitz', 'BlockedBidiagonal', 'BlockedStrategy',
    'Correlation', 'NoiseRows', 'Product', 'Strategy', 'AnyCorrelation', 'Workload',
    'check', 'from_config', 'load', 'min_separation_sensitivity_squared', 'save',
    'solved',
]

KINDS = (BandedToeplitz, BlockedBidiagonal)
"""The accepted classes of strategies. Subclasses of these are refused: they may draw by
a matrix that was not checked."""

AnyCorrelation = Union[Correlation, Strategy, None]
"""The correlation of noise: a request, a strategy, or None for independent noise."""

PathLike = Union[str, 'os.PathLike[str]']


def check(correlation: object) -> AnyCorrelation:
  """Returns `correlation` if it is a request, a strategy or None, else ValueError."""
  if correlation is None or isinstance(correlation, Correlation):
    return correlation
  if isinstance(correlation, KINDS) and type(correlation) in KINDS:
    return correlation
  raise ValueError(
      'Expected correlation to be a request such as '
      'tfcactus.correlated.BandedStrategy(bands=16), a strategy ('
      f'{", ".join(each.__name__ for each in KINDS)}) or None, got {correlation!r}; '
      "'auto' goes with PrivacyPlan.for_training(target_epsilon=...).")


def solved(correlation: object, steps: int) -> Strategy:
  """Returns a strategy, or the one that solves a request for `steps` steps.

  Raises:
    ValueError: if `correlation` is neither, if a request has more bands than `steps` or
      comes to a strategy that is not of `KINDS`, or by `Strategy.check_growth`.
  """
  found = check(correlation)
  if isinstance(found, Correlation):
    found = check(found.solve(steps))
  if not isinstance(found, Strategy):
    raise ValueError(f'Expected {correlation!r} to come to a strategy, got {found!r}.')
  found.check_growth(steps)
  return found


def from_config(config: Mapping[str, Any], place: str = 'the config') -> Strategy:
  """Returns the strategy that `Strategy.to_config` described.

  Raises ValueError, which names the `place` that the config is from, if it is damaged,
  altered or of an unknown kind.
  """
  known = {each.kind: each for each in KINDS}
  # A tuple: a damaged kind, such as a list, may have no hash.
  if not isinstance(config, Mapping) or config.get('kind') not in tuple(known):
    raise ValueError(
        f'Expected {place} to hold a strategy, a mapping with kind {" or ".join(known)}'
        f', got {config!r}.')
  fields = dict(config)
  make, digest = known[fields.pop('kind')], fields.pop('digest', None)
  try:
    strategy = make(**fields)
  except (TypeError, ValueError) as error:
    raise ValueError(
        f'Expected {place} to hold a {make.kind} strategy, but: {error}') from error
  if strategy.digest != digest:
    raise ValueError(
        f'Expected digest {digest} in {place}, got {strategy.digest}: it was altered '
        'after it was saved.')
  return strategy


def save(strategy: Strategy, path: PathLike) -> None:
  """Writes a strategy, which holds no secrets, to a file, whole or not at all.

  Raises ValueError if `path` does not end in ".json", or `strategy` is no strategy.
  """
  path = _checks.path('path', path)
  _checks.instance('strategy', strategy, Strategy,
                   'such as BandedStrategy(bands=16).solve(steps)')
  if not path.endswith('.json'):
    raise ValueError(f'Expected path to end in ".json", got {path!r}.')
  with open(f'{path}.part', 'w', encoding='utf-8') as file:
    json.dump(strategy.to_config(), file, indent=2)
    file.write('\n')
  os.replace(f'{path}.part', path)


def load(path: PathLike) -> Strategy:
  """Returns the strategy in a file that `save` wrote.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if the file is damaged, altered or of an unknown kind.
  """
  path = _checks.path('path', path)
  with open(path, encoding='utf-8') as file:
    try:
      config = json.load(file)
    except ValueError as error:
      raise ValueError(f'Expected {path} to be JSON, but: {error}.') from error
  return from_config(config, path)
