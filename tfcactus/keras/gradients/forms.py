"""Forms of per-example gradients: dense, outer products, rows of a table.

Every form holds float32 (or float64) numbers. The norm and the float64 clipped sum use
exactly these numbers, so the norm needs an allowance for its own rounding only: an
example that is clipped to C contributes at most C (1 + `NORM_ERROR`). How the numbers
were rounded before, say by TensorFloat-32, does not matter. Squares that overflow make
the norm infinite, and the example is dropped. Proof: docs/soundness_numbers.md.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
import copy
import math
from typing import Any

import tensorflow as tf

from tfcactus.keras.gradients import gram

_FLOAT32_TERMS = 64
"""Most squares that are summed in float32. Further sums are float64."""

_FLUSHED, _FLUSHED64 = 2.0**-126, 2.0**-1022
"""The smallest normal float32 and float64. Squares below it may be flushed to zero, so
it is added for each entry."""

_ROOT_ROUNDINGS = 4
"""Assumed error of TensorFlow's float32 square root, in units of 2^-24."""

NORM_ERROR = 1.01 * (_FLOAT32_TERMS / 2 + _ROOT_ROUNDINGS) * 2.0**-24
"""Bound on the relative error of a norm, 2.2e-6; 1.01 covers second-order terms."""


def squared_norms(values: tf.Tensor) -> tf.Tensor:
  """Returns squared norms of the rows of `values`, (batch, ...): (batch,), float64.

  Their square roots are at least (1 - `NORM_ERROR`) times the true norms.
  """
  entries = math.prod(values.shape[1:])
  roots = tf.reshape(values, [values.shape[0], entries])
  terms = max(n for n in range(1, _FLOAT32_TERMS + 1) if entries % n == 0)
  # Shorter blocks would leave nearly as many roots as there are values.
  if values.dtype != tf.float64 and terms > 8:
    # One pass over memory; a matrix product could round its factors.
    roots = tf.math.reduce_euclidean_norm(
        tf.reshape(values, [values.shape[0], entries // terms, terms]), -1)
  # The last term covers squares flushed to zero: norms must not come out too small.
  return tf.reduce_sum(tf.square(tf.cast(roots, tf.float64)), 1) + entries * (
      _FLUSHED64 if values.dtype == tf.float64 else _FLUSHED)


def _kept(values: tf.Tensor, keep: tf.Tensor) -> tf.Tensor:
  """Returns `values` with zeros for rows where `keep`, (batch,), is False."""
  # Not tf.where: broadcasting a column of booleans takes twice the time.
  return tf.raw_ops.Select(condition=keep, x=values, y=tf.zeros_like(values))


def _shaped(values: tf.Tensor, shape: Any) -> tf.Tensor:
  """Reshapes a tensor unless it has this shape already."""
  return values if values.shape == shape else tf.reshape(values, shape)


class GradientForm(abc.ABC):
  """Per-example gradients of a variable of a `shape`, for one physical batch."""

  shape: list[int]

  @abc.abstractmethod
  def squared_norms(self) -> tf.Tensor:
    """Returns squared norms, float64, shape (batch,).

    Their roots are at least (1 - `NORM_ERROR`) times the true norms.
    """

  @abc.abstractmethod
  def weighted_sum(self, factors: tf.Tensor) -> tf.Tensor:
    """Returns the weighted sum over the examples, float64, in the variable's shape.

    Products and sums are float64, which no mode of reduced precision rounds.

    Args:
      factors: float64, shape (batch,), one per example. Zero leaves out an example only
        if its numbers are finite, since 0 * NaN = NaN; see `where`.
    """

  @abc.abstractmethod
  def dense(self) -> tf.Tensor:
    """Returns the gradients as a tensor of shape (batch, *variable shape)."""

  @abc.abstractmethod
  def averaged(self, views: int) -> GradientForm:
    """Returns means over each `views` consecutive rows, which are of one example."""

  def reshaped(self, shape: Sequence[int]) -> GradientForm:
    """Returns gradients of a variable with the same entries in another shape."""
    made = copy.copy(self)
    made.shape = list(shape)
    return made

  def tensors(self) -> list[tf.Tensor]:
    """Returns all tensors of the form, each with one row per example."""
    return [value for value in vars(self).values() if tf.is_tensor(value)]

  def where(self, keep: tf.Tensor) -> GradientForm:
    """Returns the form with zeros, for NaN too, in rows where `keep` is False."""
    return self._of([_kept(value, keep) for value in self.tensors()])

  def _of(self, tensors: Sequence[tf.Tensor]) -> Any:
    """Returns a copy of the form with other tensors, in the order of `tensors`."""
    made, left = copy.copy(self), iter(tensors)
    vars(made).update({name: next(left) for name, value in vars(self).items()
                       if tf.is_tensor(value)})
    return made


class Dense(GradientForm):
  """Gradients as dense tensors; `values`, (batch, ...), reshapes to (batch, *shape).

  If `transposed`, `values` is (batch, last axis, all other axes of `shape`).
  """

  def __init__(self, values: tf.Tensor, shape: Sequence[int],
               transposed: bool = False):
    self.values = values
    self.shape = list(shape)
    self.transposed = transposed

  def squared_norms(self) -> tf.Tensor:
    return squared_norms(self.values)

  def weighted_sum(self, factors: tf.Tensor) -> tf.Tensor:
    """Multiplies factors by values in float64; sums in the variable's shape."""
    total = tf.matmul(factors[None], tf.cast(self.flat(), tf.float64))
    return self.of_flat(total)

  def flat(self) -> tf.Tensor:
    """Returns the values in shape (batch, entries)."""
    return _shaped(self.values, [self.values.shape[0], math.prod(self.shape)])

  def of_flat(self, total: tf.Tensor) -> tf.Tensor:
    """Returns a sum over the rows of `flat` in the variable's shape."""
    return self._arranged(_shaped(total, self.values.shape[1:]), 0)

  def dense(self) -> tf.Tensor:
    return self._arranged(self.values, 1)

  def averaged(self, views: int) -> GradientForm:
    rows, *sizes = self.values.shape
    values = tf.reshape(self.values, [rows // views, views, *sizes])
    return Dense(tf.reduce_mean(values, 1), self.shape, self.transposed)

  def _arranged(self, values: tf.Tensor, axis: int) -> tf.Tensor:
    """Returns `values` in the variable's shape, after `axis` batch axes (0 or 1)."""
    if self.transposed:
      values = tf.linalg.matrix_transpose(values)
    return _shaped(values, values.shape[:axis] + self.shape)


class Outer(GradientForm):
  """Gradients of a kernel as sums of outer products over positions, not written out.

  `inputs` is (batch, positions, d); `outputs` is (batch, positions, p), the gradients
  with respect to the pre-activations; one position needs no axis. The sums reshape to
  `shape`, (d, p) by default. Ghost clipping, fast gradient clipping and book-keeping
  rest on this form. `product` and `held` decide where it is used.
  """

  def __init__(self, inputs: tf.Tensor, outputs: tf.Tensor,
               shape: Sequence[int] | None = None):
    self.inputs, self.outputs = (
        each[:, None] if each.shape.rank == 2 else each for each in (inputs, outputs))
    self.shape = list(shape or [inputs.shape[-1], outputs.shape[-1]])

  def squared_norms(self) -> tf.Tensor:
    """Returns |inputs|^2 |outputs|^2; by Gram matrices for several positions."""
    if self.inputs.shape[1] > 1:
      return gram.squared_norms(self.inputs, self.outputs)
    # Inputs and outputs are few numbers: float64 is cheap, and squares do not overflow.
    rows = [tf.cast(each[:, 0], tf.float64) for each in (self.inputs, self.outputs)]
    if tf.float64 not in (self.inputs.dtype, self.outputs.dtype):
      return squared_norms(rows[0]) * squared_norms(rows[1])
    # A float64 square may be flushed to zero although the other factor is large: rows
    # are divided by their largest entries. The square of these may be flushed, too.
    largest = [tf.reduce_max(tf.abs(each), 1) for each in rows]
    units = [tf.where(most > 0, most, tf.ones_like(most)) for most in largest]
    shares = [squared_norms(each / unit[:, None]) for each, unit in zip(rows, units)]
    return (tf.square(largest[0] * largest[1]) + _FLUSHED64) * shares[0] * shares[1]

  def weighted_sum(self, factors: tf.Tensor) -> tf.Tensor:
    """Returns the sum of factor * input output^T over all positions, float64."""
    # The factor goes first: a product of two entries could overflow.
    scaled = tf.cast(self.outputs, tf.float64) * factors[:, None, None]
    inputs, scaled = (tf.reshape(each, [-1, each.shape[2]]) for each in (
        tf.cast(self.inputs, tf.float64), scaled))
    return tf.reshape(tf.matmul(inputs, scaled, transpose_a=True), self.shape)

  def dense(self) -> tf.Tensor:
    """Returns the sums of outer products, (batch, *shape)."""
    return tf.reshape(tf.matmul(self.inputs, self.outputs, transpose_a=True),
                      [self.inputs.shape[0], *self.shape])

  def averaged(self, views: int) -> GradientForm:
    """Returns means over views, whose positions become those of one example."""
    inputs, outputs = (tf.reshape(each, [
        each.shape[0] // views, views * each.shape[1], each.shape[2]])
                       for each in (self.inputs, self.outputs / views))
    return product(inputs, outputs, self.shape)


def product(inputs: tf.Tensor, outputs: tf.Tensor, shape: Sequence[int]
           ) -> GradientForm:
  """Returns sums of outer products; arguments are as for `Outer`.

  The form is `Outer` for one position, or if Gram matrices are smaller than kernels and
  the numbers are float32: `gram` has a proof for no others. Else it is `Dense`.
  """
  made = Outer(inputs, outputs, shape)
  positions = made.inputs.shape[1]
  if positions == 1 or made.inputs.dtype == made.outputs.dtype == tf.float32 and (
      positions**2 < math.prod(made.shape)):
    return made
  return Dense(made.dense(), made.shape)


class Rows(GradientForm):
  """Gradients of the rows of an embedding table that each example looked up.

  `ids` are integers, (batch, t). `values`, (batch, t, p), are the gradients of these
  rows; at most one is nonzero for each id of an example (see `merged`). The table has
  the shape (vocabulary, p).
  """

  def __init__(self, ids: tf.Tensor, values: tf.Tensor, vocabulary: int):
    self.ids = ids
    self.values = values
    self.vocabulary = vocabulary
    self.shape = [vocabulary, values.shape[-1]]

  @classmethod
  def merged(cls, ids: tf.Tensor, values: tf.Tensor, vocabulary: int) -> GradientForm:
    """Adds up gradients of repeated ids; the first place has the sum, others zeros.

    An id outside of the table gets gradient zero and id 0: what kernels do with such an
    id differs by device. Returns gradients of the whole table, as `Dense`, if it has no
    more rows than an example has ids: 32 tokens look up a table of 32 relative
    positions 1,024 times.
    """
    if vocabulary <= ids.shape[1]:
      return Dense(cls(ids, values, vocabulary).dense(), [vocabulary, values.shape[-1]])
    same = tf.equal(ids[:, :, None], ids[:, None, :])
    # Entry (i, j) of `earlier` is 1 if place j comes before place i.
    square = tf.ones(same.shape[1:], values.dtype)
    earlier = square - tf.linalg.band_part(square, 0, -1)
    repeated = tf.reduce_any(tf.logical_and(same, earlier > 0), -1)
    inside = tf.logical_and(ids >= 0, ids < vocabulary)
    kept = tf.logical_and(inside, tf.logical_not(repeated))
    totals = tf.matmul(tf.cast(same, values.dtype), values)
    totals = tf.where(kept[:, :, None], totals, tf.zeros_like(totals))
    return cls(tf.where(inside, ids, tf.zeros_like(ids)), totals, vocabulary)

  def reshaped(self, shape: Sequence[int]) -> GradientForm:
    if list(shape) == self.shape:
      return self
    return Dense(tf.reshape(self.dense(), [self.ids.shape[0], *shape]), shape)

  def squared_norms(self) -> tf.Tensor:
    """Returns squared norms of the values: each id has one nonzero gradient."""
    return squared_norms(self.values)

  def weighted_sum(self, factors: tf.Tensor) -> tf.Tensor:
    """Returns the (vocabulary, p) sum of the values times `factors`, float64."""
    scaled = tf.cast(self.values, tf.float64) * factors[:, None, None]
    return tf.math.unsorted_segment_sum(
        tf.reshape(scaled, [-1, scaled.shape[-1]]), tf.reshape(self.ids, [-1]),
        self.vocabulary)

  def averaged(self, views: int) -> GradientForm:
    """Merges the ids of an example's views; divides their values by `views`."""
    rows, looked_up, width = self.values.shape
    ids = tf.reshape(self.ids, [rows // views, views * looked_up])
    return Rows.merged(ids, tf.reshape(self.values / views, [*ids.shape, width]),
                       self.vocabulary)

  def dense(self) -> tf.Tensor:
    """Returns the gradients of the whole table, (batch, vocabulary, p)."""
    hot = tf.one_hot(self.ids, self.vocabulary, dtype=self.values.dtype)
    return tf.matmul(hot, self.values, transpose_a=True)


class Tied(GradientForm):
  """Gradients of a tied embedding, whose table is looked up and also makes the logits.

  The gradients are `rows` plus `outer`. The inputs of `outer` are gradients of logits.
  """

  def __init__(self, rows: Rows, outer: Outer):
    self.rows = rows
    self.outer = outer
    self.shape = rows.shape

  def tensors(self) -> list[tf.Tensor]:
    return [*self.rows.tensors(), *self.outer.tensors()]

  def _of(self, tensors: Sequence[tf.Tensor]) -> Tied:
    made = copy.copy(self)
    made.rows, made.outer = self.rows._of(tensors[:2]), self.outer._of(tensors[2:])
    return made

  def reshaped(self, shape: Sequence[int]) -> GradientForm:
    return self if list(shape) == self.shape else Dense(
        tf.reshape(self.dense(), [-1, *shape]), shape)

  def squared_norms(self) -> tf.Tensor:
    """Returns squared norms by Gram matrices, with inner products of both parts."""
    return gram.squared_norms_of_tied(
        self.rows.ids, self.rows.values, self.outer.inputs, self.outer.outputs)

  def weighted_sum(self, factors: tf.Tensor) -> tf.Tensor:
    return self.rows.weighted_sum(factors) + self.outer.weighted_sum(factors)

  def dense(self) -> tf.Tensor:
    return self.rows.dense() + self.outer.dense()

  def averaged(self, views: int) -> GradientForm:
    return added([self.rows.averaged(views), self.outer.averaged(views)])


def gram_positions(gradients: GradientForm) -> int:
  """Returns at how many positions Gram matrices measure an example; 0 without them."""
  if isinstance(gradients, Tied):
    return gradients.outer.inputs.shape[1] + gradients.rows.ids.shape[1]
  positions = gradients.inputs.shape[1] if isinstance(gradients, Outer) else 0
  return positions if positions > 1 else 0


def held(gradients: GradientForm, lean: bool, most_positions: float) -> GradientForm:
  """Returns gradients in the form in which they are held until the norm is known.

  Gradients that Gram matrices measure are written out (made `Dense`) if that is faster,
  or if they have more than `most_positions`. With `lean`, for lack of memory, none are.
  The effect on the sensitivity is in docs/soundness_numbers.md.
  """
  positions = gram_positions(gradients)
  if lean or not positions:
    return gradients
  gram_is_faster = math.prod(gradients.shape) >= _LARGE if isinstance(
      gradients, Tied) else few_positions(positions, gradients.shape)
  if gram_is_faster and positions <= most_positions:
    return gradients
  return Dense(gradients.dense(), gradients.shape)


def few_positions(positions: int, shape: Sequence[int]) -> bool:
  """Returns whether `Outer` is faster than writing out kernels of a `shape`."""
  return positions == 1 or positions <= _SHORT and math.prod(shape) >= _LARGE


_SHORT, _LARGE = 32, 2**16
"""Most positions, and fewest entries of a kernel, for which Gram matrices are faster.
Their weighted sum takes float64 products, which cost a CPU more time than float32
products. A kernel that is written out is written once and read three times."""

_SMALL = 1024
"""Entries of a dense gradient up to which `joined` copies it: one copy is then cheaper
than operations of its own."""


def joined(gradients: Sequence[GradientForm], groups: Sequence[int]
          ) -> tuple[list[list[int]], list[GradientForm]]:
  """Joins small dense gradients of one clipping group and dtype, to share operations.

  `groups` has the clipping group of each gradient. Returns `places`, the indices of the
  gradients in each joined form, and the joined forms. `apart` splits their sums.
  """
  alike: dict[Any, list[int]] = {}
  for i, (each, group) in enumerate(zip(gradients, groups)):
    small = isinstance(each, Dense) and math.prod(each.shape) <= _SMALL
    alike.setdefault((group, each.tensors()[0].dtype) if small else i, []).append(i)
  forms = []
  for indices in alike.values():
    parts: list[Any] = [gradients[i] for i in indices]
    forms.append(parts[0] if len(parts) == 1 else Dense(
        tf.concat([each.flat() for each in parts], 1),
        [sum(math.prod(each.shape) for each in parts)]))
  return list(alike.values()), forms


def apart(totals: Sequence[tf.Tensor], places: Sequence[Sequence[int]],
          gradients: Sequence[GradientForm]) -> list[tf.Tensor]:
  """Returns sums of `gradients`, given `totals` of the forms that `joined` made."""
  sums: dict[int, tf.Tensor] = {}
  for total, indices in zip(totals, places):
    parts: list[Any] = [gradients[i] for i in indices]
    sums.update(zip(indices, [total] if len(parts) == 1 else [
        each.of_flat(piece) for each, piece in zip(parts, tf.split(
            total, [math.prod(each.shape) for each in parts]))]))
  return [sums[i] for i in range(len(gradients))]


def finite(gradients: Sequence[GradientForm], rows: tf.Tensor
          ) -> list[GradientForm]:
  """Returns the gradients, with zeros for examples whose boolean in `rows` is False."""
  flat = [value for each in gradients for value in each.tensors()]
  # Nearly always all booleans are True, and nothing is copied.
  left = iter(tf.cond(tf.reduce_all(rows), lambda: flat,
                      lambda: [_kept(value, rows) for value in flat]))
  return [each._of([next(left) for _ in each.tensors()])  # pylint: disable=protected-access
          for each in gradients]


def averaged(form: GradientForm, views: int, keep: tf.Tensor) -> GradientForm:
  """Returns means over each `views` rows, which are of one example.

  Where such a mean is not finite, rows whose `keep` is False count as zeros: they have
  weight zero, and 0 * NaN = NaN.
  """
  means = form.averaged(views)
  finite = tf.reduce_all([
      tf.reduce_all(tf.math.is_finite(each), list(range(1, each.shape.rank)))
      for each in means.tensors() if each.dtype.is_floating], 0)

  def mended() -> list[tf.Tensor]:
    """Returns the means, with new ones for examples whose mean is not finite."""
    return [tf.raw_ops.Select(condition=finite, x=mean, y=other) for mean, other in zip(
        means.tensors(), form.where(keep).averaged(views).tensors())]

  # Nearly always all means are finite, and nothing is copied.
  return means._of(tf.cond(tf.reduce_all(finite), means.tensors, mended))  # pylint: disable=protected-access


def of_example(gradient: tf.Tensor | tf.IndexedSlices) -> dict[str, tf.Tensor]:
  """Returns one example's gradient: 'values', and 'ids' (t,) for t rows of a table."""
  if isinstance(gradient, tf.IndexedSlices) and (
      gradient.indices.shape.rank == 1 and gradient.values.shape.rank == 2 and
      gradient.indices.shape.is_fully_defined()):
    rows = gradient.indices.shape[0]
    return {'ids': tf.cast(gradient.indices, tf.int32),
            'values': tf.ensure_shape(gradient.values, [rows, None])}
  return {'values': tf.convert_to_tensor(gradient)}


def of_examples(found: dict[str, tf.Tensor], shape: Sequence[int]) -> GradientForm:
  """Returns the form of a variable's gradients from stacked results of `of_example`."""
  if 'ids' in found:
    return Rows.merged(found['ids'], found['values'], shape[0])
  # Vectorised code on inputs of unknown length loses it.
  found['values'].set_shape([None, *shape])
  return Dense(found['values'], shape)


def added(gradients: Sequence[GradientForm]) -> GradientForm:
  """Returns the sum of the gradients of a variable that is used several times."""
  if len(gradients) == 1:
    return gradients[0]
  total = _in_one(gradients)
  if total is not None:
    return total
  values = tf.add_n([each.dense() for each in gradients])
  return Dense(values, values.shape[1:])


def _in_one(gradients: Sequence[GradientForm]) -> GradientForm | None:
  """Returns the sum of outer products, lookups or both; None if it must be `Dense`."""
  outer = [each for each in gradients if isinstance(each, Outer)]
  rows = [each for each in gradients if isinstance(each, Rows)]
  if len(outer) + len(rows) < len(gradients) or len({
      (each.inputs.shape[2], each.outputs.shape[2]) for each in outer}) > 1:
    return None
  table = kernel = None
  if rows:
    table = rows[0] if len(rows) == 1 else Rows.merged(
        tf.concat([each.ids for each in rows], 1),
        tf.concat([each.values for each in rows], 1), rows[0].vocabulary)
  if outer:  # Further uses are further positions.
    kernel = outer[0] if len(outer) == 1 else product(
        tf.concat([each.inputs for each in outer], 1),
        tf.concat([each.outputs for each in outer], 1), outer[0].shape)
  if table is None or kernel is None:
    return table or kernel
  if not isinstance(table, Rows) or not isinstance(kernel, Outer):
    return None
  tied = Tied(table, kernel)
  # Gram norms of `Tied` take float32, and are worth it if a Gram matrix, of positions^2
  # entries, is smaller than the gradient written out.
  alike = kernel.inputs.shape[2] == table.vocabulary and (
      table.values.dtype == kernel.inputs.dtype == kernel.outputs.dtype == tf.float32)
  return tied if alike and gram_positions(tied)**2 < math.prod(tied.shape) else None
