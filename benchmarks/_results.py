"""Files of the benchmarks' results, and the tables and pictures made from them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import json
import os
import pathlib
import textwrap
from typing import Any

ELSEWHERE = 'BENCHMARKS_RESULTS'
"""Environment variable that names another folder for results than `KEPT`, for runs that
are not complete. Documents are not changed if it is set."""

KEPT = pathlib.Path(__file__).parent / 'results'
RESULTS = pathlib.Path(os.environ.get(ELSEWHERE) or KEPT)
DOCUMENTS = (pathlib.Path(__file__).parent / 'README.md',
             *sorted((pathlib.Path(__file__).parent.parent / 'docs').glob('*.md')))

BLUE, VERMILION, GREEN, ORANGE = '#0072B2', '#D55E00', '#009E73', '#E69F00'
PURPLE, SKY, BLACK, GRAY = '#CC79A7', '#56B4E9', '#000000', '#7F7F7F'
"""Colours that colour-blind readers can tell apart (Okabe and Ito, 2008). Lines differ
in style too."""


def parser(name: str, text: str) -> argparse.ArgumentParser:
  """Returns a parser of a benchmark's command line, whose help shows its docstring."""
  return argparse.ArgumentParser(
      prog=f'python -m benchmarks.{name}', description=text,
      formatter_class=argparse.RawDescriptionHelpFormatter)


def save(name: str, result: Any) -> None:
  """Writes results/NAME.json."""
  RESULTS.mkdir(exist_ok=True)
  path = RESULTS / f'{name}.json'
  path.write_text(json.dumps(result, indent=2) + '\n', encoding='utf-8')


def load(name: str, missing: Any = None) -> Any:
  """Returns the content of results/NAME.json, or `missing` without a file."""
  path = RESULTS / f'{name}.json'
  return (json.loads(path.read_text(encoding='utf-8')) if path.exists() else
          missing)


def pyplot() -> Any:
  """Imports and returns matplotlib.pyplot with the backend that draws into files."""
  import matplotlib  # pylint: disable=import-outside-toplevel
  matplotlib.use('Agg')
  from matplotlib import pyplot as plot  # pylint: disable=import-outside-toplevel
  return plot


def save_figure(figure: Any, name: str, rect: Sequence[float] | None = None
                ) -> None:
  """Writes a matplotlib figure to results/NAME.png, and closes it.

  `rect` is the part of the figure in which the axes are laid out; None for all of it.
  """
  RESULTS.mkdir(exist_ok=True)
  figure.tight_layout(rect=rect)
  figure.savefig(RESULTS / f'{name}.png', dpi=80)
  pyplot().close(figure)


def save_captioned(figure: Any, axes: Sequence[Any], name: str, caption: str) -> None:
  """Writes results/NAME.png with a grid on all axes and a wrapped caption below."""
  for axis in axes:
    axis.grid(alpha=0.3)
  width, height = figure.get_size_inches()
  lines = textwrap.wrap(caption, int(15 * width))
  bottom = (0.15 + 0.17 * len(lines)) / height
  figure.text(0.02, 0.02, '\n'.join(lines), fontsize=9, va='bottom')
  save_figure(figure, name, rect=(0, bottom, 1, 1))


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """Returns a Markdown table."""
  lines = [header, ['---'] * len(header), *rows]
  return '\n'.join('| ' + ' | '.join(line) + ' |' for line in lines)


def show(name: str, table: str) -> None:
  """Prints a Markdown table, and writes it between the marks NAME in a document.

  The table is printed only if results go to another folder than `KEPT`. Raises
  ValueError if no document has the marks.
  """
  print(table)
  if RESULTS != KEPT:
    return
  begin, end = f'<!-- {name}:begin -->', f'<!-- {name}:end -->'
  for document in DOCUMENTS:
    text = document.read_text(encoding='utf-8')
    if begin in text:
      head, rest = text.split(begin)
      tail = rest.split(end)[1]
      document.write_text(f'{head}{begin}\n{table}\n{end}{tail}',
                          encoding='utf-8')
      return
  raise ValueError(
      f'Expected {begin} in one of {", ".join(map(str, DOCUMENTS))}, found it in '
      'none; write it where the table shall be.')
