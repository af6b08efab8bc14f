"""Builds a site of all documents and the reference, made from docstrings.

    python -m docs.website            # into build/website
    python -m docs.website --serve    # and look at it on port 8000

A link that leads nowhere, an anchor that is not there, a name of the library that the
reference lacks and a public name without a docstring fail the build. Pages are copied,
as they lie in the checkout, into build/website_pages first, so that what GitHub shows
and what the site shows are the same files. Notebooks become pages by
`docs/notebook_pages.py`, and links to notebooks lead to those pages.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import functools
import http.server
import importlib.util
import json
import logging
import pathlib
import re
import shutil
import sys

from docs import notebook_pages, public_names

ROOT = public_names.ROOT
PAGES, SITE = ROOT / 'build' / 'website_pages', ROOT / 'build' / 'website'
DOCUMENTS = ('README.md', 'CHANGELOG.md', 'benchmarks/*.md', 'docs/*.md',
             'docs/examples/*.md')
NOTEBOOKS = 'docs/examples/*.ipynb'
STYLE = ROOT / 'docs' / 'website.css'

FIRST = ('tfcactus.PrivacyPlan', 'tfcactus.keras.privatize',
         'tfcactus.keras.PrivateModel', 'tfcactus.keras.PoissonBatches',
         'tfcactus.keras.EpsilonCallback')
"""Names that come first on their page of the reference; others follow in order."""

_LINK = re.compile(r'\]\(([^)#\s]+)[^)]*\)')
_NOTEBOOK_LINK = re.compile(r'(\]\([^):\s]+)\.ipynb\)')


def documents() -> list[pathlib.Path]:
  """All pages."""
  return [path for pattern in DOCUMENTS for path in sorted(ROOT.glob(pattern))]


def reference() -> dict[str, str]:
  """Pages of the reference, as {room: Markdown}; the library itself comes first."""
  rooms = public_names.by_room()
  rendered: set[str] = set()
  pages = {room: _page(room, rooms[room], rendered)
           for room in sorted(rooms, key=lambda room: (room == 'tfcactus', room))}
  pages['proofs'] = _proofs()
  return {'tfcactus': pages.pop('tfcactus'), **pages}


def _page(room: str, names: dict[str, str], rendered: set[str]) -> str:
  """The page of a room; what another page has is a link to there."""
  package = 'tfcactus' if room == 'tfcactus' else f'tfcactus.{room}'
  parts = [_heading('#', package)]
  module = package
  for public in sorted(names, key=lambda name: (*FIRST, name).index(name)):
    where = names[public]
    if public_names.file_of(where).exists():  # A module, with its own place.
      parts.append(f'- [`{public}`][{where}]')
      continue
    if public.rpartition('.')[0] != module:
      module = public.rpartition('.')[0]
      parts.append(_heading('##', module))
    if where in rendered:
      parts.append(f'- [`{public}`][{where}]')
    else:
      rendered.add(where)
      options = {'heading': public, 'toc_label': public.rpartition('.')[2],
                 'heading_level': 2 if module == package else 3}
      if '.drop_in.dp_' in where:  # Their constructor is found when they are made.
        options['docstring_options'] = {
            'warn_unknown_params': False, 'warn_missing_types': False}
      parts.append(_block(where, options))
  return '\n\n'.join(parts) + '\n'


def _proofs() -> str:
  """The page of modules whose docstrings hold proofs."""
  return '\n\n'.join([
      '# Proofs', 'What bounds rest on, as the modules say it that compute them.',
      *(_block(module, {'members': False, 'heading': module, 'heading_level': 2})
        for module in public_names.PROOFS)]) + '\n'


def _heading(level: str, module: str) -> str:
  return (f'{level} {module} {{#{module}}}\n\n' +
          public_names.docstring(module).strip().split('\n\n')[0])


def _block(path: str, options: dict[str, object]) -> str:
  return f'::: {path}\n    options: {json.dumps(options)}'


def stage() -> None:
  """Copies pages and what they link to, and writes the reference."""
  shutil.rmtree(PAGES, ignore_errors=True)
  texts = {page: page.read_text(encoding='utf-8') for page in documents()}
  for notebook in sorted(ROOT.glob(NOTEBOOKS)):
    text, pictures = notebook_pages.page(notebook)
    texts[notebook.with_suffix('.md')] = text
    for name, content in pictures.items():
      _place(notebook.parent / name).write_bytes(content)
    shutil.copyfile(notebook, _place(notebook))
  shutil.copyfile(STYLE, _place(STYLE))
  for page, text in texts.items():
    for link in _LINK.findall(text):
      path = (page.parent / link).resolve()
      if '://' not in link and path.is_file() and ROOT in path.parents:
        shutil.copyfile(path, _place(path))
  for page, text in texts.items():
    _place(page).write_text(_NOTEBOOK_LINK.sub(r'\1.md)', text), encoding='utf-8')
  (PAGES / 'reference').mkdir()
  for room, text in reference().items():
    (PAGES / 'reference' / f'{room}.md').write_text(text, encoding='utf-8')


def _place(path: pathlib.Path) -> pathlib.Path:
  """Returns where a file of the checkout is copied to, in a directory that exists."""
  there = PAGES / path.relative_to(ROOT)
  there.parent.mkdir(parents=True, exist_ok=True)
  return there


class _Counter(logging.Handler):
  """Counts warnings, which mkdocs' own command counts and its library does not."""

  def __init__(self) -> None:
    super().__init__(logging.WARNING)
    self.messages: list[str] = []

  def emit(self, record: logging.LogRecord) -> None:
    self.messages.append(record.getMessage())


