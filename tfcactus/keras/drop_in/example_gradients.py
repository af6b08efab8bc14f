"""How a drop-in optimizer gets hold of gradients per example, and what it keeps.

Keras 2 hands its optimizers the tape, so that each example's gradient can be
asked of it, clipped and summed. Keras 3 hands them the loss, and later the
gradients and variables: so there the losses are remembered, and the graph that
both are traced in is asked.
"""

from __future__ import annotations

from typing import Any
from typing import Callable
from typing import List
from typing import Optional
from typing import Sequence
from typing import Tuple

import tensorflow as tf
from tensorflow.python.ops import gradients_util

from tfcactus.keras.checks import state_writes
from tfcactus.keras.compat import versions
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import clipping
from tfcactus.keras.gradients import vectorization

UNSCALED = (
    'Keras puts a LossScaleOptimizer around the optimizer of a model that was '
    'made under the policy "mixed_float16". Make it under "float32" or '
    '"mixed_bfloat16", or use tfcactus.keras.privatize, which unscales '
    'gradients before it clips them.')
"""What to do without loss scaling."""

_ROWS = 16
"""Backward passes at once: enough to keep the cores busy, while memory stays
at this many batches of activations instead of batch-size many."""


def check_replicas() -> None:
  """Refuses several replicas.

  Raises:
    ValueError: if there are.
  """
  replicas = tf.distribute.get_strategy().num_replicas_in_sync
  if replicas > 1:
    raise ValueError(
        f'Expected one replica, got a distribution strategy with {replicas}: '
        'each would add its own noise. Train outside the strategy.')


def check_precision(optimizer: Any) -> None:
  """Refuses scaled losses, whose gradients would be clipped while scaled.

  Args:
    optimizer: The drop-in optimizer.

  Raises:
    ValueError: if Keras or the optimizer scales losses, as far as can be known.
  """
  policy = keras.mixed_precision.global_policy().name
  factor = getattr(optimizer, 'loss_scale_factor', None)
  if policy == 'mixed_float16':
    refuse_scaling(f'the policy {policy!r}')
  if versions.is_wrapped(optimizer):
    refuse_scaling('it inside a LossScaleOptimizer')
  if factor is not None:
    refuse_scaling(f'loss_scale_factor={factor!r}')


def refuse_scaling(got: str) -> None:
  """Refuses what scales losses.

  Args:
    got: What does.

  Raises:
    ValueError: always.
  """
  raise ValueError(
      f'Expected a drop-in optimizer whose loss nothing scales, got {got}: '
      'scaled gradients would be clipped as if they were larger, and then '
      'unscaled. ' + UNSCALED)


def loss_per_example(loss: tf.Tensor) -> tf.Tensor:
  """Losses of shape (batch,); refuses a loss reduced over the batch.

  Raises:
    ValueError: if it is.
  """
  loss = tf.convert_to_tensor(loss)
  if loss.shape.rank == 0:
    raise ValueError(
        'Expected a loss per example, got one number for the whole batch, '
        'whose gradient cannot be clipped per example; build the loss with '
        "reduction='none'.")
  if loss.shape.rank is None:
    raise ValueError('Expected a loss of known rank, got a loss of any rank.')
  return tf.reduce_mean(loss, axis=list(range(1, loss.shape.rank)))


