"""Strategies as JSON, in files and configs."""

from __future__ import annotations

import json
import os
from typing import Any
from typing import Mapping
from typing import Union

from tfcactus.correlated.banded import BandedToeplitz
from tfcactus.correlated.base import Strategy
from tfcactus.correlated.blocked import BlockedBidiagonal

_KINDS = {each.kind: each for each in (BandedToeplitz, BlockedBidiagonal)}

PathLike = Union[str, 'os.PathLike[str]']


def from_config(config: Mapping[str, Any], place: str = 'the config') -> Strategy:
  """The strategy of a `Strategy.to_config`.

  Args:
    config: The mapping.
    place: What errors call it.

  Raises:
    ValueError: if it is damaged, altered or of an unknown kind.
  """
  try:
    fields = dict(config)
    kind, digest = fields.pop('kind'), fields.pop('digest')
    strategy = _KINDS[kind](**fields)
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(
        f'Expected {place} to hold a strategy of {", ".join(_KINDS)}, but it lacks or '
        f'garbles {error}.') from error
  if strategy.digest != digest:
    raise ValueError(
        f'Expected digest {digest} in {place}, got {strategy.digest}: it was altered '
        'after it was saved.')
  return strategy


def save(strategy: Strategy, path: PathLike) -> None:
  """Writes a strategy, whole or not at all.

  Args:
    strategy: Holds no secrets: it is public.
    path: Must end in ".json".

  Raises:
    ValueError: if it does not.
  """
  path = os.fspath(path)
  if not path.endswith('.json'):
    raise ValueError(f'Expected path to end in ".json", got {path!r}.')
  with open(f'{path}.part', 'w', encoding='utf-8') as file:
    json.dump(strategy.to_config(), file, indent=2)
    file.write('\n')
  os.replace(f'{path}.part', path)


def load(path: PathLike) -> Strategy:
  """The strategy in a file that `save` wrote.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: as `from_config`.
  """
  path = os.fspath(path)
  with open(path, encoding='utf-8') as file:
    try:
      config = json.load(file)
    except ValueError as error:
      raise ValueError(f'Expected {path} to be JSON, but: {error}.') from error
  return from_config(config, path)
