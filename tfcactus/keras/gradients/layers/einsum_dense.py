"""Rule for EinsumDense: dense layers along any axes, as in attention."""

from __future__ import annotations

import tensorflow as tf

from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.layers import base

_SPARE = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ'


class EinsumDenseRule(base.LayerRule):
  """Rule for EinsumDense: gradients are an einsum of inputs and output gradients."""

  layer_types = (keras.layers.EinsumDense,)

  def unsupported(self, layer: keras.layers.Layer) -> str:
    """Returns the equation if no einsum gives per-example gradients, else ''.

    The batch axis must come first in inputs and outputs, and be absent from the kernel.
    No term may repeat a letter. Kernel axes must occur in inputs or outputs.
    """
    inputs, kernel, outputs = terms(layer.equation)
    if inputs[0] != outputs[0] or inputs[0] in kernel or any(
        len(set(term)) < len(term) for term in (inputs, kernel, outputs)) or (
            set(kernel) - set(inputs + outputs)):
      return f'equation={layer.equation!r}'
    return ''

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    """Returns gradients of the kernel and the bias."""
    layer = call.layer
    kernel = layer.kernel
    outputs = base.in_stored_dtype(call.gradient, kernel)
    values = kernel_gradients(layer, base.layer_inputs(call, kernel), outputs)
    return [(kernel, forms.Dense(values, kernel.shape)),
            *bias_gradients(layer, outputs)]


def kernel_gradients(layer: keras.layers.Layer, inputs: tf.Tensor,
                     outputs: tf.Tensor) -> tf.Tensor:
  """Returns EinsumDense kernel gradients from inputs and pre-activation gradients."""
  given, kernel, made = terms(layer.equation, inputs.shape.rank)
  return tf.einsum(f'{given},{made}->{given[0]}{kernel}', inputs, outputs)


def bias_gradients(layer: keras.layers.Layer, outputs: tf.Tensor) -> base.Gradients:
  """Sums the output gradients over axes that the bias lacks; [] without a bias."""
  bias = layer.bias
  if bias is None:
    return []
  *_, made = terms(layer.equation, outputs.shape.rank, of_outputs=True)
  summed = [i for i, letter in enumerate(made)
            if i and letter not in layer.bias_axes]
  return [(bias, forms.Dense(tf.reshape(
      tf.reduce_sum(outputs, summed), [outputs.shape[0], *bias.shape]),
      bias.shape))]


def terms(equation: str, rank: int | None = None, of_outputs: bool = False
         ) -> tuple[str, str, str]:
  """Returns the letters of inputs, kernel and outputs, with the ellipsis spelled out.

  `rank` is the rank of the inputs, or of the outputs if `of_outputs`; None gives the
  ellipsis one axis.
  """
  given, made = equation.replace(' ', '').split('->')
  given, kernel = given.split(',')
  known = len((made if of_outputs else given).replace('...', ''))
  spare = [letter for letter in _SPARE if letter not in equation]
  dots = ''.join(spare[:1 if rank is None else rank - known])
  return given.replace('...', dots), kernel, made.replace('...', dots)
