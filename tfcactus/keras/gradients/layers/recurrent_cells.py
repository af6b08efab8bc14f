"""Cells of recurrent layers and their kernels: one time step, per-example gradients.

The inputs' part of the pre-activations, x W + b, is computed for all steps at once and
captured. Every step depends on W, U and b through z = x W + b + h U only. So the
gradient dz of the captured tensor suffices: an example's gradients are the sums over
time of x dz for W, of h dz for U, and of dz for b.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
import math
from typing import Any, Callable, ClassVar

import tensorflow as tf

from tfcactus.keras.compat import models, recurrent as compat
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients.layers import base, recurrent_scan
from tfcactus.keras.gradients.operations import im2col


class CellMath(abc.ABC):
  """The arithmetic of one kind of cell.

  Attributes:
    gates: Number of gates, the parts of the last axis of the cell's kernels.
    states: Number of states.
    keeps: Number of tensors that a step keeps for `gradients`.
  """

  gates: ClassVar[int] = 1
  states: ClassVar[int] = 1
  keeps: ClassVar[int] = 0

  def input_bias(self, cell: keras.layers.Layer) -> Any:
    """Returns the bias b of x W + b, or None."""
    return _read(cell.bias, cell) if cell.use_bias else None

  @abc.abstractmethod
  def step(self, cell: keras.layers.Layer, kernel: Kernel) -> recurrent_scan.Step:
    """Returns the function of one time step; `kernel` is the recurrent kernel."""

  def gradients(self, scanned: recurrent_scan.Scanned, kernel: Kernel,
                gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns per-example gradients of the recurrent kernel and of the bias.

    Args:
      scanned: Result of the loop over time.
      kernel: The recurrent kernel.
      gradient: Gradient with respect to x W + b, shape (rows, time, ...).
    """
    return kernel.gradient(scanned.before, gradient), _over_positions(gradient)


class SimpleMath(CellMath):
  """SimpleRNN: h = f(z)."""

  def step(self, cell: keras.layers.Layer, kernel: Kernel) -> recurrent_scan.Step:
    """Returns the step: new h = activation(x W + b + h U)."""
    activation = cell.activation or tf.identity
    product = kernel.product()
    return lambda now, states: ([activation(now + product(states[0]))], [])


class LSTMMath(CellMath):
  """LSTM: gates i, f, c and o."""

  gates = 4
  states = 2

  def step(self, cell: keras.layers.Layer, kernel: Kernel) -> recurrent_scan.Step:
    """Returns the step of an LSTM; its states are h and the carry c."""
    activation, gate = cell.activation, cell.recurrent_activation
    product = kernel.product()

    def step(now: tf.Tensor, states: list[tf.Tensor]) -> Any:
      state, carry = states
      i, f, c, o = tf.split(now + product(state), 4, -1)
      carry = gate(f) * carry + gate(i) * activation(c)
      return [gate(o) * activation(carry), carry], []

    return step


