"""Losses that are proved to depend on their own example only.

A loss and its gradient are traced on a batch. If every operation is known to treat
examples separately (see `independence`), training uses the loss of the batch. If an
operation mixes examples, the loss is refused: on a batch of one example it would be
another loss. If an operation is merely unknown, the loss is computed on batches of one.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import threading
from typing import Any, Callable

import tensorflow as tf

from tfcactus.keras.checks import state_writes
from tfcactus.keras.compat import (
  graphs,
  losses as compat,
  masks,
  patches,
  vectorization,
  versions,
)
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.independence import dependence, draws, graph_proof
from tfcactus.keras.noise import random_bits

LossFn = Callable[..., tf.Tensor]
"""Maps (targets, predictions), and any weights of positions, to losses per example."""

_Given = tuple[tf.Tensor, tf.Tensor, dict[str, tf.Tensor]]
"""Targets, predictions, and a dict of their 'mask' and 'weights', as far as given."""

_ONE_BY_ONE = (
    keras.losses.Hinge, keras.losses.SquaredHinge, keras.losses.hinge,
    keras.losses.squared_hinge)
"""Losses that this library computes on one example at a time. Keras reads labels as 0
and 1, rather than as -1 and 1, if all labels of a batch are 0 or 1."""

_REMEDY = ('Let the loss function compute each example by itself: reduce the '
           'last axis (axis=-1), never the first.')


_cache = threading.local()
"""Per thread, in `caching_proofs`: `reasons`, results of `_unproved`, and `model`."""


@contextlib.contextmanager
def caching_proofs(model: keras.Model) -> Iterator[None]:
  """Caches proofs of losses inside the block, in which a step may be traced twice."""
  # The cache ends with the block, because user code may change a loss before the next
  # trace.
  _cache.reasons, _cache.model = {}, model
  try:
    yield
  finally:
    _cache.reasons = _cache.model = None


def loss_per_example(loss: Any) -> LossFn:
  """Returns (targets, predictions, weights=None) -> losses of shape (batch,).

  `loss` is an argument of `compile`: a name, a `Loss` of any reduction (which is
  ignored), or a function that returns losses per example. An example's loss is the mean
  over the positions that count by the Keras mask of the predictions, and by a class
  that the loss ignores; zero if none counts. `weights`, of the shape of the losses
  before this mean, multiply the losses of positions, but not the count that divides, as
  in Keras. Raises ValueError for a loss of another Keras, or one that Keras does not
  know.
  """
  versions.check_same_keras('loss', loss)
  loss = keras.losses.get(loss)
  given = compat.function_of(loss)

  def compute(targets: tf.Tensor, predictions: tf.Tensor,
              mask: tf.Tensor | None = None, weights: tf.Tensor | None = None
             ) -> tf.Tensor:
    """Returns losses (batch,), means over the positions that no mask excludes."""
    _check_classes(loss, targets, predictions)
    try:
      losses = graphs.as_keras_calls(given)(
          aligned_targets(targets, predictions), masks.put(predictions, mask))
    except (ValueError, tf.errors.InvalidArgumentError) as error:
      if 'Expected' in str(error):
        raise
      raise ValueError(
          f'Expected targets and outputs that the loss {_name(loss)} takes, got '
          f'targets of shape {_batch_of(targets.shape)} and outputs of shape '
          f'{_batch_of(predictions.shape)}: {error}. Give targets of the shape of '
          'the outputs, or another loss.') from error
    own_mask = masks.mask_of(losses)
    if weights is not None:
      losses = _weighted(losses, weights)
    return mean_per_example(losses, mask, own_mask)

  return _per_example(compute, loss)


def _check_classes(loss: Any, targets: tf.Tensor, predictions: tf.Tensor) -> None:
  """Raises ValueError for labels with a loss of one-hot targets, and the reverse.

  Does nothing if a rank is unknown.
  """
  name, rank = _name(loss), predictions.shape.rank
  if rank is None or targets.shape.rank is None:
    return
  classes = predictions.shape[-1]
  alike = targets.shape.rank == rank and targets.shape[-1] == classes
  shape = _batch_of(targets.shape)
  if not alike and compat.is_loss(loss, _ONE_HOT):
    raise ValueError(
        f'Expected targets of shape {_batch_of(predictions.shape)} with {name}, one '
        f'number for each class as in the outputs, got shape {shape}. For integer '
        'labels use SparseCategoricalCrossentropy; or make them one-hot, '
        f'tf.keras.utils.to_categorical(y, {classes}).')
  if alike and classes != 1 and compat.is_loss(
      loss, ['SparseCategoricalCrossentropy']):
    raise ValueError(
        f'Expected targets of shape {_batch_of(predictions.shape[:-1])} with {name}, '
        f'the number of a class for each output, got shape {shape}. For one-hot '
        'targets use CategoricalCrossentropy; or make them numbers, y.argmax(-1).')


_ONE_HOT = ('CategoricalCrossentropy', 'CategoricalFocalCrossentropy')
"""Losses whose targets have one entry per class."""


def _name(loss: Any) -> str:
  """Returns the name of a loss for messages."""
  return str(getattr(loss, 'name', None) or getattr(loss, '__name__', loss))


def _batch_of(shape: tf.TensorShape) -> str:
  """Returns the shape of a batch of any size, in words, such as (batch, 3)."""
  sizes = ['batch', *map(str, shape[1:])]
  return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def aligned_targets(targets: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
  """Returns targets in the shape and dtype that Keras would pass on to the loss."""
  # With targets of rank one, losses would be averaged over the batch.
  if targets.shape.rank == 1 and predictions.shape.rank == 2:
    targets = targets[:, None]
  if targets.dtype.is_floating and predictions.dtype.is_floating:
    targets = tf.cast(targets, predictions.dtype)
  return targets


def mean_per_example(losses: tf.Tensor, *position_masks: tf.Tensor | None) -> tf.Tensor:
  """Returns means (batch,) of losses (batch, ...) over the positions that count.

  A position counts if all masks keep it; None keeps all. The mean is zero where masks
  keep no position. Raises ValueError for losses without a batch axis, or of unknown
  rank.
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
  rank = losses.shape.rank
  axes = list(range(1, rank))
  given = [tf.cast(mask, tf.bool) for mask in position_masks if mask is not None]
  if not given:
    return tf.reduce_mean(losses, axes)
  counts = tf.ones_like(losses)
  for mask in given:
    # A mask may have more axes, as for a loss that reduced them: such a loss counts
    # unless all its positions are masked.
    mask = tf.reduce_any(mask, list(range(rank, mask.shape.rank)))
    while mask.shape.rank < rank:
      mask = mask[..., None]
    counts *= tf.cast(mask, losses.dtype)
  used = tf.where(counts > 0, losses, tf.zeros_like(losses))
  return tf.math.divide_no_nan(tf.reduce_sum(used, axes), tf.reduce_sum(counts, axes))


