"""All replacements of functions of TensorFlow and Keras (monkey patches), with reasons.

A replacement acts only inside a `with` block, for the thread that is in it (`replaced`:
for one object, in all threads). The originals are back once no thread is inside.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import functools
import sys
import threading
from typing import Any, Callable, NamedTuple

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.ops import gen_random_ops, gen_stateless_random_ops as stateless

from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras

MakeSeed = Callable[[], tf.Tensor]
"""Returns a seed for one draw: int64, shape (2,)."""

DRAW = 'tfcactus_draw'
"""Part of the names of operations that draw from seeds of `drawing`."""


@contextlib.contextmanager
def replaced(thing: Any, **attributes: Any) -> Iterator[None]:
  """Replaces attributes of one object inside the block, unseen by Keras' tracking."""
  originals = {name: thing.__dict__[name] for name in attributes
               if name in thing.__dict__}
  thing.__dict__.update(attributes)
  try:
    yield
  finally:
    for name in attributes:
      del thing.__dict__[name]
    thing.__dict__.update(originals)


class Place(NamedTuple):
  """A place where a library holds a function, and the replacement of the function."""

  owner: Any  # The module, class or dict that holds the function.
  name: str  # Its attribute name or key.
  # The replacement: (original, value given to `LibraryPatch.inside`, *args, **kwargs).
  instead: Callable[..., Any]

  def get(self) -> Callable[..., Any]:
    """Returns the function that the place holds now."""
    if isinstance(self.owner, dict):
      return self.owner[self.name]
    return getattr(self.owner, self.name)

  def put(self, function: Callable[..., Any]) -> None:
    """Puts a function into the place."""
    if isinstance(self.owner, dict):
      self.owner[self.name] = function
    else:
      setattr(self.owner, self.name, function)


class LibraryPatch:
  """Replaces functions of a library, only for threads inside a block of `inside`."""

  def __init__(self, places: list[Place]):
    """Initialises the patch, which replaces nothing outside of `inside`."""
    self._places = places
    self._originals: list[Callable[..., Any]] = []
    self._lock = threading.Lock()
    self._threads_inside = 0
    self._local = threading.local()

  def value(self) -> Any:
    """Returns the value that this thread passed to `inside`, or None outside."""
    return getattr(self._local, 'value', None)

  @contextlib.contextmanager
  def inside(self, value: Any) -> Iterator[None]:
    """Activates the replacements for this thread, and passes them `value`.

    `value` must not be None, which marks a thread outside.
    """
    with self._lock:
      if not self._threads_inside:
        self._originals = [place.get() for place in self._places]
        for place, original in zip(self._places, self._originals):
          place.put(self._hook(place.instead, original))
      self._threads_inside += 1
    outer, self._local.value = self.value(), value
    try:
      yield
    finally:
      self._local.value = outer
      with self._lock:
        self._threads_inside -= 1
        if not self._threads_inside:
          for place, original in zip(self._places, self._originals):
            place.put(original)

  def _hook(self, instead: Callable[..., Any], original: Callable[..., Any]
           ) -> Callable[..., Any]:
    """Returns a function that calls `instead` on threads inside, else `original`."""

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
  """Replaces a stateful draw by the stateless one `draw`, from a fresh seed."""
  del original, seed, seed2, name
  return draw(shape, make_seed(), dtype=dtype, name=DRAW)


def _draw_integers(original: Any, make_seed: MakeSeed, shape: Any, minval: Any,
                   maxval: Any, seed: int = 0, seed2: int = 0,
                   name: Any = None) -> tf.Tensor:
  """Replaces a stateful draw of integers by a stateless one, from a fresh seed."""
  del original, seed, seed2, name
  return stateless.stateless_random_uniform_int(
      shape, make_seed(), minval, maxval, name=DRAW)


def _key_and_counter(original: Any, make_seed: MakeSeed,
                     generator: tf.random.Generator, shape: Any) -> Any:
  """Returns (key, counter) from a fresh seed, not from the state of a generator."""
  del original, shape
  # A generator's state is a counter, followed by one word of key.
  seed = tf.bitcast(make_seed(), tf.uint64)
  size = int(generator.state.shape[0]) - 1
  return seed[:1], tf.concat([seed[1:], tf.zeros([size - 1], tf.uint64)], 0)


def _traced_anew(original: Any, make_seed: MakeSeed, function: Any, *args: Any,
                 **kwargs: Any) -> Any:
  """Calls a fresh, untraced copy of a `tf.function`, and drops the copy."""
  # Earlier traces must not be used: a trace made outside of `drawing` draws from
  # TensorFlow's own seeds, and a trace made for an analysis draws from a placeholder.
  # Functions of a saved model are not copied, because they consist of traces.
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
"""Makes layers draw from the seeds of `drawing`; see `noise.random_bits`."""


def seed_maker() -> MakeSeed | None:
  """Returns `make_seed` of the innermost `drawing` that this thread is in, or None."""
  found: MakeSeed | None = _draws.value()
  return found


@contextlib.contextmanager
def drawing(model: keras.Model | None, make_seed: MakeSeed) -> Iterator[None]:
  """Makes this thread draw from the seeds that `make_seed` returns.

  Under Keras 3 also replaces the seed generators of `model`, which is a model, a layer
  or None, but no other generators. Other draws, such as those of `tf.random.gamma` or
  `tf.raw_ops`, are refused by `checks.state_writes`, except stateless ones from seeds
  of the user, which `independence.draws` recognises. Traces each `tf.function` anew in
  each call.
  """
  with contextlib.ExitStack() as stack:
    stack.enter_context(_draws.inside(make_seed))
    for generator in models.generators(model) if model is not None else ():
      stack.enter_context(replaced(
          generator, next=functools.partial(_keras_seed, generator)))
    yield


def _keras_seed(generator: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
  """Replaces `SeedGenerator.next` of Keras 3; returns a fresh seed, 2 x 31 bits."""
  del args, kwargs
  # `independence.draws` follows this mask, and knows that 31 secret bits remain.
  bits = tf.bitwise.bitwise_and(_draws.value()(), 2**31 - 1)
  return tf.cast(bits, generator.state.dtype)


summed = LibraryPatch([Place(
    cls, '_all_reduce_sum_gradients', lambda original, value, optimizer, pairs: pairs)
    for cls in keras.optimizers.Optimizer.__mro__
    if '_all_reduce_sum_gradients' in vars(cls)])
"""Stops optimizers of Keras 3 from summing gradients over replicas once more."""


def _mean(original: Any, value: Any, values: Any, strategy: tf.distribute.Strategy,
          reduction: str) -> Any:
  """Averages logs over replicas; Keras 3 would need an axis 0, which scalars lack."""
  del value
  if reduction != 'auto':
    return original(values, strategy, reduction)
  return tf.nest.map_structure(
      lambda each: strategy.reduce(tf.distribute.ReduceOp.MEAN, each, axis=None),
      values)


@functools.cache
def averaged_logs() -> LibraryPatch:
  """Makes Keras 3 average logs over several workers, where its own code fails."""
  trainer = sys.modules[next(cls.__module__ for cls in keras.Model.__mro__
                             if cls.__name__ == 'TensorFlowTrainer')]
  return LibraryPatch([Place(trainer, 'reduce_per_replica', _mean)])
