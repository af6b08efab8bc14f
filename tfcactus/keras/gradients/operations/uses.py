"""Finds the operations of a traced graph in which weights meet data.

Each path from a weight to a loss goes first through operations on weights alone, such
as casts and products of weights, then through operations on data. The gradient of a
weight is the sum over the operations, its uses, in which paths cross over.
`checks.variable_reads` shows, apart from this search, that no use is missing.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Callable, NamedTuple

import tensorflow as tf

from tfcactus.keras.checks import variable_reads
from tfcactus.keras.compat import graphs
from tfcactus.keras.gradients.operations.pull_back import REARRANGING
from tfcactus.keras.independence import dependence, draws, graph_proof
from tfcactus.keras.independence.dependence import Dependence

SPREADING = ('BroadcastTo', 'Tile')
"""Operations that may give each example a copy of a weight."""

_SIZED = (*SPREADING, 'Conv2DBackpropInput', 'Conv3DBackpropInputV2')
"""Operations one of whose inputs is a shape, which may tell the number of examples."""

Explained = Callable[[tf.Operation, int], bool]
"""(operation, index of a variable that it reads) -> whether a vectorised layer gives
the gradient of the variable through this operation."""


class NoRule(Exception):
  """Raised for uses of weights that no rule covers.

  Attributes:
    uses: Pairs (name of an operation to blame, index of a variable that it uses). The
      index is None for an operation that mixes examples or is not known.
  """

  uses: Sequence[tuple[str, int | None]] = ()

  @classmethod
  def blaming(cls, operation: str, words: str) -> NoRule:
    """Returns the exception for an operation, by name, whatever weights it uses."""
    error = cls(words)  # AutoGraph passes on exceptions of one argument only.
    error.uses = [(operation, None)]
    return error


def no_rule(op: tf.Operation, words: str = 'is used in a way that has no rule'
           ) -> NoRule:
  """Returns the exception for an operation that no rule covers, with the reason."""
  return NoRule(f'{op.type} in {op.name!r} {words}')


def each_or_raise(function: Callable[[Any], Any], meetings: Sequence[Any]
                 ) -> list[Any]:
  """Returns the results of a function for each of some `_Meeting`s or `Use`s.

  If it raises NoRule for some, raises the first NoRule, with the `uses` of all.
  """
  results, errors, uses = [], [], list[tuple[str, int | None]]()
  for each in meetings:
    try:
      results.append(function(each))
    except NoRule as error:
      errors.append(error)
      uses.extend(error.uses or [
          (each.op.name, read[1]) for read in each.reads if read])
  if errors:
    errors[0].uses = uses
    raise errors[0]
  return results


class Layout(NamedTuple):
  """The place of the examples in a tensor, as in `dependence.Value`.

  Each example has `block` neighbouring positions on `axis`; if `block` is negative, the
  whole batch is repeated -`block` times there.
  """

  axis: int
  block: int

  def shape(self, tensor: tf.Tensor) -> list[int]:
    """Returns the shape of one example's part of a tensor."""
    shape = tensor.shape.as_list()
    shape[self.axis] = abs(self.block)
    return shape

  def apart(self, tensor: tf.Tensor, number: Any) -> tf.Tensor:
    """Returns the parts of `number` examples: (number, *shape)."""
    own = self.shape(tensor)
    pair = [number, self.block] if self.block > 0 else [-self.block, number]
    split = tf.reshape(tensor, [*own[:self.axis], *pair, *own[self.axis + 1:]])
    examples = self.axis if self.block > 0 else self.axis + 1
    if not examples:
      return split
    others = [k for k in range(len(own) + 1) if k != examples]
    return tf.transpose(split, [examples, *others])


_Read = tuple[tf.Operation, int]
"""An operation that reads a variable, and the variable's index."""


class Use(NamedTuple):
  """An operation in which a tensor made of weights meets data.

  Attributes:
    op: The operation.
    core: The operation that computes: `op`, or the one of the function that it calls.
    place: Index of the input of `core` that is made of weights.
    sources: For each input of `core`, the index of the input of `op` that it is, maybe
      reshaped or cast; None for a constant.
    reads: Pairs (operation that reads a variable, index of the variable) for all that
      input `place` is made of.
    made: Shape of input `place`, or of the variable if that input is its handle.
    data: {index of an input of `core` that holds examples: its layout}.
    out: The layout of the output of `core`.
  """

  op: tf.Operation
  core: tf.Operation
  place: int
  sources: Sequence[int | None]
  reads: frozenset[_Read]
  made: list[int]
  data: dict[int, Layout]
  out: Layout

  @property
  def variables(self) -> frozenset[int]:
    """Returns the indices of the variables that the input is made of."""
    return frozenset(index for _, index in self.reads)

  @property
  def edge(self) -> int:
    """Returns the index of the input of `op` that is made of weights."""
    source = self.sources[self.place]
    assert source is not None
    return source

  @property
  def operand(self) -> tf.Tensor:
    """Returns the tensor made of weights; a variable's handle in ResourceGather."""
    return self.op.inputs[self.edge]

  def tensor(self, i: int) -> tf.Tensor:
    """Returns input `i` of `core`, which holds data, as a tensor of the graph of `op`.

    Its shape and dtype are those that it has in `core`.
    """
    source = self.sources[i]
    assert source is not None
    return like(self.op.inputs[source], self.core.inputs[i])

  def shape(self, i: int | None = None) -> list[int]:
    """Returns the shape of input `i`, or of the output, for one example."""
    tensor = self.core.outputs[0] if i is None else self.core.inputs[i]
    layout = self.out if i is None else self.data.get(i)
    return layout.shape(tensor) if layout else tensor.shape.as_list()


