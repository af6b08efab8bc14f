"""Random draws in a traced graph: which draws belong to one example each.

If the seed of a draw is secret, fresh and used for no other draw, its rows are
independent of each other and of all else: each may count as drawn by its own example.
The rows of any other draw depend on the position in the batch: one more example would
give all later ones other rows. `secret_seed` stands for secret seeds in an analysis
trace, which follows them through the operations that make keys.
"""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tfcactus.keras.independence import dependence
from tfcactus.keras.independence.dependence import Dependence, Node, unknown, Value

_SECRET = 'tfcactus_secret_seed_of_an_analysis_trace'

_KEYS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ('StatelessRandomUniform', 'StatelessRandomUniformInt',
         'StatelessRandomNormal', 'StatelessTruncatedNormal'), (1,)),
    **dict.fromkeys(
        ('StatelessRandomUniformV2', 'StatelessRandomUniformIntV2',
         'StatelessRandomUniformFullIntV2', 'StatelessRandomNormalV2',
         'StatelessTruncatedNormalV2'), (1, 2))}
"""Stateless draws of independent numbers: {type: inputs with seed, key or counter}."""

_STATEFUL: frozenset[str] = frozenset((
    'RandomUniform', 'RandomUniformInt', 'RandomStandardNormal', 'TruncatedNormal',
    'StatefulUniform', 'StatefulUniformInt', 'StatefulStandardNormalV2',
    'StatefulTruncatedNormal'))
"""Draws by a state inside TensorFlow, whose seed the graph does not show."""

SHAPE_ARGUMENT: dict[str, int] = {
    name: 2 if name.startswith('Stateful') else 0 for name in (*_STATEFUL, *_KEYS)}
"""Draws of independent numbers: {type of operation: the input that is the shape}."""

_KEEPING = frozenset((
    'BitwiseAnd', 'Bitcast', 'Cast', 'ConcatV2', 'EnsureShape', 'ExpandDims',
    'FloorMod', 'Identity', 'Pack', 'Reshape', 'Slice', 'Squeeze',
    'StatelessRandomGetKeyCounter', 'StatelessRandomGetKeyCounterAlg', 'StridedSlice'))
"""Operations that keep about 31 secret bits or more of a secret seed.

BitwiseAnd and FloorMod do so if their second input is the number in `_RANGES`.
"""

_WHOLE = frozenset((
    'Bitcast', 'Cast', 'EnsureShape', 'ExpandDims', 'Identity', 'Reshape', 'Squeeze',
    'StatelessRandomGetKeyCounter', 'StatelessRandomGetKeyCounterAlg'))
"""The operations in `_KEEPING` that use all entries of their input."""

_MIXED = ' and constants'
"""Part of the name of a seed that shares a tensor with constants, before its place."""

_SHAPES = frozenset(('Rank', 'Shape', 'Size'))
"""Operations whose result does not depend on the numbers in their input."""

_RANGES = {'BitwiseAnd': 2**31 - 1, 'FloorMod': 2**31 - 2}
"""Second inputs of the operations that shorten the 32 bits of a Keras seed.

This library uses BitwiseAnd, and then Keras uses FloorMod.
"""


class Draws:
  """Record of uses of secret seeds; `number` counts the examples, None if unknown."""

  def __init__(self, number: int | None = None):
    self.number = number
    self._uses: dict[str, tuple[Any, ...]] = {}

  def check(self, node: Node) -> None:
    """Raises NotRowWise for a known or reused seed, or a shape that may change.

    Draws that share a seed pass only if they give equal numbers.
    """
    op, keys = node.op, _KEYS.get(node.op.type, ())
    seeds = {_root(node.values[i].seed) for i in keys}
    if len(seeds) != 1 or not all(seeds):
      raise unknown('draws by a seed that may be known, so that its draws follow '
                    'the place in the batch')
    # If the number of examples is not known, one axis may have it as its unknown size.
    if node.out().count(None) > (self.number is None):
      raise unknown('draws in shapes that may differ in each round of a loop')
    # Draws that agree in all of this give equal numbers, so that each row belongs to
    # the same example in all of them.
    algorithm = dependence.static(op.inputs[3]) if len(keys) > 1 else None
    use = (id(op.graph), op.type, op.outputs[0].dtype, tuple(node.out()),
           str(algorithm), *((op.inputs[i].name, node.values[i].seed) for i in keys))
    if self._uses.setdefault(seeds.pop(), use) != use:
      raise unknown('draws by a seed that another draw has, so that rows of '
                    'different examples may be alike')


