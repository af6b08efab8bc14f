"""Attributes that cannot be changed, since they determine the account of releases."""

from __future__ import annotations

from typing import Any
from typing import Mapping


class Fixed:
  """Mixin that makes some attributes read-only once `__init__` has set them.

  The account reads them long after the releases that they determined. Computed
  properties can never be set; Python 3.9 would not name them in its error. This class
  goes before other bases.
  """

  _FIXED: Mapping[str, str] = {}
  """Remedies in error messages, by attribute name."""

  def __setattr__(self, name: str, value: Any) -> None:
    if name in self._FIXED and (
        isinstance(getattr(type(self), name, None), property) or
        self.__dict__.get(name, value) is not value):
      raise AttributeError(
          f'Expected {name} of a {type(self).__name__} to stay as it was made, '
          f'got {value!r}: what was released is accounted for by it. '
          f'{self._FIXED[name]}')
    super().__setattr__(name, value)
