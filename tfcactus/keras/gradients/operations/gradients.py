"""Per-example gradients of variables, through the operations that use them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import tensorflow as tf

from tfcactus.keras.compat import graphs, vectorization
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.operations import rules, uses as uses_lib

Ruled = tuple[uses_lib.Use, rules.Rule]

Apart = Callable[[tf.Tensor, uses_lib.Layout], tf.Tensor]
"""Maps a tensor and its layout to one row per example, each of `Layout.shape`."""


def with_rules(uses: Sequence[uses_lib.Use]) -> list[Ruled]:
  """Returns the uses with their rules; raises NoRule, which names all uses without."""
  return uses_lib.each_or_raise(lambda use: (use, rules.rule_for(use)), uses)


def of_variables(ruled: Sequence[Ruled], upstream: Sequence[Any], apart: Apart,
                 handles: dict[str, int], dtypes: Sequence[tf.DType],
                 shapes: Sequence[Any]) -> list[tuple[int, forms.GradientForm]]:
  """Returns (index of a variable, per-example gradients), several for some variables.

  `upstream` has the gradient of the summed losses with respect to the output of each
  use, or None if it has none. `handles`, `dtypes` and `shapes` are those of the
  variables, as for `uses.found`. Products are computed in the variable's dtype.
  """
  found: list[tuple[int, forms.GradientForm]] = []
  made: dict[str, list[tuple[uses_lib.Use, tf.Tensor]]] = {}
  for (use, rule), gradient in zip(ruled, upstream):
    if gradient is None:
      continue
    dtype = dtypes[min(use.variables)]

    def part(tensor: tf.Tensor, layout: uses_lib.Layout, dtype: Any = dtype
            ) -> tf.Tensor:
      """Returns the rows of a tensor, floating numbers in the variable's dtype."""
      rows = apart(tensor, layout)
      return tf.cast(rows, dtype) if rows.dtype.is_floating else rows

    form = rule({i: part(use.op.inputs[i], layout) for i, layout in use.data.items()},
                part(tf.convert_to_tensor(gradient), use.out))
    if use.whole is not None:
      found.append((use.whole, form.reshaped(shapes[use.whole])))
    else:
      made.setdefault(use.operand.name, []).append((use, form.dense()))
  return found + (
      _pulled_back(list(made.values()), handles, dtypes, shapes) if made else [])


def _pulled_back(made: Sequence[Sequence[tuple[uses_lib.Use, tf.Tensor]]],
                 handles: dict[str, int], dtypes: Sequence[tf.DType],
                 shapes: Sequence[Any]) -> list[tuple[int, forms.GradientForm]]:
  """Returns gradients of variables from those of tensors that are made of them.

  `made` has, for each such tensor, its uses and the gradients through each. The tensors
  are differentiated for each example alone, vectorised.
  """
  tensors = [each[0][0].operand for each in made]
  rows = [tf.add_n([rows for _, rows in each]) for each in made]
  indices = sorted(frozenset().union(*(each[0][0].variables for each in made)))
  graph = tensors[0].graph
  places = {index: graph.get_tensor_by_name(name) for name, index in handles.items()}

  def pulled_back(row: list[tf.Tensor]) -> list[Any]:
    """Returns the gradients of one example."""
    found = graphs.gradients(
        graph, tensors, [places[index] for index in indices],
        [tf.cast(each, tensor.dtype) for each, tensor in zip(row, tensors)])
    return [forms.of_example(
        tf.zeros(shapes[index], dtypes[index]) if each is None else each)
            for index, each in zip(indices, found)]

  found = vectorization.over_rows(pulled_back, rows)
  return [(index, forms.of_examples(each, shapes[index]))
          for index, each in zip(indices, found)]
