"""Imports dp_accounting without scipy.signal and scipy.stats, which take seconds.

dp_accounting needs both only for its grids of privacy losses, which are not used here.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

_ON_DEMAND = ('scipy.signal', 'scipy.stats')


class _OnDemand(types.ModuleType):
  """Placeholder that imports the module of its name when an attribute is accessed."""

  def __getattr__(self, name: str) -> Any:
    if sys.modules.get(self.__name__) is self:
      # Some versions of dp_accounting access attributes during their own import, when
      # import_module would still return this placeholder.
      del sys.modules[self.__name__]
    return getattr(importlib.import_module(self.__name__), name)


def _import() -> None:
  """Imports dp_accounting; afterwards only its modules hold the placeholders."""
  stand_ins = {name: _OnDemand(name) for name in _ON_DEMAND if name not in sys.modules}
  sys.modules.update(stand_ins)
  try:
    importlib.import_module('dp_accounting')
  finally:
    for name, stand_in in stand_ins.items():
      if sys.modules.get(name) is stand_in:
        del sys.modules[name]


_import()
