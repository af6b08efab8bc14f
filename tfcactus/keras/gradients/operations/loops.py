"""Turns the uses of weights inside loops into uses outside of them.

An operation that a loop calls T times has a stand-in outside: the same operation on all
steps' operands at once, with T positions of each example. The stand-in never runs; its
rule gives the gradients of the weights. A tap, an identity behind each use in the loop,
notes the gradient that reaches it. The loop and its backward loop write operands and
gradients to lists, one item per step. `_tap_loop` refuses loops that have no rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfcactus.keras.checks import variable_reads
from tfcactus.keras.compat import graphs
from tfcactus.keras.gradients.operations import uses as uses_lib
from tfcactus.keras.independence import dependence, draws, graph_proof
from tfcactus.keras.independence.dependence import Dependence, Value

_MOST_STEPS = 10_000
"""Largest number of steps of a loop that `_steps` counts."""

_READING = ('ReadVariableOp', 'ResourceGather')
"""Stateful operations that read a variable and write nothing."""

_Operands = dict[str, tuple[tf.Tensor, uses_lib.Layout]]
"""{name of an operand of a stand-in: (operand in the loop's body, its layout)}."""


class _Tap(NamedTuple):
  """A use of weights in a loop of this number of steps."""

  loop: tf.Operation
  steps: int
  use: tf.Operation  # In the loop's body.
  identity: tf.Operation  # Notes the gradient of the use, or of a sum with its output.
  out: uses_lib.Layout
  operands: _Operands


class Taps:
  """The uses of weights in the loops of a graph.

  Attributes:
    outputs: The outputs of the stand-ins.
    known: The `Value`s of the stand-ins' operands, by name.
    loops: Names of the loops.
    taps: The taps, by the names of the stand-ins' outputs.
    anchors: For each loop, an input that all its taps have.
    operands: {name of an operand of a stand-in: all steps' operands}; empty until
      `gradients` ran.
  """

  def __init__(self) -> None:
    self.outputs: list[tf.Tensor] = []
    self.known: dict[str, Value] = {}
    self.loops: set[str] = set()
    self.operands: dict[str, tf.Tensor] = {}
    self.taps: dict[str, _Tap] = {}
    self.anchors: list[tf.Tensor] = []

  def path(self, op: tf.Operation) -> str:
    """Returns the path of the use that an operation stands for, else its own name."""
    tap = self.taps.get(op.outputs[0].name)
    return variable_reads.inside(tap.loop, tap.use) if tap else op.name

  def gradients(self, total: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[Any]:
    """Returns gradients of `total` with respect to `tensors`, None for those without.

    The gradient of a stand-in's output holds all steps. Sets `operands`.
    """
    taps = [self.taps.get(tensor.name) for tensor in tensors]
    outside = [tensor for tensor, tap in zip(tensors, taps) if not tap]
    of_outside = iter(graphs.gradients(total.graph, total, [*outside, *self.anchors]))
    written = _written(total.graph, [tap for tap in taps if tap])
    return [self._of_use(tap, written) if tap else next(of_outside) for tap in taps]

  def _of_use(self, tap: _Tap, written: dict[str, tf.Tensor]) -> tf.Tensor | None:
    """Returns all steps' gradients of a use's output, or None; notes its operands."""
    gradient = _noted(tap.identity)
    if gradient is None:
      return None
    for name, (inside, layout) in tap.operands.items():
      self.operands[name] = _all_steps(
          written[_key(inside)], inside, layout, tap.steps)
    return _all_steps(written[_key(gradient)], gradient, tap.out, tap.steps)


def _key(tensor: tf.Tensor) -> str:
  """Returns a name that differs from those of tensors of other graphs too."""
  return f'{id(tensor.graph)} {tensor.name}'


def _noted(identity: tf.Operation) -> tf.Tensor | None:
  """Returns the gradient that reached a tap, a tensor of the backward loop, or None."""
  return getattr(identity, _NOTED, None)


def _written(graph: tf.Graph, taps: Sequence[_Tap]) -> dict[str, tf.Tensor]:
  """Makes loops write operands and gradients of taps; returns their lists by `_key`.

  Leaves out taps that no gradient reached.
  """
  # For each loop: (the loop, its steps, tensors of its body by `_key`).
  wanted: dict[str, tuple[tf.Operation, int, dict[str, tf.Tensor]]] = {}
  loops = {id(op._body_graph): op for op in graph.get_operations()  # pylint: disable=protected-access
           if op.type in graphs.LOOPS and graphs.of_loop(op)}
  for tap in taps:
    gradient = _noted(tap.identity)
    if gradient is not None:
      for tensor in (gradient, *(each for each, _ in tap.operands.values())):
        loop = loops[id(tensor.graph)]
        wanted.setdefault(loop.name, (loop, tap.steps, {}))[2][_key(tensor)] = tensor
  lists_by_key = dict[str, tf.Tensor]()
  for loop, steps, tensors in wanted.values():
    lists = [tf.raw_ops.TensorListReserve(
        element_shape=each.shape.as_list(), num_elements=steps,
        element_dtype=each.dtype) for each in tensors.values()]
    outputs_before = len(loop.outputs)
    with graphs.more_loop_inputs(loop, lists) as inside:
      step = loop._body_graph.inputs[0]  # pylint: disable=protected-access
      if graphs.is_backward(loop):  # The backward loop begins with the last step.
        step = steps - 1 - step
      inside[:] = [tf.raw_ops.TensorListSetItem(
          input_handle=each, index=step, item=tensor)
                   for each, tensor in zip(inside, tensors.values())]
    lists_by_key.update(zip(tensors, loop.outputs[outputs_before:]))
  return lists_by_key


def tapped(losses: tf.Tensor, handles: dict[str, int], known: dict[str, Value],
           number: int, explained: uses_lib.Explained) -> Taps:
  """Taps the uses of weights in all loops that `losses` depend on.

  Arguments are as for `uses.found`; raises NoRule for loops that no rule covers.
  """
  taps = Taps()
  operations = graph_proof.needed([losses], known)
  if not any(op.type in graphs.LOOPS for op in operations):
    return taps
  known = {**known, **uses_lib._drawn(operations, number)}
  meetings, _ = uses_lib._meetings(operations, handles, set(known), number, explained)
  loops: dict[str, list[uses_lib._Meeting]] = {}
  for each in meetings:
    if each.op.type in graphs.LOOPS:
      loops.setdefault(each.op.name, []).append(each)

  def tap(each: uses_lib._Meeting) -> None:
    """Taps the loop of a meeting, once for all its inputs made of weights."""
    _tap_loop(each.op, {one.place for one in loops[each.op.name]}, known, number, taps)

  uses_lib.each_or_raise(tap, [each[0]._replace(reads=frozenset().union(
      *(one.reads for one in each))) for each in loops.values()])
  taps.loops.update(loops)
  return taps


def _tap_loop(loop: tf.Operation, weights: set[int], known: dict[str, Value],
              number: int, taps: Taps) -> None:
  """Adds the uses of weights in a loop to `taps`; raises NoRule if there is no rule.

  `weights` has the indices of the loop's inputs that are made of weights. `known` has
  the values of tensors with data, by name, for `number` examples.
  """
  inside = graphs.of_loop(loop)
  if inside is None or graphs.was_differentiated(loop):
    raise uses_lib.no_rule(loop)
  cond, body = inside
  for op in [*cond.get_operations(), *body.get_operations()]:
    # A step makes secret seeds by PyFunc. A model with a PyFunc of its own is refused,
    # since no proof covers it.
    if op.op_def.is_stateful and op.type not in (
        *_READING, 'Placeholder', 'PyFunc', *draws.SHAPE_ARGUMENT):
      raise uses_lib.no_rule(loop, 'has a loop inside' if op.type in graphs.LOOPS else (
          f'has {op.type} inside, which keeps a state'))
  # Inputs that every step passes on unchanged; other inputs count as data.
  fixed = {i for i, (before, after) in enumerate(zip(body.inputs, body.outputs))
           if _passed_on(after) is before}
  if not weights <= fixed or any(loop.outputs[i].consumers() for i in weights):
    raise uses_lib.no_rule(loop, 'changes weights, or returns them')
  steps = _steps(loop, cond, body)
  values = graph_proof.analyse(loop.graph, known, loop.outputs)
  within = {tensor.name: value for tensor, value in zip(body.inputs, values)}
  data = {tensor.name for i, (tensor, value) in enumerate(zip(body.inputs, values))
          if i not in weights and (
              i not in fixed or value.dependence != Dependence.CONSTANT)}
  operations = graph_proof.needed(body.outputs, within)
  within.update(uses_lib._drawn(operations, number))
  places = {body.inputs[i].name: i for i in weights}
  around = {body.inputs[i].name: loop.inputs[i] for i in fixed}
  stand_ins: list[_StandIn] = []
  for op in _uses_inside(operations, places, data, number):
    if op.type in graph_proof.CALLS or graphs.has_own_gradient(op):
      raise uses_lib.no_rule(loop, f'has {op.type} inside, which uses weights')
    tensors = [*op.inputs, op.outputs[0]]
    layouts = [_layout(loop, tensor, value) if tensor.name in data else None
               for tensor, value in zip(tensors, graph_proof.analyse(
                   body, within, tensors))]
    stand_ins.append((
        op, *_stand_in(op, layouts, around, data, loop, steps, taps.known)))
  _put_taps(loop, steps, stand_ins, taps)


def _uses_inside(operations: Sequence[tf.Operation], places: dict[str, int],
                 data: set[str], number: int) -> list[tf.Operation]:
  """Returns operations of a loop's body in which weights meet data.

  `places` maps names of the body's inputs that are weights to inputs of the loop, and
  `number` counts the examples. Adds names of tensors computed from `data` to `data`.
  """
  meetings, _ = uses_lib._meetings(
      operations, places, data, number, lambda op, i: False)
  return list({each.op.name: each.op for each in meetings}.values())


_StandIn = tuple[tf.Operation, tf.Tensor, uses_lib.Layout, _Operands]
"""An operation that uses weights, and what `_stand_in` returns for it."""


def _put_taps(loop: tf.Operation, steps: int, stand_ins: Sequence[_StandIn],
              taps: Taps) -> None:
  """Puts a tap behind each use in a loop, or behind a sum that several uses feed."""
  _, body = graphs.of_loop(loop)  # type: ignore[misc]
  sums = [_last_sum(op.outputs[0], body) for op, *_ in stand_ins]
  # The anchor is an input of every tap. To ask for the gradient of the anchor makes
  # TensorFlow build the backward loop through the taps.
  anchor, identities = tf.zeros([]), dict[str, tf.Operation]()
  taps.anchors.append(anchor)
  with graphs.more_loop_inputs(loop, [anchor]) as (anchor_inside,):
    for tensor, (op, output, layout, operands) in zip(sums, stand_ins):
      if tensor.name not in identities:
        with body.gradient_override_map({'IdentityN': _TAP}):
          tapped_tensor, _ = tf.raw_ops.IdentityN(input=[tensor, anchor_inside])
        graphs.put_behind(tensor, tapped_tensor)
        identities[tensor.name] = tapped_tensor.op
      taps.outputs.append(output)
      taps.taps[output.name] = _Tap(
          loop, steps, op, identities[tensor.name], layout, operands)


def _passed_on(tensor: tf.Tensor) -> tf.Tensor:
  """Returns the tensor from which identity operations made `tensor`."""
  while tensor.op.type == 'Identity' and not graphs.has_own_gradient(tensor.op):
    tensor = tensor.op.inputs[0]
  return tensor


def _layout(loop: tf.Operation, tensor: tf.Tensor, value: Value) -> uses_lib.Layout:
  """Returns the layout of a tensor inside a loop; NoRule unless it holds examples."""
  if value.dependence != Dependence.ROW_WISE:
    raise uses_lib.no_rule(loop, value.why or 'uses weights on no data')
  if not tensor.shape.is_fully_defined():
    raise uses_lib.no_rule(loop, 'uses weights on tensors of unknown shape')
  return uses_lib.Layout(value.axis, value.block)


def _stand_in(op: tf.Operation, layouts: Sequence[uses_lib.Layout | None],
              around: dict[str, tf.Tensor], data: set[str], loop: tf.Operation,
              steps: int, known: dict[str, Value]
             ) -> tuple[tf.Tensor, uses_lib.Layout, _Operands]:
  """Returns the output of an operation's stand-in, its layout, and its operands.

  `layouts` are of inputs and output, None without examples. Adds operands to `known`.
  """
  out = layouts[-1]
  operands, inputs = _Operands(), []
  with tf.name_scope(f'{loop.name}/'):
    for tensor, layout in zip(op.inputs, layouts):
      if layout is None:
        inputs.append(_around(tensor, around, data, loop))
        continue
      inputs.append(tf.zeros(_longer(tensor, layout, steps), tensor.dtype))
      known[inputs[-1].name] = Value(
          Dependence.ROW_WISE, layout.axis, abs(layout.block) * steps)
      operands[inputs[-1].name] = (tensor, layout)
    output, = _rerun(op, inputs, loop)
  if out is None or output.shape.as_list() != _longer(op.outputs[0], out, steps):
    raise uses_lib.no_rule(loop, f'has {op.type} inside, which uses weights')
  return output, out, operands


def _longer(tensor: tf.Tensor, layout: uses_lib.Layout, steps: int) -> list[int]:
  """Returns the shape of a tensor for all steps at once."""
  shape = tensor.shape.as_list()
  shape[layout.axis] *= steps
  return shape


def _around(tensor: tf.Tensor, around: dict[str, tf.Tensor], data: set[str],
            loop: tf.Operation) -> tf.Tensor:
  """Returns a tensor as computed outside of the loop; NoRule if it may differ by step.

  `around` has such tensors by the names of those inside; more are added. `data` names
  the tensors inside that hold examples or change from step to step.
  """
  op = tensor.op
  constant = None if tensor.name in around or tensor.dtype == tf.resource else (
      tf.get_static_value(tensor))
  if constant is not None:
    return tf.constant(constant, tensor.dtype)
  if tensor.name not in around:
    stateful = op.op_def.is_stateful and op.type != 'ReadVariableOp'
    if tensor.name in data or stateful or op.type == 'Placeholder' or (
        graphs.has_own_gradient(op)):
      raise uses_lib.no_rule(loop, f'has {op.type} inside, which depends on the step')
    around.update(zip((each.name for each in op.outputs), _rerun(op, [
        _around(each, around, data, loop) for each in op.inputs], loop)))
  return around[tensor.name]


def _rerun(op: tf.Operation, inputs: Sequence[tf.Tensor], loop: tf.Operation
          ) -> list[tf.Tensor]:
  """Returns the outputs of an operation of the loop's body, run on outer tensors.

  Raises NoRule if the operation does not take them.
  """
  try:
    return dependence.rerun(op, inputs)
  except Exception as error:  # pylint: disable=broad-except
    raise uses_lib.no_rule(
        loop, f'has {op.type} inside, which does not take all steps at once'
        ) from error


def _steps(loop: tf.Operation, cond: tf.Graph, body: tf.Graph) -> int:
  """Returns the number of steps; NoRule if it is zero, large, or not constant."""
  state = [_folded(tensor, {}, {}) for tensor in loop.inputs]
  goes_on = cond.outputs[0]
  used = {op.name for op in graph_proof.needed([goes_on], ())}
  counting = [i for i, tensor in enumerate(cond.inputs) if tensor.op.name in used]
  of_cond, of_body = (
      [tensor.name for tensor in graph.inputs] for graph in (cond, body))
  count = 0
  more = _folded(goes_on, dict(zip(of_cond, state)), {})
  while more and count < _MOST_STEPS:  # None ends the search, too.
    known, memory = dict(zip(of_body, state)), dict[str, Any]()
    for i in counting:
      state[i] = _folded(body.outputs[i], known, memory)
    more = _folded(goes_on, dict(zip(of_cond, state)), {})
    count += 1
  if count == 0 or more is None or more:
    raise uses_lib.no_rule(loop, 'makes a number of steps that is not known before')
  return count


def _folded(tensor: tf.Tensor, known: dict[str, Any], memory: dict[str, Any]) -> Any:
  """Returns the value of a tensor from `known` ones; None if they do not tell it.

  `memory` keeps values that were computed before from the same `known`.
  """
  if tensor.name in known:
    return known[tensor.name]
  if tensor.name not in memory:
    op, value = tensor.op, dependence.static(tensor)
    if value is None and op.type in _COUNTING:
      inputs = [_folded(each, known, memory) for each in op.inputs]
      if all(each is not None for each in inputs):
        value = dependence.folded(op, inputs)[tensor.value_index]
    memory[tensor.name] = value
  return memory[tensor.name]


_COUNTING = frozenset((
    'Add', 'AddV2', 'Cast', 'Equal', 'FloorDiv', 'FloorMod', 'Greater', 'GreaterEqual',
    'Identity', 'Less', 'LessEqual', 'LogicalAnd', 'LogicalNot', 'LogicalOr', 'Max',
    'Maximum', 'Min', 'Minimum', 'Mul', 'NotEqual', 'Range', 'RealDiv', 'Squeeze',
    'Sub'))
"""Operations that conditions of loops compute with."""


def _last_sum(tensor: tf.Tensor, body: tf.Graph) -> tf.Tensor:
  """Follows a tensor through sums that have its gradient; returns the last sum."""
  while True:
    users = tensor.consumers()
    if len(users) != 1 or users[0].type not in ('Add', 'AddV2', 'BiasAdd') or (
        graphs.has_own_gradient(users[0])) or any(
            tensor is each for each in body.outputs):
      return tensor
    total = users[0].outputs[0]
    if sum(tensor is each for each in users[0].inputs) != 1 or (
        total.shape.as_list() != tensor.shape.as_list()):
      return tensor
    tensor = total


_TAP, _NOTED = 'PerExampleTap', '_per_example_gradient'


@tf.RegisterGradient(_TAP)
def _tap_gradient(op: tf.Operation, upstream: Any, _: Any) -> list[tf.Tensor]:
  """Notes and passes on the gradient of the first input; the anchor's gradient is 0."""
  gradient = tf.convert_to_tensor(upstream)
  gradient.set_shape(op.inputs[0].shape)
  setattr(op, _NOTED, gradient)
  return [gradient, tf.zeros([])]


def _all_steps(items: tf.Tensor, inside: tf.Tensor, layout: uses_lib.Layout,
               steps: int) -> tf.Tensor:
  """Returns a list's items, like `inside`, one per step, joined on the `layout`'s axis.

  All steps of an example are neighbours there.
  """
  shape, (axis, block) = inside.shape.as_list(), layout
  stacked = tf.raw_ops.TensorListStack(
      input_handle=items, element_shape=shape, element_dtype=inside.dtype,
      num_elements=steps)
  number = shape[axis] // abs(block)
  if block > 0:
    pair, examples, places = [number, block], axis + 1, axis + 2
  else:
    pair, examples, places = [-block, number], axis + 2, axis + 1
  apart = tf.reshape(stacked, [steps, *shape[:axis], *pair, *shape[axis + 1:]])
  ordered = tf.transpose(apart, [
      *range(1, axis + 1), examples, 0, places, *range(axis + 3, len(shape) + 2)])
  return tf.reshape(ordered, _longer(inside, layout, steps))
