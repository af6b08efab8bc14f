"""Clipped sums of per-example gradients from a tape, and what is kept of them.

Keras 2 hands its optimizers the tape, so that each example's gradient can be
asked of it, clipped and summed. Keras 3 does not: see `graph_gradients`.
"""

from __future__ import annotations

from typing import Any
from typing import Callable
from typing import List
from typing import Optional
from typing import Sequence
from typing import Tuple

import tensorflow as tf

from tfcactus.keras.compat import optimizers
from tfcactus.keras.compat import patches
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.drop_in.microbatches import Batching
from tfcactus.keras.gradients import clipping

UNSCALED = (
    'Keras puts a LossScaleOptimizer around the optimizer of a model that was '
    'made under the policy "mixed_float16". Make it under "float32" or '
    '"mixed_bfloat16", or use tfcactus.keras.privatize, which unscales '
    'gradients before it clips them.')
"""What to do without loss scaling."""

ROWS = 16
"""Backward passes at once: enough to keep the cores busy, while memory stays
at this many batches of activations instead of batch-size many."""


def check_precision(optimizer: keras.optimizers.Optimizer) -> None:
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
  if optimizers.is_wrapped(optimizer):
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


def clipped_sums(losses: tf.Tensor, var_list: Sequence[tf.Variable],
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

  def row(index: tf.Tensor) -> List[tf.Tensor]:
    # Rows past the batch are zeros, and so are their gradients.
    picked = tape.gradient(
        losses, var_list, tf.one_hot(index, batch, dtype=losses.dtype),
        unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return [tf.convert_to_tensor(each) for each in picked]

  return sums_of_rows(row, batch, var_list, l2_norm_clip)


def sums_of_rows(row: Callable[[tf.Tensor], List[tf.Tensor]], batch: tf.Tensor,
                 var_list: Sequence[tf.Variable], l2_norm_clip: tf.Tensor
                ) -> Tuple[List[tf.Tensor], tf.Tensor]:
  """As `clipped_sums`, of gradients that are held a few examples at a time.

  Args:
    row: The gradients of the example of an index, zeros past the batch.
    batch: How many examples there are.
    var_list: Variables.
    l2_norm_clip: The bound on the norm over all variables together.
  """
  def tile(indices: tf.Tensor) -> Tuple[List[tf.Tensor], tf.Tensor]:
    with patches.vectorizing():
      rows = tf.vectorized_map(row, indices, warn=False)
    rows = [tf.ensure_shape(each, [indices.shape[0], *var.shape])
            for each, var in zip(rows, var_list)]
    finite = [tf.reduce_all(tf.math.is_finite(each)) for each in rows]
    return (clipping.clipped_sums(rows, l2_norm_clip),
            tf.reduce_all(tf.stack(finite)))

  if tf.executing_eagerly():
    # A second tile would ask the tape again.
    return tile(tf.range(tf.maximum(batch, 1)))

  def body(start: tf.Tensor, sums: List[tf.Tensor], finite: tf.Tensor) -> Any:
    more, fine = tile(start + tf.range(ROWS))
    return (start + ROWS, [a + b for a, b in zip(sums, more)],
            tf.logical_and(finite, fine))

  zeros = [tf.zeros(var.shape, var.dtype) for var in var_list]
  _, sums, finite = tf.while_loop(
      lambda start, *_: start < batch, body,
      (0, zeros, tf.constant(True)), parallel_iterations=1)
  return sums, finite


class State:
  """Counts and sums that no checkpoint may hold, so no trackable does.

  Attributes:
    batching: Its `Batching`.
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

  def __init__(self, batching: Batching) -> None:
    self.batching = batching
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

  def note_finite(self, finite: tf.Tensor) -> None:
    """Remembers it if any gradient was not finite."""
    self.sound.assign(tf.logical_and(self.sound, finite))

  def add(self, sums: Sequence[tf.Tensor], var_list: Sequence[tf.Variable]
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
