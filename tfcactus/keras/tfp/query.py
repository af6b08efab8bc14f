"""TensorFlow Privacy queries that sum clipped records and add noise of this library."""

from __future__ import annotations

import collections
from typing import Any, Union

import dp_accounting
import tensorflow as tf

from tfcactus import _checks, noise as noise_lib
from tfcactus.keras.gradients import clipping
from tfcactus.keras.noise.noise_addition import NoiseSampler
from tfcactus.keras.tfp import stand_in

Clip = Union[float, tf.Tensor, tf.Variable]


class TableNoiseQuery(stand_in.SumAggregationDPQuery):
  """Query that clips records in joint l2 norm and adds noise once, to their sum.

  Works wherever TensorFlow Privacy takes a `dp_sum_query`. A record with an entry that
  is not finite contributes exactly zero, which keeps the guarantee. (Such records are
  not counted: the count would not be private.)

  Attributes:
    noise: The noise, in units of the clipping norm.
    l2_norm_clip: The bound on the joint norm of a record, a float or a tensor.
    seeded: Whether the noise comes from a seed; see `NoiseSampler`.
  """

  _GlobalState = collections.namedtuple('_GlobalState', ['l2_norm_clip'])

  def __init__(self, plan_or_noise: Any, l2_norm_clip: Clip | None = None,
               *, seed: int | None = None):
    """Initialises the query.

    Args:
      plan_or_noise: A `PrivacyPlan`, or noise valid for the records: Gaussian for any
        dimension, a radial table for its own, scalar noise for one.
      l2_norm_clip: The clipping norm; with a plan, None or the plan's. A scalar
        variable or tensor is read for each sample. Noise scales with it, so that it may
        depend on earlier releases, but never on the records.
      seed: For repeatable experiments; None takes the system's entropy.

    Raises:
      ValueError: if an argument is invalid, or contradicts the plan.
    """
    plan = plan_or_noise if hasattr(plan_or_noise, 'check_vector') else None
    if plan is None and l2_norm_clip is None:
      raise ValueError(
          'Expected l2_norm_clip with noise that is not a PrivacyPlan, got '
          'None; write TableNoiseQuery(noise, l2_norm_clip=1.0).')
    if plan is not None and l2_norm_clip is not None and (
        tf.is_tensor(l2_norm_clip) or l2_norm_clip != plan.l2_norm_clip):
      raise ValueError(
          f'Expected l2_norm_clip={plan.l2_norm_clip!r} as in the plan, got '
          f'l2_norm_clip={l2_norm_clip!r}; leave it out.')
    if plan is not None:
      plan.check_drop_in()
    self._plan = plan
    self.noise = plan_or_noise if plan is None else plan.noise
    clip: Any = l2_norm_clip if plan is None else plan.l2_norm_clip
    if not tf.is_tensor(clip):
      clip = _checks.positive('l2_norm_clip', clip)
    elif clip.shape.rank != 0 or not clip.dtype.is_floating:
      raise ValueError(
          'Expected l2_norm_clip to be a number or a scalar of floats, got '
          f'{clip!r}.')
    self.l2_norm_clip = clip
    self._sampler = NoiseSampler(self.noise, seed=seed)
    self.seeded = self._sampler.seeded

  def check_vector(self, dim: int) -> None:
    """Raises ValueError if no guarantee is known for records of `dim` coordinates."""
    if self._plan is not None:
      self._plan.check_vector(dim)
    else:
      self.noise.check_dim(dim)

  def initial_global_state(self) -> Any:
    """Returns the state: the clipping norm, which also scales the noise."""
    return self._GlobalState(self._clip_now())

  def _clip_now(self) -> tf.Tensor:
    """Returns the clipping norm, float64; asserts that a tensor is finite and >= 0."""
    if not tf.is_tensor(self.l2_norm_clip):
      return tf.constant(self.l2_norm_clip, tf.float64)
    clip = tf.cast(self.l2_norm_clip, tf.float64)
    valid = tf.debugging.assert_non_negative(
        tf.where(tf.math.is_finite(clip), clip, -tf.ones_like(clip)),
        'Expected l2_norm_clip to be finite and at least 0.')
    # Eagerly the assertion returns None.
    with tf.control_dependencies([] if valid is None else [valid]):
      return tf.identity(clip)

  def derive_sample_params(self, global_state: Any) -> tf.Tensor:
    """Returns the clipping norm."""
    return global_state.l2_norm_clip

  def preprocess_record(self, params: tf.Tensor, record: Any) -> Any:
    """Clips one record to the clipping norm, or to zero if it is not finite.

    Args:
      params: The clipping norm.
      record: A nested structure of float32 or float64 tensors.

    Returns:
      The structure, of joint l2 norm at most the clipping norm; all zeros if any entry
      is not finite.
    """
    parts = [tf.convert_to_tensor(part) for part in tf.nest.flatten(record)]
    return tf.nest.pack_sequence_as(
        record, clipping.clipped_sums([part[None] for part in parts], params))

  def accumulate_record(self, params: tf.Tensor, sample_state: Any, record: Any
                        ) -> Any:
    """Clips one record and returns the sum with it added.

    Args:
      params: The clipping norm.
      sample_state: The sum so far.
      record: As for `preprocess_record`, in the structure and shapes of the sum.
    """
    # A row of a Jacobian has no static shape if the batch size is unknown.
    shaped = tf.nest.map_structure(
        lambda part, total: tf.ensure_shape(part, total.shape), record, sample_state)
    return self.accumulate_preprocessed_record(
        sample_state, self.preprocess_record(params, shaped))

  def accumulate_preprocessed_record(self, sample_state: Any,
                                     preprocessed_record: Any) -> Any:
    """Returns the sum with one more record; a part that is None adds nothing.

    Args:
      sample_state: The sum so far.
      preprocessed_record: As `preprocess_record` returned it, in the shapes of the sum:
        a record broadcast over rows would be added once a row.
    """
    return tf.nest.map_structure(_added, sample_state, preprocessed_record)

  def get_noised_result(self, sample_state: Any, global_state: Any) -> Any:
    """Adds noise to the sum.

    Args:
      sample_state: The sum of preprocessed records.
      global_state: As `initial_global_state` returned it.

    Returns:
      (noisy sum, global state unchanged, `DpEvent` of this release before any
      amplification by sampling).

    Raises:
      ValueError: if the noise is not valid for a vector of this dimension.
    """
    parts = [tf.convert_to_tensor(p) for p in tf.nest.flatten(sample_state)]
    dim = sum(part.shape.num_elements() or 0 for part in parts)
    self.check_vector(dim)
    noisy = self._sampler.add_to(parts, self._noise_scale(global_state))
    return (tf.nest.pack_sequence_as(sample_state, noisy), global_state,
            self._event(global_state, dim))

  def _noise_scale(self, global_state: Any) -> tf.Tensor:
    """Returns the factor by which the noise is multiplied: the clipping norm."""
    return global_state.l2_norm_clip

  def _event(self, global_state: Any, dim: int) -> dp_accounting.DpEvent:
    """Returns the `DpEvent` of releasing a noisy vector of `dim` coordinates."""
    del global_state
    # A plan with the accounting 'scalar-unproven' allows scalar noise on a vector,
    # without a proof.
    return (self.noise.dp_event if self.noise.dim in (None, dim) else
            dp_accounting.UnsupportedDpEvent())


