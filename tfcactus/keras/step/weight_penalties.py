"""Weight regularizers: their gradient is added after the noise, not clipped.

A regularizer is a function of weights that are already released, so its gradient
tells nothing of the data and needs neither clipping nor noise. It is added to the
noisy average, as Keras adds the regularizer to the average loss. In expectation an
update is then that of Keras, except for clipping.
"""

from __future__ import annotations

import tensorflow as tf

from tfcactus.keras.checks import state_writes
from tfcactus.keras.compat import losses, models, precision
from tfcactus.keras.compat.versions import keras


def penalty(model: keras.Model) -> tuple[tf.Tensor, list[tf.Tensor | None]]:
  """Returns the sum of weight regularizers, and its gradient or None per variable."""
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
  """Returns the sum of a model's weight regularizers, in at least float32."""
  found = map(tf.convert_to_tensor, losses.weight_penalties(model))
  return tf.add_n(list(map(tf.reduce_sum, precision.alike(list(found)))))


@tf.autograph.experimental.do_not_convert
def _check(model: keras.Model) -> None:
  """Raises ValueError unless penalties depend on nothing but the model's weights.

  They may not read other variables, write any, or run Python. Constants and strength
  of a regularizer are taken as public.
  """
  with tf.init_scope():
    graph = tf.function(lambda: _total(model), autograph=False
                       ).get_concrete_function().graph
  state_writes.check_graph(graph, 'regularizers', model)
