"""Runs the blocks of docs/tour.md as one program.

    python -m docs.run_tour            # shows what they print
    python -m docs.run_tour --write    # and puts it and the pictures into docs/
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import contextlib
import io
import os
import pathlib
import re
import shutil
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
PAGE = HERE / 'tour.md'

_PROGRESS = re.compile(r'^(?:Epoch \d+/\d+|\s*)$')
_TIMES = re.compile(r' - \d+m?s\b(?:/\w+)?')


def run(folder: str) -> list[str]:
  """Runs all blocks in a folder; returns what each printed."""
  import matplotlib
  matplotlib.use('Agg')
  names: dict[str, object] = {}
  printed = []
  back = os.getcwd()
  os.chdir(folder)
  try:
    for block in re.findall(r'```python\n(.*?)```', PAGE.read_text('utf-8'), re.S):
      with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(block, str(PAGE), 'exec'), names)  # The page is this program.
      printed.append(out.getvalue())
      sys.stdout.write(printed[-1])
  finally:
    os.chdir(back)
  return printed


def written(text: str, printed: Sequence[str]) -> str:
  """The page with what its blocks printed, where it has a place for it."""
  parts = re.split(r'(```python\n.*?```)', text, flags=re.S)
  for index, output in enumerate(printed):
    shown = '\n'.join(
        _TIMES.sub('', line).rstrip() for line in output.splitlines()
        if not _PROGRESS.match(line))
    parts[2 * index + 2] = re.sub(
        r'(<!-- tour:(\w+):begin -->\n).*?(<!-- tour:\2:end -->)',
        lambda found, shown=shown: f'{found[1]}```text\n{shown}\n```\n{found[3]}',
        parts[2 * index + 2], flags=re.S)
  return ''.join(parts)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs them; returns the exit code."""
  parser = argparse.ArgumentParser(prog='python -m docs.run_tour',
                                   description=__doc__.splitlines()[0])
  parser.add_argument('--write', action='store_true', help='into docs/')
  args = parser.parse_args(argv)
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  start = time.time()
  with tempfile.TemporaryDirectory() as folder:
    printed = run(folder)
    if args.write:
      PAGE.write_text(written(PAGE.read_text('utf-8'), printed), encoding='utf-8')
      for picture in pathlib.Path(folder).glob('*.png'):
        shutil.copyfile(picture, HERE / 'images' / picture.name)
  print(f'{time.time() - start:.0f} s')
  return 0


if __name__ == '__main__':
  sys.exit(main())
