"""Noise distributions ("laws"), frozen and normalised to sensitivity one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, Union

import dp_accounting

from tfcactus import _checks
from tfcactus.noise import table_file
from tfcactus.noise.base import Noise, NoiseTableDpEvent, NoNoise, ScalarNoise
from tfcactus.noise.gaussian import Gaussian
from tfcactus.noise.laplace import Laplace
from tfcactus.noise.radial_table import RadialTable
from tfcactus.noise.scalar_table import ScalarTable
from tfcactus.noise.sinh_normal import SinhNormal

Table = Union[ScalarTable, RadialTable]
_Law = TypeVar('_Law', bound=type[Noise])

TABLES: tuple[type[Table], ...] = (ScalarTable, RadialTable)
"""Noise distributions that are tables."""

LAWS: tuple[type[Noise], ...] = (Gaussian, Laplace, SinhNormal, *TABLES, NoNoise)
"""Noise distributions that can be saved; others can only be drawn and accounted."""


def check(noise: object) -> Noise:
  """Returns `noise` if it is a noise distribution with a known privacy guarantee.

  Raises:
    ValueError: otherwise; the message names a remedy.
  """
  if not isinstance(noise, Noise):
    raise ValueError(f'Expected noise to be {_names(Noise)}, got {noise!r}; '
                     'Gaussian noise is tfcactus.Gaussian(noise_multiplier).')
  noise.check_accounted()
  return noise


def check_scalar(noise: object) -> ScalarNoise:
  """Returns `noise` if it is `ScalarNoise` with a known guarantee, else ValueError."""
  if not isinstance(noise, ScalarNoise):
    raise ValueError(f'Expected noise to be {_names(ScalarNoise)}, which protect a '
                     f'scalar query, got {noise!r}.')
  noise.check_accounted()
  return noise


def _names(base: type) -> str:
  """Returns 'A, B or C': the classes in `LAWS` derived from `base`, but not NoNoise."""
  names = [law.__name__ for law in LAWS if issubclass(law, base) and law is not NoNoise]
  return f'{", ".join(names[:-1])} or {names[-1]}'


def of_event(event: dp_accounting.DpEvent) -> Noise | None:
  """Returns the noise of a single-release event; None for any other event.

  Scale 0 gives `NoNoise`; other scales that the noise refuses raise ValueError.
  """
  if isinstance(event, NoiseTableDpEvent):
    return event.noise
  for law in LAWS:
    if law.event_type is not None and isinstance(event, law.event_type):
      if event.noise_multiplier == 0:
        return NoNoise()
      # A LaplaceDpEvent, too, calls its scale noise_multiplier.
      return law(event.noise_multiplier)  # type: ignore[call-arg]
  return None


def to_config(noise: Noise) -> dict[str, Any]:
  """Returns a noise distribution as plain JSON values.

  A noise table is stored whole, with its digest. Raises ValueError if the class is not
  in `LAWS`, since it could not be read again.
  """
  if type(noise) not in LAWS:
    raise ValueError(
        f'Expected noise of a kind that can be saved, one of {_names(Noise)}, got '
        f'{noise!r}; list its class in tfcactus.noise.LAWS.')
  return {'kind': noise.kind, **noise.to_config()}


def from_config(config: Mapping[str, Any]) -> Noise:
  """Returns the noise distribution that `to_config` saved, validated again.

  Raises:
    ValueError: if the config is damaged, or of a class that is not in `LAWS`.
  """
  if not isinstance(config, Mapping):
    raise ValueError(f'Expected the config of noise to be a mapping, got {config!r}.')
  fields = dict(config)
  law = _law_of(fields.pop('kind', None), LAWS, 'the config of noise')
  try:
    return law.from_config(fields)
  except TypeError as error:
    raise ValueError(f'Expected the fields of {law.__name__} in the config of '
                     f'noise, got {list(fields)}: {error}') from error


def load(path: table_file.PathLike) -> Table:
  """Loads a noise table from a file written by its `save`.

  Args:
    path: An .npz file.

  Returns:
    The table, validated again; its digest equals the stored one.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if the file is truncated, foreign, altered or invalid.
  """
  place = repr(_checks.path('path', path))
  arrays = table_file.read_npz(path, place)
  return _law_of(str(arrays['kind']), TABLES, place).from_file(arrays, place)


def _law_of(kind: object, laws: Sequence[_Law], place: str) -> _Law:
  """Returns the class in `laws` of this `kind`; raises ValueError for other kinds."""
  by_kind = {law.kind: law for law in laws}
  if not isinstance(kind, str) or kind not in by_kind:
    raise ValueError(f'Expected noise of kind {" or ".join(by_kind)} in {place}, got '
                     f'{kind!r}.')
  return by_kind[kind]