class GaussianSumQuery(TableNoiseQuery):
  """Drop-in replacement of `tensorflow_privacy.GaussianSumQuery`.

  Attributes:
    stddev: Standard deviation of the noise, in the unit of the records.
  """

  _GlobalState = collections.namedtuple('_GlobalState', ['l2_norm_clip', 'stddev'])

  def __init__(self, l2_norm_clip: Clip, stddev: float, *,
               seed: int | None = None):
    """Initialises the query.

    Args:
      l2_norm_clip: The clipping norm: a number, or a scalar variable or tensor.
      stddev: Standard deviation of the noise; 0 for no noise, which protects nothing.
      seed: As for `TableNoiseQuery`.

    Raises:
      ValueError: if an argument is invalid.
    """
    self.stddev = _checks.non_negative('stddev', stddev)
    super().__init__(noise_lib.Gaussian(1.0) if stddev else noise_lib.NoNoise(),
                     l2_norm_clip, seed=seed)

  def initial_global_state(self) -> Any:
    """Returns the state: the clipping norm and the noise's standard deviation."""
    return self._GlobalState(
        self._clip_now(), tf.constant(self.stddev, tf.float64))

  def _noise_scale(self, global_state: Any) -> tf.Tensor:
    """Returns the standard deviation, which multiplies noise of deviation one."""
    return global_state.stddev

  def _event(self, global_state: Any, dim: int) -> dp_accounting.DpEvent:
    """Returns the Gaussian event of stddev / clipping norm; others if one is zero."""
    del dim
    clip = tf.get_static_value(global_state.l2_norm_clip)
    if not self.stddev:
      return dp_accounting.NonPrivateDpEvent()
    if clip is None:  # A variable in a graph, whose value is not known yet.
      return dp_accounting.UnsupportedDpEvent()
    if clip == 0:
      return dp_accounting.NoOpDpEvent()
    return dp_accounting.GaussianDpEvent(self.stddev / float(clip))


def _added(total: Any, part: Any) -> Any:
  """Returns `total` plus `part`, of one shape; `total` if `part` is None."""
  if part is None:
    return total
  shaped = tf.ensure_shape(part, tf.convert_to_tensor(total).shape)
  return tf.add(total, shaped if tf.is_tensor(part) else part)
