"""Parametric densities, and the optimizer that learns them."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

STEEPNESS = 8.0
"""Slope of a sigmoid times the width of a cell; equals the paper's 500 on its grid."""

PAPER_SIGMOIDS = 10_000
BIAS = 10.0
"""Initial A for PAPER_SIGMOIDS sigmoids; A^2 scales with the number of sigmoids."""

LAYERS, CHANNEL, FILTER = 10, 100, 3
"""Convolutions, layer width and filter length of the CNN model."""

SMALLEST = 1e-300
"""Least mass of a cell, so that logarithms stay finite."""


class SigmoidModel(tf.Module):
  """p = mirrored softmax of log(A^2 + sum B_j^2 sigmoid(C (x - F_j))).

  Source: equation (4) of Sommer et al. (2021).
  """

  def __init__(self, cells: int, bins: int, sigmoids: int,
               rng: np.random.Generator):
    super().__init__(name='sigmoid_model')
    reach = cells / bins
    self._x = tf.constant(-(np.arange(cells) + 0.5) / bins)[:, None]
    self._slope = STEEPNESS * bins
    self.bias = tf.Variable(
        BIAS * (sigmoids / PAPER_SIGMOIDS)**0.5, dtype=tf.float64)
    self.height = tf.Variable(rng.random(sigmoids))
    self.place = tf.Variable(np.linspace(-reach, 0.0, sigmoids))

  def __call__(self) -> tf.Tensor:
    """Returns unnormalised log masses outwards from zero; float64, shape (cells,)."""
    steps = tf.sigmoid(self._slope * (self._x - self.place[None, :]))
    rise = tf.linalg.matvec(steps, self.height**2)
    return tf.math.log(self.bias**2 + rise + SMALLEST)


class ConvolutionModel(tf.Module):
  """A linear layer, ten convolutions, a linear layer, softmax: not monotone.

  Source: Appendix B of Sommer et al. (2021), which gives no filter length; 3 is used.
  """

  def __init__(self, cells: int, rng: np.random.Generator):
    super().__init__(name='cnn_model')

    def normal(*shape: int) -> tf.Variable:
      """Returns a variable of normal numbers of variance 1 / shape[-1]."""
      return tf.Variable(rng.standard_normal(shape) / np.sqrt(shape[-1]))

    self._x = tf.constant((np.arange(cells) + 0.5) / cells)
    self.inward, self.shift = normal(CHANNEL, cells), normal(CHANNEL)
    centre = np.zeros((LAYERS, FILTER))
    centre[:, FILTER // 2] = 1.0
    self.filters = tf.Variable(centre + 0.1 * rng.standard_normal(centre.shape))
    self.outward, self.level = normal(cells, CHANNEL), normal(cells)

  def __call__(self) -> tf.Tensor:
    """Returns unnormalised log masses outwards from zero; float64, shape (cells,)."""
    layer = tf.linalg.matvec(self.inward, self._x) + self.shift
    pad = FILTER // 2
    for i in range(LAYERS):
      wide = tf.pad(layer, [[pad, pad]])
      layer = tf.add_n([self.filters[i, j] * wide[j:j + CHANNEL]
                        for j in range(FILTER)])
    return tf.linalg.matvec(self.outward, layer) + self.level


class Adam:
  """Adam (Kingma and Ba, 2015) with an exponentially decaying learning rate."""

  def __init__(self, variables: list[tf.Variable], rate: float, decay: float):
    self._variables = variables
    self._slots = [(tf.Variable(tf.zeros_like(v)), tf.Variable(tf.zeros_like(v)))
                   for v in variables]
    self._rate, self._decay = rate, decay

  def apply(self, gradients: list[tf.Tensor], step: tf.Tensor) -> None:
    """Applies one update; `step` counts from one."""
    rate = self._rate * self._decay**step
    rate *= tf.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    for v, g, (mean, square) in zip(self._variables, gradients, self._slots):
      mean.assign(0.9 * mean + 0.1 * g)
      square.assign(0.999 * square + 0.001 * g * g)
      v.assign_sub(rate * mean / (tf.sqrt(square) + 1e-8))
