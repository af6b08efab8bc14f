"""A Markdown extension: names of the library in code spans lead to the reference.

A span that begins with `tfcactus.` has to lead somewhere, or to be of a module inside
that no reader is sent to, or the build fails. A bare name leads there if it is public.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import markdown
from markdown import treeprocessors

from docs import public_names

_DOTTED = re.compile(r'(tfcactus(?:\.\w+)+)(?:\(.*\))?', re.S)
_BARE = re.compile(r'([A-Za-z]\w+)(?:\(\))?')
_BETWEEN_NAMES = re.compile(r'(?<=[/:(=.])(?=\w)')
_FILE = re.compile(r'\.(?:py|npz|json)$')


class _CodeLinks(treeprocessors.Treeprocessor):
  """Wraps code spans into what mkdocs-autorefs resolves."""

  def __init__(self, names: dict[str, str]):
    super().__init__()
    self._names = names

  def run(self, root: ElementTree.Element) -> None:
    for parent in [*root.iter()]:
      if parent.tag in ('a', 'pre', 'autoref', 'h1', 'h2', 'h3', 'h4'):
        continue
      for index, child in enumerate(parent):
        if child.tag == 'code' and not len(child):
          wrapped = self._wrapped(child)
          if wrapped is not None:
            wrapped.tail, child.tail = child.tail, None
            parent[index] = wrapped
    for cell in root.iter('td'):
      for code in cell.iter('code'):
        _allow_breaks(code)

  def _wrapped(self, code: ElementTree.Element) -> ElementTree.Element | None:
    text = (code.text or '').strip()
    dotted, bare = _DOTTED.fullmatch(text), _BARE.fullmatch(text)
    if dotted and not _FILE.search(text):
      attributes = {'identifier': dotted[1]}
      if public_names.is_inside(dotted[1]):
        attributes['optional'] = ''
    elif bare and bare[1] in self._names:
      attributes = {'identifier': self._names[bare[1]], 'optional': ''}
    else:
      return None
    wrapped = ElementTree.Element('autoref', attributes)
    wrapped.append(code)
    return wrapped


def _allow_breaks(code: ElementTree.Element) -> None:
  """Lets long code in a table break between names, and nowhere else."""
  if not len(code):
    code.text, *rest = _BETWEEN_NAMES.split(code.text or '')
    for part in rest:
      ElementTree.SubElement(code, 'wbr').tail = part


class CodeLinks(markdown.Extension):
  """The extension; also, lists are indented by two blanks, as in all documents."""

  def extendMarkdown(self, md: markdown.Markdown) -> None:  # noqa: N802
    md.tab_length = 2
    for processor in md.parser.blockprocessors:  # Made before, for four.
      if type(processor).__module__ == 'markdown.blockprocessors':
        processor.__init__(md.parser)
    md.treeprocessors.register(_CodeLinks(public_names.by_bare_name()), 'code_links',
                               -10)


def makeExtension(**kwargs: Any) -> CodeLinks:  # noqa: N802
  """As Markdown asks for."""
  return CodeLinks(**kwargs)