def _weighted(losses: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
  """Returns losses (batch, positions...) times the weights of the positions."""
  # Weights may lack last axes, or have size 1 in axes of positions.
  shape, rank = losses.shape, losses.shape.rank
  if not rank or weights.shape.rank > rank or any(
      None not in pair and pair[0] != pair[1] and pair[1] != 1
      for pair in zip(shape[1:], weights.shape[1:])):
    raise ValueError(
        'Expected sample weights of shape (batch,), one for each example, or of the '
        f'shape of the losses before their mean, here {shape}, got shape '
        f'{weights.shape}; a loss of Keras takes the mean over the last axis itself.')
  while weights.shape.rank < rank:
    weights = weights[..., None]
  weights = tf.cast(weights, losses.dtype)
  # A loss of weight zero may be NaN or infinite: 0 * NaN = NaN would keep its example
  # out of the logged loss. Its gradient may be NaN all the same; clipping then leaves
  # the example out of the sum.
  return tf.where(tf.not_equal(weights, 0), losses * weights, tf.zeros_like(losses))


def _per_example(call: LossFn, loss: Any) -> LossFn:
  """Makes `call` a loss per example; its trace raises ValueError if examples mix."""
  # The first two of `_ONE_BY_ONE` are classes, the others functions.
  known_to_mix = isinstance(loss, _ONE_BY_ONE[:2]) or loss in _ONE_BY_ONE

  def compute(targets: tf.Tensor, predictions: tf.Tensor,
              weights: tf.Tensor | None = None) -> tf.Tensor:
    """Returns losses (batch,), computed on one example at a time if not proved."""
    beside = {'mask': masks.mask_of(predictions), 'weights': weights}
    beside = {name: value for name, value in beside.items() if value is not None}
    given = targets, predictions, beside
    if _reason(call, given, known_to_mix):
      return _one_by_one(call, given)
    return call(targets, predictions, **beside)

  return compute


def _reason(call: LossFn, given: _Given, known_to_mix: bool) -> str:
  """Returns `_unproved(...)`, '' if proved; caches it inside of `caching_proofs`."""
  reasons = getattr(_cache, 'reasons', None)
  if reasons is None:
    return _unproved(call, given, known_to_mix)
  key = call, tuple(given[2]), tuple(
      (tuple(each.shape), each.dtype) for each in tf.nest.flatten(given))
  if key not in reasons:
    reasons[key] = _unproved(call, given, known_to_mix)
  return reasons[key]


@tf.autograph.experimental.do_not_convert
def _unproved(call: LossFn, given: _Given, known_to_mix: bool) -> str:
  """Returns why a loss is not proved to depend on its own example only, or ''."""
  # Losses in `_ONE_BY_ONE` (`known_to_mix`) are not refused, only unproved. Raises
  # ValueError if another loss mixes examples, or if any loss keeps, reads or draws
  # unknown data. A batch of one example could not show a dependence on others.
  rows = max(2, given[1].shape[0])
  specs = tf.nest.map_structure(
      lambda tensor: tf.TensorSpec([rows, *tensor.shape[1:]], tensor.dtype), given)
  count = len(tf.nest.flatten(specs))

  @graphs.traced_for_analysis
  def forward_and_back(upstream, targets, predictions, beside):
    """Returns the losses and, if there is one, their gradient."""
    with tf.GradientTape() as tape:
      tape.watch(predictions)
      losses = call(targets, predictions, **beside)
    if losses.shape.as_list() != [rows]:
      return [losses]
    gradient = tape.gradient(losses, predictions, tf.cast(upstream, losses.dtype))
    return [losses] if gradient is None else [losses, gradient]

  with patches.drawing(None, draws.secret_seed):
    graph = forward_and_back.get_concrete_function(tf.TensorSpec([rows]), *specs).graph
  state_writes.check_graph(graph, 'losses', getattr(_cache, 'model', None))
  if known_to_mix:
    return 'reads the labels of an example by the other labels of the batch'
  violation = graph_proof.first_dependence(
      graph, graph.inputs[:1 + count], graph.outputs, rows)
  if violation is None and graph.outputs[0].shape.as_list() != [rows]:
    raise ValueError(
        f'Expected a loss of shape ({rows},) for {rows} examples, got '
        f'{graph.outputs[0].shape}. {_REMEDY}')
  if violation is None:
    return ''
  if violation.dependence == dependence.Dependence.MIXED:
    raise ValueError(
        f'Expected a loss in which each example is by itself, got {violation.why}: '
        'one example more would move the gradients of all others, and none of '
        f'them could be clipped for that. {_REMEDY}')
  return violation.why


def _one_by_one(call: LossFn, given: _Given) -> tf.Tensor:
  """Returns each example's loss on a batch of this example alone, shape (batch,)."""
  # One pass computes the losses and their gradients with respect to the predictions.
  # Raises ValueError for a loss that cannot be vectorised over examples.
  targets, predictions, beside = given
  if predictions.shape[0] == 1:
    return call(targets, predictions, **beside)

  def one(values: Any) -> list[tf.Tensor]:
    """Returns [loss, gradient] of one example, given its row of `given`, and a seed."""
    target, prediction, own = tf.nest.map_structure(lambda row: row[None], values[0])
    with tf.GradientTape(watch_accessed_variables=False) as tape, (
        patches.drawing(None, random_bits.counting(values[1]))):
      tape.watch(prediction)
      loss = call(target, prediction, **own)
    gradient = tape.gradient(loss, prediction, unconnected_gradients=(
        tf.UnconnectedGradients.ZERO))
    return [loss[0], gradient[0]]

  seeds = random_bits.row_seeds(predictions.shape[0])
  if vectorization.is_standing_in():
    # A trace that is only analysed gets other numbers, which depend on the same rows.
    return vectorization.over_rows(one, (given, seeds))[0]

  @tf.custom_gradient
  def losses_of(predictions: tf.Tensor) -> Any:
    """Returns the losses, and the function that returns their gradient."""
    try:
      losses, gradients = vectorization.over_rows(
          one, ((targets, predictions, beside), seeds))
    except (AttributeError, TypeError, NotImplementedError) as error:
      raise ValueError(
          'Expected a loss that is seen to be of each example alone, or that can be '
          f'vectorised over examples, got neither ({error}): write it without loops '
          'such as tf.map_fn, which go through a batch one by one.') from error

    def gradient(upstream: tf.Tensor, variables: Any | None = None) -> Any:
      """Returns the gradient for `upstream`, (batch,), and none for `variables`."""
      column = tf.reshape(tf.cast(upstream, gradients.dtype),
                          [-1] + [1] * (gradients.shape.rank - 1))
      product = column * gradients
      return product if variables is None else (product, [None] * len(variables))

    return losses, gradient

  return losses_of(predictions)
