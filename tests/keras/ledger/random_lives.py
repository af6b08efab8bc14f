"""Random lives of private models, for the oracle of `lifecycles`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.keras.ledger import lifecycles

_WEIGHTS = {'new': 1, 'again': 1, 'copied': 1, 'compile': 1, 'compile_with': 1,
            'fit': 7, 'one': 0.2, 'save': 5, 'load': 4, 'load_weights': 6, 'get': 1,
            'set': 1, 'mean': 1, 'plain': 0.3, 'assign': 0.5, 'moments': 0.5,
            'process': 1.5, 'look': 1.5}
"""How often each part of a life comes."""


class _Writer:
  """Writes a life, of names that exist as far as nothing is refused."""

  def __init__(self, rng: np.random.Generator):
    """Initialises the writer of an empty life."""
    self._rng = rng
    self._models: set[str] = set()
    self._values: set[str] = set()
    self._files: dict[str, str] = {}

  def of(self, choices: Any) -> Any:
    """Returns one of some choices."""
    choices = sorted(choices)
    return choices[self._rng.integers(len(choices))]

  def _rarely(self, usual: Any, others: Any) -> Any:
    """Returns mostly `usual`, at times one of `others`."""
    return usual if self._rng.integers(3) else self.of(others)

  def _made(self) -> str:
    """Returns the name of a model that is made now."""
    name = self.of(('m0', 'm1', 'm2'))
    self._models.add(name)
    return name

  def part(self, name: str) -> tuple[Any, ...]:
    """Returns a part of this name, or another one where it needs what is not there."""
    plan = self._rarely('one', lifecycles.PLANS)
    optimizer = self.of(lifecycles.OPTIMIZERS)
    loadable = [f for f, kind in self._files.items() if kind == 'keras']
    if name == 'process':
      self._models.clear()
      self._values.clear()
    if name in ('process', 'look'):
      return (name,)
    if name == 'load' and loadable:
      return name, self.of(loadable), self._made()
    if name == 'new' or not self._models:
      return ('new', self._made(), optimizer if self._rng.integers(8) else '', plan,
              int(self._rng.integers(2)), self._rarely('', ('j0', 'j1')),
              bool(self._rng.integers(8)))
    m = self.of(self._models)
    if name == 'save' or name in ('load', 'load_weights') and not self._files:
      f = self.of(('f0', 'f1', 'f2', 'f3'))
      self._files[f] = self._rarely('keras', lifecycles.FILES)
      return 'save', m, f, self._files[f]
    if name == 'get' or name in ('set', 'mean') and not self._values:
      v = self.of(('v0', 'v1'))
      self._values.add(v)
      return 'get', m, v
    return self._of_models(name, m, optimizer, plan)

  def _of_models(self, name: str, m: str, optimizer: str, plan: str
                ) -> tuple[Any, ...]:
    """Returns a part that needs model `m`, and has all that it needs."""
    rng, n = self._rng, self.of(self._models)
    if name == 'fit':
      return (name, m, int(rng.integers(1, 3)), int(rng.integers(1, 3)),
              self._rarely('poisson', [*lifecycles.BATCHES, 'arrays']),
              self._rarely('', lifecycles.CALLBACKS))
    if name in ('load', 'load_weights'):
      return 'load_weights', m, self.of(self._files)
    if name in ('set', 'mean'):
      return (name, m, *([n] if name == 'mean' else []), self.of(self._values))
    if name == 'again':
      return name, m, self._made(), optimizer, plan
    if name == 'copied':
      return name, m, self._made(), self.of(('deepcopy', 'pickle'))
    if name == 'compile':
      return name, m, optimizer
    return (name, m) if name in ('one', 'plain') else (name, m, n)


def random_life(seed: int, length: int = 12, without: tuple[str, ...] = ()
               ) -> list[tuple[Any, ...]]:
  """Returns a life of so many parts, none of them named in `without`."""
  rng = np.random.default_rng([20, seed])
  writer = _Writer(rng)
  names = [name for name in _WEIGHTS if name not in without]
  chances = np.array([_WEIGHTS[name] for name in names], float)
  return [writer.part('new'), writer.part('fit'), *(
      writer.part(names[rng.choice(len(names), p=chances / chances.sum())])
      for _ in range(length - 2))]
