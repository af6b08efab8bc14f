"""Every place where code of TensorFlow or Keras is replaced, and why.

All of it is scoped: it holds inside a `with`, for the thread that is in it. The
originals are back once no thread is inside.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from typing import Any
from typing import Callable
from typing import Iterator
from typing import List
from typing import NamedTuple
from typing import Optional

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.ops import gen_random_ops
from tensorflow.python.ops import gen_stateless_random_ops as stateless

from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras

MakeSeed = Callable[[], tf.Tensor]
"""Returns an int64 of shape (2,) for each draw."""

DRAW = 'tfcactus_draw'
"""In the names of operations that draw by seeds from here."""


@contextlib.contextmanager
def replaced(thing: Any, **attributes: Any) -> Iterator[None]:
  """Replaces attributes of one object for a while, unseen by Keras."""
  kept = {k: thing.__dict__[k] for k in attributes if k in thing.__dict__}
  thing.__dict__.update(attributes)
  try:
    yield
  finally:
    for name in attributes:
      del thing.__dict__[name]
    thing.__dict__.update(kept)


class Place(NamedTuple):
  """A function of a library, and what stands in for it.

  Attributes:
    owner: Where it is looked up: a module, a class or a dict.
    name: Its name there.
    instead: (original, what the thread entered with, *args, **kwargs) -> value.
  """

  owner: Any
  name: str
  instead: Callable[..., Any]

  def get(self) -> Callable[..., Any]:
    """What is there now."""
    if isinstance(self.owner, dict):
      return self.owner[self.name]
    return getattr(self.owner, self.name)

  def put(self, function: Callable[..., Any]) -> None:
    """Puts a function there."""
    if isinstance(self.owner, dict):
      self.owner[self.name] = function
    else:
      setattr(self.owner, self.name, function)


class LibraryPatch:
  """Replaces functions of a library for the threads that are inside.

  They are looked up by all threads, so those outside are handed the original.
  """

  def __init__(self, places: List[Place]):
    self._places = places
    self._originals: List[Callable[..., Any]] = []
    self._lock = threading.Lock()
    self._threads_inside = 0
    self._local = threading.local()

  def value(self) -> Any:
    """What this thread entered with, or None outside."""
    return getattr(self._local, 'value', None)

  @contextlib.contextmanager
  def inside(self, value: Any) -> Iterator[None]:
    """Has the replacements act on this thread, with a value for them."""
    with self._lock:
      if not self._threads_inside:
        self._originals = [place.get() for place in self._places]
        for place, original in zip(self._places, self._originals):
          place.put(self._hook(place.instead, original))
      self._threads_inside += 1
    kept, self._local.value = self.value(), value
    try:
      yield
    finally:
      self._local.value = kept
      with self._lock:
        self._threads_inside -= 1
        if not self._threads_inside:
          for place, original in zip(self._places, self._originals):
            place.put(original)

  def _hook(self, instead: Callable[..., Any], original: Callable[..., Any]
           ) -> Callable[..., Any]:

    @functools.wraps(original)
    def hooked(*args: Any, **kwargs: Any) -> Any:
      value = self.value()
      if value is None:
        return original(*args, **kwargs)
      return instead(original, value, *args, **kwargs)

    return hooked


def _draw(draw: Callable[..., tf.Tensor], original: Any, make_seed: MakeSeed,
          shape: Any, dtype: tf.DType, seed: int = 0, seed2: int = 0,
          name: Any = None) -> tf.Tensor:
  del original, seed, seed2, name
  return draw(shape, make_seed(), dtype=dtype, name=DRAW)


def _draw_integers(original: Any, make_seed: MakeSeed, shape: Any, minval: Any,
                   maxval: Any, seed: int = 0, seed2: int = 0,
                   name: Any = None) -> tf.Tensor:
  del original, seed, seed2, name
  return stateless.stateless_random_uniform_int(
      shape, make_seed(), minval, maxval, name=DRAW)


def _key_and_counter(original: Any, make_seed: MakeSeed,
                     generator: tf.random.Generator, shape: Any) -> Any:
  """In place of a key that is kept in a variable, and a counter of draws."""
  del original, shape
  seed = tf.bitcast(make_seed(), tf.uint64)
  size = int(generator.state.shape[0]) - 1
  return seed[:1], tf.concat([seed[1:], tf.zeros([size - 1], tf.uint64)], 0)


def _traced_anew(original: Any, make_seed: MakeSeed, function: Any, *args: Any,
                 **kwargs: Any) -> Any:
  """Calls a copy of a `tf.function`, which has no traces and keeps none.

  A trace from outside of `drawing` draws by other seeds. One from an analysis draws
  by none at all. Functions of a saved model have nothing but their traces.
  """
  del make_seed
  if type(function) is polymorphic_function.Function:  # pylint: disable=unidiomatic-typecheck
    function = function._clone(None)  # pylint: disable=protected-access
  return original(function, *args, **kwargs)


_draws = LibraryPatch([
    *(Place(gen_random_ops, name, functools.partial(_draw, draw))
      for name, draw in (
          ('random_uniform', stateless.stateless_random_uniform),
          ('random_standard_normal', stateless.stateless_random_normal),
          ('truncated_normal', stateless.stateless_truncated_normal))),
    Place(gen_random_ops, 'random_uniform_int', _draw_integers),
    Place(tf.random.Generator, '_prepare_key_counter', _key_and_counter),
    Place(polymorphic_function.Function, '__call__', _traced_anew)])
"""Layers draw from seeds that users can know: see `example_seeds`."""


def is_drawing() -> bool:
  """Whether this thread is inside of `drawing`."""
  return _draws.value() is not None


def current_seed() -> tf.Tensor:
  """Returns a seed of the innermost `drawing` that this thread is in."""
  return _draws.value()()


@contextlib.contextmanager
def drawing(model: Optional[keras.Model], make_seed: MakeSeed) -> Iterator[None]:
  """Makes this thread draw by given seeds inside.

  Draws that this does not reach, such as `tf.random.gamma` or `tf.raw_ops`, are
  refused by `checks.state_writes`. Draws by seeds of the user's own stay as they are;
  `independence.draws` tells them apart. A `tf.function` that is called inside is
  traced for that call alone.

  Args:
    model: The model or layer that draws, whose generators of Keras 3 are reached;
      None for code that has none.
    make_seed: Returns an int64 of shape (2,) for each draw.
  """
  with contextlib.ExitStack() as stack:
    stack.enter_context(_draws.inside(make_seed))
    for generator in models.generators(model) if model is not None else ():
      stack.enter_context(replaced(
          generator, next=functools.partial(_keras_seed, generator)))
    yield


def _keras_seed(generator: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
  """In place of `SeedGenerator.next` of Keras 3, whose seeds have 32 bits."""
  del args, kwargs
  bits = tf.bitwise.bitwise_and(current_seed(), 2**31 - 1)
  return tf.cast(bits, generator.state.dtype)


_sums = LibraryPatch([Place(
    cls, '_all_reduce_sum_gradients', lambda original, value, optimizer, pairs: pairs)
    for cls in keras.optimizers.Optimizer.__mro__
    if '_all_reduce_sum_gradients' in vars(cls)])
"""Optimizers of Keras 3 add up what replicas give them."""


@contextlib.contextmanager
def applying_sums() -> Iterator[None]:
  """Has optimizers of Keras 3 take gradients as sums over all replicas already."""
  with _sums.inside(True):
    yield


def _mean(original: Any, value: Any, values: Any, strategy: tf.distribute.Strategy,
          reduction: str) -> Any:
  """Logs of a step, over the replicas of all workers.

  Keras 3 takes means over rows there, and logs have none.
  """
  del value
  if reduction != 'auto':
    return original(values, strategy, reduction)
  return tf.nest.map_structure(
      lambda each: strategy.reduce(tf.distribute.ReduceOp.MEAN, each, axis=None),
      values)


@functools.cache
def _logs() -> LibraryPatch:
  trainer = sys.modules[next(cls.__module__ for cls in keras.Model.__mro__
                             if cls.__name__ == 'TensorFlowTrainer')]
  return LibraryPatch([Place(trainer, 'reduce_per_replica', _mean)])


@contextlib.contextmanager
def averaging_logs() -> Iterator[None]:
  """Has Keras 3 average logs over several workers, where it stumbles."""
  with _logs().inside(True):
    yield