def build() -> list[str]:
  """Builds the site; returns what is wrong."""
  from mkdocs import config as mkdocs_config
  from mkdocs.commands import build as mkdocs_build
  stage()
  config = mkdocs_config.load_config(
      str(ROOT / 'docs' / 'mkdocs.yml'), docs_dir=str(PAGES), site_dir=str(SITE),
      strict=False)
  config.nav[-1] = {'Reference': [f'reference/{room}.md' for room in reference()]}
  counter = _Counter()
  logger = logging.getLogger('mkdocs')
  logger.setLevel(logging.WARNING)
  logger.addHandler(counter)
  config.plugins.on_startup(command='build', dirty=False)
  try:
    mkdocs_build.build(config)
  finally:
    config.plugins.on_shutdown()
    logger.removeHandler(counter)
  return counter.messages + missing()


def missing() -> list[str]:
  """Public names that the built reference lacks."""
  from mkdocstrings import Inventory
  with open(SITE / 'objects.inv', 'rb') as file:
    found = set(Inventory.parse_sphinx(file))
  return [f'{public} is not in the reference'
          for names in public_names.by_room().values()
          for public, where in names.items()
          if where not in found and not public_names.file_of(where).exists()]


def main(argv: Sequence[str] | None = None) -> int:
  """Builds; returns the exit code."""
  parser = argparse.ArgumentParser(prog='python -m docs.website',
                                   description=__doc__.splitlines()[0])
  parser.add_argument('--serve', action='store_true', help='on port 8000, afterwards')
  args = parser.parse_args(argv)
  if importlib.util.find_spec('mkdocs') is None:
    print('error: Expected mkdocs to build documents, found none; install '
          '"tfcactus[docs]".', file=sys.stderr)
    return 2
  logging.getLogger('mkdocs').propagate = False  # Warnings are printed once, below.
  wrong = build()
  for message in wrong:
    print(f'error: {message}', file=sys.stderr)
  print(f'{len(wrong)} errors; the site is {SITE / "index.html"}')
  if args.serve:
    http.server.ThreadingHTTPServer(('127.0.0.1', 8000), functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=str(SITE))).serve_forever()
  return 1 if wrong else 0


if __name__ == '__main__':
  sys.exit(main())
