"""Test that a gradient, and its norm, have the same bits at every place in the batch.

The bound on the sensitivity of a computed sum assumes this. It is false for some
kernels, shapes and devices, whose loops treat the last rows of a tensor differently. So
arithmetic='integer' computes gradients of random rows in several orders, and beside
other rows, before it trains. Several machines compare the bits that they found.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import functools
import hashlib
import itertools
from typing import Any, Callable
import warnings

import numpy as np
import tensorflow as tf

from tfcactus.keras.compat import models, patches
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.noise import random_bits

_RATES = ('rate', 'stddev', 'dropout', 'recurrent_dropout')
"""Attributes of layers that draw; at zero, a layer draws nothing, or scales by zero."""

_BATCHES = 6
"""Number of random batches. A difference in a last bit shows in some rows only."""

_UNTESTED = (
    'It could not be tested that gradients have the same bits at every place in a '
    "batch, which the guarantee of arithmetic='integer' assumes: {}.")

_DEPENDENT = (
    "Expected with arithmetic='integer' gradients (and, with noisy_accuracy, outputs) "
    'whose bits do not depend on the place of their example in the batch, got others '
    'for random rows: kernels of this device treat rows differently. Give '
    'physical_batch_size as a multiple of 8 (got {}), and use_bias=False to layers on '
    "16 positions or more, over which CPUs sum by place; or take arithmetic='float'.")

_LENGTH = 8
"""Length of axes whose length is not known."""


def check(model: keras.Model, run: Callable[[Any], list[tf.Tensor]], specs: Any,
          each: int = 1) -> int:
  """Returns a digest of gradients of random rows, the same rows on each machine.

  The digest is below 2^56. Warns and returns 0 if draws of the model hide the result.
  Warns, and returns a digest, if no random rows gave finite gradients. Raises
  ValueError if gradients of some rows depend on their places in the batch, or if
  examples may take different branches or numbers of turns in a loop: random rows need
  not take all branches.

  `run` returns per-example gradients of a batch (inputs, targets, weights), their
  norms, and outputs that are counted, as tensors with one row for each example. `specs`
  are the `TensorSpec`s of the batch; `each` consecutive rows make up an example.
  """
  draws = False
  keys = random_bits.Keys(0)

  def seed() -> tf.Tensor:
    """Returns a fresh seed for a draw of the model, and notes that it draws."""
    nonlocal draws
    draws = True
    return keys()

  def gradients(batch: Any) -> list[tf.Tensor]:
    """Runs a batch with seeds from `seed`."""
    with patches.drawing(model, seed):
      return run(batch)

  with tf.init_scope(), _without_draws(model):
    traced = tf.function(gradients, autograph=False)
    _check_sizes(traced, specs)
    digest = _digest_if_alike(traced, specs, each, lambda examples, rng: [
        examples[::-1], rng.permutation(examples),
        rng.choice(examples, examples.size)])
    if digest is not None:
      return digest
    # Without another order: None if draws alone change the bits.
    repeated = _digest_if_alike(traced, specs, each, lambda examples, rng: [examples])
  if repeated is not None or not draws:
    raise ValueError(_DEPENDENT.format(tf.nest.flatten(specs)[0].shape[0] // each))
  warnings.warn(_UNTESTED.format(
      'the model draws random numbers, which change with the place'), stacklevel=2)
  return 0


def _check_sizes(gradients: Any, specs: Any) -> None:
  """Raises ValueError if a branch or loop gets a batch whose size depends on examples.

  `gradients` is the traced function, `specs` are the `TensorSpec`s of its argument.
  """
  graph = gradients.get_concrete_function(specs).graph.as_graph_def()
  nodes = itertools.chain(graph.node, *(
      function.node_def for function in graph.library.function))
  # The operation gives each branch, or each turn of a loop, its examples.
  if any(node.op == 'DynamicPartition' for node in nodes):
    raise ValueError(
        "Expected with arithmetic='integer' the same operations for all examples, got "
        'tf.cond, tf.case, tf.switch_case or tf.while_loop by a number that depends on '
        'the example: the examples of each branch make a batch of their own, whose '
        'size, and with it the bits of gradients, depends on the others. Choose by '
        "tf.where(condition, a, b), or take arithmetic='float'.")


def _digest_if_alike(gradients: Callable[[Any], list[tf.Tensor]], specs: Any, each: int,
                     orders: Callable[..., list[np.ndarray]]) -> int | None:
  """Returns a digest of gradients of random examples, None if bits depend on places.

  `orders` maps the indices of the examples, and a random generator, to arrays of
  indices: the orders to try, which may repeat examples and leave out some.
  """
  rng, finite, digest = np.random.default_rng(0), False, hashlib.sha256()
  examples = tf.nest.flatten(specs)[0].shape[0] // each
  for number in range(_BATCHES):
    # Every other batch: logarithms of negative inputs are NaN, whose bits tell nothing.
    batch = _random_batch(specs, rng, positive=bool(number % 2))
    try:
      first = [part.numpy() for part in gradients(batch)]
    except tf.errors.InvalidArgumentError:  # Raised for inputs that should be ids.
      batch = _as_ids(batch)
      first = [part.numpy() for part in gradients(batch)]
    for part in first:
      digest.update(np.where(np.isnan(part), 0, part).tobytes())
    finite |= all(np.all(np.isfinite(part)) for part in first)
    for order in orders(np.arange(examples), rng):
      rows = (order[:, None] * each + np.arange(each)).reshape(-1)
      reordered = gradients(tf.nest.map_structure(
          functools.partial(tf.gather, indices=rows), batch))
      if not all(np.array_equal(part[order], other.numpy(), equal_nan=True)
                 for part, other in zip(first, reordered)):
        return None
  if not finite:
    warnings.warn(_UNTESTED.format('no random inputs gave it finite gradients'),
                  stacklevel=2)
  return int.from_bytes(digest.digest()[:7], 'little')


def _as_ids(batch: Any) -> Any:
  """Returns a batch with zeros and ones, about as many, in place of floating inputs."""
  x, *others = batch
  return (tf.nest.map_structure(
      lambda part: tf.cast(tf.abs(part) > 0.7, part.dtype)
      if part.dtype.is_floating else part, x), *others)


@contextlib.contextmanager
def _without_draws(model: keras.Model) -> Iterator[None]:
  """Sets all layers' attributes in `_RATES` that are floats to zero in the block."""
  with contextlib.ExitStack() as stack:
    for layer in models.flat_layers(model):
      rates = {name: 0.0 for name in _RATES
               if isinstance(vars(layer).get(name), float)}
      if rates:
        stack.enter_context(patches.replaced(layer, **rates))
    yield


def _random_batch(specs: Any, rng: np.random.Generator, positive: bool) -> Any:
  """Returns a random batch. Floating inputs are normal: absolute values if `positive`.

  Other inputs and all targets are 0 or 1, strings are 'a' or 'b', and weights are 1.
  """
  def rows(part: int, spec: tf.TensorSpec) -> tf.Tensor:
    """Returns inputs, targets or weights (part 0, 1 or 2) of a `spec`."""
    shape = [_LENGTH if length is None else length for length in spec.shape]
    if part == 2:
      return tf.ones(shape, spec.dtype)
    if spec.dtype == tf.string:
      return tf.constant(rng.choice(['a', 'b'], shape))
    values = rng.integers(0, 2, shape) if part or not spec.dtype.is_floating else (
        rng.normal(size=shape))
    return tf.cast(np.abs(values) if positive else values, spec.dtype)

  return tuple(tf.nest.map_structure(functools.partial(rows, i), each)
               for i, each in enumerate(specs))
