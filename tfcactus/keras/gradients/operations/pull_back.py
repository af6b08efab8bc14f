"""Takes gradients of tensors that are made of weights back to the weights.

A tensor may be a sum of a weight and of a product of two others, as in low-rank
adaptation (LoRA). On the way back, gradients stay sums of products, which are not
written out: a factor of LoRA multiplies one side of each product only.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
import math
import string
from typing import Any, NamedTuple, Union

import numpy as np
import tensorflow as tf

from tfcactus.keras.compat import graphs
from tfcactus.keras.gradients import forms
from tfcactus.keras.independence import dependence

REARRANGING = frozenset((
    'Cast', 'ExpandDims', 'Identity', 'ReadVariableOp', 'Reshape', 'Squeeze'))
"""Operations that keep all entries of a tensor in their order."""


class Products(NamedTuple):
  """Per-example gradients as sums of products of two tensors, not written out.

  Attributes:
    pair: The tensors, each with one row per example.
    terms: Letters of the other axes of each, as in an einsum.
    axes: Letters of each axis of the gradients; several for axes that were merged, none
      for an axis of size 1.
    sizes: {letter: size}.
    factor: A number that multiplies the gradients, or None.
  """

  pair: tuple[tf.Tensor, tf.Tensor]
  terms: tuple[str, str]
  axes: Sequence[str]
  sizes: dict[str, int]
  factor: Any = None

  def written(self) -> forms.GradientForm:
    """Returns the gradients as a form: outer products if possible, else written out.

    Letters that both tensors have, and the gradients do not, are positions. With more
    positions than entries of the first tensor at each, both tensors have more numbers
    than the kernel, and the gradients are written out too.
    """
    if self.factor is not None:
      return self._replace(
          pair=(self.pair[0], self.pair[1] * self.factor), factor=None).written()
    (left, right), own = self.terms, ''.join(self.axes)
    shape, rows = [self._size(axis) for axis in self.axes], self.pair[0].shape[0]
    # Letters of the gradients that the left tensor alone has, or the right one alone.
    of_left, of_right = (''.join(x for x in term if x in own and x not in other)
                         for term, other in ((left, right), (right, left)))
    positions = ''.join(x for x in left if x in right)
    if own in (of_left + of_right, of_right + of_left) and (
        self._size(positions) <= self._size(of_left)):
      inputs, outputs = (
          tf.reshape(self._summed(i, positions + letters), [
              rows, self._size(positions), self._size(letters)])
          for i, letters in enumerate((of_left, of_right)))
      if own != of_left + of_right:
        inputs, outputs = outputs, inputs
      return forms.product(inputs, outputs, shape)
    row = self._fresh()
    values = tf.einsum(f'{row}{left},{row}{right}->{row}{own}', *self.pair)
    return forms.Dense(tf.reshape(values, [rows, *shape]), shape)

  def _summed(self, i: int, letters: str) -> tf.Tensor:
    """Returns tensor `i` of the pair with axes `letters`, summed over other axes."""
    term, row = self.terms[i], self._fresh()
    return self.pair[i] if term == letters else tf.einsum(
        f'{row}{term}->{row}{letters}', self.pair[i])

  def reshaped(self, shape: Sequence[int]) -> Products | None:
    """Returns the gradients in another shape; None if that splits a letter's axis."""
    letters = [x for x in ''.join(self.axes) if self.sizes[x] > 1]
    axes = []
    for size in shape:
      axis = ''
      while letters and self._size(axis) < size:
        axis += letters.pop(0)
      if self._size(axis) != size:
        return None
      axes.append(axis)
    return self._replace(axes=axes)

  def times(self, matrix: tf.Tensor, axis: int) -> Products:
    """Contracts an axis of the gradients with the rows of a matrix.

    In the result, that axis runs over the matrix' columns.
    """
    contracted, new = self.axes[axis], self._fresh()
    row = self._fresh(new)
    # The matrix multiplies the tensor that alone has letters of the axis, if one does.
    # Letters that both tensors have stay, to be summed.
    only_first = set(self.terms[0]) - set(self.terms[1])
    side = 0 if set(contracted) & only_first else 1
    term, other = self.terms[side], self.terms[1 - side]
    kept = ''.join(x for x in dict.fromkeys(term + contracted)
                   if x not in contracted or x in other) + new
    pair, terms = list(self.pair), list(self.terms)
    if self.factor is not None:
      matrix *= self.factor  # It is smaller than the pair.
    pair[side] = tf.einsum(
        f'{row}{term},{contracted}{new}->{row}{kept}', pair[side],
        tf.reshape(matrix, [*(self.sizes[x] for x in contracted), matrix.shape[1]]))
    terms[side] = kept
    return Products(
        (pair[0], pair[1]), (terms[0], terms[1]),
        [*self.axes[:axis], new, *self.axes[axis + 1:]],
        {**self.sizes, new: matrix.shape[1]})

  def _size(self, letters: Sequence[str] | set[str]) -> int:
    """Returns the product of the sizes of letters."""
    return math.prod(self.sizes[x] for x in letters)

  def _fresh(self, others: str = '') -> str:
    """Returns a letter that is not taken."""
    return next(x for x in string.ascii_letters if x not in self.sizes and
                x not in others)


