"""What is public: the names that packages list in `__all__`, read without importing."""

from __future__ import annotations

import ast
import collections
import functools
import pathlib

ROOT = pathlib.Path(__file__).parent.parent

MODULES = (
    'tfcactus.accounting.calibration', 'tfcactus.accounting.views',
    'tfcactus.keras.drop_in.dp_optimizers', 'tfcactus.keras.drop_in.optimizer',
    'tfcactus.keras.fine_tuning', 'tfcactus.keras.hyperparameters',
    'tfcactus.keras.tfp.query', 'tfcactus.keras.tuning',
    'tfcactus.noise', 'tfcactus.noise.base', 'tfcactus.noise.library',
    'tfcactus.noise.radial_table',
    'tfcactus.noise.scalar_table', 'tfcactus.relations', 'tfcactus.search.optimal',
    'tfcactus.search.truncated')
"""Modules without such a list that users are sent to: all they define is public."""

PROOFS = ('tfcactus.pairs.overlap', 'tfcactus.design.solvers.divergence')
"""Modules whose docstrings are proofs that others refer to."""


def file_of(module: str) -> pathlib.Path:
  """The file of a module of the library."""
  path = ROOT / module.replace('.', '/')
  return path / '__init__.py' if path.is_dir() else path.with_suffix('.py')


@functools.cache
def _statements(module: str) -> tuple[ast.stmt, ...]:
  return tuple(ast.parse(file_of(module).read_text(encoding='utf-8')).body)


def docstring(module: str) -> str:
  """The docstring of a module."""
  return ast.get_docstring(ast.Module(list(_statements(module)), [])) or ''


def exported(module: str) -> list[str]:
  """The names in the `__all__` of a module; none where it has no such list."""
  for statement in _statements(module):
    if isinstance(statement, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == '__all__'
        for target in statement.targets):
      return sorted(ast.literal_eval(statement.value), key=str.lower)
  return []


def defined(module: str) -> list[str]:
  """Public functions, classes and documented constants that a module defines."""
  found = []
  for statement in _statements(module):
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
      found.append(statement.name)
    elif isinstance(statement, ast.AnnAssign) and isinstance(
        statement.target, ast.Name):
      found.append(statement.target.id)
  return [name for name in found if not name.startswith('_')]


def origin(module: str, name: str) -> str:
  """Where a name that a module exports is defined, as a dotted path."""
  if name in defined(module):
    return f'{module}.{name}'
  for statement in _statements(module):
    if isinstance(statement, ast.ImportFrom) and statement.module:
      for alias in statement.names:
        if (alias.asname or alias.name) == name:
          if file_of(f'{statement.module}.{name}').exists():
            return f'{statement.module}.{name}'
          return origin(statement.module, alias.name)
    elif isinstance(statement, ast.FunctionDef) and statement.name == '__getattr__':
      for module_ in MODULES:  # What is imported when it is asked for.
        if module_.startswith(module) and name in defined(module_):
          return f'{module_}.{name}'
  return f'{module}.{name}'


def is_inside(name: str) -> bool:
  """Whether a name is of a module, or of what one defines, and not in the reference."""
  if any(name in names or name in names.values() for names in by_room().values()):
    return False
  module, rest = name, ''
  while module and not file_of(module).is_file():
    module, _, last = module.rpartition('.')
    rest = last  # In the end what the module defines, of which the others are members.
  return bool(module) and (not rest or rest in defined(module))


def packages() -> list[str]:
  """Packages of the library that list what is public."""
  names = ['.'.join(path.parent.relative_to(ROOT).parts)
           for path in sorted((ROOT / 'tfcactus').rglob('__init__.py'))]
  return [name for name in names if exported(name)]


@functools.cache
def by_room() -> dict[str, dict[str, str]]:
  """Public names of each room as {name: where it is defined}.

  Returns:
    {room: names}; the library itself is the room 'tfcactus'. A name with a dot is
    of a module in the room.
  """
  rooms: dict[str, dict[str, str]] = collections.defaultdict(dict)
  for module in packages():
    for name in exported(module):
      rooms[_room(module)][f'{module}.{name}'] = origin(module, name)
  for module in MODULES:
    for name in defined(module):
      if f'{module}.{name}' not in rooms[_room(module)].values():
        rooms[_room(module)][f'{module}.{name}'] = f'{module}.{name}'
  return dict(sorted(rooms.items()))


def _room(module: str) -> str:
  return (module.split('.') + ['tfcactus'])[1] if '.' in module else 'tfcactus'


def by_bare_name() -> dict[str, str]:
  """{name without a dot: where it is defined}, for those that are unambiguous."""
  found = collections.defaultdict(set)
  for names in by_room().values():
    for public, where in names.items():
      found[public.rpartition('.')[2]].add(where)
  return {name: next(iter(where)) for name, where in found.items() if len(where) == 1}
