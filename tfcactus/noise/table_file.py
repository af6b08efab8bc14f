"""What scalar and radial tables share: identity, files, exact bookkeeping."""

from __future__ import annotations

import abc
import hashlib
import json
import os
from typing import Any
from typing import Mapping
from typing import Union
import zipfile

import numpy as np

FORMAT_VERSIONS = (1, 2)
"""Versions of the .npz layout; a reader refuses what it does not know. 2 has
scalar tables with an edge at zero; all else is still written as 1, so that
files and digests keep their meaning."""

MASS_TOLERANCE = 1e-9
"""How far from one the total mass of a table may be when it is built."""

LOG_TAIL_FLOOR = -69.0
"""A geometric tail is enumerated down to this log mass (1e-30): less than any
guarantee can notice, and less than a float64 uniform can reach in one draw."""

MAX_CELLS = 10_000_000
"""More enumerated cells than this is a mistake in the tail, not a table."""

PathLike = Union[str, 'os.PathLike[str]']


def fine_uniform(rng: np.random.Generator, size: Any) -> np.ndarray:
  """Uniforms in (0, 1) whose resolution near zero is 2^-106, not 2^-53.

  Survival functions are inverted at these, so that cells far rarer than 2^-53
  are drawn as often as they should be.
  """
  u = rng.random(size) + rng.random(size) * 2.0**-53
  # Both halves zero has probability 2^-106; rounding up to one has 2^-54.
  return np.clip(u, 2.0**-106, 1 - 2.0**-53)


def log_sum_exp(values: np.ndarray) -> float:
  """log(sum(exp(values))) without overflow; -inf for an empty vector."""
  if values.size == 0:
    return -np.inf
  peak = np.max(values)
  if not np.isfinite(peak):
    return float(peak)
  return float(peak + np.log(np.sum(np.exp(values - peak))))


def check_info(info: Mapping[str, Any]) -> dict[str, Any]:
  """Returns `info` as a plain dict that JSON can carry."""
  try:
    return json.loads(json.dumps(dict(info)))
  except (TypeError, ValueError) as error:
    raise ValueError(
        'Expected info to be a mapping of plain JSON values, got '
        f'{info!r}.') from error


def parse_info(text: np.ndarray) -> dict[str, Any]:
  """Returns the info mapping stored in a file."""
  try:
    info = json.loads(str(text))
  except json.JSONDecodeError as error:
    raise ValueError(f'Expected info to be JSON, got {text!s}.') from error
  if not isinstance(info, dict):
    raise ValueError(f'Expected info to be a JSON object, got {text!s}.')
  return info


class NoiseTable(abc.ABC):
  """A frozen noise density that the sampler and the accountant both read.

  The density is piecewise constant, symmetric, and normalised to sensitivity
  one: lengths are in units of the clip norm (or the query's sensitivity), and
  whoever draws multiplies by it.
  """

  kind: str
  format_version: int = 1

  @abc.abstractmethod
  def _payload(self) -> dict[str, np.ndarray]:
    """The arrays that define the distribution, by their names in the file."""

  @property
  def digest(self) -> str:
    """16 hex digits naming the distribution (not its provenance).

    Two tables with the same digest draw the same noise and cost the same
    privacy; `info` does not enter.
    """
    sha = hashlib.sha256(f'tfcactus/{self.format_version}/{self.kind}'.encode())
    for name, value in sorted(self._payload().items()):
      data = np.ascontiguousarray(value)
      sha.update(f'/{name}:{data.dtype.str}:{data.shape}:'.encode())
      sha.update(data.tobytes())
    return sha.hexdigest()[:16]

  def __eq__(self, other: object) -> bool:
    """Whether both draw the same noise; `info` does not enter."""
    if not isinstance(other, NoiseTable):
      return NotImplemented
    return self is other or self.digest == other.digest

  def __hash__(self) -> int:
    return hash(self.digest)

  @property
  def name(self) -> str:
    """The mechanism's name as reports show it."""
    return str(self.info.get('mechanism', self.kind + ' table'))

  def save(self, path: PathLike) -> None:
    """Writes the table to `path` as .npz (no pickle inside).

    Args:
      path: Where to write; must end in ".npz".

    Raises:
      ValueError: if `path` does not end in ".npz".
    """
    path = os.fspath(path)
    if not path.endswith('.npz'):
      raise ValueError(f'Expected path to end in ".npz", got {path!r}.')
    np.savez_compressed(
        path,
        kind=np.array(self.kind),
        format_version=np.array(self.format_version),
        digest=np.array(self.digest),
        info=np.array(json.dumps(self.info, sort_keys=True)),
        **self._payload())


def read_npz(path: PathLike) -> dict[str, np.ndarray]:
  """Reads a table file into arrays, refusing anything that is not one.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if the file is truncated, foreign, or of an unknown version.
  """
  try:
    with np.load(os.fspath(path), allow_pickle=False) as archive:
      arrays = {name: archive[name] for name in archive.files}
  except FileNotFoundError:
    raise
  except (OSError, EOFError, ValueError, KeyError, AttributeError, TypeError,
          zipfile.BadZipFile) as error:
    raise ValueError(
        f'Expected {os.fspath(path)!r} to be a noise table (.npz), but it '
        f'could not be read: {error}') from error
  missing = {'kind', 'format_version', 'digest', 'info'} - set(arrays)
  if missing:
    raise ValueError(
        f'Expected {os.fspath(path)!r} to be a noise table (.npz), but it has '
        f'no {", ".join(sorted(missing))}.')
  version = arrays['format_version']
  if version.shape != () or version not in FORMAT_VERSIONS:
    raise ValueError(
        f'Expected table format {FORMAT_VERSIONS[-1]} or older in '
        f'{os.fspath(path)!r}, got '
        f'{version!s}; update tfcactus or save the table again.')
  return arrays
