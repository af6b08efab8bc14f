"""Per-example gradients in the form that each kind of layer has them cheaply.

Every form holds float32 (or float64) numbers. Both the norm and the clipped sum are
taken of these very numbers, so that the norm needs an allowance for its own rounding
only. How the numbers themselves were rounded, by TensorFloat-32 for one, is of no
matter: they are the example's gradient.

The norm of float32 numbers, with u = 2^-24:

- squares are summed in float32 over at most `_FLOAT32_TERMS` terms, which errs by at
  most `_FLOAT32_TERMS` u relative, since no term is negative (one rounding for the
  square, at most `_FLOAT32_TERMS` - 1 for the sums). The root halves that, and is
  itself right to `_ROOT_ROUNDINGS` u. From there on all is float64;
- squares below 2^-126 may be flushed to zero: 2^-126 for each entry is added, so that
  this never makes a norm too small.

So an example that is clipped to C counts for at most C (1 + `NORM_ERROR`). Squares that
overflow float32 make the norm infinite, and the example is dropped, which depends on
that example alone. Of float64 numbers all of it is done in float64, and errs by less.

The sum is taken in float64. TensorFloat-32, bfloat16 and the like replace float32
products only, whenever they are switched on, and float64 sums of N examples err by
about N^2 2^-53 clip norms, where float32 sums err by up to N^2 2^-24
(docs/soundness.md, "Numbers").
"""

from __future__ import annotations

import abc
import copy
from typing import Dict
from typing import List
from typing import Sequence
from typing import Union

import numpy as np
import tensorflow as tf

_FLOAT32_TERMS = 64
_FLUSHED = 2.0**-126

_ROOT_ROUNDINGS = 4
"""Roundings of u by which a float32 square root of TensorFlow is taken to err."""

NORM_ERROR = 1.01 * (_FLOAT32_TERMS / 2 + _ROOT_ROUNDINGS) * 2.0**-24
"""Relative; about 2.2e-6. The factor 1.01 is for terms of second order in u."""


