"""Where benchmarks put what they measured."""

from __future__ import annotations

import json
import pathlib
from typing import Any
from typing import Sequence

RESULTS = pathlib.Path(__file__).parent / 'results'
README = pathlib.Path(__file__).parent.parent / 'README.md'


def save(name: str, result: Any) -> None:
  """Writes results/NAME.json."""
  RESULTS.mkdir(exist_ok=True)
  path = RESULTS / f'{name}.json'
  path.write_text(json.dumps(result, indent=2) + '\n', encoding='utf-8')


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """A Markdown table."""
  lines = [header, ['---'] * len(header), *rows]
  return '\n'.join('| ' + ' | '.join(line) + ' |' for line in lines)


def show(name: str, table: str) -> None:
  """Prints a table, and puts it between the README's marks of that name."""
  print(table)
  text = README.read_text(encoding='utf-8')
  begin, end = f'<!-- {name}:begin -->', f'<!-- {name}:end -->'
  if begin in text:
    head, rest = text.split(begin)
    tail = rest.split(end)[1]
    README.write_text(f'{head}{begin}\n{table}\n{end}{tail}', encoding='utf-8')