def clipped_sums(losses: tf.Tensor, var_list: Sequence[Any],
                 tape: tf.GradientTape, l2_norm_clip: tf.Tensor
                ) -> Tuple[List[tf.Tensor], tf.Tensor]:
  """Sums of clipped gradients of each loss, and whether all were finite.

  Not by tape.jacobian(parallel_iterations=...): a tape that is not persistent,
  as Keras' are, gives it zeros for all but the first tile, silently.

  Args:
    losses: Shape (batch,).
    var_list: Variables.
    tape: Recorded the losses.
    l2_norm_clip: The bound on the norm over all variables together.
  """
  batch = tf.shape(losses)[0]

  def row(index):
    # Rows past the batch are zeros, and so are their gradients.
    picked = tape.gradient(
        losses, var_list, tf.one_hot(index, batch, dtype=losses.dtype),
        unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return [tf.convert_to_tensor(part) for part in picked]

  return _sums_of_rows(row, batch, var_list, l2_norm_clip)


def _sums_of_rows(row: Callable[[tf.Tensor], List[tf.Tensor]], batch: tf.Tensor,
                  var_list: Sequence[Any], l2_norm_clip: tf.Tensor
                 ) -> Tuple[List[tf.Tensor], tf.Tensor]:
  """As `clipped_sums`, of gradients that are held a few examples at a time.

  Args:
    row: The gradients of the example of an index, zeros past the batch.
    batch: How many examples there are.
    var_list: Variables.
    l2_norm_clip: The bound on the norm over all variables together.
  """
  def tile(indices):
    with vectorization.quiet_vectorization():
      rows = tf.vectorized_map(row, indices, warn=False)
    rows = [tf.ensure_shape(part, [None, *var.shape])
            for part, var in zip(rows, var_list)]
    finite = [tf.reduce_all(tf.math.is_finite(part)) for part in rows]
    return (clipping.clipped_sums(rows, l2_norm_clip),
            tf.reduce_all(tf.stack(finite)))

  if tf.executing_eagerly():
    # A second tile would ask the tape again.
    return tile(tf.range(tf.maximum(batch, 1)))

  def body(start, sums, finite):
    more, fine = tile(start + tf.range(_ROWS))
    return (start + _ROWS, [a + b for a, b in zip(sums, more)],
            tf.logical_and(finite, fine))

  zeros = [tf.zeros(var.shape, var.dtype) for var in var_list]
  _, sums, finite = tf.while_loop(
      lambda start, *_: start < batch, body,
      (0, zeros, tf.constant(True)), parallel_iterations=1)
  return sums, finite


def _computes_in_half(graph: Any) -> bool:
  """Whether any operation traced so far is of float16 or bfloat16."""
  half = {tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum}
  return any(
      value.type in half or half.intersection(value.list.type)
      for node in state_writes.nodes(graph.as_graph_def())
      for value in node.attr.values())


def traced_sums(losses: tf.Tensor, var_list: Sequence[tf.Variable],
                l2_norm_clip: tf.Tensor) -> Tuple[List[tf.Tensor], tf.Tensor]:
  """As `clipped_sums`, from the graph in which the losses were traced.

  Norms first, a few examples at a time; then one backward pass in which each
  loss weighs its clipping factor. Where anything is computed in float16 or
  bfloat16 that pass would round the sum over the batch, by more than the clip
  norm if the batch is large: there each example's gradient is clipped and added
  in the dtype of its variable.

  Args:
    losses: Shape (batch,).
    var_list: Variables.
    l2_norm_clip: The bound on the norm over all variables together.
  """
  batch = tf.shape(losses)[0]
  graph = tf.compat.v1.get_default_graph()
  handles = [graph.capture(var.handle) for var in var_list]

  def gradients(weights):
    # Unlike tf.gradients, also from inside a loop, which is another graph.
    found = gradients_util._GradientsHelper(  # pylint: disable=protected-access
        [losses], handles, [weights], src_graph=graph,
        unconnected_gradients=tf.UnconnectedGradients.NONE)
    return [tf.zeros(var.shape, var.dtype) if part is None else
            tf.ensure_shape(tf.convert_to_tensor(part), var.shape)
            for part, var in zip(found, var_list)]

  def row(index):
    # Rows past the batch are zeros, and so are their gradients.
    return gradients(tf.one_hot(index, batch, dtype=losses.dtype))

  if _computes_in_half(graph):
    return _sums_of_rows(row, batch, var_list, l2_norm_clip)

  def squared_norm(index):
    return tf.add_n([tf.reduce_sum(tf.square(tf.cast(part, tf.float64)))
                     for part in row(index)])

  def body(start, norms):
    with vectorization.quiet_vectorization():
      more = tf.vectorized_map(squared_norm, start + tf.range(_ROWS),
                               warn=False)
    return start + _ROWS, norms.write(start // _ROWS, more)

  tiles = (batch + _ROWS - 1) // _ROWS
  _, norms = tf.while_loop(
      lambda start, _: start < batch, body,
      (0, tf.TensorArray(tf.float64, tiles, element_shape=[_ROWS])),
      parallel_iterations=1)
  squared = tf.reshape(norms.stack(), [-1])[:batch]
  factors, usable = clipping.clip_factors(squared, l2_norm_clip)
  sums = gradients(tf.cast(factors, losses.dtype))
  clipping.check_dtypes(sums)
  sound = tf.reduce_all(usable)
  # A factor of zero does not take an example out: 0 * NaN = NaN.
  clean = tf.reduce_all(tf.stack([
      tf.reduce_all(tf.math.is_finite(part)) for part in sums]))
  return ([tf.where(clean, part, tf.zeros_like(part)) for part in sums],
          tf.logical_and(sound, clean))


class State:
  """Counts and sums that no checkpoint may hold, so no trackable does.

  Attributes:
    released: Noisy updates made; checkpoints restore `iterations`, also to
      fewer.
    sound: Whether all gradients were finite.
    parts_seen: Batches seen, when several make a logical one.
    ready: Whether the next gradients applied are clipped.
    losses: Of which `fit` is taking the gradient, or None.
    saved: State from a config, for when the slots are there.
    loaded_steps: How many of the released steps a config told of.
    seeded: Whether noise of steps that a config tells of came from a seed.
  """

  def __init__(self):
    with tf.init_scope():
      self.parts_seen = tf.Variable(0, trainable=False, dtype=tf.int64)
      self.sound = tf.Variable(True, trainable=False)
      self.released = tf.Variable(0, trainable=False, dtype=tf.int64)
    self.ready = False
    self.seeded = False
    self.loaded_steps = 0
    self.saved: Optional[str] = None
    self.losses: Optional[tf.Tensor] = None
    self._pending: List[tf.Variable] = []

  def own_up(self, finite: tf.Tensor) -> None:
    """Remembers it if any gradient was not finite."""
    self.sound.assign(tf.logical_and(self.sound, finite))

  def add(self, sums: Sequence[tf.Tensor], var_list: Sequence[Any]
          ) -> List[tf.Tensor]:
    """Adds sums without noise to those before; returns the totals."""
    with tf.init_scope():
      if not self._pending:
        self._pending = [
            tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False)
            for v in var_list]
    with tf.control_dependencies([self.parts_seen.assign_add(1)]):
      return [tf.convert_to_tensor(pending.assign_add(part))
              for pending, part in zip(self._pending, sums)]

  def clear(self) -> None:
    """Begins a logical batch anew."""
    for pending in self._pending:
      pending.assign(tf.zeros_like(pending))
