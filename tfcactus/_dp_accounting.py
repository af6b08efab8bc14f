"""Imports dp_accounting without the parts of SciPy that only some of it asks for.

scipy.signal and scipy.stats take longer to load than all the rest of this library
and dp_accounting together; its grids of privacy losses alone use them.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

_ON_DEMAND = ('scipy.signal', 'scipy.stats')


class _OnDemand(types.ModuleType):
  """Stands where a module is named, and loads it when something in it is."""

  def __getattr__(self, name: str) -> Any:
    if sys.modules.get(self.__name__) is self:
      # Some versions of dp_accounting ask while they are imported.
      del sys.modules[self.__name__]
    return getattr(importlib.import_module(self.__name__), name)


def _import() -> None:
  """Leaves nothing behind but the names that dp_accounting's files hold."""
  stand_ins = {name: _OnDemand(name) for name in _ON_DEMAND
               if name not in sys.modules}
  sys.modules.update(stand_ins)
  try:
    importlib.import_module('dp_accounting')
  finally:
    for name, stand_in in stand_ins.items():
      if sys.modules.get(name) is stand_in:
        del sys.modules[name]


_import()
