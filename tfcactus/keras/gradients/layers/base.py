"""What a layer rule is: how one kind of layer gives per-example gradients.

A rule runs its layer on a whole batch, shows the tensor whose gradient it needs
(its pre-activation, say) to `capture`, and later turns that gradient into one
`GradientForm` for each variable.
"""

from __future__ import annotations

import abc
import math
from typing import Any
from typing import Callable
from typing import ClassVar
from typing import List
from typing import NamedTuple
from typing import Sequence
from typing import Tuple

import tensorflow as tf

from tfcactus.keras.compat import models
from tfcactus.keras.compat import patches
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients import forms

Capture = Callable[[Any, tf.Tensor], tf.Tensor]
"""(what to remember, tensor) -> the tensor to go on with."""

Gradients = List[Tuple[tf.Variable, forms.GradientForm]]


class LayerCall(NamedTuple):
  """One call of a layer, differentiated.

  Attributes:
    layer: The layer.
    saved: What its rule remembered of the call.
    gradient: Of the weighted losses, by the tensor that the rule captured.
  """

  layer: keras.layers.Layer
  saved: Any
  gradient: tf.Tensor


class LayerRule(abc.ABC):
  """How one kind of layer is run and differentiated.

  Attributes:
    layer_types: The layers it holds for; exact types, as a subclass may
      override `call`.
    also_frozen: Whether it runs layers without trained variables too, which
      would otherwise run by themselves.
    composed: Whether it is for layers whose weights are those of `enable_lora`.
  """

  layer_types: ClassVar[Tuple[type, ...]] = ()
  also_frozen: ClassVar[bool] = False
  composed: ClassVar[bool] = False

  def unsupported(self, layer: keras.layers.Layer) -> str:
    """Why the rule does not hold for this layer, or ''."""
    del layer
    return ''

  def forward(self, layer: keras.layers.Layer, call: Callable[..., Any],
              capture: Capture, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the layer, passing what needs a gradient through `capture`.

    By default that is what the layer's activation is given.

    Args:
      layer: The layer.
      call: Its own `call`.
      capture: See `Capture`.
      inputs: First argument of the call.
      *args: The others.
      **kwargs: Likewise.
    """
    activation = layer.activation

    def captured(outputs: tf.Tensor) -> tf.Tensor:
      return activation(capture(inputs, outputs))

    with patches.replaced(layer, activation=captured):
      return call(inputs, *args, **kwargs)

  @abc.abstractmethod
  def gradients(self, call: LayerCall) -> Gradients:
    """The gradients of the layer's trainable variables at one call."""

  def numbers_per_example(self, layer: keras.layers.Layer,
                          output_shapes: Sequence[List[int]]) -> int:
    """About how many numbers `gradients` holds for each example at once.

    Args:
      layer: The layer, built.
      output_shapes: Known shapes of its outputs, without the batch.
    """
    del output_shapes
    return sum(math.prod(v.shape) for v in layer.trainable_variables)


def in_stored_dtype(value: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
  """In the variable's dtype: float32 under mixed precision."""
  return tf.cast(value, models.stored_dtype(variable))


def layer_inputs(call: LayerCall, variable: tf.Variable) -> tf.Tensor:
  """What the layer computed with: cast down first, if it computes in less."""
  return in_stored_dtype(tf.cast(call.saved, call.layer.compute_dtype), variable)
