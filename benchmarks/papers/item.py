"""What is told of an item of a paper, and where its numbers come from."""

from __future__ import annotations

from typing import Any
from typing import Callable
from typing import NamedTuple

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


def of(name: str, *path: Any) -> Any:
  """What results/NAME.json holds at a path of keys and indices.

  Raises:
    ValueError: if there is no such file.
  """
  found = _results.load(name)
  if found is None:
    raise ValueError(f'Expected results/{name}.json, found none; run '
                     f'python -m benchmarks {name}.')
  for key in path:
    found = found[key]
  return found


def test(path: str) -> str:
  """A test's node, from 'folder/test_file::test_name'."""
  file, name = path.split('::', 1)
  return f'tests/{file}.py::{name}'


def run(name: str, *arguments: str) -> str:
  """The command of a benchmark."""
  return ' '.join(('python -m', f'benchmarks.{name}', *arguments))
