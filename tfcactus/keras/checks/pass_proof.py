"""Proof that a pass over a whole batch gives each example's gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import tensorflow as tf

from tfcactus.keras.checks import state_writes, variable_reads
from tfcactus.keras.compat import graphs, patches, vectorization
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.independence import draws, graph_proof


class Pass(NamedTuple):
  """Tensors of one traced forward and backward pass over a batch."""

  rows: Sequence[tf.Tensor]  # All outputs of the pass, one row per example.
  losses: Sequence[tf.Tensor]  # What the pass differentiated.
  answers: Sequence[variable_reads.Answer]  # The vectorised layers.
  # The operations through which the gradients of all other weights were computed.
  edges: Sequence[variable_reads.Edge] = ()
  beside: Sequence[tf.Tensor] = ()  # Returned as well; they need no proof.


class Unproved(NamedTuple):
  """A property of a pass that the proof failed to show, and the operation to blame.

  `variable` is a weight that the operation uses without a rule for the gradient; None
  if the operation mixes examples, or may, since no rule for it is known.
  """

  reason: str
  operation: str = ''
  variable: keras.Variable | None = None


class TracedPass(NamedTuple):
  """A pass traced for analysis.

  `replaced` has the graphs, for one example, of vectorised code in whose place `graph`
  has stand-ins (see `vectorization.standing_in`). `function` maps a batch to its
  tensors: first `rows`, then `beside`. It is None for a trace that cannot run, with
  stand-ins or with placeholders for secret seeds.
  """

  graph: tf.Graph  # Includes gradients.
  examples: Sequence[tf.Tensor]  # The inputs, one row per example.
  replaced: Sequence[tf.Graph]
  found: Pass
  function: Callable[[Any], Sequence[tf.Tensor]] | None = None


@tf.autograph.experimental.do_not_convert
def trace(model: keras.Model, run: Callable[[Any], Pass], batch: Any) -> TracedPass:
  """Traces the pass `run(batch)`; `batch` has `TensorSpec`s of a known batch size."""
  passes: list[Pass] = []
  replaced: list[tf.Graph] = []
  seeds: list[tf.Tensor] = []

  def seed() -> tf.Tensor:
    """Returns a placeholder for a secret seed."""
    seeds.append(draws.secret_seed())
    return seeds[-1]

  def traced(batch: Any) -> Sequence[tf.Tensor]:
    """Returns the tensors of the pass: first `rows`, then `beside`."""
    with vectorization.standing_in() as vectorised, (
        patches.drawing(model, seed)):
      passes.append(run(batch))
    replaced.extend(vectorised)
    return [*passes[-1].rows, *passes[-1].beside]

  function = tf.function(traced, autograph=False).get_concrete_function(batch)
  # A trace with stand-ins, or with placeholders for seeds, serves the proof only.
  return TracedPass(
      function.graph, function.graph.inputs[:len(tf.nest.flatten(batch))], replaced,
      passes[-1], None if replaced or seeds else function)


def unproved(model: keras.Model, traced: TracedPass) -> Unproved | None:
  """Returns why a pass is not proved to give each example's gradients, or None."""
  graph, found = traced.graph, traced.found
  unexplained = variable_reads.first_unexplained(
      graph, model, found.answers, found.losses, found.edges)
  if unexplained:
    return Unproved(str(unexplained), unexplained.operation, unexplained.variable)
  violation = graph_proof.first_dependence(
      graph, traced.examples, graph.outputs[:len(found.rows)],
      number=traced.examples[0].shape[0])
  return None if violation is None else Unproved(violation.why, violation.operation)


def check_no_writes(model: keras.Model, traced: TracedPass) -> None:
  """Raises ValueError, with the remedy, if a pass is stateful; see `state_writes`."""
  # Vectorised code is checked as it was traced on one example. Only a custom gradient
  # with respect to its inputs is not in that trace.
  state_writes.check_graph(traced.graph, 'layers', model, traced.replaced)
  if graphs.have_own_gradients(traced.replaced):
    state_writes.check_no_writes(model)