Gradients = Union[forms.GradientForm, Products]


def written(gradients: Gradients) -> forms.GradientForm:
  """Returns gradients as one of `forms`."""
  return gradients.written() if isinstance(gradients, Products) else gradients


def before(tensor: tf.Tensor, gradients: Gradients, made: Container[str]
          ) -> list[tuple[tf.Tensor, Gradients]] | None:
  """Returns (input, gradients) for inputs of a tensor's operation made of weights.

  `gradients` are those of the tensor; `made` has the names of tensors made of weights.
  Returns None for operations that have no case here, or a custom gradient.
  """
  op = tensor.op
  places = [i for i, each in enumerate(op.inputs) if each.name in made]
  inputs = [op.inputs[i] for i in places]
  if graphs.has_own_gradient(op):
    return None
  if op.type in REARRANGING and len(inputs) == 1:
    return [(inputs[0], reshaped(gradients, inputs[0]))]
  if op.type in ('Add', 'AddN', 'AddV2', 'Sub') and all(
      each.shape == tensor.shape for each in inputs):
    return [(op.inputs[i], _scaled(gradients, -1) if op.type == 'Sub' and i == 1 else
             gradients) for i in places]
  if op.type == 'Mul' and len(inputs) == 1 and (
      op.inputs[1 - places[0]].shape.rank == 0):
    return [(inputs[0], _scaled(gradients, op.inputs[1 - places[0]]))]
  if op.type == 'Transpose' and places == [0]:
    order = dependence.static(op.inputs[1])
    return None if order is None else [
        (inputs[0], _permuted(gradients, list(np.argsort(order))))]
  if op.type == 'MatMul':
    return [(op.inputs[i], _of_factor(op, i, gradients)) for i in places]
  return None


class Parts:
  """Gradients of parts of tensors, such as the gates of a kernel, to be joined."""

  def __init__(self) -> None:
    # {(name of the whole, axis): (the whole, {start of a part: its gradients})}.
    self._waiting: dict[tuple[str, int], tuple[tf.Tensor, dict[int, list[Any]]]] = {}

  def __bool__(self) -> bool:
    """Returns whether there are gradients that `joined` has not returned."""
    return bool(self._waiting)

  def add(self, tensor: tf.Tensor, gradients: Gradients, made: Container[str]) -> bool:
    """Adds gradients of a tensor that is a `_part` of another; False if it is none."""
    op = tensor.op
    place = 1 if op.type == 'Split' else 0
    if op.type not in _TAKING or graphs.has_own_gradient(op) or (
        op.inputs[place].name not in made):
      return False
    part = _part(tensor, place)
    if part is None:
      return False
    whole, (axis, start) = op.inputs[place], part
    self._waiting.setdefault((whole.name, axis), (whole, {}))[1].setdefault(
        start, []).append(gradients)
    return True

  def joined(self) -> tuple[tf.Tensor, forms.GradientForm]:
    """Returns a tensor and its gradients from its parts so far; forgets these parts."""
    key = next(iter(self._waiting))
    whole, by_start = self._waiting.pop(key)
    shape, axis = whole.shape.as_list(), key[1]
    parts = [(start, self._of_one(gradients, [*shape[:axis], -1, *shape[axis + 1:]]))
             for start, gradients in sorted(by_start.items())]
    if any(start + each.shape[axis] > after for (start, each), (after, _) in zip(
        parts, parts[1:])):  # Parts overlap.
      return whole, forms.added([_filled([each], shape, axis) for each in parts])
    return whole, _filled(parts, shape, axis)

  def _of_one(self, gradients: Sequence[Gradients], shape: Sequence[int]
             ) -> forms.Dense:
    """Returns the sum of gradients of one part.

    `shape` is that of the whole for one example, -1 at the joined axis.
    """
    total = forms.added([written(each) for each in gradients])
    if isinstance(total, forms.Dense) and len(total.shape) == len(shape):
      return total
    values = total.dense()
    values = tf.reshape(values, [values.shape[0], *shape])
    return forms.Dense(values, values.shape[1:])


_TAKING = ('Slice', 'Split', 'SplitV', 'StridedSlice', 'Unpack')
"""Operations that take a part of their input."""

_MOST_ENTRIES = 2**24
"""Largest number of entries of a tensor in which `_part` numbers all places."""


