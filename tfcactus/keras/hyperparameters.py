"""Settings of one run, asked for as in KerasTuner and drawn from a public law."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import math
from typing import Any, Callable

from tfcactus import _checks

Path = tuple[tuple[str, int, int], ...]
"""(name, number of values, index of the value) of each discrete draw, in order."""


class HyperParameters:
  """Settings of one run, drawn independently: the `hp` of KerasTuner.

  Defaults, orders and parents do not affect a draw. A name that is asked for again has
  the value that was drawn before. Draws are discrete, except those without `step` of
  `Float` and of a logarithmic `Int`.

  Attributes:
    values: The settings drawn so far, by name.
    path: The discrete draws so far.
  """

  def __init__(self, pick: Callable[[int], int], uniform: Callable[[], float]):
    """Draws by `pick(n)`, uniform in 0, ..., n - 1, and `uniform()`, in [0, 1)."""
    self.values: dict[str, Any] = {}
    self.path: Path = ()
    self._pick = pick
    self._uniform = uniform
    self._scope = ''

  def Fixed(self, name: str, value: Any, *unused: Any, **others: Any) -> Any:
    """Returns `value`."""
    return self._once(name, lambda: value)

  def Choice(self, name: str, values: Sequence[Any], *unused: Any, **others: Any
             ) -> Any:
    """Returns one of `values`, each with the same probability."""
    return self._one_of(name, values)

  def Boolean(self, name: str, *unused: Any, **others: Any) -> bool:
    """Returns True or False, by a fair coin."""
    return bool(self._one_of(name, (False, True)))

  def Int(self, name: str, min_value: int, max_value: int, step: int | None = None,
          sampling: str | None = 'linear', *unused: Any, **others: Any) -> int:
    """Returns an integer from `min_value` to `max_value`, as KerasTuner draws it.

    It is one of the values by `step` (factors if `sampling` is 'log'), each with the
    same probability; or a logarithmic draw without `step`, rounded down.
    """
    low = _checks.integer('min_value', min_value, -2**53)
    high = _checks.integer('max_value', max_value, low, 2**53)
    if step is None and sampling in ('log', 'reverse_log'):
      def draw() -> int:
        """Returns a logarithmic draw, rounded down; ValueError in an account's walk."""
        found = self._between(low, high + 1, sampling)
        if math.isnan(found):
          raise ValueError(
              f'Expected plan(hp) to draw {name!r} by steps, so that all its values '
              'are accounted for, got a logarithmic Int without step; pass step=2.')
        return min(int(found), high)

      return int(self._once(name, draw))
    return int(self._one_of(name, _steps(low, high, 1 if step is None else step,
                                         sampling)))

  def Float(self, name: str, min_value: float, max_value: float,
            step: float | None = None, sampling: str | None = 'linear', *unused: Any,
            **others: Any) -> float:
    """Returns a number from `min_value` to `max_value`, as KerasTuner draws it.

    It is one of the values by `step` (factors if `sampling` is 'log'), each with the
    same probability; or any number, linear or logarithmic, without `step`.
    """
    low, high = (_checks.real('min_value', min_value),
                 _checks.real('max_value', max_value))
    if step is None:
      return float(self._once(name, lambda: self._between(low, high, sampling)))
    return float(self._one_of(name, _steps(low, high, step, sampling)))

  def get(self, name: str) -> Any:
    """Returns the setting of this name; KeyError if it was not drawn before."""
    return self.values[self._scope + name]

  @contextlib.contextmanager
  def name_scope(self, name: str) -> Iterator[None]:
    """Puts `name` before the names of settings."""
    before, self._scope = self._scope, f'{self._scope}{name}/'
    try:
      yield
    finally:
      self._scope = before

  @contextlib.contextmanager
  def conditional_scope(self, *unused: Any, **others: Any) -> Iterator[None]:
    """Changes nothing: settings are drawn where they are asked for."""
    yield

  def __getattr__(self, name: str) -> Any:
    """Raises AttributeError for other methods of KerasTuner, which have no law here."""
    raise AttributeError(
        'Expected Float, Int, Choice, Boolean, Fixed, get, name_scope or '
        f'conditional_scope, got hp.{name}: each run draws its settings anew from a '
        'public law, and knows no other runs.')

  def _once(self, name: str, draw: Callable[[], Any]) -> Any:
    """Returns the setting of this name, which `draw` draws if it is new."""
    key = self._scope + name
    if key not in self.values:
      self.values[key] = draw()
    return self.values[key]

  def _one_of(self, name: str, values: Sequence[Any]) -> Any:
    """Returns one of `values`; records the draw in `path`. ValueError for none."""
    def draw() -> Any:
      """Returns one of `values`, each with the same probability."""
      if not hasattr(values, '__getitem__') or not len(values):
        raise ValueError(
            f'Expected a list of values of {name!r} to choose from, got {values!r}.')
      index = self._pick(len(values))
      self.path += ((self._scope + name, len(values), index),)
      return values[index]

    return self._once(name, draw)

  def _between(self, low: float, high: float, sampling: str | None) -> float:
    """Returns a number in [low, high]: uniform, log-uniform or mirrored log-uniform."""
    _check_sampling(low, high, sampling)
    u = self._uniform()
    if sampling == 'log':
      return min(low * (high / low)**u, high)
    if sampling == 'reverse_log':
      return max(low + high - low * (high / low)**(1 - u), low)
    return low + (high - low) * u


def _check_sampling(low: float, high: float, sampling: str | None) -> None:
  """Raises ValueError unless `sampling` names a law on [low, high]."""
  if sampling not in (None, 'linear', 'log', 'reverse_log') or not low <= high or (
      low <= 0 and sampling in ('log', 'reverse_log')):
    raise ValueError(
        "Expected sampling='linear', 'log' or 'reverse_log' and min_value <= "
        f'max_value, above 0 for logarithms, got sampling={sampling!r}, '
        f'min_value={low!r} and max_value={high!r}.')


def _steps(low: Any, high: Any, step: Any, sampling: str | None) -> Sequence[Any]:
  """Returns the values from low to high by steps: summands, or factors for 'log'."""
  # As in KerasTuner, 1e-8 keeps rounding from losing the last value.
  _check_sampling(low, high, sampling)
  _checks.real('step', step)
  if sampling == 'reverse_log' or not step > (sampling == 'log'):
    raise ValueError(
        "Expected a step above 0, or above 1 with sampling='log', and none with "
        f"'reverse_log', got step={step!r} with sampling={sampling!r}.")
  if sampling == 'log':
    return [low * step**i for i in range(
        int(math.log(high / low) / math.log(step) + 1e-8) + 1)]
  if isinstance(low, int) and isinstance(step, int):
    return range(low, high + 1, step)
  return [low + step * i for i in range(int((high - low) / step + 1e-8) + 1)]
