"""The text of PAPERS.md."""

from __future__ import annotations

import collections
import functools

from benchmarks import _results
from benchmarks.papers import (
  cactus,
  characteristic_functions,
  isotropic,
  item,
  learned_truncated_noise,
  truncated_cdp,
)

PAPERS = (cactus.PAPER, learned_truncated_noise.PAPER, truncated_cdp.PAPER,
          isotropic.PAPER, characteristic_functions.PAPER)

HEAD = '''# The papers, item by item

Written by `python -m benchmarks.papers`; do not edit. Numbers are read from
`results/*.json` or computed by the library while this is written, but for those that
are called the paper's. Tests are run by `python -m pytest NODE`. Bounds are rounded to
the safe side. Pictures are in `results/`; [README.md](README.md) says what the scripts
are and how they are run.
'''


def text() -> str:
  """All of it."""
  papers = [(paper, *_numbers(paper)) for paper in PAPERS]
  return '\n'.join([HEAD, _counts(papers),
                    *(_section(*each) for each in papers)]).rstrip() + '\n'


def kind(status: str) -> str:
  """'reproduced', 'corrected', 'not reproducible' or 'in part'."""
  return status.split(':')[0]


@functools.cache
def _numbers(paper: item.Paper) -> tuple[list[tuple[item.Item, str]], list[item.Item]]:
  """Items with what came out, and those that were not measured."""
  measured, missing = [], []
  for each in paper.items:
    try:
      measured.append((each, each.number()))
    except item.NotMeasured:
      missing.append(each)
  return measured, missing


def not_measured() -> list[str]:
  """Names of the items whose numbers are not among the results."""
  return [each.name for paper in PAPERS for each in _numbers(paper)[1]]


def _counts(papers: list[tuple[item.Paper, list, list]]) -> str:
  kinds = (item.REPRODUCED, 'corrected', 'in part', 'not reproducible')
  rows = []
  for paper, measured, missing in papers:
    counted = collections.Counter(kind(each.status) for each, _ in measured)
    rows.append([paper.title.split(':')[0], *(str(counted[each]) for each in kinds),
                 str(len(missing))])
  return _results.markdown(['paper', *kinds, 'not measured'], rows) + '\n'


def _section(paper: item.Paper, measured: list[tuple[item.Item, str]],
             missing: list[item.Item]) -> str:
  rows = [[each.name, '<br>'.join(f'`{place}`' for place in each.places),
           each.status, f'`{each.command}`', number] for each, number in measured]
  for row in rows:
    for cell in row:
      if '\n' in cell or '|' in cell:
        raise ValueError(f'Expected cells without line breaks and bars, got {cell!r}.')
  table = _results.markdown(
      ['item', 'where', 'status', 'to see it', 'what came out'], rows)
  told = [f'Not measured yet: {each.name} (`{each.command}`).' for each in missing]
  return '\n\n'.join([f'## Paper {paper.title}', table, *told, paper.not_computed, ''])
