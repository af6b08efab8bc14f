"""Argument checks with uniform error messages.

Each check returns the value, numbers as a float, an int or a float64 array; `choice`
returns nothing. Each raises a `ValueError` that names the argument, what was expected
and what came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import math
import numbers
import os
from typing import Any

import numpy as np

SMALLEST_NOISE, LARGEST_NOISE = 1e-100, 1e100
"""Range of noise scales whose squares, and squared inverses, are normal floats."""

SMALLEST_CLIP, LARGEST_CLIP = 1e-30, 1e30
"""Range of clipping norms. Clipping bounds relative roundings: squares of entries near
smaller norms could be zero in float64, and clipped float32 entries denormal."""

LARGEST_COUNT = 2**53
"""Largest number of things that are counted: float64 has all integers up to it."""


def instance(name: str, value: object, kind: type[Any], remedy: str) -> Any:
  """Returns `value`, a `kind`; the message for others ends with `remedy`."""
  if not isinstance(value, kind):
    raise ValueError(
        f'Expected {name} to be a {kind.__name__}, got {name}={value!r}; {remedy}.')
  return value


def plan(value: Any) -> Any:
  """Returns `value`, a `PrivacyPlan`, whose module is above this one."""
  if isinstance(value, type) or not hasattr(value, 'check_vector'):
    raise ValueError(f'Expected plan to be a PrivacyPlan, got plan={value!r}; '
                     'PrivacyPlan.for_training makes one.')
  return value


def function(name: str, value: Any, remedy: str) -> Any:
  """Returns `value`, which can be called; the message for others ends with `remedy`."""
  if not callable(value):
    raise ValueError(
        f'Expected {name} to be a function, got {name}={value!r}; {remedy}.')
  return value


def items(name: str, value: object, what: str) -> tuple[Any, ...]:
  """Returns a tuple of the items of `value`, which is neither a text nor a mapping."""
  try:
    if isinstance(value, (str, bytes, Mapping)):
      raise TypeError('Expected a list.')
    return tuple(value)  # type: ignore[arg-type]
  except TypeError:
    raise ValueError(
        f'Expected {name} to be a list of {what}, got {name}={value!r}.') from None


def path(name: str, value: object) -> str:
  """Returns the path of a file or folder as a text."""
  found = os.fspath(value) if isinstance(value, os.PathLike) else value
  if not isinstance(found, str) or not found:
    raise ValueError(f'Expected {name} to be a path, got {name}={value!r}; give a str '
                     'or a pathlib.Path.')
  return found


def real(name: str, value: object) -> float:
  """Returns `value` as a finite float."""
  if isinstance(value, (bool, np.bool_)) or not isinstance(
      value, (numbers.Real, np.floating, np.integer)):
    raise ValueError(f'Expected {name} to be a number, got {name}={value!r}.')
  try:
    number = float(value)
  except OverflowError:  # Python refuses to print integers of thousands of digits.
    raise ValueError(
        f'Expected {name} to be finite, got a number beyond the largest float.'
    ) from None
  if not math.isfinite(number):
    raise ValueError(f'Expected {name} to be finite, got {name}={value!r}.')
  return number


def positive(name: str, value: object) -> float:
  """Returns `value` as a finite float above zero."""
  value = real(name, value)
  if value <= 0:
    raise ValueError(f'Expected {name} > 0, got {name}={value!r}.')
  return value


def clip_norm(value: object) -> float:
  """Returns `value` as a float from `SMALLEST_CLIP` to `LARGEST_CLIP`."""
  value = positive('l2_norm_clip', value)
  if not SMALLEST_CLIP <= value <= LARGEST_CLIP:
    raise ValueError(
        f'Expected l2_norm_clip from {SMALLEST_CLIP:g} to {LARGEST_CLIP:g}, beyond '
        f'which clipping may round too coarsely, got l2_norm_clip={value!r}; scale the '
        'loss, or the records, instead.')
  return value


def noise_scale(name: str, value: object) -> float:
  """Returns `value` as a float from `SMALLEST_NOISE` to `LARGEST_NOISE`."""
  value = real(name, value)
  if value == 0:
    raise ValueError(
        f'Expected {name} > 0, got {name}=0: without noise nothing is private, and '
        'there is nothing to account for. To see what clipping does by itself, train '
        f'with a {name} of {SMALLEST_NOISE:g}.')
  value = positive(name, value)
  if not SMALLEST_NOISE <= value <= LARGEST_NOISE:
    raise ValueError(
        f'Expected {name} from {SMALLEST_NOISE:g} to {LARGEST_NOISE:g} times the '
        f'sensitivity, got {name}={value!r}; check its units.')
  return value


def non_negative(name: str, value: object) -> float:
  """Returns `value` as a finite float of at least zero."""
  value = real(name, value)
  if value < 0:
    raise ValueError(f'Expected {name} >= 0, got {name}={value!r}.')
  return value


def integer(name: str, value: object, minimum: int, maximum: int | None = None) -> int:
  """Returns `value` as an int of at least `minimum`, and at most a given `maximum`."""
  if isinstance(value, (bool, np.bool_)) or not isinstance(
      value, (numbers.Integral, np.integer)):
    raise ValueError(f'Expected {name} to be an integer, got {name}={value!r}.')
  whole = int(value)
  if whole < minimum:
    raise ValueError(f'Expected {name} >= {minimum}, got {name}={value!r}.')
  if maximum is not None and whole > maximum:
    # Python refuses to print integers of thousands of digits.
    raise ValueError(
        f'Expected {name} <= {maximum}, got a number of {whole.bit_length()} bits.')
  return whole


def count(name: str, value: object, minimum: int = 1) -> int:
  """Returns `value` as an int from `minimum` to `LARGEST_COUNT`."""
  return integer(name, value, minimum, LARGEST_COUNT)


def choice(name: str, value: object, choices: Iterable[str]) -> None:
  """Raises ValueError unless `value` is one of `choices`."""
  known = tuple(choices)
  if not isinstance(value, str) or value not in known:
    raise ValueError(f'Expected {name} in {known}, got {name}={value!r}.')


def flag(name: str, value: object) -> bool:
  """Returns `value`, True or False, as a bool."""
  if not isinstance(value, (bool, np.bool_)):
    raise ValueError(f'Expected {name} to be True or False, got {name}={value!r}.')
  return bool(value)


def delta(value: object, name: str = 'delta') -> float:
  """Returns `value` as a float strictly between 0 and 1."""
  value = real(name, value)
  if not 0 < value < 1:
    raise ValueError(f'Expected {name} in (0, 1), got {name}={value!r}.')
  return value


def sampling_prob(value: object, name: str = 'sampling_prob') -> float:
  """Returns `value` as a float in (0, 1]."""
  value = real(name, value)
  if not 0 < value <= 1:
    raise ValueError(f'Expected {name} in (0, 1], got {name}={value!r}.')
  return value


def shares(name: str, value: object, *, inner: bool = False) -> np.ndarray:
  """Returns `value` as a float64 array in [0, 1], or (0, 1) if `inner`; any shape."""
  array = numbers_of(name, value)
  if not np.all((array > 0) & (array < 1) if inner else (array >= 0) & (array <= 1)):
    raise ValueError(
        f'Expected {name} in {"(0, 1)" if inner else "[0, 1]"}, got {value!r}.')
  return array


def vector(name: str, value: object) -> np.ndarray:
  """Returns `value` as a read-only float64 vector of one or more finite entries."""
  array = _real(name, 'a vector of numbers', value)
  if array.ndim != 1 or array.size == 0:
    raise ValueError(
        f'Expected {name} to be a vector with at least one entry, got shape '
        f'{array.shape}.')
  if not np.all(np.isfinite(array)):
    where = int(np.flatnonzero(~np.isfinite(array))[0])
    raise ValueError(
        f'Expected finite entries in {name}, got {array[where]} at index {where}.')
  return read_only(array)


def read_only(array: np.ndarray) -> np.ndarray:
  """Returns the array, which nobody can change by mistake from now on."""
  array.setflags(write=False)
  return array


def numbers_of(name: str, value: object) -> np.ndarray:
  """Returns `value` as a float64 array of any shape; allows infinities, refuses NaN."""
  array = _real(name, 'a number or an array of them', value)
  if np.any(np.isnan(array)):
    raise ValueError(
        f'Expected {name} without NaN, got {value!r}; leave out missing values.')
  return array


def _real(name: str, what: str, value: object) -> np.ndarray:
  """Returns a float64 copy of `value`; ValueError for texts, booleans, complex numbers.

  Other entries of an array of objects are converted one by one, as by float().
  """
  try:
    given = np.asarray(value)
    # NumPy takes a boolean beside numbers for a number, and a text in an array of
    # objects.
    if given.dtype.kind not in 'iufO' or any(
        issubclass(kind, (bool, np.bool_, str, bytes, bytearray))
        for kind in _kinds(value if isinstance(value, (list, tuple)) else given)):
      raise TypeError('Expected real numbers.')
    return np.array(given, dtype=np.float64)
  except (TypeError, ValueError, OverflowError, RecursionError) as error:
    raise ValueError(f'Expected {name} to be {what}, got {value!r}.') from error


def _kinds(value: Any) -> set[type]:
  """Returns the types of the entries of nested lists, tuples and arrays."""
  if isinstance(value, np.ndarray):
    if value.dtype.kind != 'O':
      return {value.dtype.type}
    value = value.ravel().tolist()
  found = set(map(type, value))
  nested = tuple(kind for kind in found if issubclass(kind, (list, tuple, np.ndarray)))
  return (found - {*nested}).union(
      *(_kinds(each) for each in value if isinstance(each, nested)))


class Fixed:
  """Mixin, listed first, that makes attributes in `_FIXED` read-only once they are set.

  They determine what is released, and the account reads them long after. Properties in
  `_FIXED` can never be set.
  """

  _FIXED: Mapping[str, str] = {}
  """Remedies in error messages, by attribute name."""

  def __setattr__(self, name: str, value: Any) -> None:
    """Sets an attribute; AttributeError for a property or second value of `_FIXED`."""
    if name in self._FIXED and (
        isinstance(getattr(type(self), name, None), property) or
        self.__dict__.get(name, value) is not value):
      raise AttributeError(
          f'Expected {name} of a {type(self).__name__} to stay as it was made, got '
          f'{value!r}: what was released is accounted for by it. {self._FIXED[name]}')
    super().__setattr__(name, value)
