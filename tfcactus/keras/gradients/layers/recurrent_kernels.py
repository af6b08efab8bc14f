"""Kernels of recurrent cells: products per step, gradients over all steps."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Callable

import tensorflow as tf

from tfcactus.keras.compat import models, recurrent as compat
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients.layers import base, im2col


def read(variable: tf.Variable, cell: keras.layers.Layer) -> tf.Tensor:
  """Returns a cell's variable as a constant: tapes would sum over examples."""
  value = tf.cast(models.tf_variable(variable), cell.compute_dtype)
  return tf.stop_gradient(value)


def over_positions(values: tf.Tensor) -> tf.Tensor:
  """Sums over time and space: (rows, ..., channels) to (rows, channels)."""
  return tf.reduce_sum(values, list(range(1, values.shape.rank - 1)))


class Kernel:
  """A kernel of a cell; `variable` has one part per gate along its last axis."""

  def __init__(self, cell: keras.layers.Layer, variable: tf.Variable, gates: int,
               masks: compat.Masks, of_inputs: bool):
    """Initialises the kernel of a cell with `gates` gates.

    Values are multiplied by `masks` first: one mask per gate, one for all gates, or
    None. `of_inputs` tells the kernel of the inputs from the kernel of the state.
    """
    self.variable = variable
    self._value = read(variable, cell)
    self._gates = gates
    self._masks = masks
    self._rank = len(variable.shape) - 2
    moving = of_inputs and self._rank  # The states keep their size.
    self._strides: list[int] = list(cell.strides if moving else [1] * self._rank)
    self._dilations: list[int] = list(
        cell.dilation_rate if moving else [1] * self._rank)
    self._padding: str = cell.padding if moving else 'same'

  def product(self, first: int = 0, last: int | None = None
             ) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the function that multiplies a step's values by gates `first:last`."""
    parts = self._parts(first, last)
    return lambda values: _joined([
        self._multiplied(_masked(values, mask), part) for mask, part in parts])

  def products(self, sequences: tf.Tensor) -> tf.Tensor:
    """Returns the products at all steps, shape (rows, time, ...)."""
    found = []
    for mask, part in self._parts(0, None):
      values = _masked_over_time(sequences, mask)
      product = self._multiplied(_folded(values), part)
      found.append(tf.reshape(
          product, [values.shape[0], _steps(values), *product.shape[1:]]))
    return _joined(found)

  def gradient(self, values: tf.Tensor, outputs: tf.Tensor, first: int = 0,
               last: int | None = None) -> tf.Tensor:
    """Returns per-example gradients of gates `first:last`, in the kernel's dtype.

    `values` are the factors of the kernel, `outputs` the gradients with respect to the
    products; both have shape (rows, time, ...).
    """
    masks = [mask for mask, _ in self._parts(first, last)]
    return _joined([
        self._gradient(base.in_stored_dtype(
            _masked_over_time(values, mask), self.variable), part)
        for mask, part in zip(masks, tf.split(outputs, len(masks), -1))])

  def _parts(self, first: int, last: int | None
            ) -> list[tuple[tf.Tensor | None, tf.Tensor]]:
    """Returns pairs of a mask and the part of the kernel that it precedes."""
    last = self._gates if last is None else last
    width = self._value.shape[-1] // self._gates
    whole = (first, last) == (0, self._gates)
    kernel = self._value if whole else self._value[..., first * width:last * width]
    if self._masks is None or len(self._masks) == 1:
      return [(None if self._masks is None else self._masks[0], kernel)]
    return list(zip(self._masks[first:last], tf.split(kernel, last - first, -1)))

  def _multiplied(self, values: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    kernel = tf.stop_gradient(kernel)  # Also inside loops that capture the kernel.
    if not self._rank:
      return tf.matmul(values, kernel)
    return tf.nn.convolution(
        values, kernel, strides=self._strides, padding=self._padding.upper(),
        dilations=self._dilations,
        data_format='N' + 'DHW'[3 - self._rank:] + 'C')

  def _gradient(self, values: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    if not self._rank:
      return tf.matmul(values, outputs, transpose_a=True)
    windows = [im2col.window(self._padding, *sizes) for sizes in zip(
        values.shape[2:-1], outputs.shape[2:-1], self.variable.shape,
        self._strides, self._dilations)]
    shape = [*self.variable.shape[:-1], outputs.shape[-1]]
    return _convolution_gradient(values, outputs, windows, shape)


def _joined(parts: Sequence[tf.Tensor]) -> tf.Tensor:
  return parts[0] if len(parts) == 1 else tf.concat(parts, -1)


def _masked(values: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
  return values if mask is None else values * mask


def _masked_over_time(values: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
  return _masked(values, None if mask is None else tf.expand_dims(mask, 1))


def _steps(values: tf.Tensor) -> int:
  """Returns the number of time steps, or -1 if unknown before the graph runs."""
  return -1 if values.shape[1] is None else values.shape[1]


def _folded(values: tf.Tensor) -> tf.Tensor:
  """Reshapes (rows, time, ...) to (rows * time, ...)."""
  rows, steps = values.shape[0], values.shape[1]
  size = -1 if steps is None else rows * steps
  return tf.reshape(values, [size, *values.shape[2:]])


def _convolution_gradient(values: tf.Tensor, outputs: tf.Tensor,
                          windows: list[im2col.Window], shape: Sequence[int]
                         ) -> tf.Tensor:
  """Sums patches times output gradients over time and positions: (rows, *shape).

  `values` is (rows, time, ..., channels), `outputs` (rows, time, ..., filters). With
  three axes, the taps of the first axis are processed one by one.
  """
  rows = values.shape[0]
  if len(windows) == 3:
    first, *windows = windows
    needed = (first.size - 1) * first.stride + first.dilation * (first.kernel - 1) + 1
    after = max(needed - first.before - values.shape[2], 0)
    values = tf.pad(values, [[0, 0]] * 2 + [[first.before, after]] + [[0, 0]] * 3)
    end = (first.size - 1) * first.stride + 1
    outputs = tf.reshape(outputs, [rows, -1, *outputs.shape[3:]])
    taps = []
    for start in range(0, first.kernel * first.dilation, first.dilation):
      tap = values[:, :, start:start + end:first.stride]
      tap = tf.reshape(tap, [rows, -1, *values.shape[3:]])
      taps.append(_convolution_gradient(tap, outputs, windows, shape[1:]))
    return tf.stack(taps, 1)
  images = _folded(values)
  if len(windows) == 1:
    images = images[:, None]
    windows = [im2col.Window(1, 1, 1, 0, 1), *windows]
  patches = im2col.patches(images, windows)
  places = math.prod(window.size for window in windows) * values.shape[1]
  patches = tf.reshape(patches, [rows, places, patches.shape[-1]])
  outputs = tf.reshape(outputs, [rows, places, outputs.shape[-1]])
  return tf.reshape(tf.matmul(patches, outputs, transpose_a=True), [rows, *shape])