class GRUMath(CellMath):
  """GRU with gates z, r and h; the reset gate acts after the product with the state.

  A step keeps r. The gradient with respect to the state's product is the gradient with
  respect to x W + b, multiplied by r for the last gate.
  """

  gates = 3
  keeps = 1

  def input_bias(self, cell: keras.layers.Layer) -> Any:
    """Returns the first row of the bias; the second is added to h U."""
    return _read(cell.bias, cell)[0] if cell.use_bias else None

  def step(self, cell: keras.layers.Layer, kernel: Kernel) -> recurrent_scan.Step:
    """Returns the step; `inner` is h U plus the second row of the bias."""
    product = kernel.product()
    bias = _read(cell.bias, cell)[1] if cell.use_bias else None

    def step(now: tf.Tensor, states: list[tf.Tensor]) -> Any:
      (state,), inner = states, product(states[0])
      if bias is not None:
        inner += tf.stop_gradient(bias)  # The loop captures the bias from outside.
      (x_z, x_r, x_h), (z, r, h) = (tf.split(each, 3, -1) for each in (now, inner))
      z = cell.recurrent_activation(x_z + z)
      r = cell.recurrent_activation(x_r + r)
      return [z * state + (1 - z) * cell.activation(x_h + r * h)], [r]

    return step

  def gradients(self, scanned: recurrent_scan.Scanned, kernel: Kernel,
                gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns gradients of the recurrent kernel, and of both rows of the bias."""
    z, r, h = tf.split(gradient, 3, -1)
    inner = tf.concat([z, r, h * tf.cast(scanned.kept[0], h.dtype)], -1)
    bias = [_over_positions(each) for each in (gradient, inner)]
    return kernel.gradient(scanned.before, inner), tf.stack(bias, 1)


class EarlyResetGRUMath(CellMath):
  """GRU whose reset gate acts before the product; a step keeps r times h."""

  gates = 3
  keeps = 1

  def step(self, cell: keras.layers.Layer, kernel: Kernel) -> recurrent_scan.Step:
    """Returns the step; the kernel's last gate multiplies r h instead of h."""
    gates, last = kernel.product(0, 2), kernel.product(2, 3)

    def step(now: tf.Tensor, states: list[tf.Tensor]) -> Any:
      state, = states
      x, x_h = tf.split(now, [2 * cell.units, cell.units], -1)
      z, r = tf.split(cell.recurrent_activation(x + gates(state)), 2, -1)
      reset = r * state
      h = cell.activation(x_h + last(reset))
      return [z * state + (1 - z) * h], [reset]

    return step

  def gradients(self, scanned: recurrent_scan.Scanned, kernel: Kernel,
                gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns gradients of the recurrent kernel (last gate: from r h) and the bias."""
    units = gradient.shape[-1] // 3
    gates, last = tf.split(gradient, [2 * units, units], -1)
    return tf.concat([
        kernel.gradient(scanned.before, gates, 0, 2),
        kernel.gradient(scanned.kept[0], last, 2, 3)], -1), (
            _over_positions(gradient))


_MATH: dict[type, CellMath] = {
    keras.layers.SimpleRNNCell: SimpleMath(),
    keras.layers.LSTMCell: LSTMMath(),
}


def math_of(cell: keras.layers.Layer) -> CellMath | None:
  """Returns the arithmetic of a cell, or None if unknown."""
  if type(cell) is keras.layers.GRUCell:
    return GRUMath() if cell.reset_after else EarlyResetGRUMath()
  if compat.is_convolution(cell):
    return LSTMMath()
  return _MATH.get(type(cell))


def known(cell: keras.layers.Layer) -> CellMath:
  """Returns the arithmetic of a cell that `math_of` knows."""
  found = math_of(cell)
  assert found is not None, 'Its layer has a rule.'
  return found


def _read(variable: tf.Variable, cell: keras.layers.Layer) -> tf.Tensor:
  """Returns a compute-dtype constant; a variable's gradient sums over examples."""
  value = tf.cast(models.tf_variable(variable), cell.compute_dtype)
  return tf.stop_gradient(value)


def _over_positions(values: tf.Tensor) -> tf.Tensor:
  """Sums over time and space: (rows, ..., channels) to (rows, channels)."""
  return tf.reduce_sum(values, list(range(1, values.shape.rank - 1)))


class Kernel:
  """A kernel of a cell; the last axis of `variable` has one part per gate."""

  def __init__(self, cell: keras.layers.Layer, variable: tf.Variable, gates: int,
               masks: compat.Masks, of_inputs: bool):
    """Initialises the kernel of a cell with `gates` gates.

    Values are multiplied by `masks` first: one mask per gate, one for all gates, or
    None. `of_inputs` is True for the kernel W of the inputs, False for the
    recurrent kernel U.
    """
    self.variable = variable
    self._value = _read(variable, cell)
    self._gates = gates
    self._masks = masks
    self._rank = len(variable.shape) - 2
    moving = of_inputs and self._rank  # Convolutions of states keep their size.
    self._strides: list[int] = list(cell.strides if moving else [1] * self._rank)
    self._dilations: list[int] = list(
        cell.dilation_rate if moving else [1] * self._rank)
    self._padding: str = cell.padding if moving else 'same'

  def product(self, first: int = 0, last: int | None = None
             ) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function that multiplies a step's values by gates `first:last`."""
    parts = self._parts(first, last)
    return lambda values: _joined([
        self._multiplied(_masked(values, mask), part) for mask, part in parts])

  def products(self, sequences: tf.Tensor) -> tf.Tensor:
    """Returns `sequences` times the kernel at all steps, shape (rows, time, ...)."""
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

    `values` were multiplied by the kernel; `outputs` are the gradients with respect to
    these products. Both have shape (rows, time, ...).
    """
    masks = [mask for mask, _ in self._parts(first, last)]
    return _joined([
        self._gradient(base.in_stored_dtype(
            _masked_over_time(values, mask), self.variable), part)
        for mask, part in zip(masks, tf.split(outputs, len(masks), -1))])

  def _parts(self, first: int, last: int | None
            ) -> list[tuple[tf.Tensor | None, tf.Tensor]]:
    """Returns pairs: a dropout mask or None, and the kernel's part to use with it."""
    last = self._gates if last is None else last
    width = self._value.shape[-1] // self._gates
    whole = (first, last) == (0, self._gates)
    kernel = self._value if whole else self._value[..., first * width:last * width]
    if self._masks is None or len(self._masks) == 1:
      return [(None if self._masks is None else self._masks[0], kernel)]
    return list(zip(self._masks[first:last], tf.split(kernel, last - first, -1)))

  def _multiplied(self, values: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Multiplies by a part of the kernel, or convolves with it in a ConvLSTM."""
    kernel = tf.stop_gradient(kernel)  # Also inside loops that capture the kernel.
    if not self._rank:
      return tf.matmul(values, kernel)
    return tf.nn.convolution(
        values, kernel, strides=self._strides, padding=self._padding.upper(),
        dilations=self._dilations,
        data_format='N' + 'DHW'[3 - self._rank:] + 'C')

  def _gradient(self, values: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Returns the gradients of one part of the kernel; arguments as for `gradient`."""
    if not self._rank:
      return tf.matmul(values, outputs, transpose_a=True)
    windows = [im2col.window(self._padding, *sizes) for sizes in zip(
        values.shape[2:-1], outputs.shape[2:-1], self.variable.shape,
        self._strides, self._dilations)]
    shape = [*self.variable.shape[:-1], outputs.shape[-1]]
    return _convolution_gradient(values, outputs, windows, shape)


def _joined(parts: Sequence[tf.Tensor]) -> tf.Tensor:
  """Concatenates tensors of consecutive gates along the last axis."""
  return parts[0] if len(parts) == 1 else tf.concat(parts, -1)


def _masked(values: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
  """Multiplies by a dropout mask unless it is None."""
  return values if mask is None else values * mask


def _masked_over_time(values: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
  """Multiplies (rows, time, ...) by a mask (rows, ...) at every time step."""
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
