"""Cells of recurrent layers: one time step, and per-example gradients.

The inputs' part of the pre-activations, x W + b, is computed for all steps at once and
captured. Its gradient dz is all that is needed: a step sees only z = x W + b + h U, so
an example's gradients are sums over time, of the products x dz for W, of h dz for U,
and of dz for b.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import tensorflow as tf

from tfcactus.keras.compat import recurrent as compat
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients.layers import recurrent_scan
from tfcactus.keras.gradients.layers.recurrent_kernels import (
  Kernel,
  over_positions,
  read,
)


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
    """Returns the bias that is added to the products of the inputs, or None."""
    return read(cell.bias, cell) if cell.use_bias else None

  @abc.abstractmethod
  def step(self, cell: keras.layers.Layer, kernel: Kernel) -> recurrent_scan.Step:
    """Returns the function of one time step; states go through the recurrent kernel."""

  def gradients(self, scanned: recurrent_scan.Scanned, kernel: Kernel,
                gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns per-example gradients of the recurrent kernel and of the bias.

    Args:
      scanned: Result of the loop over time.
      kernel: The recurrent kernel.
      gradient: Gradient with respect to x W + b, shape (rows, time, ...).
    """
    return kernel.gradient(scanned.before, gradient), over_positions(gradient)


class SimpleMath(CellMath):
  """SimpleRNN: h = f(z)."""

  def step(self, cell: keras.layers.Layer, kernel: Kernel) -> recurrent_scan.Step:
    activation = cell.activation or tf.identity
    product = kernel.product()
    return lambda now, states: ([activation(now + product(states[0]))], [])


class LSTMMath(CellMath):
  """LSTM: gates i, f, c and o."""

  gates = 4
  states = 2

  def step(self, cell: keras.layers.Layer, kernel: Kernel) -> recurrent_scan.Step:
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
    return read(cell.bias, cell)[0] if cell.use_bias else None

  def step(self, cell: keras.layers.Layer, kernel: Kernel) -> recurrent_scan.Step:
    product = kernel.product()
    bias = read(cell.bias, cell)[1] if cell.use_bias else None

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
    z, r, h = tf.split(gradient, 3, -1)
    inner = tf.concat([z, r, h * tf.cast(scanned.kept[0], h.dtype)], -1)
    bias = [over_positions(each) for each in (gradient, inner)]
    return kernel.gradient(scanned.before, inner), tf.stack(bias, 1)


class EarlyResetGRUMath(CellMath):
  """GRU whose reset gate acts before the product; a step keeps r times h."""

  gates = 3
  keeps = 1

  def step(self, cell: keras.layers.Layer, kernel: Kernel) -> recurrent_scan.Step:
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
    units = gradient.shape[-1] // 3
    gates, last = tf.split(gradient, [2 * units, units], -1)
    return tf.concat([
        kernel.gradient(scanned.before, gates, 0, 2),
        kernel.gradient(scanned.kept[0], last, 2, 3)], -1), (
            over_positions(gradient))


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