def squared_norms(values: tf.Tensor) -> tf.Tensor:
  """Squared norms of the rows of (batch, ...), float64, never too small."""
  if values.dtype == tf.float64:
    return tf.reduce_sum(tf.square(values), list(range(1, values.shape.rank)))
  entries = int(np.prod(values.shape[1:], dtype=np.int64))
  terms = max(n for n in range(1, _FLOAT32_TERMS + 1) if entries % n == 0)
  if terms > 8:
    blocks = tf.reshape(values, [values.shape[0], entries // terms, terms])
    # In one pass over memory; a product of matrices could be of rounded numbers.
    roots = tf.math.reduce_euclidean_norm(blocks, -1)
  else:
    roots = tf.reshape(values, [values.shape[0], entries])
  return tf.reduce_sum(tf.square(tf.cast(roots, tf.float64)), 1) + entries * _FLUSHED


def _column(row: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
  return tf.reshape(row, [row.shape[0]] + [1] * (like.shape.rank - 1))


def _kept(values: tf.Tensor, keep: tf.Tensor) -> tf.Tensor:
  """`values` with zeros for rows that are not kept."""
  # Not tf.where: broadcasting a column of booleans takes twice the time.
  return tf.raw_ops.Select(condition=keep, x=values, y=tf.zeros_like(values))


def _in_turn(values: tf.Tensor, views: int) -> tf.Tensor:
  """Rows of shape (batch * views, ...) as (batch, views, ...)."""
  return tf.reshape(
      values, [values.shape[0] // views, views, *values.shape[1:]])


class GradientForm(abc.ABC):
  """One variable's gradients of all examples of a physical batch."""

  @abc.abstractmethod
  def squared_norms(self) -> tf.Tensor:
    """Squared norms, float64 of shape (batch,), rounded as the module says."""

  @abc.abstractmethod
  def weighted_sum(self, factors: tf.Tensor) -> tf.Tensor:
    """Returns the sum over the examples in the variable's shape, float64.

    Products and sums are float64, which no mode of reduced precision rounds.

    Args:
      factors: float64, shape (batch,), multiplied with each example's gradient. Zero
        leaves an example out if its numbers are finite: 0 * NaN = NaN; see `where`.
    """

  @abc.abstractmethod
  def dense(self) -> tf.Tensor:
    """The gradients themselves, shape (batch, ...) as the variable."""

  @abc.abstractmethod
  def averaged(self, views: int) -> GradientForm:
    """The means of so many rows in turn, which are views of one example."""

  def tensors(self) -> List[tf.Tensor]:
    """All numbers that the form consists of, one row an example."""
    return [value for value in vars(self).values() if tf.is_tensor(value)]

  def where(self, keep: tf.Tensor) -> GradientForm:
    """The same with zeros for some examples, whatever their gradients hold.

    Args:
      keep: Booleans, shape (batch,), False for those.
    """
    return self._of([_kept(value, keep) for value in self.tensors()])

  def _of(self, tensors: Sequence[tf.Tensor]) -> GradientForm:
    """The same form of other numbers, in the order of `tensors`."""
    made, left = copy.copy(self), iter(tensors)
    vars(made).update({name: next(left) for name, value in vars(self).items()
                       if tf.is_tensor(value)})
    return made


class Dense(GradientForm):
  """Gradients held as they are.

  Attributes:
    values: Shape (batch, ...).
    shape: Of the variable.
    transposed: Whether `values` is (batch, last axis, all other axes).
  """

  def __init__(self, values: tf.Tensor, shape: Sequence[int],
               transposed: bool = False):
    self.values = values
    self.shape = list(shape)
    self.transposed = transposed

  def squared_norms(self) -> tf.Tensor:
    return squared_norms(self.values)

  def weighted_sum(self, factors: tf.Tensor) -> tf.Tensor:
    rows = tf.reshape(self.values, [self.values.shape[0], -1])
    total = tf.matmul(factors[None], tf.cast(rows, tf.float64))
    return self._arranged(tf.reshape(total, self.values.shape[1:]), 0)

  def dense(self) -> tf.Tensor:
    return self._arranged(self.values, 1)

  def averaged(self, views: int) -> GradientForm:
    return Dense(tf.reduce_mean(_in_turn(self.values, views), 1), self.shape,
                 self.transposed)

  def _arranged(self, values: tf.Tensor, axis: int) -> tf.Tensor:
    if self.transposed:
      values = tf.linalg.matrix_transpose(values)
    return tf.reshape(values, values.shape[:axis] + self.shape)


class Outer(GradientForm):
  """Gradients that are outer products, of a dense layer's kernel.

  Attributes:
    inputs: Shape (batch, d).
    outputs: Gradients of the pre-activations, shape (batch, p).
  """

  def __init__(self, inputs: tf.Tensor, outputs: tf.Tensor):
    self.inputs = inputs
    self.outputs = outputs

  def squared_norms(self) -> tf.Tensor:
    # Few numbers: in float64, so that none of their squares overflows.
    return (squared_norms(tf.cast(self.inputs, tf.float64)) *
            squared_norms(tf.cast(self.outputs, tf.float64)))

  def weighted_sum(self, factors: tf.Tensor) -> tf.Tensor:
    # The factor goes first: a product of two entries could overflow.
    scaled = tf.cast(self.outputs, tf.float64) * factors[:, None]
    return tf.matmul(tf.cast(self.inputs, tf.float64), scaled, transpose_a=True)

  def dense(self) -> tf.Tensor:
    return self.inputs[:, :, None] * self.outputs[:, None, :]

  def averaged(self, views: int) -> GradientForm:
    # No outer product any more.
    total = tf.matmul(_in_turn(self.inputs, views), _in_turn(
        self.outputs, views) / views, transpose_a=True)
    return Dense(total, total.shape[1:])


class Rows(GradientForm):
  """Gradients of the rows of an embedding that each example looked up.

  Attributes:
    ids: Integers, shape (batch, t); each looked up at most once with a
      gradient, see `merged`.
    values: Shape (batch, t, p).
    vocabulary: Number of rows.
  """

  def __init__(self, ids: tf.Tensor, values: tf.Tensor, vocabulary: int):
    self.ids = ids
    self.values = values
    self.vocabulary = vocabulary

  @classmethod
  def merged(cls, ids: tf.Tensor, values: tf.Tensor, vocabulary: int) -> Rows:
    """Adds up the gradients of ids that an example looked up several times."""
    same = tf.equal(ids[:, :, None], ids[:, None, :])
    earlier = tf.linalg.band_part(
        tf.ones(same.shape[1:], values.dtype), -1, 0) - tf.eye(
            ids.shape[1], dtype=values.dtype)
    seen = tf.reduce_any(tf.logical_and(same, earlier > 0), -1)
    totals = tf.matmul(tf.cast(same, values.dtype), values)
    totals = tf.where(seen[:, :, None], tf.zeros_like(totals), totals)
    return cls(ids, totals, vocabulary)

  def squared_norms(self) -> tf.Tensor:
    return squared_norms(self.values)

  def weighted_sum(self, factors: tf.Tensor) -> tf.Tensor:
    scaled = tf.cast(self.values, tf.float64) * _column(factors, self.values)
    width = scaled.shape[-1]
    return tf.math.unsorted_segment_sum(
        tf.reshape(scaled, [-1, width]), tf.reshape(self.ids, [-1]),
        self.vocabulary)

  def averaged(self, views: int) -> GradientForm:
    width = self.values.shape[-1]
    ids = tf.reshape(_in_turn(self.ids, views), [
        self.ids.shape[0] // views, views * self.ids.shape[1]])
    return Rows.merged(ids, tf.reshape(self.values / views, [*ids.shape, width]),
                       self.vocabulary)

  def dense(self) -> tf.Tensor:
    hot = tf.one_hot(self.ids, self.vocabulary, dtype=self.values.dtype)
    return tf.matmul(hot, self.values, transpose_a=True)


def finite(gradients: Sequence[GradientForm], rows: tf.Tensor
          ) -> List[GradientForm]:
  """The same with zeros for examples that are not finite; as they are if all are.

  Args:
    gradients: One for each variable.
    rows: Booleans, shape (batch,): which examples are finite in all of them.
  """
  flat = [value for each in gradients for value in each.tensors()]
  left = iter(tf.cond(tf.reduce_all(rows), lambda: flat,
                      lambda: [_kept(value, rows) for value in flat]))
  return [each._of([next(left) for _ in each.tensors()])  # pylint: disable=protected-access
          for each in gradients]


def of_example(gradient: Union[tf.Tensor, tf.IndexedSlices]) -> Dict[str, tf.Tensor]:
  """What a tape gives for one example: a table's rows apart from their numbers."""
  if isinstance(gradient, tf.IndexedSlices) and (
      gradient.indices.shape.rank == 1 and gradient.values.shape.rank == 2 and
      gradient.indices.shape.is_fully_defined()):
    rows = gradient.indices.shape[0]
    return {'ids': tf.cast(gradient.indices, tf.int32),
            'values': tf.ensure_shape(gradient.values, [rows, None])}
  return {'values': tf.convert_to_tensor(gradient)}


def of_examples(found: Dict[str, tf.Tensor], shape: Sequence[int]) -> GradientForm:
  """The same of all examples.

  Args:
    found: Tensors of shape (batch, ...), each row as `of_example` gives it.
    shape: Of the variable.
  """
  if 'ids' in found:
    return Rows.merged(found['ids'], found['values'], shape[0])
  return Dense(found['values'], shape)


def added(gradients: Sequence[GradientForm]) -> GradientForm:
  """The sum of several gradients of one variable that is used several times."""
  if len(gradients) == 1:
    return gradients[0]
  total = tf.add_n([each.dense() for each in gradients])
  return Dense(total, total.shape[1:])
