"""`python -m tfcactus.cli`: the same as the `tfcactus` command."""

import sys

from tfcactus.cli.main import main

if __name__ == '__main__':
  sys.exit(main())
