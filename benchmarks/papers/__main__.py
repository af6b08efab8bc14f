"""Writes benchmarks/PAPERS.md, or prints it.

    python -m benchmarks.papers [--print]

It takes seconds, since it reads the results of the slow benchmarks.
"""

from __future__ import annotations

import argparse
import pathlib

from benchmarks.papers import document

PATH = pathlib.Path(__file__).parent.parent / 'PAPERS.md'


def main() -> None:
  """Writes or prints the document."""
  parser = argparse.ArgumentParser(prog='python -m benchmarks.papers',
                                   description=__doc__.splitlines()[0])
  parser.add_argument('--print', action='store_true',
                      help='print the document, and write nothing')
  text = document.text()
  if parser.parse_args().print:
    print(text, end='')
  else:
    PATH.write_text(text, encoding='utf-8')


if __name__ == '__main__':
  main()
