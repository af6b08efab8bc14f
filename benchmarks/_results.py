"""Where benchmarks put what they measured."""

from __future__ import annotations

from collections.abc import Sequence
import json
import os
import pathlib
import textwrap
from typing import Any

ELSEWHERE = 'BENCHMARKS_RESULTS'
"""Environment variable: a folder for results instead of the one below, for runs that
are no full ones. Documents are left as they are then."""

KEPT = pathlib.Path(__file__).parent / 'results'
RESULTS = pathlib.Path(os.environ.get(ELSEWHERE) or KEPT)
DOCUMENTS = (pathlib.Path(__file__).parent / 'README.md',
             *sorted((pathlib.Path(__file__).parent.parent / 'docs').glob('*.md')))

BLUE, VERMILION, GREEN, ORANGE = '#0072B2', '#D55E00', '#009E73', '#E69F00'
PURPLE, SKY, BLACK, GRAY = '#CC79A7', '#56B4E9', '#000000', '#7F7F7F'
"""Told apart by the colour-blind too (Okabe and Ito, 2008); lines differ in style as
well."""


def save(name: str, result: Any) -> None:
  """Writes results/NAME.json."""
  RESULTS.mkdir(exist_ok=True)
  path = RESULTS / f'{name}.json'
  path.write_text(json.dumps(result, indent=2) + '\n', encoding='utf-8')


def load(name: str, missing: Any = None) -> Any:
  """What results/NAME.json holds, or `missing` where there is no such file."""
  path = RESULTS / f'{name}.json'
  return (json.loads(path.read_text(encoding='utf-8')) if path.exists() else
          missing)


def pyplot() -> Any:
  """matplotlib.pyplot, drawing into files."""
  import matplotlib  # pylint: disable=import-outside-toplevel
  matplotlib.use('Agg')
  from matplotlib import pyplot as plot  # pylint: disable=import-outside-toplevel
  return plot


def save_figure(figure: Any, name: str, rect: Sequence[float] | None = None
                ) -> None:
  """Writes results/NAME.png, and closes the figure.

  Args:
    figure: Of matplotlib.
    name: Of the file.
    rect: The part of the figure that its axes are laid out in; None for all.
  """
  RESULTS.mkdir(exist_ok=True)
  figure.tight_layout(rect=rect)
  figure.savefig(RESULTS / f'{name}.png', dpi=80)
  pyplot().close(figure)


def save_captioned(figure: Any, axes: Sequence[Any], name: str, caption: str) -> None:
  """Writes results/NAME.png with a grid on the axes and a caption below them.

  Args:
    figure: Of matplotlib.
    axes: All of its axes.
    name: Of the file.
    caption: In words, wrapped here.
  """
  for axis in axes:
    axis.grid(alpha=0.3)
  width, height = figure.get_size_inches()
  lines = textwrap.wrap(caption, int(15 * width))
  bottom = (0.15 + 0.17 * len(lines)) / height
  figure.text(0.02, 0.02, '\n'.join(lines), fontsize=9, va='bottom')
  save_figure(figure, name, rect=(0, bottom, 1, 1))


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """A Markdown table."""
  lines = [header, ['---'] * len(header), *rows]
  return '\n'.join('| ' + ' | '.join(line) + ' |' for line in lines)


def show(name: str, table: str) -> None:
  """Prints a table, and puts it between the marks of that name in a document.

  Where results go elsewhere it is printed only.

  Args:
    name: Of the marks.
    table: In Markdown.

  Raises:
    ValueError: if no document has such marks.
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
