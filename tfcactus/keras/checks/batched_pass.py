"""Whether a pass over a whole batch gives each example's gradients: a proof."""

from __future__ import annotations

from typing import Any
from typing import Callable
from typing import List
from typing import NamedTuple
from typing import Sequence

import tensorflow as tf

from tfcactus.keras import example_seeds
from tfcactus.keras import vectorization
from tfcactus.keras.checks import variable_reads
from tfcactus.keras.compat import patches
from tfcactus.keras.compat.versions import keras
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
  """What a pass is not shown to do; all empty if it is right.

  Attributes:
    unexplained: Which use of a weight is in no rule's gradient, or ''.
    together: Which operation takes several examples, or is not known to take
      each alone, or ''.
  """

  unexplained: str = ''
  together: str = ''

  def check_apart(self) -> None:
    """Refuses a pass that is not shown to treat each example alone.

    Raises:
      ValueError: naming the operation.
    """
    if self.together:
      raise ValueError(
          'Expected layers that treat each example alone, or of which that is '
          f"known, got {self.together}; use privatize(..., engine='vectorized'), "
          'which takes one example at a time.')


@tf.autograph.experimental.do_not_convert
def unproved(model: keras.Model, run: Callable[[Any], Pass], batch: Any) -> Unproved:
  """Looks for a proof that a pass gives the gradient of each example, all of it.

  The pass is traced, its gradients included. What is vectorised has something
  of the same dependences in its place.

  Args:
    model: The model.
    run: batch -> the pass.
    batch: `TensorSpec`s of one row an example, of known shapes.
  """
  made: List[Pass] = []

  def traced(batch: Any) -> Sequence[tf.Tensor]:
    with vectorization.standing_in(), (
        patches.drawing(model, example_seeds.no_seed)):
      made.append(run(batch))
    return made[-1].rows

  graph = tf.function(traced, autograph=False).get_concrete_function(batch).graph
  found = made[-1]
  unexplained = variable_reads.first_unexplained(
      graph, model, found.calls, found.answers, found.losses)
  if unexplained:
    return Unproved(unexplained)
  dependence = graph_proof.first_dependence(
      graph, graph.inputs[:len(tf.nest.flatten(batch))], graph.outputs)
  return Unproved(together='' if dependence is None else dependence.why)