def _part(tensor: tf.Tensor, place: int) -> tuple[int, int] | None:
  """Returns (axis, start) of the part of input `place` that `tensor` is, or None.

  The part has all entries between two places of that axis, known from constants.
  """
  op = tensor.op
  shape = op.inputs[place].shape
  if not shape.is_fully_defined() or not 0 < shape.num_elements() <= _MOST_ENTRIES:
    return None
  inputs: list[Any] = [dependence.static(each) if i != place else np.arange(
      shape.num_elements(), dtype=np.int32).reshape(shape)
                       for i, each in enumerate(op.inputs)]
  if any(each is None for each in inputs):
    return None
  # The operation runs on the numbers of the places: they show what it takes.
  taken = dependence.folded(op, inputs)[tensor.value_index]
  if not taken.size:
    return None
  # It takes a part if it takes the box between its first and its last place.
  first, last = (np.unravel_index(taken.flat[k], shape) for k in (0, -1))
  box = inputs[place][tuple(slice(a, b + 1) for a, b in zip(first, last))]
  axes = [k for k, size in enumerate(box.shape) if size < shape[k]]
  if len(axes) > 1 or not np.array_equal(box.ravel(), taken.ravel()):
    return None
  axis = axes[0] if axes else 0
  return axis, int(first[axis])


def _filled(parts: Sequence[tuple[int, forms.Dense]], shape: Sequence[int], axis: int
           ) -> forms.Dense:
  """Joins gradients of parts, and zeros between them.

  `parts` has sorted pairs (start along `axis`, form) that do not overlap.
  """
  # Transposed parts of the last axis (axis 1 of their values) are joined as they are.
  transposed = axis == len(shape) - 1 and all(each.transposed for _, each in parts)
  place, pieces, end = 1 if transposed else axis + 1, list[tf.Tensor](), 0
  for start, each in parts:
    values = each.values if transposed else each.dense()
    pieces.extend([_zeros(values, place, start - end), values])
    end = start + values.shape[place]
  pieces.append(_zeros(values, place, shape[axis] - end))
  return forms.Dense(tf.concat([each for each in pieces if each.shape[place]], place),
                     shape, transposed)


def _zeros(like: tf.Tensor, axis: int, size: int) -> tf.Tensor:
  """Returns zeros in the shape of a tensor, but for the `size` of an axis."""
  shape = like.shape.as_list()
  shape[axis] = size
  return tf.zeros(shape, like.dtype)


def reshaped(gradients: Gradients, like: tf.Tensor) -> Gradients:
  """Returns gradients in the shape of a tensor with the same entries.

  A variable's handle, which has no such shape, leaves gradients unchanged.
  """
  if like.dtype == tf.resource:
    return gradients
  shape = like.shape.as_list()
  result = gradients.reshaped(shape)
  return written(gradients).reshaped(shape) if result is None else result


def _of_factor(op: tf.Operation, place: int, gradients: Gradients) -> Gradients:
  """Returns gradients of a factor of a matrix product from those of the product."""
  transposed = dependence.transposed(op)  # Whether the product is of A^T, of B^T.
  other = op.inputs[1 - place]
  # The gradient of A in A B is G B^T, that of B is A^T G. Contracting an axis of G with
  # the rows of a matrix M gives G M, or M^T G.
  if (place == 0) != transposed[1 - place]:
    other = tf.transpose(other)
  result = _times(gradients, other, 1 - place)
  return _permuted(result, [1, 0]) if transposed[place] else result


def _times(gradients: Gradients, matrix: tf.Tensor, axis: int) -> Gradients:
  """Contracts axis 0 or 1 of gradients of a matrix with the rows of `matrix`.

  In the result, that axis runs over the columns of `matrix`.
  """
  matrix = tf.cast(matrix, _tensors(gradients)[-1].dtype)
  if isinstance(gradients, Products):
    return gradients.times(matrix, axis)
  if isinstance(gradients, forms.Rows) and axis:
    return forms.Rows(gradients.ids, tf.matmul(gradients.values, matrix),
                      gradients.vocabulary)
  if isinstance(gradients, forms.Rows):
    values = tf.matmul(tf.gather(matrix, gradients.ids), gradients.values,
                       transpose_a=True)
  else:
    values = tf.einsum('abc,cd->abd' if axis else 'abc,bd->adc', gradients.dense(),
                       matrix)
  return forms.Dense(values, values.shape[1:])


def _permuted(gradients: Gradients, order: Sequence[int]) -> Gradients:
  """Permutes the axes of the gradients, as `tf.transpose` does."""
  if isinstance(gradients, Products):
    return gradients._replace(axes=[gradients.axes[k] for k in order])
  values = tf.transpose(gradients.dense(), [0, *(k + 1 for k in order)])
  return forms.Dense(values, values.shape[1:])


def _scaled(gradients: Gradients, factor: tf.Tensor | float) -> Gradients:
  """Multiplies gradients by a scalar."""
  value = _tensors(gradients)[-1]
  factor = tf.cast(factor, value.dtype)
  if isinstance(gradients, Products):
    before = gradients.factor
    return gradients._replace(factor=factor if before is None else before * factor)
  return gradients._of([*gradients.tensors()[:-1], value * factor])  # pylint: disable=protected-access


def _tensors(gradients: Gradients) -> Sequence[tf.Tensor]:
  """Returns the tensors of gradients, which are linear in the last of them.

  This is false of `forms.Tied`, which no gradient on the way back is: `Parts` writes
  out sums that `forms.added` ties.
  """
  return gradients.pair if isinstance(gradients, Products) else gradients.tensors()
