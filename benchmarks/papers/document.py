"""The text of PAPERS.md."""

from __future__ import annotations

import collections

from benchmarks import _results
from benchmarks.papers import cactus
from benchmarks.papers import characteristic_functions
from benchmarks.papers import isotropic
from benchmarks.papers import item
from benchmarks.papers import learned_truncated_noise
from benchmarks.papers import truncated_cdp

PAPERS = (cactus.PAPER, learned_truncated_noise.PAPER, truncated_cdp.PAPER,
          isotropic.PAPER, characteristic_functions.PAPER)

HEAD = '''# The papers, item by item

Written by `python -m benchmarks.papers`; do not edit. Numbers are read from
`results/*.json` or computed by the library while this is written, but for those that
are called the paper's. Tests are run by `python -m pytest NODE`. Bounds are rounded to
the safe side. Pictures are in `results/`; what the scripts are and how they are run says
[README.md](README.md).
'''


def text() -> str:
  """All of it."""
  return '\n'.join([HEAD, _counts(), *map(_section, PAPERS)])


def kind(status: str) -> str:
  """'reproduced', 'corrected', 'not reproducible' or 'in part'."""
  return status.split(':')[0]


def _counts() -> str:
  kinds = (item.REPRODUCED, 'corrected', 'in part', 'not reproducible')
  rows = []
  for paper in PAPERS:
    counted = collections.Counter(kind(each.status) for each in paper.items)
    rows.append([paper.title.split(':')[0], *(str(counted[each]) for each in kinds)])
  return _results.markdown(['paper', *kinds], rows) + '\n'


def _section(paper: item.Paper) -> str:
  rows = [[each.name, '<br>'.join(f'`{place}`' for place in each.places),
           each.status, f'`{each.command}`', each.number()] for each in paper.items]
  for row in rows:
    for cell in row:
      if '\n' in cell or '|' in cell.replace('\\|', ''):
        raise ValueError(f'Expected cells without line breaks and bars, got {cell!r}.')
  table = _results.markdown(
      ['item', 'where', 'status', 'to see it', 'what came out'], rows)
  return f'## Paper {paper.title}\n\n{table}\n\n{paper.not_computed}\n'
