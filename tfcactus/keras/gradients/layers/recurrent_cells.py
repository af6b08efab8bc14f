"""Cells of recurrent layers: a step through time, and each example's gradients.

What a cell makes of its inputs before it looks at its state, x W + b, is made for
all steps at once and captured. The gradient by it, dz, is all that is needed:
since a step sees only z = x W + b + h U, an example's gradients are the sums over
time of products x dz for W, h dz for U, and of dz for b.
"""

from __future__ import annotations

import abc
from typing import Any
from typing import ClassVar
from typing import Dict
from typing import List
from typing import Optional
from typing import Tuple

import tensorflow as tf

from tfcactus.keras.compat import recurrent as compat
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients.layers import recurrent_scan
from tfcactus.keras.gradients.layers.recurrent_kernels import Kernel
from tfcactus.keras.gradients.layers.recurrent_kernels import over_positions
from tfcactus.keras.gradients.layers.recurrent_kernels import read


class CellMath(abc.ABC):
  """What one kind of cell computes.

  Attributes:
    gates: Into how many parts the last axis of its kernels falls.
    states: How many states it has.
    keeps: How many tensors a step keeps for `gradients`.
  """

  gates: ClassVar[int] = 1
  states: ClassVar[int] = 1
  keeps: ClassVar[int] = 0

  def input_bias(self, cell: keras.layers.Layer) -> Any:
    """What is added to the products of the inputs, or None."""
    return read(cell.bias, cell) if cell.use_bias else None

  @abc.abstractmethod
  def step(self, cell: keras.layers.Layer, kernel: Kernel) -> recurrent_scan.Step:
    """A step through time, whose states go through the recurrent kernel."""

  def gradients(self, scanned: recurrent_scan.Scanned, kernel: Kernel,
                gradient: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    """Each example's gradients of the recurrent kernel and of the bias.

    Args:
      scanned: What the loop gave.
      kernel: The recurrent kernel.
      gradient: By what was made of the inputs, shape (rows, time, ...).
    """
    return kernel.gradient(scanned.before, gradient), over_positions(gradient)


class SimpleMath(CellMath):
  """h = f(z)."""

  def step(self, cell: keras.layers.Layer, kernel: Kernel) -> recurrent_scan.Step:
    activation = cell.activation or tf.identity
    product = kernel.product()
    return lambda now, states: ([activation(now + product(states[0]))], [])


class LSTMMath(CellMath):
  """Gates i, f, c and o."""

  gates = 4
  states = 2

  def step(self, cell: keras.layers.Layer, kernel: Kernel) -> recurrent_scan.Step:
    activation, gate = cell.activation, cell.recurrent_activation
    product = kernel.product()

    def step(now: tf.Tensor, states: List[tf.Tensor]) -> Any:
      state, carry = states
      i, f, c, o = tf.split(now + product(state), 4, -1)
      carry = gate(f) * carry + gate(i) * activation(c)
      return [gate(o) * activation(carry), carry], []

    return step


class GRUMath(CellMath):
  """Gates z, r and h, the reset gate after the product with the state.

  Keeps r: the gradient by what the state's product gave is that by z, but for
  the last gate, where it is r times that.
  """

  gates = 3
  keeps = 1

  def input_bias(self, cell: keras.layers.Layer) -> Any:
    return read(cell.bias, cell)[0] if cell.use_bias else None

  def step(self, cell: keras.layers.Layer, kernel: Kernel) -> recurrent_scan.Step:
    product = kernel.product()
    bias = read(cell.bias, cell)[1] if cell.use_bias else None

    def step(now: tf.Tensor, states: List[tf.Tensor]) -> Any:
      (state,), inner = states, product(states[0])
      if bias is not None:
        inner += tf.stop_gradient(bias)  # It comes from outside of the loop.
      (x_z, x_r, x_h), (z, r, h) = (tf.split(each, 3, -1) for each in (now, inner))
      z = cell.recurrent_activation(x_z + z)
      r = cell.recurrent_activation(x_r + r)
      return [z * state + (1 - z) * cell.activation(x_h + r * h)], [r]

    return step

  def gradients(self, scanned: recurrent_scan.Scanned, kernel: Kernel,
                gradient: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    z, r, h = tf.split(gradient, 3, -1)
    inner = tf.concat([z, r, h * tf.cast(scanned.kept[0], h.dtype)], -1)
    bias = [over_positions(each) for each in (gradient, inner)]
    return kernel.gradient(scanned.before, inner), tf.stack(bias, 1)


class EarlyResetGRUMath(CellMath):
  """Gates z, r and h, the reset gate before the product; keeps r times h."""

  gates = 3
  keeps = 1

  def step(self, cell: keras.layers.Layer, kernel: Kernel) -> recurrent_scan.Step:
    gates, last = kernel.product(0, 2), kernel.product(2, 3)

    def step(now: tf.Tensor, states: List[tf.Tensor]) -> Any:
      state, = states
      x, x_h = tf.split(now, [2 * cell.units, cell.units], -1)
      z, r = tf.split(cell.recurrent_activation(x + gates(state)), 2, -1)
      reset = r * state
      h = cell.activation(x_h + last(reset))
      return [z * state + (1 - z) * h], [reset]

    return step

  def gradients(self, scanned: recurrent_scan.Scanned, kernel: Kernel,
                gradient: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    units = gradient.shape[-1] // 3
    gates, last = tf.split(gradient, [2 * units, units], -1)
    return tf.concat([
        kernel.gradient(scanned.before, gates, 0, 2),
        kernel.gradient(scanned.kept[0], last, 2, 3)], -1), (
            over_positions(gradient))


_MATH: Dict[type, CellMath] = {
    keras.layers.SimpleRNNCell: SimpleMath(),
    keras.layers.LSTMCell: LSTMMath(),
}


def math_of(cell: keras.layers.Layer) -> Optional[CellMath]:
  """What a cell computes, or None if that is not known."""
  if type(cell) is keras.layers.GRUCell:
    return GRUMath() if cell.reset_after else EarlyResetGRUMath()
  if compat.is_convolution(cell):
    return LSTMMath()
  return _MATH.get(type(cell))


def known(cell: keras.layers.Layer) -> CellMath:
  """What a cell computes, of those that `math_of` knows."""
  found = math_of(cell)
  assert found is not None, 'Its layer has a rule.'
  return found
