"""Attributes that cannot be changed, since releases were accounted by them."""

from __future__ import annotations

from typing import Any
from typing import Mapping


class Fixed:
  """Refuses to set some attributes again, once `__init__` has set them.

  Those that are computed are never set; Python 3.9 would refuse without a name.

  An attribute that could be changed would be read by the account long after it
  was released by. Goes before other bases.
  """

  _FIXED: Mapping[str, str] = {}
  """What to do instead, by the name of each attribute."""

  def __setattr__(self, name: str, value: Any) -> None:
    if name in self._FIXED and (
        isinstance(getattr(type(self), name, None), property) or
        self.__dict__.get(name, value) is not value):
      raise AttributeError(
          f'Expected {name} of a {type(self).__name__} to stay as it was made, '
          f'got {value!r}: what was released is accounted for by it. '
          f'{self._FIXED[name]}')
    super().__setattr__(name, value)
