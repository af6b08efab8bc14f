"""The protocol of layer rules, which compute per-example gradients of a kind of layer.

A rule runs its layer on a whole batch and passes the tensor whose gradient it needs
(say the pre-activation) to `capture`. It later turns that gradient into one
`GradientForm` per variable.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
import math
from typing import Any, Callable, ClassVar, NamedTuple

import tensorflow as tf

from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import forms

Capture = Callable[[Any, tf.Tensor], tf.Tensor]
"""(value to save for `LayerRule.gradients`, tensor) -> the tensor to continue with."""

Gradients = list[tuple[tf.Variable, forms.GradientForm]]


class LayerCall(NamedTuple):
  """One captured tensor of a call of a layer, and its gradient.

  Attributes:
    layer: The layer.
    saved: The value that the rule saved together with the tensor.
    gradient: Gradient of the weighted losses with respect to the captured tensor.
  """

  layer: keras.layers.Layer
  saved: Any
  gradient: tf.Tensor


class LayerRule(abc.ABC):
  """Rule that runs one kind of layer and computes its per-example gradients.

  Attributes:
    layer_types: Exact types of the layers, no subclasses: they may override `call`.
    also_frozen: Whether the rule also runs layers without trainable variables.
  """

  layer_types: ClassVar[tuple[type, ...]] = ()
  also_frozen: ClassVar[bool] = False

  def unsupported(self, layer: keras.layers.Layer) -> str:
    """Returns why the rule does not hold for this layer, or ''."""
    del layer
    return ''

  @abc.abstractmethod
  def forward(self, layer: keras.layers.Layer, call: Callable[..., Any],
              capture: Capture, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the layer and passes tensors whose gradients are needed to `capture`.

    Args:
      layer: The layer.
      call: The layer's own `call`.
      capture: See `Capture`.
      inputs: First argument of the call.
      *args: Other positional arguments.
      **kwargs: Keyword arguments.
    """

  @abc.abstractmethod
  def gradients(self, call: LayerCall) -> Gradients:
    """Returns per-example gradients of variables that the captured tensor depends on.

    If several captured tensors depend on a variable, its gradients are added up.
    """

  def numbers_per_example(self, layer: keras.layers.Layer,
                          output_shapes: Sequence[list[int]]) -> int:
    """Returns about how many numbers `gradients` holds at once per example.

    Args:
      layer: The layer, built.
      output_shapes: Known shapes of its outputs, without the batch axis.
    """
    del output_shapes
    return sum(math.prod(v.shape) for v in models.trained_variables(layer))


def in_stored_dtype(value: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
  """Casts to the dtype that the variable is stored in: float32 in mixed precision."""
  return tf.cast(value, models.stored_dtype(variable))
