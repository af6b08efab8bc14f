"""Turns notebooks with stored outputs into Markdown pages of the site.

The pages go through the same checks of links and names as all others, and load nothing
from elsewhere.
"""

from __future__ import annotations

import base64
import pathlib
from typing import Any


def page(path: pathlib.Path) -> tuple[str, dict[str, bytes]]:
  """Returns a notebook as Markdown, and its pictures by file name."""
  import nbformat
  notebook = nbformat.read(path, as_version=4)
  parts, pictures = [], {}
  for cell in notebook.cells:
    if cell.cell_type == 'markdown':
      parts.append(cell.source)
      continue
    parts.append(_block('python', cell.source))
    for output in cell.outputs:
      data = output.get('data', {})
      if 'image/png' in data:
        name = f'{path.stem}_{cell.id}.png'
        pictures[name] = base64.b64decode(data['image/png'])
        parts.append(f'![Drawn by the code above]({name})')
      elif _text(output):
        parts.append(_block('text', _text(output)))
  title, _, rest = '\n\n'.join(parts).partition('\n')
  download = f'<a href="{path.name}" download>Download the notebook</a>'
  return f'{title}\n\n{download}\n{rest}\n', pictures


def _text(output: Any) -> str:
  """Returns the text of an output."""
  text = output.get('text') or output.get('data', {}).get('text/plain', '')
  return text.strip('\n')


def _block(language: str, text: str) -> str:
  return f'```{language}\n{text}\n```'
