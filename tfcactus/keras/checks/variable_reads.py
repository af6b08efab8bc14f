"""Proof that the rules of a batched pass account for every use of the weights.

A rule of an operation gives the gradients through one input of it, a vectorised layer
those of its own weights through its outputs. Other code can use weights too: a loss,
another layer, a closure. So each weight is followed from where it is read to the loss.
On the way it must meet an input with a rule, or an output of the vectorised layer in
whose call it was read. Functions count as operations; loops are followed inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfcactus.keras.compat import graphs, models
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.independence import graph_proof


class Answer(NamedTuple):
  """An output of a vectorised layer, which gives the gradients of its own weights."""

  tensor: tf.Tensor  # The output.
  operations: frozenset[str]  # Names of what the layer's call added to the graph.
  variables: Sequence[keras.Variable]  # The weights.


class Edge(NamedTuple):
  """Input `place` of an operation, whose rule gives gradients of `variables`."""

  operation: str
  place: int
  variables: Sequence[keras.Variable]


class Unexplained(NamedTuple):
  """A use of a weight by an operation that no rule's gradient contains."""

  variable: keras.Variable
  operation: str

  def __str__(self) -> str:
    """Returns the reason, in words, why the pass is not proved."""
    return (f'{models.name_of(self.variable)!r} is used outside of its layer as '
            f'well, in {self.operation!r}')


_Read = tuple[str, str]
"""A use of a weight by an operation: (identity of the variable, operation)."""

_Cut = dict[tuple[str, int], set[str]]
"""Maps (name of an operation, index of an input) to weights that an edge explains."""


def first_unexplained(graph: tf.Graph, model: keras.Model,
                      answers: Iterable[Answer], losses: Sequence[tf.Tensor],
                      edges: Iterable[Edge] = ()) -> Unexplained | None:
  """Returns a trainable variable's use in `losses` that no rule explains, or None."""
  # An answer explains the uses of its variables by its operations, as far as these uses
  # reach the losses through its tensor. An edge explains all uses of its variables that
  # go through it: without the edges, no path would lead from a weight to a loss.
  names = {identity(variable): variable for variable in model.trainable_variables}
  handles = {name: each for name, each in handles_in(graph).items() if each in names}
  cut: _Cut = {}
  for edge in edges:
    cut.setdefault((edge.operation, edge.place), set()).update(
        map(identity, edge.variables))
  answered: dict[str, list[Answer]] = {}
  for answer in answers:
    answered.setdefault(answer.tensor.name, []).append(answer)
  reads: dict[str, frozenset[_Read]] = {}
  for op in graph_proof.needed(losses, handles):
    of_outputs = _reads_of(op, _operands(op, handles, reads, cut), cut)
    for tensor, uses in zip(op.outputs, of_outputs):
      uses = uses if carries_gradient(tensor) else frozenset()
      for answer in answered.get(tensor.name, ()):
        weights = set(map(identity, answer.variables))
        uses = frozenset((weight, name) for weight, name in uses if
                         weight not in weights or name not in answer.operations)
      reads[tensor.name] = uses
  unexplained = frozenset[_Read]().union(*(reads[loss.name] for loss in losses))
  if not unexplained:
    return None
  variable, operation = min(unexplained, key=lambda read: read[1])
  return Unexplained(names[variable], operation)


def inside(loop: tf.Operation, op: tf.Operation) -> str:
  """Returns the name, for an `Edge`, of an operation in the body of a loop."""
  return f'{loop.name} > {op.name}'


def _operands(op: tf.Operation, handles: dict[str, str],
              reads: dict[str, frozenset[_Read]], cut: _Cut, name: str = ''
             ) -> list[frozenset[_Read]]:
  """Returns the uses of weights on which each input of an operation may depend."""
  # `handles` maps names of captured handles to weights, `reads` names of tensors to the
  # uses on which they depend, `cut` edges to the weights that they explain. `name` is
  # given for an operation in a loop: that of `inside`.
  of_inputs = []
  for place, tensor in enumerate(op.inputs):
    uses = reads.get(tensor.name, frozenset())
    if tensor.name in handles:
      uses |= {(handles[tensor.name], op.name)}
    explained = cut.get((name or op.name, place), set())
    of_inputs.append(frozenset(use for use in uses if use[0] not in explained))
  return of_inputs


def _reads_of(op: tf.Operation, operands: list[frozenset[_Read]], cut: _Cut
             ) -> list[frozenset[_Read]]:
  """Returns the uses on which each output depends; `operands` has those of inputs."""
  if op.type == 'StopGradient':
    return [frozenset()]
  graphs_of_loop = graphs.of_loop(op) if op.type in graphs.LOOPS else None
  if graphs_of_loop is None:
    return [frozenset[_Read]().union(*operands)] * len(op.outputs)
  _, body = graphs_of_loop
  order, reads = graph_proof.needed(body.outputs, ()), operands
  while True:  # Until an iteration adds no use to any value of the loop.
    known = {tensor.name: uses for tensor, uses in zip(body.inputs, reads)}
    for each in order:
      if each.inputs:
        # Weights enter the body as its inputs, so that it captures no handles.
        of_outputs = _reads_of(each, _operands(
            each, {}, known, cut, inside(op, each)), cut)
        known.update((tensor.name, uses if carries_gradient(tensor) else frozenset())
                     for tensor, uses in zip(each.outputs, of_outputs))
    after = [uses | known[tensor.name] for uses, tensor in zip(reads, body.outputs)]
    if after == reads:
      return reads
    reads = after


def handles_in(graph: tf.Graph) -> dict[str, str]:
  """Returns {name of a captured handle: the string that identifies its variable}."""
  found = {inner.name: _of_handle(outer) for outer, inner in graph.captures}
  return {name: variable for name, variable in found.items() if variable}


def carries_gradient(tensor: tf.Tensor) -> bool:
  """Returns whether a tensor of this dtype may pass on a gradient."""
  return graphs.is_differentiable(tensor.dtype) or tensor.dtype in (
      tf.variant, tf.resource)


def identity(variable: keras.Variable) -> str:
  """Returns the string that identifies a variable."""
  return _of_handle(models.handle(variable))


def _of_handle(handle: Any) -> str:
  """Returns the string that identifies a handle's variable; '' if it is no handle."""
  eager = isinstance(handle, tf.__internal__.EagerTensor)
  return repr(handle) if eager and handle.dtype == tf.resource else ''