def like(tensor: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
  """Returns a tensor in the shape and dtype of another with the same entries."""
  tensor = tf.cast(tensor, other.dtype)
  return tensor if tensor.shape.is_compatible_with(other.shape) else tf.reshape(
      tensor, [-1 if size is None else size for size in other.shape])


class _Meeting(NamedTuple):
  """An operation where weights meet data: its input `place` is made of weights."""

  op: tf.Operation
  place: int
  # What the input is made of; None for reads whose gradient a vectorised layer gives.
  reads: frozenset[_Read | None]


def found(losses: tf.Tensor, handles: dict[str, int], shapes: Sequence[Any],
          known: dict[str, dependence.Value], number: int | None = None,
          rows: Mapping[str, dependence.Value] = {},
          explained: Explained = lambda op, index: False,
          beside: Sequence[tf.Tensor] = (), without: Container[str] = ()) -> list[Use]:
  """Returns all uses of variables in losses, a tensor of one row per example.

  Raises NoRule if the place of the examples is not known in a tensor that a rule needs,
  if an operation mixes examples, or if a loss is computed from weights alone.

  Args:
    losses: A tensor of a traced graph.
    handles: Maps names of the graph's captured handles to indices of variables.
    shapes: Shapes of the variables.
    known: The `Value`s of tensors that hold data, by name: the search ends at these.
    number: Number of examples, or None if it is not known.
    rows: The `Value`s, by name, of tensors with rows of examples that may be computed
      from weights.
    explained: Tells which reads to leave out: vectorised layers give their gradients.
    beside: Further tensors to search: outputs of stand-ins for uses in loops.
    without: Names of the loops for whose uses `beside` has stand-ins.
  """
  operations = graph_proof.needed([losses, *beside], known)
  meetings, of_weights = _meetings(operations, handles, set(known), number, explained)
  meetings = [each for each in meetings if each.op.name not in without]
  if losses.name in of_weights:
    raise NoRule('a loss is computed from weights alone')
  if not meetings:
    return []
  known = {**known, **_drawn(operations, number), **rows}
  tensors = {tensor.name: tensor for each in meetings
             for tensor in (*each.op.inputs, each.op.outputs[0])}
  known.update({each.op.outputs[0].name: dependence.Value(Dependence.ROW_WISE, axis)
                for each in meetings
                if (axis := _spread_axis(each.op, number)) is not None})
  values = dict(zip(tensors, graph_proof.analyse(
      losses.graph, known, list(tensors.values()))))
  return each_or_raise(lambda each: _use(each, handles, shapes, values), meetings)


def _meetings(operations: Sequence[tf.Operation], handles: dict[str, int],
              data: set[str], number: int | None, explained: Explained
             ) -> tuple[list[_Meeting], set[str]]:
  """Returns operations where weights meet data, and names of tensors of weights alone.

  `data` has names of tensors that hold data; this function adds the names of tensors
  computed from them.
  """
  meetings: list[_Meeting] = []
  # Names of tensors of weights alone, with the reads that they are made of.
  reads: dict[str, frozenset[_Read | None]] = {}
  for op in operations:
    if op.type == 'StopGradient':
      data.update(out.name for out in op.outputs if op.inputs[0].name in data)
      continue
    inputs = []
    for tensor in op.inputs:
      index = handles.get(tensor.name)
      inputs.append(reads.get(tensor.name, frozenset()) if index is None else (
          frozenset([None if explained(op, index) else (op, index)])))
    outputs = [out for out in op.outputs if variable_reads.carries_gradient(out)]
    # Draws count as data, since they may have rows for each example (`_drawn`). So do
    # outputs of calls, loops and branches, through which no gradient is taken back.
    has_data = op.type in draws.SHAPE_ARGUMENT or op.type in graph_proof.CALLS or any(
        tensor.name in data for tensor in op.inputs)
    if has_data or (any(inputs) and _spread_axis(op, number) is not None):
      data.update(out.name for out in op.outputs)
      meetings.extend(_Meeting(op, place, each) for place, each in enumerate(inputs)
                      if each - {None} and outputs)
    elif any(inputs):
      reads.update((out.name, frozenset().union(*inputs)) for out in outputs)
  return meetings, {name for name, each in reads.items() if each - {None}}


def _spread_axis(op: tf.Operation, number: int | None) -> int | None:
  """Returns the axis along which a tensor is repeated for each example, or None.

  It has size `number` in the output, and 1 in the input. If another axis has these
  sizes by chance, the proof of the pass fails.
  """
  if op.type not in SPREADING or number is None:
    return None
  shape, own = op.outputs[0].shape.as_list(), op.inputs[0].shape.as_list()
  own = [1] * (len(shape) - len(own)) + own
  return next((k for k, size in enumerate(shape)
               if size == number and own[k] == 1), None)


def _drawn(operations: Sequence[tf.Operation], number: int | None
          ) -> dict[str, dependence.Value]:
  """Returns {output name: ROW_WISE} for draws with rows for `number` examples.

  The proof of the pass shows whether these rows belong to examples.
  """
  values = {}
  for op in operations:
    if op.type in draws.SHAPE_ARGUMENT and number and op.outputs[0].shape.rank:
      rows = op.outputs[0].shape[0]
      if rows and not rows % number:
        values[op.outputs[0].name] = dependence.Value(
            Dependence.ROW_WISE, block=rows // number)
  return values


def _use(meeting: _Meeting, handles: dict[str, int], shapes: Sequence[Any],
         values: dict[str, dependence.Value]) -> Use:
  """Returns a use with its layouts; raises NoRule if one is not known.

  Raises NoRule, too, if a vectorised layer gives a part of the input's gradient.
  """
  op, _, reads = meeting
  if None in reads:
    raise no_rule(op)
  core, sources = _core(op)
  if sources.count(meeting.place) != 1:
    raise no_rule(op)
  place = sources.index(meeting.place)
  own = [values[tensor.name] for tensor in (*op.inputs, op.outputs[0])]
  if core is not op:
    own = graph_proof.analyse(
        core.graph, {tensor.name: value for tensor, value in zip(
            core.graph.inputs, own)}, [*core.inputs, core.outputs[0]])
  layouts = {}
  for i, (tensor, value) in enumerate(zip([*core.inputs, core.outputs[0]], own)):
    if value.dependence == Dependence.ROW_WISE:
      sizes = tensor.shape.as_list()
      if None in sizes[:value.axis] + sizes[value.axis + 1:]:
        raise no_rule(op)
      layouts[i] = Layout(value.axis, value.block)
    elif value.dependence > Dependence.ROW_WISE:
      raise NoRule.blaming(value.operation if core is op else op.name, value.why)
    elif value.dependence == Dependence.BATCH_SIZE and core.type not in _SIZED:
      raise no_rule(op)
  out = layouts.pop(len(core.inputs), None)
  if place in layouts or out is None:
    raise no_rule(op)
  shape = core.inputs[place].shape
  if core.inputs[place].dtype == tf.resource:
    handle = op.inputs[meeting.place].name
    if handle not in handles:
      raise no_rule(op)
    shape = shapes[handles[handle]]
  return Use(op, core, place, sources, frozenset(read for read in reads if read),
             list(shape), layouts, out)


def _core(op: tf.Operation) -> tuple[tf.Operation, list[int | None]]:
  """Returns (the one operation that computes in `op`, sources of its inputs).

  It is `op` itself, or the one in a function that `op` calls. A source is the index of
  an input of `op`, or None for a constant. Raises NoRule if a called function computes
  with several operations, casts and reshapes aside.
  """
  if graphs.has_own_gradient(op):
    raise no_rule(op)
  if op.type not in graph_proof.CALLS:
    return op, list(range(len(op.inputs)))
  # XLA calls functions for grouped convolutions.
  graph = dependence.called(op) if op.type.endswith('PartitionedCall') else None
  # Differentiation adds outputs to the function's graph, but not to later calls.
  if graph is None or len(op.outputs) != 1:
    raise no_rule(op)
  core = _unshaped(graph.outputs[0]).op
  places = {tensor.name: i for i, tensor in enumerate(graph.inputs)}
  sources = [places.get(_unshaped(tensor).name) for tensor in core.inputs]
  computed = any(place is None and dependence.static(tensor) is None
                 for place, tensor in zip(sources, core.inputs))
  ranks = [tensor.shape.rank for tensor in (*core.inputs, core.outputs[0])]
  if computed or None in ranks or core.type in graph_proof.CALLS or (
      graphs.has_own_gradient(core)):
    raise no_rule(op)
  return core, sources


def _unshaped(tensor: tf.Tensor) -> tf.Tensor:
  """Returns the tensor from which `tensor` was made by reads, casts and new shapes."""
  while tensor.op.type in REARRANGING and not graphs.has_own_gradient(tensor.op):
    before = tensor.op.inputs[0]
    # No gradient goes back through a cast between integers and floating numbers.
    if before.dtype != tf.resource and (
        before.dtype.is_floating != tensor.dtype.is_floating):
      break
    tensor = before
  return tensor
