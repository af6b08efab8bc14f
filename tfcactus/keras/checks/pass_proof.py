"""Whether a pass over a whole batch gives each example's gradients: a proof."""

from __future__ import annotations

from typing import Any
from typing import Callable
from typing import List
from typing import NamedTuple
from typing import Optional
from typing import Sequence

import tensorflow as tf

from tfcactus.keras import vectorization
from tfcactus.keras.checks import state_writes
from tfcactus.keras.checks import variable_reads
from tfcactus.keras.compat import patches
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.independence import draws
from tfcactus.keras.independence import graph_proof


class Pass(NamedTuple):
  """A pass over a batch.

  Attributes:
    rows: All tensors that it gives, one row an example.
    losses: Those whose gradient was taken.
    calls: Of rules.
    answers: What the rules gave.
  """

  rows: Sequence[tf.Tensor]
  losses: Sequence[tf.Tensor]
  calls: variable_reads.Calls
  answers: Sequence[variable_reads.Answer]


class Unproved(NamedTuple):
  """What a pass is not shown to do.

  Attributes:
    reason: In words.
    operation: The name of the operation to blame.
    variable: A weight that it uses, whose gradient no rule accounts for; None if
      it takes several examples, or is not known to take each alone.
  """

  reason: str
  operation: str = ''
  variable: Optional[keras.Variable] = None


class TracedPass(NamedTuple):
  """A pass, traced to be looked at.

  What is vectorised in it has something of the same dependences in its place.

  Attributes:
    graph: Of the whole pass, its gradients included.
    examples: The graph's inputs, one row an example.
    complete: Whether nothing has something else in its place.
    found: What the pass gave.
  """

  graph: tf.Graph
  examples: Sequence[tf.Tensor]
  complete: bool
  found: Pass


@tf.autograph.experimental.do_not_convert
def trace(model: keras.Model, run: Callable[[Any], Pass], batch: Any) -> TracedPass:
  """Traces a pass.

  Args:
    model: The model.
    run: batch -> the pass.
    batch: `TensorSpec`s of one row an example, of known shapes.
  """
  made: List[Pass] = []
  stood_in_for: List[tf.Graph] = []

  def traced(batch: Any) -> Sequence[tf.Tensor]:
    with vectorization.standing_in() as graphs, (
        patches.drawing(model, draws.secret_seed)):
      made.append(run(batch))
    stood_in_for.extend(graphs)
    return made[-1].rows

  graph = tf.function(traced, autograph=False).get_concrete_function(batch).graph
  return TracedPass(graph, graph.inputs[:len(tf.nest.flatten(batch))],
                    not stood_in_for, made[-1])


def unproved(model: keras.Model, traced: TracedPass) -> Optional[Unproved]:
  """Why a pass is not proved to give the gradient of each example, all of it.

  Returns:
    None if it is proved.
  """
  graph, examples, _, found = traced
  unexplained = variable_reads.first_unexplained(
      graph, model, found.calls, found.answers, found.losses)
  if unexplained:
    return Unproved(str(unexplained), unexplained.operation, unexplained.variable)
  together = graph_proof.first_dependence(
      graph, examples, graph.outputs, number=examples[0].shape[0])
  return together and Unproved(together.why, together.operation)


def check_no_writes(model: keras.Model, traced: TracedPass) -> None:
  """Refuses a model whose pass is stateful; see `state_writes`.

  Args:
    model: The model.
    traced: Its pass, which shows all that is done if it is complete.

  Raises:
    ValueError: naming the operation and the remedy.
  """
  if traced.complete:
    state_writes.check_graph(traced.graph, 'layers', model)
  else:
    state_writes.check_no_writes(model)
