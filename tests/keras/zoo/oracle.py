"""Clipped sums of a private step, and an oracle of their values.

The oracle loops over examples: Keras' own loss on a batch of one example, and a
GradientTape. It shares no code with the library. It is compared with the gradients that
an ordinary optimizer receives in one step of a private model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.keras.conftest import FakePlan
from tests.keras.zoo.base import Case, Entry, Size
from tfcactus import noise as noise_lib
from tfcactus.keras import PoissonBatches, privatize
from tfcactus.keras.compat.versions import keras, KERAS_3

ROWS, _PHYSICAL = 5, 3
"""Not a multiple, so that the last physical batch is padded."""
OWNERS = np.array([7, 3, 7, 7, 9])
"""The user that each row belongs to: users of one and of three rows."""
_MARGIN = 1e-5
"""Norms are clipped to this fraction below the clip norm, as documented."""


def make(entry: Entry, policy: str = '', rows: int = ROWS) -> Case:
  """Returns the small case of an entry, with no variable at initial zeros or ones.

  Args:
    entry: An entry of the zoo.
    policy: The dtype policy; by default the entry's.
    rows: Number of examples.
  """
  policy = policy or entry.policy or 'float32'
  tf.keras.backend.clear_session()
  tf.keras.utils.set_random_seed(1)
  before = tf.keras.backend.floatx()
  tf.keras.backend.set_floatx('float64' if policy == 'float64' else before)
  tf.keras.mixed_precision.set_global_policy(policy)
  case = entry.make(Size(rows))
  rng = np.random.default_rng(3)
  for variable in case.model.weights:
    value = np.asarray(variable)
    if value.dtype.kind == 'f' and value.size and np.all(value == value.flat[0]):
      variable.assign(value + 0.1 * rng.normal(size=value.shape))
  return case


def restore() -> None:
  """Restores the global dtypes."""
  tf.keras.backend.set_floatx('float32')
  tf.keras.mixed_precision.set_global_policy('float32')


def _one(values: Any, i: int) -> Any:
  """Returns the batch of example `i`; ragged tensors too."""
  if values is None:
    return None
  return tf.nest.map_structure(
      lambda each: tf.convert_to_tensor(each[i:i + 1]) if not isinstance(
          each, tf.RaggedTensor) else each[i:i + 1], values)


def _variables(model: Any) -> list[tf.Variable]:
  return [v.value if KERAS_3 else v for v in model.trainable_variables]


def _penalty(model: Any) -> Any:
  """Returns the sum of weight penalties, which depends on no example."""
  if KERAS_3:
    return tf.add_n(model._get_regularization_losses())  # pylint: disable=protected-access
  return tf.add_n([each() for layer in model.layers
                   for each in layer._callable_losses])  # pylint: disable=protected-access


def _objective(case: Case, x: Any, y: Any, weight: Any) -> Any:
  """Returns the training loss of plain Keras on a batch."""
  model = case.model
  if case.objective is not None:
    return case.objective(model, x, y)
  outputs = model(x, training=True)
  return model.compute_loss(x, y, outputs, weight)


def gradients(case: Case, penalty: bool = False) -> tuple[np.ndarray, np.ndarray]:
  """Returns per-example gradients and the gradient of the penalty, in float64.

  Args:
    case: The case.
    penalty: Whether per-example gradients leave out the weight penalties.
  """
  case.model.compile(tf.keras.optimizers.SGD(), case.loss,
                     loss_weights=case.loss_weights)
  variables = _variables(case.model)

  def flat(found: Any) -> np.ndarray:
    return np.concatenate([np.ravel(tf.convert_to_tensor(each)).astype(np.float64)
                           for each in found])

  def rows(x: Any, y: Any, weight: Any) -> Any:
    with tf.GradientTape() as tape:
      loss = _objective(case, x, y, weight)
      loss = loss - _penalty(case.model) if penalty else loss
    return [tf.convert_to_tensor(each) for each in tape.gradient(
        loss, variables, unconnected_gradients='zero')]

  traced = tf.function(rows, reduce_retracing=True)
  found = np.stack([flat(traced(_one(case.x, i), _one(case.y, i), _one(
      case.sample_weight, i))) for i in range(ROWS)])
  if not penalty:
    return found, np.zeros_like(found[0])
  with tf.GradientTape() as tape:
    value = _penalty(case.model)
  return found, flat(tape.gradient(value, variables, unconnected_gradients='zero'))


def median_norm(found: np.ndarray) -> float:
  """Returns the median norm, so that some gradients are clipped."""
  return float(np.median(np.linalg.norm(found, axis=1)))


def clipped_sum(found: np.ndarray, clip: float) -> np.ndarray:
  """Returns the sum of clipped gradients."""
  bound = clip * (1 - _MARGIN)
  norms = np.linalg.norm(found, axis=1)
  return (found * (bound / np.maximum(norms, bound))[:, None]).sum(0)


class Recording(tf.keras.optimizers.SGD):
  """An optimizer that keeps the gradients it receives."""

  def __init__(self, shapes: Any, dtypes: Any):
    """Initialises the optimizer for variables of these shapes."""
    super().__init__(0.0)
    kept = [tf.Variable(tf.zeros(shape, dtype)) for shape, dtype
            in zip(shapes, dtypes)]
    self._kept = lambda: kept  # Hidden from Keras, which would track the variables.

  def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
    pairs = list(grads_and_vars)
    for kept, (gradient, _) in zip(self._kept(), pairs):
      kept.assign(tf.cast(gradient, kept.dtype))
    return super().apply_gradients(pairs, *args, **kwargs)

  def kept(self) -> np.ndarray:
    """Returns all gradients as one vector."""
    return np.concatenate([np.ravel(each).astype(np.float64)
                           for each in self._kept()])


def private_sum(case: Case, clip: float, **kwargs: Any) -> np.ndarray:
  """Returns the sum of one private step from the gradients the optimizer receives.

  Raises:
    ValueError: if the model is refused.
  """
  plan = FakePlan(noise_lib.Gaussian(1e-30), clip, 40, 0.25)
  private = privatize(case.model, plan, physical_batch_size=_PHYSICAL, **kwargs)
  variables = _variables(case.model)
  optimizer = Recording([v.shape for v in variables], [v.dtype for v in variables])
  private.compile(optimizer, case.loss, **(
      {} if case.loss_weights is None else {'loss_weights': case.loss_weights}))
  private.train_on_batch(case.x, case.y, **(
      {} if case.sample_weight is None else {'sample_weight': case.sample_weight}))
  return plan.expected_batch_size * optimizer.kept()


def unrounded(difference: np.ndarray, clip: float) -> np.ndarray:
  """Returns what is left of a difference beyond half a step of the released grid.

  The step is documented: the largest power of two that is at most 2^-30 clip norms.
  """
  half = 2.0**(np.floor(np.log2(clip)) - 31)
  return np.sign(difference) * np.maximum(np.abs(difference) - half, 0)


def error(entry: Entry, policy: str = '', **kwargs: Any) -> float:
  """Returns the relative error of an entry's private sum against the loop.

  The rounding of released sums to a grid is no error.

  Raises:
    ValueError: if the model is refused.
  """
  try:
    case = make(entry, policy)
    found, penalty = gradients(case, entry.penalty)
    clip = median_norm(found)
    want = clipped_sum(found, clip)
    got = private_sum(case, clip, **kwargs) - (
        FakePlan(None, clip, 40, 0.25).expected_batch_size * penalty)
    return float(np.linalg.norm(unrounded(got - want, clip)) / np.linalg.norm(want))
  finally:
    restore()


def error_of_users(entry: Entry, policy: str = '') -> float:
  """Returns the relative error of a private sum over users against a loop over them.

  The rounding of released sums to a grid is no error, entry by entry.

  Raises:
    ValueError: if the model or its data are refused.
  """
  try:
    case = make(entry, policy)
    found, penalty = gradients(case, entry.penalty)
    users = np.stack([found[OWNERS == user].mean(0) for user in np.unique(OWNERS)])
    clip = median_norm(users)
    want = clipped_sum(users, clip)
    got = private_sum_of_users(case, clip) - len(users) * penalty
    return float(np.linalg.norm(unrounded(got - want, clip)) / np.linalg.norm(want))
  finally:
    restore()


def private_sum_of_users(case: Case, clip: float, **kwargs: Any) -> np.ndarray:
  """Returns the sum over users of one private step.

  Raises:
    ValueError: if the model or its data are refused.
  """
  users = len(np.unique(OWNERS))
  plan = FakePlan(noise_lib.Gaussian(1e-30), clip, users, 1.0, unit='user')
  private = privatize(case.model, plan, physical_batch_size=2, **kwargs)
  variables = _variables(case.model)
  optimizer = Recording([v.shape for v in variables], [v.dtype for v in variables])
  private.compile(optimizer, case.loss, loss_weights=case.loss_weights)
  private.fit(PoissonBatches(
      case.x, case.y, 1.0, sample_weight=case.sample_weight, units=OWNERS,
      examples_per_unit=3), verbose=0)
  return users * optimizer.kept()


def run(entry: Entry, policy: str = '') -> None:
  """Takes one private step.

  Raises:
    ValueError: if the model is refused.
  """
  try:
    private_sum(make(entry, policy), 1.0)
  finally:
    restore()


def version() -> int:
  """Returns the major version of Keras: 2 or 3."""
  return int(keras.__version__.split('.')[0])
