"""What is sampled: noise densities, frozen and normalised to sensitivity one."""

from __future__ import annotations

from typing import Union

from tfcactus.noise import table_file
from tfcactus.noise.closed_form import Gaussian
from tfcactus.noise.closed_form import Laplace
from tfcactus.noise.radial_table import RadialTable
from tfcactus.noise.scalar_table import ScalarTable
from tfcactus.noise.sinh_normal import SinhNormal

Noise = Union[Gaussian, Laplace, RadialTable, ScalarTable, SinhNormal]
"""Anything that can be drawn and accounted."""


def load(path: table_file.PathLike) -> Union[ScalarTable, RadialTable]:
  """Loads a noise table written by its `save`.

  Args:
    path: An .npz file.

  Returns:
    The table, validated anew; its digest equals the stored one.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: if the file is truncated, foreign, altered or invalid.
  """
  arrays = table_file.read_npz(path)
  kinds = {cls.kind: cls for cls in (ScalarTable, RadialTable)}
  kind = str(arrays['kind'])
  if kind not in kinds:
    raise ValueError(
        f'Expected a table of kind {" or ".join(kinds)} in {str(path)!r}, got '
        f'{kind!r}.')
  try:
    table = kinds[kind].from_arrays(arrays, table_file.parse_info(arrays['info']))
  except (KeyError, TypeError) as error:
    raise ValueError(
        f'Expected {str(path)!r} to hold a {kind} table, but it lacks or '
        f'garbles {error}.') from error
  if table.digest != str(arrays['digest']):
    raise ValueError(
        f'Expected digest {arrays["digest"]!s} in {str(path)!r}, got '
        f'{table.digest}: the file was altered after it was saved.')
  return table
