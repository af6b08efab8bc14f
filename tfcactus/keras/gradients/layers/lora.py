"""Rules for low-rank adaptation (LoRA, `enable_lora`): factors beside frozen weights.

A layer computes with W + c A B. The gradient of a factor is the gradient of W times c
and the other factor; where possible the gradient of W is not formed.
"""

from __future__ import annotations

import string
from typing import Any, Callable

import tensorflow as tf

from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.layers import base, conv, einsum_dense, embedding


class LoraDenseRule(base.LayerRule):
  """Rule for Dense layers: inputs and output gradients times thin factors."""

  layer_types = (keras.layers.Dense,)
  composed = True

  def unsupported(self, layer: keras.layers.Layer) -> str:
    return _unsupported(layer)

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    """Returns gradients of both factors and the bias, never the kernel's."""
    layer = call.layer
    first, second, scale = _factors(layer)
    inputs = base.layer_inputs(call, first)
    outputs = base.in_stored_dtype(call.gradient, first)
    below = scale * tf.matmul(outputs, second, transpose_b=True)
    between = scale * tf.matmul(inputs, first)
    return [(layer.lora_kernel_a, base.products(inputs, below)),
            (layer.lora_kernel_b, base.products(between, outputs)),
            *base.bias_gradients(layer, outputs)]


class LoraEinsumDenseRule(einsum_dense.EinsumDenseRule):
  """Rule for EinsumDense layers: einsums with thin factors, as for Dense layers."""

  composed = True

  def unsupported(self, layer: keras.layers.Layer) -> str:
    return _unsupported(layer) or super().unsupported(layer)

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    """Returns gradients of both factors and the bias."""
    layer = call.layer
    kernel = layer.lora_kernel_a
    outputs = base.in_stored_dtype(call.gradient, kernel)
    inputs = base.layer_inputs(call, kernel)
    return [*_of_einsum(layer, inputs, outputs),
            *einsum_dense.bias_gradients(layer, outputs)]


class LoraConvRule(conv.ConvRule):
  """Rule for convolutions, from the gradient of the whole kernel."""

  composed = True

  def unsupported(self, layer: keras.layers.Layer) -> str:
    return _unsupported(layer) or super().unsupported(layer)

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    """Returns gradients of both factors and the bias."""
    layer = call.layer
    images, outputs, windows = conv.images_and_windows(call, layer.lora_kernel_a)
    whole = conv.kernel_gradients(images, outputs, windows, layer.groups)
    return [*_of_factors(layer, tf.linalg.matrix_transpose(whole)),
            *base.bias_gradients(layer, outputs)]


class LoraEmbeddingRule(base.LayerRule):
  """Rule for embeddings; the first factor's gradient has looked-up rows only."""

  layer_types = (keras.layers.Embedding,)
  composed = True

  def unsupported(self, layer: keras.layers.Layer) -> str:
    return _unsupported(layer)

  def forward(self, layer: keras.layers.Layer, call: Callable[..., Any],
              capture: base.Capture, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Captures the looked-up rows and saves their ids."""
    return capture(inputs, call(inputs, *args, **kwargs))

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    """Returns gradients of both factors."""
    layer = call.layer
    first, second, scale = _factors(layer)
    a, b = layer.lora_embeddings_a, layer.lora_embeddings_b
    outputs = scale * base.in_stored_dtype(call.gradient, a)
    below = tf.tensordot(outputs, second, [[-1], [1]])
    rows = [outputs.shape[0], -1]
    outputs = tf.reshape(outputs, [*rows, second.shape[1]])
    taken = tf.gather(first, tf.reshape(tf.cast(call.saved, tf.int32), rows))
    return [*embedding.looked_up(a, call.saved, below),
            (b, forms.Dense(
                tf.matmul(taken, outputs, transpose_a=True), second.shape))]


def _unsupported(layer: keras.layers.Layer) -> str:
  """Returns a reason if the base weights are trained too, else ''."""
  # Setting `trainable` unfreezes the base weights again.
  base_weights = models.lora_base(layer)
  return 'its own weights are trained too' if base_weights.trainable else ''


def _factors(layer: keras.layers.Layer) -> Any:
  """Returns both factors as stored, and the scale of their product."""
  pair = [tf.convert_to_tensor(models.tf_variable(factor))
          for factor in models.lora_factors(layer)]
  scale = getattr(layer, 'lora_alpha', layer.lora_rank) / layer.lora_rank
  return (*pair, scale)


def _of_einsum(layer: keras.layers.Layer, inputs: tf.Tensor, outputs: tf.Tensor
              ) -> base.Gradients:
  """Returns both factors' gradients of an EinsumDense, without the kernel's if it can.

  `outputs` are the pre-activation gradients. The kernel's last axis belongs to one of
  inputs and outputs; that one is multiplied by the second factor, the other one by the
  first.
  """
  given, kernel, made = einsum_dense.terms(layer.equation, inputs.shape.rank)
  before, last = kernel[:-1], kernel[-1]
  if last in given and last in made:
    return _of_factors(
        layer, einsum_dense.kernel_gradients(layer, inputs, outputs))
  first, second, scale = _factors(layer)
  a, b = layer.lora_kernel_a, layer.lora_kernel_b
  rank = next(letter for letter in string.ascii_letters
              if letter not in given + kernel + made)
  ends, rest = (made, given) if last in made else (given, made)
  ending, resting = (outputs, inputs) if last in made else (inputs, outputs)
  rows = given[0]
  thin = ends.replace(last, rank)
  between = ''.join(x for x in dict.fromkeys(rest + before) if x in ends) + rank
  below = tf.einsum(f'{ends},{rank}{last}->{thin}', scale * ending, second)
  above = tf.einsum(f'{rest},{before}{rank}->{between}', scale * resting, first)
  return [
      (a, forms.Dense(tf.einsum(
          f'{rest},{thin}->{rows}{before}{rank}', resting, below), a.shape)),
      (b, forms.Dense(tf.einsum(
          f'{between},{ends}->{rows}{rank}{last}', above, ending), b.shape))]


def _of_factors(layer: keras.layers.Layer, whole: tf.Tensor) -> base.Gradients:
  """Returns both factors' gradients from the kernel's, (batch, ..., last axis)."""
  first, second, scale = _factors(layer)
  a, b = layer.lora_kernel_a, layer.lora_kernel_b
  batch, rank = whole.shape[0], second.shape[0]
  whole = scale * tf.reshape(whole, [batch, -1, second.shape[1]])
  first = tf.broadcast_to(tf.reshape(first, [1, -1, rank]),
                          [batch, whole.shape[1], rank])
  rows = tf.reshape(whole, [-1, second.shape[1]])
  return [
      (a, forms.Dense(tf.reshape(tf.matmul(rows, second, transpose_b=True),
                                 [batch, *a.shape]), a.shape)),
      (b, forms.Dense(tf.matmul(first, whole, transpose_a=True), b.shape))]
