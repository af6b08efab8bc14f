"""Splits the cases of a test between `make test` and `make test-all`.

`make test` runs a representative of each class of cases in a few minutes. The other
cases carry the marker `more`, and `make test-all` runs them too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def representatives(names: str, cases: Iterable[Any], number: int = 1, **options: Any
                    ) -> pytest.MarkDecorator:
  """Returns `pytest.mark.parametrize` with most cases marked `more`.

  `number` cases, evenly spread from the first one on, are left for `make test`, so put
  the most telling case first. `names` and `options` are those of `parametrize`.
  """
  cases = list(cases)
  kept = {index * len(cases) // number for index in range(number)}
  single = ',' not in names
  return pytest.mark.parametrize(names, [
      case if index in kept else _more(case, single)
      for index, case in enumerate(cases)], **options)


def _more(case: Any, single: bool) -> Any:
  """Returns a case of `parametrize` with the marker `more` added."""
  if isinstance(case, type(pytest.param())):
    return case._replace(marks=(*case.marks, pytest.mark.more))
  return pytest.param(*([case] if single else case), marks=pytest.mark.more)
