"""Rules for convolutions: kernel gradients are image patches times output gradients.

Transposed convolutions exchange inputs and outputs.

Inputs and output gradients are (batch, ..., channels).
"""

from __future__ import annotations

from collections.abc import Sequence
import math

import tensorflow as tf

from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import forms
from tfcactus.keras.gradients.layers import base, im2col


class ChannelsLastRule(base.LayerRule):
  """Base class of rules for convolutions, whose channels have to be last."""

  def unsupported(self, layer: keras.layers.Layer) -> str:
    """Returns 'channels_first' for layers of that data format, else ''."""
    return '' if layer.data_format == 'channels_last' else 'channels_first'


class ConvRule(ChannelsLastRule):
  """Rule for convolutions over one, two or three axes, grouped or not."""

  layer_types = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    """Returns gradients of the kernel and the bias."""
    layer = call.layer
    images, outputs, windows = images_and_windows(call, layer.kernel)
    shape = layer.kernel.shape
    found: forms.GradientForm
    if is_dense(windows, layer.groups):
      batch = images.shape[0]
      found = forms.Outer(tf.reshape(im2col.patches(images, windows), [batch, -1]),
                          tf.reshape(outputs, [batch, -1]), shape)
    else:
      found = forms.Dense(kernel_gradients(images, outputs, windows, layer.groups),
                          shape, transposed=True)
    return [(layer.kernel, found), *base.bias_gradients(layer, outputs)]

  def numbers_per_example(self, layer: keras.layers.Layer,
                          output_shapes: Sequence[list[int]]) -> int:
    """Adds the image patches: output positions x kernel positions x input channels."""
    depth = math.prod(layer.kernel.shape[:-1]) if layer.built else 0
    positions = sum(math.prod(shape[:-1]) for shape in output_shapes)
    return (super().numbers_per_example(layer, output_shapes) +
            layer.groups * depth * positions)


class ConvTransposeRule(ChannelsLastRule):
  """Rule that cuts windows from output gradients; kernel (..., outputs, inputs)."""

  layer_types = (keras.layers.Conv1DTranspose, keras.layers.Conv2DTranspose,
                 keras.layers.Conv3DTranspose)

  def gradients(self, call: base.LayerCall) -> base.Gradients:
    """Returns gradients of the kernel and the bias."""
    layer = call.layer
    inputs = base.layer_inputs(call, layer.kernel)
    outputs = base.in_stored_dtype(call.gradient, layer.kernel)
    wide, narrow, windows = as_images(
        outputs, inputs, windows_of(layer, outputs, inputs))
    values = kernel_gradients(wide, narrow, windows)
    return [(layer.kernel, forms.Dense(values, layer.kernel.shape, transposed=True)),
            *base.bias_gradients(layer, outputs)]

  def numbers_per_example(self, layer: keras.layers.Layer,
                          output_shapes: Sequence[list[int]]) -> int:
    """Adds patches: input positions x kernel positions x output channels."""
    depth = math.prod(layer.kernel.shape[:-1]) if layer.built else 0
    positions = sum(math.prod(shape[:-1]) for shape in output_shapes)
    # Outputs have about as many positions as inputs times the strides.
    windows = -(-positions // math.prod(layer.strides))
    return super().numbers_per_example(layer, output_shapes) + depth * windows


def is_dense(windows: Sequence[im2col.Window], groups: int) -> bool:
  """Returns whether an image has a single window: a dense layer of its numbers."""
  return len(windows) == 2 and groups == 1 and all(w.size == 1 for w in windows)


def images_and_windows(call: base.LayerCall, kernel: tf.Variable
                      ) -> tuple[tf.Tensor, tf.Tensor, list[im2col.Window]]:
  """Returns inputs and output gradients as images or volumes, and the windows."""
  images = base.layer_inputs(call, kernel)
  outputs = base.in_stored_dtype(call.gradient, kernel)
  return as_images(images, outputs, windows_of(call.layer, images, outputs))


def windows_of(layer: keras.layers.Layer, wide: tf.Tensor, narrow: tf.Tensor
              ) -> list[im2col.Window]:
  """Returns each axis' windows, cut from `wide`, one per position of `narrow`."""
  return [im2col.window(layer.padding, *sizes) for sizes in zip(
      wide.shape[1:-1], narrow.shape[1:-1], layer.kernel_size, layer.strides,
      layer.dilation_rate)]


def as_images(wide: tf.Tensor, narrow: tf.Tensor, windows: list[im2col.Window]
             ) -> tuple[tf.Tensor, tf.Tensor, list[im2col.Window]]:
  """Adds an axis of height one if there is a single spatial axis."""
  if len(windows) > 1:
    return wide, narrow, windows
  return (wide[:, None], narrow[:, None],
          [im2col.Window(1, 1, 1, 0, 1), *windows])


def kernel_gradients(images: tf.Tensor, outputs: tf.Tensor,
                     windows: Sequence[im2col.Window], groups: int = 1) -> tf.Tensor:
  """Returns per-example kernel gradients: output gradients times patches of images.

  The products are summed over positions. `images` is (batch, ..., channels) with two or
  three spatial axes; `outputs`, the output gradients, is (batch, ..., filters) with one
  position per window. Filters see the channels of their own group. The result is
  (batch, filters, depth); depth runs over all axes of the kernel but the last, in
  row-major order.
  """
  batch, filters = outputs.shape[0], outputs.shape[-1]
  images, outputs = _apart(images, groups), _apart(outputs, groups)
  cut = [im2col.patches(images, windows)] if len(windows) == 2 else (
      im2col.volume_patches(images, windows))
  outputs = tf.reshape(outputs, [outputs.shape[0], -1, outputs.shape[-1]])
  values = [tf.matmul(outputs, each, transpose_a=True) for each in cut]
  return tf.reshape(tf.concat(values, 2), [batch, filters, -1])


def _apart(images: tf.Tensor, groups: int) -> tf.Tensor:
  """Makes each group of channels an image: (batch * groups, ..., channels / groups)."""
  if groups == 1:
    return images
  sizes, rank = images.shape[1:-1], images.shape.rank
  images = tf.reshape(images, [images.shape[0], *sizes, groups, -1])
  images = tf.transpose(images, [0, rank - 1, *range(1, rank - 1), rank])
  return tf.reshape(
      images, [images.shape[0] * groups, *sizes, images.shape[-1]])
