"""Per-example gradients of variables, through the operations that use them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import tensorflow as tf

from tfcactus.keras.checks import variable_reads
from tfcactus.keras.compat import graphs, vectorization
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.operations import pull_back, rules, uses as uses_lib
from tfcactus.keras.independence import graph_proof

Ruled = tuple[uses_lib.Use, rules.Rule]

Apart = Callable[[tf.Tensor, uses_lib.Layout], tf.Tensor]
"""Maps a tensor and its layout to one row per example, each of `Layout.shape`."""

_Found = list[tuple[int, forms.GradientForm]]  # (index of a variable, gradients)

_MOST_STEPS = 64
"""Mean number of operations per use through which gradients go back one by one.
`_vectorized` takes back all that are left then."""


def with_rules(uses: Sequence[uses_lib.Use]) -> list[Ruled]:
  """Returns the uses with their rules; NoRule has, as `uses`, those without a rule."""
  return uses_lib.each_or_raise(lambda use: (use, rules.rule_for(use)), uses)


def of_variables(ruled: Sequence[Ruled], upstream: Sequence[Any], apart: Apart,
                 handles: dict[str, int], dtypes: Sequence[tf.DType],
                 shapes: Sequence[Any]) -> _Found:
  """Returns pairs (index of a variable, per-example gradients), to be added.

  A variable may have several pairs, or none if nothing reaches it. `upstream` has the
  gradient of the summed losses with respect to the output of each use, or None if it
  has none. `handles`, `dtypes` and `shapes` are those of the variables, the first as
  for `uses.found`. Products are computed in the variable's dtype.
  """
  # `waiting` has gradients of tensors made of weights, first of operands, which go back
  # operation by operation to a variable. `left` has gradients that `before` does not
  # take back; `_vectorized` does.
  found, parts, step = _Found(), pull_back.Parts(), 0
  left: dict[str, tuple[tf.Tensor, list[tf.Tensor]]] = {}
  waiting: list[tuple[tf.Tensor, pull_back.Gradients]] = []
  for (use, rule), gradient in zip(ruled, upstream):
    if gradient is None:
      continue
    dtype = dtypes[min(use.variables)]

    def rows(tensor: tf.Tensor, layout: uses_lib.Layout, dtype: Any = dtype
            ) -> tf.Tensor:
      """Returns the rows of a tensor, floating numbers in the variable's dtype."""
      split = apart(tensor, layout)
      return tf.cast(split, dtype) if split.dtype.is_floating else split

    gradients = rule({i: rows(use.tensor(i), layout) for i, layout in use.data.items()},
                     rows(uses_lib.like(tf.convert_to_tensor(gradient),
                                        use.core.outputs[0]), use.out))
    waiting.append((use.operand, pull_back.reshaped(gradients, use.operand)))
  made = _made_of_variables([tensor for tensor, _ in waiting], handles)
  while waiting or parts:
    # Parts wait until no other gradient does: most wholes are then joined only once.
    tensor, gradients = waiting.pop() if waiting else parts.joined()
    if tensor.name in handles:
      index = handles[tensor.name]
      found.append((index, pull_back.written(gradients).reshaped(shapes[index])))
    elif not parts.add(tensor, gradients, made):
      inputs = None if step > _MOST_STEPS * len(ruled) else pull_back.before(
          tensor, gradients, made)
      if inputs is None:
        left.setdefault(tensor.name, (tensor, []))[1].append(
            pull_back.written(gradients).dense())
      else:
        waiting.extend(inputs)
    step += 1
  if left:
    found.extend(_vectorized(list(left.values()), handles, dtypes, shapes))
  return found


def _made_of_variables(operands: Sequence[tf.Tensor], handles: dict[str, int]
                      ) -> set[str]:
  """Returns the handles, and names of tensors made of variables that operands need."""
  made = set(handles)
  for op in graph_proof.needed(operands, handles):
    if op.type != 'StopGradient' and any(each.name in made for each in op.inputs):
      made.update(each.name for each in op.outputs
                  if variable_reads.carries_gradient(each))
  return made


def _vectorized(made: Sequence[tuple[tf.Tensor, list[tf.Tensor]]],
                handles: dict[str, int], dtypes: Sequence[tf.DType],
                shapes: Sequence[Any]) -> _Found:
  """Returns per-example gradients of variables from those of tensors made of them.

  `made` has each such tensor with a list of per-example gradients, to be summed.
  """
  tensors = [tensor for tensor, _ in made]
  graph = tensors[0].graph
  needed = graph_proof.needed(tensors, handles)
  names = {each.name for op in needed for each in op.inputs}
  places = {index: graph.get_tensor_by_name(name) for name, index in handles.items()
            if name in names}

  def pulled_back(row: list[tf.Tensor]) -> list[Any]:
    """Returns one example's gradients, as of `of_example`, with respect to `places`."""
    gradients = graphs.gradients(
        graph, tensors, list(places.values()),
        [tf.cast(each, tensor.dtype) for each, tensor in zip(row, tensors)])
    return [forms.of_example(
        tf.zeros(shapes[index], dtypes[index]) if each is None else each)
            for index, each in zip(places, gradients)]

  stacked = vectorization.over_rows(pulled_back, [tf.add_n(rows) for _, rows in made])
  return [(index, forms.of_examples(each, shapes[index]))
          for index, each in zip(places, stacked)]
