"""Whether a pass over a whole batch treats each example alone: a proof."""

from __future__ import annotations

from typing import Any
from typing import Callable
from typing import Sequence

import tensorflow as tf

from tfcactus.keras import example_seeds
from tfcactus.keras import vectorization
from tfcactus.keras.compat import patches
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.independence import graph_proof


@tf.autograph.experimental.do_not_convert
def check_pass(model: keras.Model, run: Callable[[Any], Sequence[tf.Tensor]],
               batch: Any) -> None:
  """Proves that a pass treats each example alone, or refuses.

  The pass is traced, its gradients included. What is vectorised has something
  of the same dependences in its place.

  Args:
    model: The model.
    run: batch -> all tensors that the pass gives, one row an example.
    batch: Tensors of one row an example, of known shapes.

  Raises:
    ValueError: naming an operation that takes several examples, or that nothing
      is known of.
  """
  specs = tf.nest.map_structure(
      lambda value: tf.TensorSpec(value.shape, value.dtype), batch)

  def traced(batch: Any) -> Sequence[tf.Tensor]:
    with vectorization.standing_in(), (
        patches.drawing(model, example_seeds.no_seed)):
      return run(batch)

  graph = tf.function(traced, autograph=False).get_concrete_function(specs).graph
  found = graph_proof.first_dependence(
      graph, graph.inputs[:len(tf.nest.flatten(specs))], graph.outputs)
  if found is not None:
    raise ValueError(
        'Expected layers that treat each example alone, or of which that is '
        f"known, got {found.why}; use privatize(..., engine='vectorized'), "
        'which takes one example at a time.')
