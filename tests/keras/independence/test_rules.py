"""Rules of single operations hold in numbers, for random arguments."""

from __future__ import annotations

import collections
import os
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.keras.independence import arguments
from tests.representatives import representatives
from tfcactus.keras.independence import (
  constants,
  dependence,
  draws,
  graph_proof,
  operations,
  shape_checks,
)
from tfcactus.keras.independence.dependence import BATCH_SIZES, Dependence, Value

_PYTHON = {**dict.fromkeys(
    ('dim', 'reduction_indices', 'split_dim', 'squeeze_dims'), 'axis'),
           't': 'x', 'e': 'y'}
"""Arguments that have another name in Python."""


def _call(name: str, inputs: list[Any], attributes: dict[str, Any]) -> list[tf.Tensor]:
  """Runs an operation, or adds it to a graph; returns its outputs."""
  op_def = arguments.op_def_registry.get(name)
  rename = lambda old: _PYTHON.get(old, old) if (
      old not in ('t', 'e') or name == 'Select') else old
  given = {**dict(zip((arg.name for arg in op_def.input_arg), inputs)), **attributes}
  return tf.nest.flatten([getattr(tf.raw_ops, name)(
      **{rename(key): value for key, value in given.items()})])


def _traced(case, inputs, attributes):
  """Returns values and static shapes that the proof finds for the outputs."""
  graph, known = tf.__internal__.FuncGraph('rule'), {}

  def added(given):
    """Adds an argument to the graph."""
    if isinstance(given, list):
      return [added(each) for each in given]
    if not isinstance(given, arguments.Tensor):
      return given
    shape = [None] if given.made else given.shape
    entries = given.array(range(case.batch))
    made = tf.compat.v1.placeholder(
        tf.float32 if given.made else tf.as_dtype(entries.dtype), shape)
    known[made.name] = dependence.ROW_WISE if given.made else given.value
    return given.made(tf.shape(made)[0]) if given.made else made

  with graph.as_default():
    outputs = _call(case.op_def.name, [added(each) for each in inputs], attributes)
  found = graph_proof.analyse(
      graph, known, outputs, draws.Draws(case.batch if case.fixed else None))
  return found, [output.shape for output in outputs]


def _run(case, inputs, attributes, batch):
  """Returns the outputs for these examples; None if the operation refuses them."""
  entries = lambda given: [entries(each) for each in given] if isinstance(
      given, list) else tf.constant(given.array(batch)) if isinstance(
          given, arguments.Tensor) else given
  try:
    return [np.asarray(output.numpy()) for output in _call(
        case.op_def.name, [entries(each) for each in inputs], attributes)]
  except (tf.errors.OpError, ValueError):
    return None


def _batches(case):
  """Returns lists of examples: others, another order, and others of other numbers."""
  every = list(range(arguments.EXAMPLES))
  others = [0, *case.rng.permutation(every[1:])]
  found = [every[:case.batch], others[:case.batch],
           list(case.rng.permutation(case.batch))]
  return found if case.fixed else [
      *found, [0], *(others[:number] for number in BATCH_SIZES)]


def _equal(one, other):
  """Returns whether arrays are equal but for rounding."""
  if one.shape != other.shape or one.dtype.kind not in 'fc':
    return np.array_equal(one, other)
  return np.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)


def _fault(found: Value, shape: tf.TensorShape, runs: list[tuple[list[int], np.ndarray]]
           ) -> str:
  """Returns what is false in a value that the proof found, or ''."""
  if found.dependence >= Dependence.UNKNOWN:
    return ''
  expected: dict[Any, np.ndarray] = {}  # By example, or by number of examples.
  for batch, array in runs:
    if not shape.is_compatible_with(array.shape):
      return f'shape {array.shape}, told is {shape}'
    if found.dependence == Dependence.ROW_WISE:
      if not 0 <= found.axis < array.ndim or (
          array.shape[found.axis] != len(batch) * abs(found.block)):
        return f'shape {array.shape} of {len(batch)} examples'
      parts = zip(batch, arguments.taken_apart(array, found.axis, found.block))
    else:
      parts = [(len(batch) * (found.dependence == Dependence.BATCH_SIZE), array)]
    for key, part in parts:
      if not _equal(part, expected.setdefault(key, part)):
        return f'{found.dependence.name} {key} is not alike in all batches'
  return _false_detail(found, runs)


