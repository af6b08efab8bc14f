"""Runs the notebooks of docs/examples/ and stores their outputs.

    python -m docs.run_examples                  # all, in full; outputs are stored
    python -m docs.run_examples mnist devices    # two of them
    python -m docs.run_examples --small          # on small data; nothing is stored

Where KerasHub is not installed, as with Keras 2, its notebook is left out.
Each notebook runs in a kernel and an empty directory of its own. Its sizes stand in
the cell with the tag `parameters`, as papermill has it. A run on small data adds a cell
after that one.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
import hashlib
import importlib.util
import os
import pathlib
import re
import sys
import tempfile
import time
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
FOLDER = ROOT / 'docs' / 'examples'

SMALL: dict[str, dict[str, Any]] = {
    'accountant': {},
    'audit': {'num_records': 800, 'epochs': 2, 'plain_epochs': 2},
    'devices': {'num_examples': 1_000, 'epochs': 1},
    'disk': {'epochs': 1},
    'isotropic': {'runs': 1, 'steps': 20},
    'keras_hub_lora': {'num_public': 600, 'num_private': 300, 'public_epochs': 1,
                       'private_epochs': 1},
    'mnist': {'num_examples': 600, 'epochs': 1},
    'project': {'num_examples': 2_000, 'epochs': 2},
    'release': {'num_records': 2_000},
    'text_lora': {'num_public': 500, 'num_private': 300, 'public_epochs': 1,
                  'private_epochs': 1},
    'users': {'num_users': 300, 'steps': 5},
}
"""Parameters of a run on small data, by notebook, in alphabetical order."""

KERAS_HUB = {'keras_hub_lora'}
"""Notebooks that need KerasHub, which exists for Keras 3 alone."""

_TIMES = re.compile(r' - \d+m?s\b(?:/\w+)?')
_LOGGED = re.compile(r'^(?:WARNING: All log messages before absl|[IWEF]\d{4} ).*\n?',
                     re.MULTILINE)
"""What newer TensorFlows log when they are imported, whatever the level of logs."""


def path_of(name: str) -> pathlib.Path:
  """Returns the file of a notebook."""
  return FOLDER / f'{name}.ipynb'


def read(name: str) -> Any:
  """Returns a notebook as nbformat reads it."""
  import nbformat
  return nbformat.read(path_of(name), as_version=4)


def code_of(notebook: Any) -> str:
  """Returns the source of all code cells."""
  return '\n\n'.join(cell.source for cell in notebook.cells if cell.cell_type == 'code')


def digest(notebook: Any) -> str:
  """Returns the SHA-256 digest of the code, which stored outputs must come from."""
  return hashlib.sha256(code_of(notebook).encode()).hexdigest()


def run(notebook: Any, parameters: Mapping[str, Any] | None = None) -> Any:
  """Returns an executed copy of a notebook.

  Args:
    notebook: A notebook of nbformat.
    parameters: Values that replace those of the cell with the tag `parameters`.

  Raises:
    nbclient.exceptions.CellExecutionError: if a cell raises.
    ValueError: if an output names a directory of this machine.
  """
  import nbclient
  import nbformat
  executed = nbformat.from_dict(notebook)
  if parameters:
    place = next(index for index, cell in enumerate(executed.cells)
                 if 'parameters' in cell.metadata.get('tags', []))
    executed.cells.insert(place + 1, nbformat.v4.new_code_cell(
        '\n'.join(f'{name} = {value!r}' for name, value in parameters.items()),
        id='injected-parameters', metadata={'tags': ['injected-parameters']}))
  paths = [str(ROOT), *filter(None, [os.environ.get('PYTHONPATH')])]
  with tempfile.TemporaryDirectory() as folder:
    nbclient.NotebookClient(
        executed, timeout=None, kernel_name='python3', record_timing=False,
        startup_timeout=600, coalesce_streams=True,
        resources={'metadata': {'path': folder}}).execute(
            env={'TF_CPP_MIN_LOG_LEVEL': '3', **os.environ,
                 # tqdm asks for widgets, which need a browser.
                 'PYTHONWARNINGS': 'ignore:IProgress not found',
                 'PYTHONPATH': os.pathsep.join(paths)})
    _clean(executed)
    text = outputs_of(executed)
  for place in {folder, str(ROOT), str(pathlib.Path.home()), sys.prefix} - {'/'}:
    if place in text:
      raise ValueError(f'Expected outputs without directories of this machine, got '
                       f'{place!r} in them.')
  return executed


def _clean(notebook: Any) -> None:
  """Removes from outputs and metadata what differs between machines and runs."""
  for cell in notebook.cells:
    for output in cell.get('outputs', []):
      if output.output_type == 'stream':
        output.text = _LOGGED.sub('', _TIMES.sub('', output.text))
    if 'outputs' in cell:
      cell.outputs = [each for each in cell.outputs if each.get('text') != '']
  notebook.metadata['language_info'] = {'name': 'python'}


def outputs_of(notebook: Any) -> str:
  """Returns all text that the cells of an executed notebook put out."""
  return '\n'.join(
      output.get('text') or output.get('data', {}).get('text/plain', '')
      for cell in notebook.cells for output in cell.get('outputs', []))


def store(name: str) -> None:
  """Runs a notebook in full and writes it back with outputs and the code's digest."""
  import nbformat
  executed = run(read(name))
  executed.metadata['code_sha256'] = digest(executed)
  nbformat.validate(executed)
  nbformat.write(executed, path_of(name))


def main(argv: Sequence[str] | None = None) -> int:
  """Runs them; returns the exit code."""
  parser = argparse.ArgumentParser(prog='python -m docs.run_examples',
                                   description=__doc__.splitlines()[0])
  parser.add_argument('names', nargs='*', metavar='NAME', help=', '.join(SMALL))
  parser.add_argument('--small', action='store_true',
                      help='on small data, without storing outputs')
  args = parser.parse_args(argv)
  for name in args.names:
    if name not in SMALL:
      parser.error(f'Expected notebooks among {", ".join(SMALL)}, got {name!r}.')
  left_out = KERAS_HUB if importlib.util.find_spec('keras_hub') is None else set()
  if left_out.intersection(args.names):
    parser.error('Expected KerasHub for the notebooks '
                 f'{", ".join(sorted(left_out.intersection(args.names)))}, found none; '
                 'install "tfcactus[hub]" in an environment with Keras 3.')
  if importlib.util.find_spec('nbclient') is None:
    print('error: Expected nbclient and ipykernel to run notebooks, found none; '
          'install "tfcactus[test]".', file=sys.stderr)
    return 2
  for name in args.names or SMALL:
    if name in left_out:
      print(f'{name}: left out, needs "tfcactus[hub]" and Keras 3', flush=True)
      continue
    start = time.monotonic()
    if args.small:
      print(outputs_of(run(read(name), SMALL[name])))
    else:
      store(name)
    print(f'{name}: {time.monotonic() - start:.0f} s', flush=True)
  return 0


if __name__ == '__main__':
  sys.exit(main())
