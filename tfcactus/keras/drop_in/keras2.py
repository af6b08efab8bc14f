"""Methods of drop-in optimizers that Keras 2 calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfcactus.keras import serialization
from tfcactus.keras.compat import optimizers
from tfcactus.keras.drop_in import optimizer


class Keras2Optimizer(optimizer.DPOptimizer):
  """Hooks for Keras 2, whose `minimize` computes and applies gradients."""

  def get_config(self) -> Any:
    """Returns the config with the values of slots, which .keras files do not store."""
    state = self._private.saved or (
        serialization.arrays_config(self.get_weights())
        if int(tf.convert_to_tensor(self.iterations))
        else None)
    return {**super().get_config(), 'state': state}

  def build(self, var_list: Sequence[tf.Variable]) -> None:
    """Creates the slots, and restores their values if a config held them."""
    with tf.init_scope():
      self._create_all_weights(var_list)
      if self._private.saved:
        self.set_weights(serialization.arrays_from(self._private.saved))
        self._private.saved = None

  def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any
                      ) -> Any:
    """Applies gradients made by `minimize`; raises ValueError for any others."""
    self._check_ready()
    gradients, var_list = zip(*grads_and_vars)
    self.build(var_list)
    base: Any = super()
    return self._apply_when_complete(
        gradients, var_list, lambda averages: base.apply_gradients(
            list(zip(averages, var_list)), *args,
            **{**kwargs, **optimizers.of_sums()}))
