"""Builds the text of PAPERS.md."""

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

This page is written by `python -m benchmarks.papers`; do not edit it. It lists for each
definition, theorem and figure of the five papers where it is implemented, how to check
it, and a result. Results are read from `results/*.json`, or computed by the library
when the page is written; only numbers named "the paper's" are published ones. Run a
test by `python -m pytest NODE`. Upper bounds are rounded up, and lower bounds down.
Pictures are in `results/`; [README.md](README.md) describes the benchmarks.
'''


def text() -> str:
  """Returns the whole document."""
  papers = [(paper, *_numbers(paper)) for paper in PAPERS]
  return '\n'.join([HEAD, _counts(papers),
                    *(_section(*each) for each in papers)]).rstrip() + '\n'


def kind(status: str) -> str:
  """Returns 'reproduced', 'corrected', 'not reproducible' or 'in part'."""
  return status.split(':')[0]


@functools.cache
def _numbers(paper: item.Paper) -> tuple[list[tuple[item.Item, str]], list[item.Item]]:
  """Returns the items with their results, and the items without results."""
  measured, missing = [], []
  for each in paper.items:
    try:
      measured.append((each, each.number()))
    except item.NotMeasured:
      missing.append(each)
  return measured, missing


def not_measured() -> list[str]:
  """Returns the names of items without results."""
  return [each.name for paper in PAPERS for each in _numbers(paper)[1]]


def _counts(papers: list[tuple[item.Paper, list, list]]) -> str:
  """Returns the table of the number of items by paper and status."""
  kinds = (item.REPRODUCED, 'corrected', 'in part', 'not reproducible')
  rows = []
  for paper, measured, missing in papers:
    counted = collections.Counter(kind(each.status) for each, _ in measured)
    rows.append([paper.title.split(':')[0], *(str(counted[each]) for each in kinds),
                 str(len(missing))])
  return _results.markdown(['paper', *kinds, 'not measured'], rows) + '\n'


def _section(paper: item.Paper, measured: list[tuple[item.Item, str]],
             missing: list[item.Item]) -> str:
  """Returns the section of a paper; ValueError for a cell that breaks its table."""
  rows = [[each.name, '<br>'.join(f'`{place}`' for place in each.places),
           each.status, f'`{each.command}`', number] for each, number in measured]
  for row in rows:
    for cell in row:
      if '\n' in cell or '|' in cell:
        raise ValueError(f'Expected cells without line breaks and bars, got {cell!r}.')
  table = _results.markdown(
      ['item', 'implemented in', 'status', 'test or command', 'result'], rows)
  told = [f'Not measured yet: {each.name} (`{each.command}`).' for each in missing]
  return '\n\n'.join([f'## Paper {paper.title}', table, *told, paper.not_computed, ''])
