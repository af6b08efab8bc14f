"""A loop over time steps that TensorFlow differentiates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import tensorflow as tf

Step = Callable[[tf.Tensor, list[tf.Tensor]],
                tuple[list[tf.Tensor], list[tf.Tensor]]]
"""(input of a step, states) -> (states, tensors that gradients need later)."""


class Scanned(NamedTuple):
  """Results of a loop over time.

  `states` are the states after the last step. All else is (rows, time, ...): `before`
  and `after` are states[0] before and after each step; `kept` are the tensors that the
  steps returned for gradients.
  """

  states: list[tf.Tensor]
  before: tf.Tensor
  after: tf.Tensor
  kept: list[tf.Tensor]


def scan(step: Step, inputs: tf.Tensor, states: Sequence[tf.Tensor],
         mask: tf.Tensor | None, keeps: int, whole: bool) -> Scanned:
  """Loops over time; a masked step leaves an example's states unchanged.

  `inputs` is (rows, time, ...), `states` (rows, ...), `mask` boolean (rows, time). A
  step returns `keeps` tensors for gradients, of the shape of states[0]. If `whole`,
  gradients flow through `after`; otherwise through `states` only.
  """
  first = states[0]
  steps = inputs.shape[1] if inputs.shape[1] is not None else tf.shape(inputs)[1]
  rows = [_reader(each, steps) for each in (inputs, mask) if each is not None]
  arrays = [tf.TensorArray(first.dtype, steps, element_shape=first.shape)
            for _ in range(1 + keeps)]

  def body(time: tf.Tensor, states: list[tf.Tensor], arrays: list[Any]) -> Any:
    now, *masked = (row.read(time) for row in rows)
    found, kept = step(now, list(states))
    for goes_on in masked:
      found = [tf.where(_column(goes_on, new), new, old)
               for new, old in zip(found, states)]
    after = found[0] if whole else tf.stop_gradient(found[0])
    written = [after, *map(tf.stop_gradient, kept)]
    return time + 1, found, [
        array.write(time, value) for array, value in zip(arrays, written)]

  _, last, arrays = tf.while_loop(
      lambda time, *_: time < steps, body, (0, list(states), arrays),
      maximum_iterations=steps)
  after, *kept = (_by_rows(array.stack(), inputs.shape[1]) for array in arrays)
  before = tf.concat([tf.expand_dims(first, 1), after[:, :-1]], 1)
  return Scanned(list(last), before, after, kept)


def outputs(scanned: Scanned, mask: tf.Tensor | None, zeroed: bool) -> tf.Tensor:
  """Returns the layer's outputs at all steps; `mask` is boolean, (rows, time), or None.

  Masked steps give zeros if `zeroed`; otherwise the output of the step before, and
  zeros before the first unmasked step.
  """
  if mask is None:
    return scanned.after
  if not zeroed:
    mask = tf.cumsum(tf.cast(mask, tf.int32), 1) > 0
  return tf.where(_column(mask, scanned.after), scanned.after,
                  tf.zeros_like(scanned.after))


def last_output(scanned: Scanned, mask: tf.Tensor | None, zeroed: bool
               ) -> tf.Tensor:
  """Returns the layer's output at the last time step.

  `mask` is boolean, (rows, time), or None. If the last step is masked, the output is
  zero if `zeroed`; otherwise it is that of the last unmasked step, zero if none.
  """
  last = scanned.states[0]
  if mask is None:
    return last
  counts = mask[:, -1] if zeroed else tf.reduce_any(mask, 1)
  return tf.where(_column(counts, last), last, tf.zeros_like(last))


def _column(mask: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
  """Adds trailing axes to a mask for broadcasting."""
  missing = like.shape.rank - mask.shape.rank
  return mask[(..., *[tf.newaxis] * missing)]


def _swapped(values: tf.Tensor) -> tf.Tensor:
  """Swaps the axes of rows and time."""
  return tf.transpose(values, [1, 0, *range(2, values.shape.rank)])


def _reader(values: tf.Tensor, steps: Any) -> Any:
  """Returns a TensorArray from which (rows, ...) is read by time step."""
  by_time = _swapped(values)
  return tf.TensorArray(values.dtype, steps, element_shape=by_time.shape[1:]
                       ).unstack(by_time)


def _by_rows(values: tf.Tensor, steps: int | None) -> tf.Tensor:
  """Swaps (time, rows, ...) to (rows, time, ...); `steps` is None if unknown."""
  return _swapped(tf.ensure_shape(values, [steps, *values.shape[1:]]))
