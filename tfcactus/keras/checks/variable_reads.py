"""Proof that the rules of a batched pass account for every use of the weights.

A rule gives the gradient with respect to its layer's weights. It captures tensors of
the layer's own computation, and computes the weights' gradients from the gradients with
respect to these tensors. Other code can use weights too: a loss, another layer, a
closure. No rule gives the gradient through such a use. So the pass is traced, and each
weight is followed from where it is read to the loss. On the way it must meet a tensor
that the rule captured in the call that read the weight. The analysis follows plain data
flow, whatever the operations compute; loops and functions count as operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
import contextlib
from typing import Any, NamedTuple

import tensorflow as tf

from tfcactus.keras.compat import graphs, models
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.independence import graph_proof


class Answer(NamedTuple):
  """The weights whose gradients a rule computes from one captured tensor.

  The rule takes the gradient with respect to `tensor`, which it captured in the layer
  call number `call`. `variables` are the weights.
  """

  tensor: tf.Tensor
  call: int
  variables: Sequence[keras.Variable]


class Edge(NamedTuple):
  """Input `place` of the operation `operation`, through which gradients of `variables`
  were computed without a layer rule.
  """

  operation: str
  place: int
  variables: Sequence[keras.Variable]


class Unexplained(NamedTuple):
  """A use of a weight by an operation that no rule's gradient contains."""

  variable: keras.Variable
  operation: str

  def __str__(self) -> str:
    return (f'{models.name_of(self.variable)!r} is used outside of its layer as '
            f'well, in {self.operation!r}')


class _Read(NamedTuple):
  """A use of a weight by an operation; `call` is the layer call that added it, or None.
  """

  variable: str
  call: int | None
  operation: str


_Cut = dict[tuple[str, int], set[str]]
"""Maps (name of an operation, place of an input) to weights."""


class Calls:
  """Record of the operations that each call of a rule adds to a graph."""

  def __init__(self) -> None:
    self._graph = _current_graph()
    self._open: list[int] = []
    self._count = 0
    self._changes: list[tuple[int, int | None]] = [(0, None)]

  def outside(self) -> bool:
    """Returns whether operations are added to a loop or a function inside the pass.

    Tensors there cannot be differentiated from the pass.
    """
    return _current_graph() is not self._graph

  @contextlib.contextmanager
  def recorded(self) -> Iterator[int]:
    """Records a call of a layer, nested or not; yields the number of the call."""
    self._count += 1
    self._open.append(self._count)
    self._note()
    try:
      yield self._count
    finally:
      self._open.pop()
      self._note()

  def of_operations(self, graph: tf.Graph) -> list[tuple[tf.Operation, int | None]]:
    """Returns a graph's operations in order of creation, each with its call or None."""
    found, call = [], None
    changes = iter(self._changes[1:] if graph is self._graph else [])
    place, following = next(changes, (-1, None))
    for i, op in enumerate(graph.get_operations()):
      while i == place:
        call = following
        place, following = next(changes, (-1, None))
      found.append((op, call))
    return found

  def _note(self) -> None:
    """Records that operations from here on belong to the innermost open call."""
    if self._graph is not None:
      # The graph's version grows by one with each operation.
      self._changes.append(
          (self._graph.version, self._open[-1] if self._open else None))


