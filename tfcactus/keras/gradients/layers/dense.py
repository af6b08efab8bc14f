"""Rule for Dense layers, on vectors or on the last axis of larger inputs."""

from __future__ import annotations

from collections.abc import Sequence

from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients.layers import base


class DenseRule(base.LayerRule):
  """Rule for Dense layers; a vector's kernel gradient stays an outer product.

  Source: Goodfellow, "Efficient Per-Example Gradient Computations" (2015).
  """

  layer_types = (keras.layers.Dense,)

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    """Returns gradients of the kernel (inputs times output gradients) and the bias."""
    layer = call.layer
    inputs = base.layer_inputs(call, layer.kernel)
    outputs = base.in_stored_dtype(call.gradient, layer.kernel)
    return [(layer.kernel, base.products(inputs, outputs)),
            *base.bias_gradients(layer, outputs)]

  def numbers_per_example(self, layer: keras.layers.Layer,
                          output_shapes: Sequence[list[int]]) -> int:
    """Returns 0 for vectors, whose kernel gradients stay outer products."""
    if all(len(shape) == 1 for shape in output_shapes):
      return 0
    return super().numbers_per_example(layer, output_shapes)
