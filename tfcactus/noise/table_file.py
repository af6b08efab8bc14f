"""Base class of noise tables: identity, files, and checks of their entries."""

from __future__ import annotations

import base64
from collections.abc import Mapping
import functools
import hashlib
import io
import json
import math
import os
from typing import Any, IO, TypeVar, Union

import numpy as np

from tfcactus import _checks, _numerics
from tfcactus.noise.base import Noise

FORMAT_VERSIONS = (1, 2)
"""Versions of the .npz layout that are read; others are refused. Version 2 has scalar
tables with an edge at zero; all others are still written as version 1, so that files
and digests keep their meaning."""

MASS_TOLERANCE = 1e-9
"""Largest difference from one of a table's total mass when it is built."""

LOG_TAIL_FLOOR = -69.0
"""Log mass (1e-30) down to which a geometric tail is enumerated: less than any
guarantee can notice."""

MAX_CELLS = 10_000_000
"""Maximum number of enumerated cells; more are a mistake in the tail ratio."""

PathLike = Union[str, 'os.PathLike[str]']
Info = Mapping[str, Any]

_Table = TypeVar('_Table', bound='NoiseTable')


def check_tail_ratio(value: object) -> float:
  """Returns a log tail ratio below zero, -inf for no tail; ValueError for others."""
  if isinstance(value, (float, np.floating)) and np.isneginf(value):
    return float('-inf')
  value = _checks.real('log_tail_ratio', value)
  if value >= 0:
    raise ValueError(f'Expected log_tail_ratio < 0, got log_tail_ratio={value!r}.')
  return value