def _false_detail(found: Value, runs: list[tuple[list[int], np.ndarray]]) -> str:
  """Returns which attribute of a CONSTANT or BATCH_SIZE value is false, or ''."""
  for batch, array in runs:
    if found.dependence == Dependence.CONSTANT and found.varies is not None:
      for axis in set(range(array.ndim)) - found.varies:
        if array.size and not _equal(
            array, np.broadcast_to(array.take([0], axis), array.shape)):
          return f'varies along axis {axis}'
    if found.dependence != Dependence.BATCH_SIZE:
      continue
    if found.sizes is not None:
      one, other = (np.asarray(sizes, float) for sizes in found.sizes)
      if max(np.abs(one).max(), np.abs(other).max()) > 2**20:
        continue  # Products may overflow.
      with np.errstate(all='ignore'):
        powers = np.nan_to_num(np.log(other / one) / np.log(
            BATCH_SIZES[1] / BATCH_SIZES[0])).round()
      grown = one * (len(batch) / BATCH_SIZES[0])**powers
      if not np.array_equal(array, np.round(grown)):
        return f'sizes {array} of {len(batch)} examples'
    elif found.block and not np.array_equal(array, [
        size if axis != found.axis else len(batch) * abs(found.block)
        for axis, size in enumerate(runs[0][1])]):
      return f'shape {array} of {len(batch)} examples'
  return ''


def trial(name: str, rng: np.random.Generator) -> tuple[str, Any]:
  """Returns what came of random arguments for one rule, and what they were.

  It is 'invalid' if TensorFlow refuses them, 'refused' by the proof, 'held' or 'false'.
  """
  case = arguments.Case(name, rng)
  inputs, given = arguments.GENERATORS[name](case)
  attributes = case.attributes(given)
  try:
    found, shapes = _traced(case, inputs, attributes)
  except (TypeError, ValueError, tf.errors.OpError) as error:
    return 'invalid', error
  if all(value.dependence >= Dependence.UNKNOWN for value in found):
    return 'refused', [value.why for value in found]
  runs = [(batch, made) for batch in _batches(case) if (
      made := _run(case, inputs, attributes, batch)) is not None]
  if not runs:
    return 'invalid', 'no run'
  # Space that these reserve for their gradients has no shape that TensorFlow keeps to.
  number = {'FusedBatchNormV3': 5, 'FusedBatchNormGradV3': 3}.get(name, len(found))
  for k, (value, shape) in enumerate(zip(found[:number], shapes)):
    fault = _fault(value, shape, [(batch, made[k]) for batch, made in runs])
    if fault:
      return 'false', (fault, k, value, inputs, attributes)
  kinds = {value.dependence for value in found}
  return 'held', Dependence.ROW_WISE in kinds


def trials(name: str, number: int, seed: int = 0
           ) -> tuple[collections.Counter[str], list[Any]]:
  """Returns how many of `number` trials came to each end, and false rules."""
  rng = np.random.default_rng([seed, *name.encode()])
  ends, false = collections.Counter[str](), []
  for _ in range(number):
    end, what = trial(name, rng)
    ends[end] += 1
    ends['rows'] += end == 'held' and what
    if end == 'false':
      false.append(what)
  return ends, false


_MIXING = frozenset(('BiasAddGrad', 'Conv2DBackpropFilter', 'Conv3DBackpropFilterV2',
                     'L2Loss'))
"""Operations that mix examples in any case."""

_TRIALS = int(os.environ.get('TFCACTUS_RULE_TRIALS', 4))


def test_every_rule_has_a_generator_of_arguments():
  rules = {*constants._RULES, *constants._FILLING, *graph_proof._MONOMIAL,
           *graph_proof._SHAPE_ARGUMENT}
  assert rules - {*arguments.GENERATORS, *draws.SHAPE_ARGUMENT} == set()


@pytest.mark.more
def test_rules_hold_in_numbers():
  found = {name: trials(name, _TRIALS) for name in arguments.GENERATORS
           if arguments.op_def_registry.get(name)}
  assert {name: false for name, (_, false) in found.items() if false} == {}
  proved = [name for name, (ends, _) in found.items() if ends['rows']]
  assert len(proved) > .5 * len(found) and not _MIXING & set(proved)


_HOLES = {
    'TanhGrad': (shape_checks.CHECKS, 'TanhGrad', lambda node: None),
    'BroadcastTo': (operations, '_keeps_length', lambda node, value: True),
    'BiasAdd': (operations.TRANSFER, 'BiasAdd', dependence.only_operand),
}


@representatives('name', _HOLES)
def test_a_rule_with_a_hole_is_found(name, monkeypatch):
  where, key, weaker = _HOLES[name]
  set_ = monkeypatch.setitem if isinstance(where, dict) else monkeypatch.setattr
  assert not trials(name, 100)[1]
  set_(where, key, weaker)
  assert trials(name, 100)[1]
