"""Regularizers of weights: added after the noise, neither clipped nor noisy.

What a regularizer of weights gives is a function of weights that were released
already. Its gradient tells nothing of the data, so it is neither clipped nor made
noisy: it is added to the noisy average, as Keras adds the regularizer to the average
loss. An update is then that of Keras, in expectation, but for what is clipped.
"""

from __future__ import annotations

from typing import List
from typing import Optional
from typing import Tuple

import tensorflow as tf

from tfcactus.keras import precision
from tfcactus.keras.checks import state_writes
from tfcactus.keras.compat import losses
from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras


def penalty(model: keras.Model) -> Tuple[tf.Tensor, List[Optional[tf.Tensor]]]:
  """What the regularizers of a model's weights add to the loss.

  Args:
    model: The model.

  Returns:
    (the sum of all, float32 or float64; its gradient by each trainable variable,
    None where there is none).
  """
  if not losses.weight_penalties(model):
    return tf.zeros([]), [None] * len(model.trainable_variables)
  _check(model)
  variables = models.tf_variables(model)
  with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(variables)
    total = _total(model)
  return total, [None if each is None else tf.convert_to_tensor(each)
                 for each in tape.gradient(total, variables)]


def _total(model: keras.Model) -> tf.Tensor:
  found = map(tf.convert_to_tensor, losses.weight_penalties(model))
  return tf.add_n(list(map(tf.reduce_sum, precision.alike(list(found)))))


@tf.autograph.experimental.do_not_convert
def _check(model: keras.Model) -> None:
  """Refuses penalties that are not functions of the model's weights.

  Numbers in a regularizer, such as weights to stay near to, are taken for public, as
  its strength is.

  Raises:
    ValueError: if they read other variables, or write any, or run Python.
  """
  with tf.init_scope():
    graph = tf.function(lambda: _total(model), autograph=False
                       ).get_concrete_function().graph
  state_writes.check_graph(graph, 'regularizers', model)
