"""Losses of which each is shown to be of its own example alone.

A loss is traced on a batch, with its gradient. If every operation in it is
known to treat examples alone (see `independence`), that batch is what trains: a proof,
at no cost. If one goes over the examples the loss is refused: computed on one
example it would be another. If one is merely unknown, the loss is computed on
batches of one, where there are no others.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any
from typing import Callable
from typing import Iterator
from typing import List
from typing import Optional
from typing import Sequence

import tensorflow as tf

from tfcactus.keras import example_seeds
from tfcactus.keras import vectorization
from tfcactus.keras.checks import state_writes
from tfcactus.keras.compat import graphs
from tfcactus.keras.compat import masks
from tfcactus.keras.compat import patches
from tfcactus.keras.compat import versions
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.independence import dependence
from tfcactus.keras.independence import draws
from tfcactus.keras.independence import graph_proof

LossFn = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
_MaskedLossFn = Callable[..., tf.Tensor]
"""Which may be given a mask of the predictions too."""

_ONE_BY_ONE = (
    keras.losses.Hinge, keras.losses.SquaredHinge, keras.losses.hinge,
    keras.losses.squared_hinge)
"""Keras takes their labels for 0 and 1 if all of a batch are; here, if all of an
example are."""

_REMEDY = ('Let the loss function compute each example by itself: reduce the '
           'last axis (axis=-1), never the first.')


_found = threading.local()


@contextlib.contextmanager
def looked_at_once(model: keras.Model) -> Iterator[None]:
  """Has a loss proved but once while a step is traced, whose pass is traced twice.

  Not for longer: a loss may be another function when it is traced again.

  Args:
    model: The model that is trained, whose weights a loss may read.
  """
  _found.reasons, _found.model = {}, model
  try:
    yield
  finally:
    _found.reasons = _found.model = None


def loss_per_example(loss: Any) -> LossFn:
  """Returns (targets, predictions) -> losses of shape (batch,).

  Where predictions carry a mask of Keras, such as that of
  `Embedding(mask_zero=True)`, or the loss leaves out a class, an example's loss is
  the mean over its positions that count: what Keras computes for a batch of that
  example alone. It is zero where none does.

  Args:
    loss: What `compile` takes: a name, a `Loss` of any reduction (which is
      ignored), or a function returning a loss per example.

  Raises:
    ValueError: if it is of another Keras, or none.
  """
  versions.check_same_keras('loss', loss)
  loss = keras.losses.get(loss)
  given = loss.call if isinstance(loss, keras.losses.Loss) else loss

  def compute(targets: tf.Tensor, predictions: tf.Tensor,
              mask: Optional[tf.Tensor] = None) -> tf.Tensor:
    losses = graphs.as_keras_calls(given)(
        aligned_targets(targets, predictions), masks.put(predictions, mask))
    found = [m for m in (mask, masks.mask_of(losses)) if m is not None]
    return _mean_where(losses, found) if found else mean_per_example(losses)

  return _per_example(compute, loss)


def aligned_targets(targets: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
  """Targets in the shape and dtype in which `compile` hands them to a loss."""
  # Losses of rank one targets would be averaged over the batch.
  if targets.shape.rank == 1 and predictions.shape.rank == 2:
    targets = targets[:, None]
  if targets.dtype.is_floating and predictions.dtype.is_floating:
    targets = tf.cast(targets, predictions.dtype)
  return targets


def mean_per_example(losses: tf.Tensor) -> tf.Tensor:
  """Losses of shape (batch,): means over all axes but the first.

  Args:
    losses: Shape (batch, ...).

  Raises:
    ValueError: if they were reduced over the batch.
  """
  losses = tf.convert_to_tensor(losses)
  if losses.shape.rank == 0:
    raise ValueError(
        'Expected a loss per example, got one number for the whole batch, '
        'whose gradient cannot be clipped per example; build a loss of Keras '
        "with reduction='none', and let a function of yours return shape "
        '(batch,), without reduce_mean.')
  if losses.shape.rank is None:
    raise ValueError('Expected a loss of known rank, got a loss of any rank.')
  return tf.reduce_mean(losses, axis=list(range(1, losses.shape.rank)))


def _mean_where(losses: tf.Tensor, found: Sequence[tf.Tensor]) -> tf.Tensor:
  """Means over the positions of each example that all masks let count."""
  mean_per_example(losses)  # Checks it.
  rank = losses.shape.rank
  counts = tf.ones_like(losses)
  for mask in found:
    mask = tf.cast(mask, tf.bool)
    # Losses of whole examples count unless all of an example is masked.
    mask = tf.reduce_any(mask, list(range(rank, mask.shape.rank)))
    while mask.shape.rank < rank:
      mask = mask[..., None]
    counts *= tf.cast(mask, losses.dtype)
  used = tf.where(counts > 0, losses, tf.zeros_like(losses))
  axes = list(range(1, rank))
  return tf.math.divide_no_nan(
      tf.reduce_sum(used, axes), tf.reduce_sum(counts, axes))


def _per_example(call: _MaskedLossFn, loss: Any) -> LossFn:
  """Makes a loss be of each example alone, or raises when it is traced.

  Args:
    call: (targets, predictions, and a mask of them if there is one) -> losses of
      shape (batch,).
    loss: The loss of Keras that it calls.

  Returns:
    The same, which raises ValueError if an example's loss is of others too.
  """
  apart = isinstance(loss, tuple(
      kind for kind in _ONE_BY_ONE if isinstance(kind, type))) or (
          loss in _ONE_BY_ONE)

  def compute(targets: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
    mask = masks.mask_of(predictions)
    given = [targets, predictions] + ([] if mask is None else [mask])
    if _reason(call, given, apart):
      return _one_by_one(call, given)
    return call(*given)

  return compute


def _reason(call: _MaskedLossFn, given: Sequence[tf.Tensor], apart: bool) -> str:
  """Returns what `_unproved` says, which is asked once for each kind of `given`."""
  reasons = getattr(_found, 'reasons', None)
  if reasons is None:
    return _unproved(call, given, apart)
  kind = call, tuple((tuple(each.shape), each.dtype) for each in given)
  if kind not in reasons:
    reasons[kind] = _unproved(call, given, apart)
  return reasons[kind]


@tf.autograph.experimental.do_not_convert
def _unproved(call: _MaskedLossFn, given: Sequence[tf.Tensor], apart: bool) -> str:
  """Returns why a loss is not proved to be of each example alone, or ''.

  Args:
    call: The loss.
    given: Targets, predictions, and a mask of these if there is one.
    apart: Whether it is known not to be, and is computed one by one.

  Raises:
    ValueError: if it is of several, or keeps, reads or draws what is not known.
  """
  # At least two, so that there is another example to depend on.
  rows = max(2, given[1].shape[0])
  specs = [tf.TensorSpec([rows, *tensor.shape[1:]], tensor.dtype)
           for tensor in given]

  @graphs.looked_at
  def forward_and_back(upstream, targets, predictions, *mask):
    with tf.GradientTape() as tape:
      tape.watch(predictions)
      losses = call(targets, predictions, *mask)
    if losses.shape.as_list() != [rows]:
      return [losses]
    gradient = tape.gradient(losses, predictions,
                             tf.cast(upstream, losses.dtype))
    return [losses] if gradient is None else [losses, gradient]

  with patches.drawing(None, draws.secret_seed):
    graph = forward_and_back.get_concrete_function(
        tf.TensorSpec([rows]), *specs).graph
  state_writes.check_graph(graph, 'losses', getattr(_found, 'model', None))
  if apart:
    return 'takes labels of several examples for alike'
  found = graph_proof.first_dependence(
      graph, graph.inputs[:1 + len(specs)], graph.outputs, rows)
  if found is None and graph.outputs[0].shape.as_list() != [rows]:
    raise ValueError(
        f'Expected a loss of shape ({rows},) for {rows} examples, got '
        f'{graph.outputs[0].shape}. {_REMEDY}')
  if found is None:
    return ''
  if found.dependence == dependence.Dependence.MIXED:
    raise ValueError(
        f'Expected a loss in which each example is by itself, got {found.why}: '
        'one example more would move the gradients of all others, and none of '
        f'them could be clipped for that. {_REMEDY}')
  return found.why


def _one_by_one(call: _MaskedLossFn, given: Sequence[tf.Tensor]) -> tf.Tensor:
  """The losses of batches of one, and their gradients."""
  targets, predictions, *mask = given
  if predictions.shape[0] == 1:
    return call(*given)

  def one(values: Any) -> List[tf.Tensor]:
    rows, seed = values
    target, prediction, *mask = (row[None] for row in rows)
    with tf.GradientTape(watch_accessed_variables=False) as tape, (
        patches.drawing(None, example_seeds.counting(seed))):
      tape.watch(prediction)
      loss = call(target, prediction, *mask)
    gradient = tape.gradient(loss, prediction, unconnected_gradients=(
        tf.UnconnectedGradients.ZERO))
    return [loss[0], gradient[0]]

  seeds = example_seeds.row_seeds(predictions.shape[0])
  if vectorization.is_standing_in():
    return vectorization.over_rows(one, (given, seeds))[0]

  @tf.custom_gradient
  def losses_of(predictions: tf.Tensor) -> Any:
    try:
      losses, gradients = vectorization.over_rows(
          one, ([targets, predictions, *mask], seeds))
    except (AttributeError, TypeError, NotImplementedError) as error:
      raise ValueError(
          'Expected a loss that is seen to be of each example alone, or that '
          f'can be vectorised over examples, got neither ({error}): write it '
          'without loops such as tf.map_fn, which go through a batch one by '
          'one.') from error

    def gradient(upstream: tf.Tensor, variables: Optional[Any] = None) -> Any:
      column = tf.reshape(tf.cast(upstream, gradients.dtype),
                          [-1] + [1] * (gradients.shape.rank - 1))
      found = column * gradients
      return found if variables is None else (found, [None] * len(variables))

    return losses, gradient

  return losses_of(predictions)
