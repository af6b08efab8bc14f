"""Records of papers and their items, and helpers for the results of items."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

from benchmarks import _results
from tfcactus import _format

REPRODUCED = 'reproduced'


class Item(NamedTuple):
  """A definition, algorithm, theorem, figure, table or experiment of a paper.

  Attributes:
    name: Number in the paper, with a short description.
    places: Importable names or paths of files that implement the item.
    status: `REPRODUCED`, 'corrected: how', 'not reproducible: why', or
      'in part: what is missing'.
    command: Test ('tests/...::test_...') or benchmark ('python -m ...') that checks it.
    number: Function that returns the result as text. It reads numbers from results or
      computes them; published numbers are named "the paper's".
  """

  name: str
  places: tuple[str, ...]
  status: str
  command: str
  number: Callable[[], str]


class Paper(NamedTuple):
  """A paper.

  Attributes:
    title: Number, authors, title and place of publication.
    items: The items in the paper's order.
    not_computed: Sentences on items without computational content or not yet done.
  """

  title: str
  items: tuple[Item, ...]
  not_computed: str


class NotMeasured(ValueError):
  """Raised for an item whose numbers are not in the results."""


def of(name: str, *path: Any) -> Any:
  """Returns the value in results/NAME.json at a path of keys and indices.

  Raises NotMeasured if there is no such file or value.
  """
  found = _results.load(name)
  try:
    for key in path:
      found = found[key]
  except (KeyError, IndexError, TypeError):
    found = None
  if found is None:
    raise NotMeasured(
        f'Expected {"/".join(map(str, path)) or "something"} in results/{name}.json, '
        f'found nothing; run python -m benchmarks.{name}.')
  return found


def test(path: str) -> str:
  """Returns the pytest node of 'folder/test_file::test_name'."""
  file, name = path.split('::', 1)
  return f'tests/{file}.py::{name}'


def run(name: str, *arguments: str) -> str:
  """Returns the command that runs a benchmark."""
  return ' '.join(('python -m', f'benchmarks.{name}', *arguments))


def modules(*names: str) -> tuple[str, ...]:
  """Returns the full names of modules, or names in modules, of tfcactus."""
  return tuple(f'tfcactus.{name}' for name in names)


def within(bounds: Any, digits: int = 8) -> str:
  """Returns bounds as text, rounded outwards."""
  return (f'in [{_format.lower(bounds.lower, digits)}, '
          f'{_format.upper(bounds.upper, digits)}]')