def moves_state(node: tf.compat.v1.NodeDef) -> bool:
  """Returns whether an operation draws random numbers and moves a state on."""
  signature = op_def_registry.get(node.op)
  return node.op != 'StatefulPartitionedCall' and (
      node.op.startswith(('NonDeterministic', 'Rng', 'Stateful')) or
      signature is not None and (
          any(attr.name in ('seed', 'seed2') for attr in signature.attr) or
          any(arg.name == 'algorithm' for arg in signature.input_arg)))


def draws(node: tf.compat.v1.NodeDef) -> bool:
  """Returns whether an operation draws from a state or a seed; False for shuffles."""
  signature = op_def_registry.get(node.op)
  return not re.search('Shuffle.*Dataset|SeedGenerator', node.op) and (
      moves_state(node) or signature is not None and any(
          arg.name in ('seed', 'counter') for arg in signature.input_arg))


def secret_seed() -> tf.Tensor:
  """Returns a placeholder for a secret seed in an analysis trace: int64, shape (2,)."""
  # So code that kept a part of the trace fails when it runs that part, where a constant
  # would be a known seed.
  return tf.compat.v1.placeholder(tf.int64, [2], name=_SECRET)


def seed_of(node: Node) -> str:
  """Returns the name of the one secret seed whose bits the output keeps, or ''.

  Once the seed was joined with constants, `_MIXED` and that operation's name follow,
  by which `Draws.check` tells seeds that were joined in different ways apart.
  """
  op = node.op
  if op.type == 'Placeholder':
    return f'{id(op.graph)} {op.name}' if _SECRET in op.name else ''
  found = [value.seed for value in node.values if value.seed]
  if len(set(map(_root, found))) != 1 or op.type not in _KEEPING:
    return ''
  seed = max(found, key=len)  # The name with `_MIXED`, if there is one.
  # The other inputs must be static, or they could change between loop iterations.
  if any(dependence.static(tensor) is None for tensor, value in zip(
      op.inputs, node.values) if not value.seed):
    return ''
  if _MIXED in seed and op.type not in _WHOLE:
    return ''  # The operation may take only the constants.
  if any(not tensor.dtype.is_integer or tensor.dtype.size < 4 or
         not tensor.shape.num_elements() for tensor in op.outputs):
    return ''
  if op.type in _RANGES:
    number = dependence.static(op.inputs[1])
    if node.values[1].seed or number is None or not number.size or (
        (number != _RANGES[op.type]).any()):
      return ''
  joined = op.type == 'Pack' or op.type == 'ConcatV2' and len(op.inputs) > 2
  return f'{_root(seed)}{_MIXED} {id(op.graph)} {op.name}' if joined else seed


def _root(seed: str) -> str:
  """Returns the name of a secret seed without `_MIXED` and what follows."""
  return seed.partition(_MIXED)[0]


def takes_seed_for_numbers(node: Node) -> bool:
  """Returns whether an operation uses a secret seed for anything but a draw."""
  # Its result could tell of draws from that seed, whose rows depend on the position in
  # the batch. That is harmless only while the seed is secret.
  keys = _KEYS.get(node.op.type, ())
  return node.draws is not None and node.op.type not in _SHAPES and any(
      value.seed and i not in keys for i, value in enumerate(node.values))


def drawn(node: Node) -> Value:
  """Returns the abstract value of a random draw whose shape is constant.

  The value is ROW_WISE along axis 0, UNIFORM if `node.draws` is None, and CONSTANT if
  the number of examples is not known. Raises NotRowWise if the seed is not secret, if
  another draw uses it, or if several examples would share the same numbers.
  """
  if node.draws is None:
    return dependence.UNIFORM
  node.draws.check(node)
  number = node.draws.number
  if number is None:
    return dependence.CONSTANT
  first = (node.out() or [None])[0]
  if not first or first % number:
    raise unknown('draws numbers that several examples share')
  return Value(Dependence.ROW_WISE, block=first // number)
