"""Methods of drop-in optimizers that Keras 2 and Keras 3 call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfcactus.accounting import event_configs
from tfcactus.keras.checks import example_losses
from tfcactus.keras.compat import models, optimizers
from tfcactus.keras.drop_in import clipped_sums, operation_gradients, optimizer


class Keras2Optimizer(optimizer.DPOptimizer):
  """Hooks for Keras 2, whose `minimize` computes and applies gradients."""

  def get_config(self) -> Any:
    """Returns the config. `state` has the slots (momenta), which .keras files lack.

    `state` is None before the first update.
    """
    state = self._private.saved
    if not state and int(tf.convert_to_tensor(self.iterations)):
      state = event_configs.arrays_config(self.get_weights())
    return {**super().get_config(), 'state': state}

  def _create_all_weights(self, var_list: Sequence[tf.Variable]) -> None:
    """Creates the slots of `var_list`; Keras calls this for a loaded model."""
    super()._create_all_weights(var_list)
    self._remember_loaded(var_list)

  def build(self, var_list: Sequence[tf.Variable]) -> None:
    """Creates the slots, and restores their values if a config held them."""
    with tf.init_scope():
      self._create_all_weights(var_list)
      if self._private.saved:
        self.set_weights(event_configs.arrays_from(self._private.saved))
        self._private.saved = None

  def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
    """Applies gradients made by `minimize`; raises ValueError for any others."""
    self._check_ready()
    gradients, var_list = zip(*grads_and_vars)
    self.build(var_list)
    base: Any = super()
    return self._apply_when_complete(
        gradients, var_list, lambda averages: base.apply_gradients(
            list(zip(averages, var_list)), *args,
            **{**kwargs, **optimizers.sum_arguments()}))


class Keras3Optimizer(optimizer.DPOptimizer):
  """Hooks for Keras 3, whose `fit` scales the loss and applies its gradients."""

  def build(self, variables: Sequence[tf.Variable]) -> None:
    """Creates the slots of `variables`; Keras calls this for a loaded model."""
    super().build(variables)
    self._remember_loaded(variables)

  def minimize(self, loss: Any, var_list: Sequence[tf.Variable], grad_loss: Any = None,
               name: Any = None, tape: tf.GradientTape | None = None) -> Any:
    """Updates variables by clipped and noisy gradients of a loss per example.

    `loss`, of shape (batch,), was recorded on `tape`, or is a function that returns it.
    `var_list` may be a function too. `grad_loss` and `name` are ignored.
    """
    del name
    return self.apply_gradients(
        self._compute_gradients(loss, var_list, grad_loss, tape))

  def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
    """Keeps losses, (batch, ...), for `apply`; returns a sum for `fit` to minimize.

    Raises ValueError in eager mode, for scaled losses, or if `_check_replicas` does.
    """
    self._check_replicas()
    self._check_unscaled()
    losses = self._private.batching.split(example_losses.mean_per_example(loss))
    if tf.executing_eagerly():
      raise ValueError(
          'Expected compile(run_eagerly=False) with a drop-in optimizer of '
          'Keras 3, got True: only a graph can be asked for gradients per '
          'example. Leave it out, or use tfcactus.keras.privatize.')
    self._private.here.losses = losses
    self._private.here.ready = True
    return tf.reduce_sum(losses.of_microbatches)

  def apply(self, grads: Any, trainable_variables: Any = None) -> None:
    """Applies gradients of `fit` or `minimize`; raises ValueError for any others."""
    self._check_ready()
    var_list = list(trainable_variables or self._trainable_variables)
    with tf.init_scope():
      if not self.built:
        self.build(var_list)
    losses, self._private.here.losses = self._private.here.losses, None
    # None in `minimize`: `_compute_gradients` has clipped its gradients already.
    if losses is not None:
      # Replaces the unclipped gradients of `fit`, which the graph then never computes.
      variables = [models.local(models.tf_variable(v)) for v in var_list]
      clip = self._clip()
      sums, finite = operation_gradients.clipped_sums(
          losses, variables, clip, lambda: clipped_sums.by_graph(
              losses.of_microbatches, variables, clip))
      self._private.note_finite(finite)
      grads = self._prepared(sums, variables)
    base: Any = super()

    def apply(averages: list[tf.Tensor]) -> None:
      """Applies noisy averages, which are equal on all replicas, by the base."""
      with optimizers.applying_sums():
        base.apply(averages, var_list)

    self._apply_when_complete(grads, var_list, apply)
