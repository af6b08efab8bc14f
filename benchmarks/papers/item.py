"""What is told of an item of a paper, and where its numbers come from."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

from benchmarks import _results

REPRODUCED = 'reproduced'


class Item(NamedTuple):
  """One definition, algorithm, theorem, figure, table or experiment.

  Attributes:
    name: As in the paper, with a few words.
    places: Modules or what is in them, as it is imported; or files.
    status: `REPRODUCED`, or 'corrected: how', or 'not reproducible: why', or
      'in part: what is missing'.
    command: A test ('tests/...::test_...') or a benchmark ('python -m ...').
    number: Text with what came out: read from results or computed now; published
      numbers are named so.
  """

  name: str
  places: tuple[str, ...]
  status: str
  command: str
  number: Callable[[], str]


class Paper(NamedTuple):
  """A paper.

  Attributes:
    title: With its number, authors and place.
    items: In the paper's order.
    not_computed: Its items without computational content, and those not yet done, in
      sentences.
  """

  title: str
  items: tuple[Item, ...]
  not_computed: str


class NotMeasured(ValueError):
  """What an item's number is read from is not among the results."""


def of(name: str, *path: Any) -> Any:
  """What results/NAME.json holds at a path of keys and indices.

  Raises:
    NotMeasured: if there is no such file, or no such thing in it.
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
  """A test's node, from 'folder/test_file::test_name'."""
  file, name = path.split('::', 1)
  return f'tests/{file}.py::{name}'


def run(name: str, *arguments: str) -> str:
  """The command of a benchmark."""
  return ' '.join(('python -m', f'benchmarks.{name}', *arguments))
