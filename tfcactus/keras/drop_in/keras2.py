"""How Keras 2 calls a drop-in optimizer."""

from __future__ import annotations

from typing import Any
from typing import Sequence

import tensorflow as tf

from tfcactus.keras import serialization
from tfcactus.keras.compat import optimizers
from tfcactus.keras.drop_in import optimizer


class Keras2Optimizer(optimizer.DPOptimizer):
  """Under Keras 2, whose `minimize` asks for gradients and applies them."""

  def get_config(self) -> Any:
    """As `DPOptimizer`, with slots: .keras files hold them nowhere else."""
    state = self._private.saved or (
        serialization.arrays_config(self.get_weights())
        if int(tf.convert_to_tensor(self.iterations))
        else None)
    return {**super().get_config(), 'state': state}

  def build(self, var_list: Sequence[tf.Variable]) -> None:
    """Creates the slots, and fills them if a config held their values."""
    with tf.init_scope():
      self._create_all_weights(var_list)
      if self._private.saved:
        self.set_weights(serialization.arrays_from(self._private.saved))
        self._private.saved = None

  def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any
                      ) -> Any:
    """Applies gradients made by `minimize`; refuses any others."""
    self._check_ready()
    gradients, var_list = zip(*grads_and_vars)
    self.build(var_list)
    base: Any = super()
    return self._apply_when_complete(
        gradients, var_list, lambda averages: base.apply_gradients(
            list(zip(averages, var_list)), *args,
            **{**kwargs, **optimizers.of_sums()}))
