"""Runs the `tfcactus` command by `python -m tfcactus.cli`."""

import sys

from tfcactus.cli.main import main

if __name__ == '__main__':
  sys.exit(main())