def first_unexplained(graph: tf.Graph, model: keras.Model, calls: Calls,
                      answers: Iterable[Answer], losses: Sequence[tf.Tensor],
                      edges: Iterable[Edge] = ()) -> Unexplained | None:
  """Returns a trainable variable's use in `losses` that no rule explains, or None."""
  # `calls` tells in which call of a layer each operation was added. An answer explains
  # the uses of its variables in its call, as far as they reach the losses through its
  # tensor. An edge explains all uses of its variables as far as they go through it: if
  # all edges were cut, no other path would lead from a weight to a loss.
  names = {identity(variable): variable for variable in model.trainable_variables}
  handles = {name: each for name, each in handles_in(graph).items() if each in names}
  cut: _Cut = {}
  for edge in edges:
    cut.setdefault((edge.operation, edge.place), set()).update(
        map(identity, edge.variables))
  answered: dict[str, set[tuple[str, int]]] = {}
  for answer in answers:
    answered.setdefault(answer.tensor.name, set()).update(
        (identity(variable), answer.call)
        for variable in answer.variables)
  reads: dict[str, frozenset[_Read]] = {}
  call_of = {op.name: call for op, call in calls.of_operations(graph)}
  for op in graph_proof.needed(losses, handles):
    found = _reads_of(op, _operands(op, call_of[op.name], handles, reads, cut), cut)
    for tensor, own in zip(op.outputs, found):
      kept = own if carries_gradient(tensor) else frozenset()
      reads[tensor.name] = frozenset(
          read for read in kept
          if (read.variable, read.call) not in answered.get(tensor.name, ()))
  left = sorted(frozenset().union(*(reads[loss.name] for loss in losses)),
                key=lambda read: read.operation)
  if not left:
    return None
  return Unexplained(names[left[0].variable], left[0].operation)


def inside(loop: tf.Operation, op: tf.Operation) -> str:
  """Returns the name, for an `Edge`, of an operation in the body of a loop."""
  return f'{loop.name} > {op.name}'


def _operands(op: tf.Operation, call: int | None, handles: dict[str, str],
              reads: dict[str, frozenset[_Read]], cut: _Cut, name: str = ''
             ) -> list[frozenset[_Read]]:
  """Returns the uses of weights on which each input of an operation may depend."""
  # `handles` maps names of captured handles to weights, `cut` edges to the weights that
  # they explain. Only uses that may have a gradient count.
  found = []
  for place, tensor in enumerate(op.inputs):
    own = reads.get(tensor.name, frozenset())
    if tensor.name in handles:
      own |= {_Read(handles[tensor.name], call, op.name)}
    gone = cut.get((name or op.name, place), set())
    found.append(frozenset(read for read in own if read.variable not in gone))
  return found


def _reads_of(op: tf.Operation, operands: list[frozenset[_Read]], cut: _Cut
             ) -> list[frozenset[_Read]]:
  """Returns the uses on which each output depends, given those of the operands."""
  if op.type == 'StopGradient':
    return [frozenset()]
  graphs_of_loop = graphs.of_loop(op) if op.type in graphs.LOOPS else None
  if graphs_of_loop is None:
    return [frozenset[_Read]().union(*operands)] * len(op.outputs)
  _, body = graphs_of_loop
  order, reads, more = graph_proof.needed(body.outputs, ()), operands, None
  while more != reads:
    # What any step may depend on: that of its inputs, and of all steps before.
    reads = reads if more is None else more
    known = {tensor.name: own for tensor, own in zip(body.inputs, reads)}
    for each in order:
      if each.inputs:
        found = _reads_of(each, _operands(
            each, None, {}, known, cut, inside(op, each)), cut)
        known.update((tensor.name, own if carries_gradient(tensor) else frozenset())
                     for tensor, own in zip(each.outputs, found))
    more = [own | known[tensor.name] for own, tensor in zip(reads, body.outputs)]
  return reads


def handles_in(graph: tf.Graph) -> dict[str, str]:
  """Returns {name of a captured handle: the string that identifies its variable}."""
  return {inside.name: _of_handle(outside) for outside, inside in graph.captures
          if _of_handle(outside)}


def carries_gradient(tensor: tf.Tensor) -> bool:
  """Returns whether a tensor of this dtype may pass on a gradient."""
  return tensor.dtype.is_floating or tensor.dtype.is_complex or tensor.dtype in (
      tf.variant, tf.resource)


def identity(variable: keras.Variable) -> str:
  """Returns the string that identifies a variable."""
  return _of_handle(models.handle(variable))


def _of_handle(handle: Any) -> str:
  """Returns the string that identifies a handle's variable; '' if it is no handle."""
  eager = isinstance(handle, tf.__internal__.EagerTensor)
  return repr(handle) if eager and handle.dtype == tf.resource else ''


def _current_graph() -> tf.Graph | None:
  """Returns the graph that is traced now, or None."""
  return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
