"""Random draws in a traced graph: which of them are each example's own.

Rows of a draw are independent of each other, and of all else, if its seed is secret,
fresh, and used for no other draw. Then a row is as good as drawn by its
example. By any other seed a draw is a constant whose rows go by the place in the
batch: one example more would give another row to each example that follows.

Secret seeds are those that `secret_seed` stands for in an analysis trace. They are
followed through the operations that TensorFlow and Keras make keys from them by.
"""

from __future__ import annotations

from typing import Any
from typing import Dict
from typing import FrozenSet
from typing import Optional
from typing import Tuple

import tensorflow as tf

from tfcactus.keras.independence import dependence
from tfcactus.keras.independence.dependence import Dependence
from tfcactus.keras.independence.dependence import Node
from tfcactus.keras.independence.dependence import unknown
from tfcactus.keras.independence.dependence import Value

_SECRET = 'tfcactus_secret_seed_of_an_analysis_trace'

_KEYS: Dict[str, Tuple[int, ...]] = {
    **dict.fromkeys(
        ('StatelessRandomUniform', 'StatelessRandomUniformInt',
         'StatelessRandomNormal', 'StatelessTruncatedNormal'), (1,)),
    **dict.fromkeys(
        ('StatelessRandomUniformV2', 'StatelessRandomUniformIntV2',
         'StatelessRandomUniformFullIntV2', 'StatelessRandomNormalV2',
         'StatelessTruncatedNormalV2'), (1, 2))}
"""Stateless draws of independent numbers, and which inputs are seed, key, counter."""

_STATEFUL: FrozenSet[str] = frozenset((
    'RandomUniform', 'RandomUniformInt', 'RandomStandardNormal', 'TruncatedNormal',
    'StatefulUniform', 'StatefulUniformInt', 'StatefulStandardNormalV2',
    'StatefulTruncatedNormal'))
"""Draws by a state that TensorFlow keeps, whose seed is not seen."""

OPERATIONS = _STATEFUL.union(_KEYS)
"""Draws of independent numbers, whose first input (or third) is a shape."""

_KEEPING = frozenset((
    'BitwiseAnd', 'Bitcast', 'Cast', 'ConcatV2', 'EnsureShape', 'ExpandDims',
    'FloorMod', 'Identity', 'Pack', 'Reshape', 'Slice', 'Squeeze',
    'StatelessRandomGetKeyCounter', 'StatelessRandomGetKeyCounterAlg', 'StridedSlice'))
"""Operations whose output has some 31 secret bits or more if an input is a secret seed;
of two numbers, where the other is one of `_RANGES`."""

_SHAPES = frozenset(('Rank', 'Shape', 'Size'))
"""Operations that tell nothing of the numbers in their input."""

_RANGES = {'BitwiseAnd': 2**31 - 1, 'FloorMod': 2**31 - 2}
"""What this library, and Keras after it, leave of a seed, whose seeds have 32 bits."""


class Draws:
  """What an analysis knows of draws.

  Attributes:
    number: How many examples there are; None if it is not known.
  """

  def __init__(self, number: Optional[int] = None):
    self.number = number
    self._uses: Dict[str, Tuple[Any, ...]] = {}

  def check(self, node: Node) -> None:
    """Refuses a draw by a seed that is not secret, or that another draw uses.

    Raises:
      NotRowWise: if it is one.
    """
    op, keys = node.op, _KEYS.get(node.op.type, ())
    seeds = {node.values[i].seed for i in keys}
    if len(seeds) != 1 or not all(seeds):
      raise unknown('draws by a seed that may be known, so that its draws follow '
                    'the place in the batch')
    # With all of this alike the numbers are too: a row is its example's in both draws.
    algorithm = dependence.static(op.inputs[3]) if len(keys) > 1 else None
    use = (id(op.graph), op.type, op.outputs[0].dtype, tuple(node.out()),
           str(algorithm), *(op.inputs[i].name for i in keys))
    if self._uses.setdefault(seeds.pop(), use) != use:
      raise unknown('draws by a seed that another draw has, so that rows of '
                    'different examples may be alike')


def secret_seed() -> tf.Tensor:
  """Stands for a secret seed in a trace that is only looked at.

  The trace cannot run: if anything kept a part of it, that part fails when it does,
  and does not draw by a seed that is known.

  Returns:
    int64, shape (2,).
  """
  return tf.compat.v1.placeholder(tf.int64, [2], name=_SECRET)


def seed_of(node: Node) -> str:
  """Which secret seed the outputs are made of, and nothing else; '' for none.

  Args:
    node: An operation on constants.
  """
  op = node.op
  if op.type == 'Placeholder':
    return f'{id(op.graph)} {op.name}' if _SECRET in op.name else ''
  seeds = {value.seed for value in node.values if value.seed}
  if len(seeds) != 1 or op.type not in _KEEPING:
    return ''
  if any(not tensor.dtype.is_integer or tensor.dtype.size < 4 or
         not tensor.shape.num_elements() for tensor in op.outputs
         if tensor.dtype is not tf.resource):
    return ''
  if op.type in _RANGES:
    number = dependence.static(op.inputs[1])
    if node.values[1].seed or number is None or not number.size or (
        (number != _RANGES[op.type]).any()):
      return ''
  return seeds.pop()


def takes_seed_for_numbers(node: Node) -> bool:
  """Whether an operation computes with a secret seed, and is no draw by it.

  Whoever knows the result knows something of the draws by that seed, whose rows then
  follow the place in the batch.
  """
  keys = _KEYS.get(node.op.type, ())
  return node.draws is not None and node.op.type not in _SHAPES and any(
      value.seed and i not in keys for i, value in enumerate(node.values))


def drawn(node: Node) -> Value:
  """What is known of a draw whose shape is constant.

  Raises:
    NotRowWise: if its rows are not each example's own.
  """
  if node.draws is None:
    return dependence.UNIFORM
  node.draws.check(node)
  number = node.draws.number
  if number is None:
    return dependence.CONSTANT
  first = (node.out() or [None])[0]
  if not first or first % number:
    raise unknown('draws what several examples share')
  return Value(Dependence.ROW_WISE, block=first // number)