class NoiseTable(Noise):
  """Base class of noise tables: frozen densities that sampler and accountant both read.

  The density is piecewise constant, symmetric, and normalised to sensitivity one:
  lengths are in units of the clipping norm (or the query's sensitivity). The caller
  multiplies draws by that norm.
  """

  info: Info
  log_density: np.ndarray
  log_tail_ratio: float

  def _check_table(self) -> None:
    """Sets the fields that all tables have to their checked values."""
    try:
      info = json.loads(json.dumps(dict(self.info)))
    except (TypeError, ValueError) as error:
      raise ValueError('Expected info to be a mapping of plain JSON values, got '
                       f'{self.info!r}.') from error
    for name, checked in (
        ('log_density', _checks.vector('log_density', self.log_density)),
        ('log_tail_ratio', check_tail_ratio(self.log_tail_ratio)),
        ('info', info)):
      object.__setattr__(self, name, checked)

  def _check_mass(self, log_masses: np.ndarray) -> None:
    """Raises ValueError unless masses, given by logs, add up to one to 1e-9."""
    log_mass = _numerics.log_sum(log_masses)
    if not abs(np.expm1(log_mass)) <= MASS_TOLERANCE:
      raise ValueError(
          f'Expected a density of total mass 1, got mass {np.exp(log_mass):.12g}; use '
          f'{type(self).__name__}.normalized(...).')

  def _log_density_of(self, index: np.ndarray) -> np.ndarray:
    """Returns the log densities of cells or shells of whole numbers `index` >= 0."""
    last = self.log_density.size - 1
    beyond = np.maximum(index - last, 0)
    with np.errstate(invalid='ignore'):  # 0 * -inf, where a table has no tail.
      tail = np.where(beyond > 0, beyond * self.log_tail_ratio, 0.0)
    return self.log_density[np.minimum(index, last).astype(np.int64)] + tail

  def _moment(self, power: float, terms: np.ndarray) -> float:
    """Returns the sum of `terms`, a moment's share of each enumerated cell.

    Raises ValueError if the cells left out may add more than a relative 1e-9.
    """
    total = float(np.sum(terms))
    # In a tail, ratios of neighbouring terms fall: a geometric series bounds the rest.
    ratio = 0.0 if np.isneginf(self.log_tail_ratio) else (
        terms[-1] / max(terms[-2], 1e-300))
    if not (ratio < 1 and terms[-1] * ratio < 1e-9 * total * (1 - ratio) < math.inf):
      raise ValueError(
          'Expected a power whose moment floats hold, and cells that hold all but '
          f'1e-30 of the mass determine, got power={power!r}; take a smaller one.')
    return total

  @functools.cached_property
  def monotone(self) -> bool:
    """Returns whether the density never increases with |z|, exactly from the arrays."""
    return bool(np.all(np.diff(self.log_density) <= 0))

  @property
  def format_version(self) -> int:
    """Version of the file layout, one of `FORMAT_VERSIONS`."""
    return 1

  def _payload(self) -> dict[str, np.ndarray]:
    """Returns the arrays that define the distribution, by their names in the file."""
    return {name: np.array(value, np.int64 if type(value) is int else None)
            for name, value in self._parameters().items() if name != 'info'}

  @classmethod
  def from_file(cls: type[_Table], arrays: Mapping[str, np.ndarray], place: str
                ) -> _Table:
    """Builds the table from a file's arrays; errors call the file `place`.

    Raises ValueError if an array is missing or invalid, or the digest does not match.
    """
    fields = {name: value if value.ndim else value.item()
              for name, value in arrays.items()
              if name not in ('kind', 'format_version', 'digest')}
    try:
      table = cls(**{**fields, 'info': json.loads(str(fields['info']))})
    except (TypeError, json.JSONDecodeError) as error:
      raise ValueError(f'Expected {place} to hold the fields of a {cls.kind} table, '
                       f'info as JSON, but {error}.') from error
    if table.digest != str(arrays['digest']):
      raise ValueError(
          f'Expected digest {arrays["digest"]!s} in {place}, got '
          f'{table.digest}: the file was altered after it was saved.')
    return table

  @property
  def digest(self) -> str:
    """16 hex digits that identify the distribution; `info` does not enter."""
    sha = hashlib.sha256(f'tfcactus/{self.format_version}/{self.kind}'.encode())
    for name, value in sorted(self._payload().items()):
      data = np.ascontiguousarray(value)
      sha.update(f'/{name}:{data.dtype.str}:{data.shape}:'.encode())
      sha.update(data.tobytes())
    return sha.hexdigest()[:16]

  def __eq__(self, other: object) -> bool:
    """Returns whether both tables have one digest; `info` does not enter."""
    if not isinstance(other, NoiseTable):
      return NotImplemented
    return self is other or self.digest == other.digest

  def __hash__(self) -> int:
    return hash(self.digest)

  @property
  def name(self) -> str:
    return str(self.info.get('mechanism', self.kind + ' table'))

  def save(self, path: PathLike) -> None:
    """Writes the table to `path` as .npz (no pickle inside).

    Raises:
      ValueError: if `path` does not end in ".npz".
    """
    path = _checks.path('path', path)
    if not path.endswith('.npz'):
      raise ValueError(f'Expected path to end in ".npz", got {path!r}.')
    self._write(path)

  def _write(self, file: str | IO[bytes]) -> None:
    """Writes the table as .npz to a path or to an open binary file."""
    np.savez_compressed(
        file,
        kind=np.array(self.kind),
        format_version=np.array(self.format_version),
        digest=np.array(self.digest),
        info=np.array(json.dumps(self.info, sort_keys=True)),
        **self._payload())

  def to_config(self) -> dict[str, Any]:
    """Returns the .npz file of the table as base64 text, which keeps the digest."""
    buffer = io.BytesIO()
    self._write(buffer)
    return {'npz': base64.b64encode(buffer.getvalue()).decode('ascii')}

  @classmethod
  def from_config(cls: type[_Table], config: Mapping[str, Any]) -> _Table:
    """Returns the table that `to_config` saved; its digest equals the stored one.

    Raises TypeError unless 'npz' is the only entry, ValueError if it is damaged.
    """
    place = 'the noise table in the config'
    if set(config) != {'npz'}:
      raise TypeError('a table has one entry, npz')
    try:
      data = base64.b64decode(config['npz'], validate=True)
    except ValueError as error:
      raise ValueError(f'Expected {place} in base64, but {error}.') from error
    return cls.from_file(read_npz(io.BytesIO(data), place), place)


def read_npz(file: PathLike | IO[bytes], place: str) -> dict[str, np.ndarray]:
  """Returns the arrays of a table file by name; errors call the file `place`.

  Raises FileNotFoundError if there is none, ValueError if it is damaged or foreign.
  """
  try:
    with np.load(file, allow_pickle=False) as archive:
      arrays = {name: archive[name] for name in archive.files}
  except FileNotFoundError:
    raise
  except Exception as error:  # NumPy, zipfile and zlib raise a dozen kinds for damage.
    raise ValueError(
        f'Expected {place} to be a noise table (.npz), but it '
        f'could not be read: {error}') from error
  missing = {'kind', 'format_version', 'digest', 'info'} - set(arrays)
  if missing:
    raise ValueError(
        f'Expected {place} to be a noise table (.npz), but it has '
        f'no {", ".join(sorted(missing))}.')
  version = arrays['format_version']
  if version.shape != () or version not in FORMAT_VERSIONS:
    raise ValueError(
        f'Expected table format {FORMAT_VERSIONS[-1]} or older in {place}, got '
        f'{version!s}; update tfcactus or save the table again.')
  return arrays
