"""Writes benchmarks/PAPERS.md, or prints it.

    python -m benchmarks.papers [--print]

Minutes of CPU time are in the benchmarks that it reads; it takes seconds itself.
"""

from __future__ import annotations

import argparse
import pathlib

from benchmarks.papers import document

PATH = pathlib.Path(__file__).parent.parent / 'PAPERS.md'


def main() -> None:
  """Does so."""
  parser = argparse.ArgumentParser(prog='python -m benchmarks.papers',
                                   description=__doc__.splitlines()[0])
  parser.add_argument('--print', action='store_true', help='write nothing')
  text = document.text()
  if parser.parse_args().print:
    print(text, end='')
  else:
    PATH.write_text(text, encoding='utf-8')


if __name__ == '__main__':
  main()
