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
      l2_norm_clip: The clipping norm, from 1e-30 to 1e30; with a plan, None or the
        plan's. A scalar variable or tensor, which may be zero too, is read for each
        sample. Noise scales with it, so that it may depend on earlier releases, but
        never on the records.
      seed: For repeatable experiments; None takes the system's entropy.

    Raises:
      ValueError: if an argument is invalid, or contradicts the plan.
    """
    self._plan = plan_or_noise if hasattr(plan_or_noise, 'check_vector') else None
    clip: Any
    if self._plan is None:
      self.noise, clip = plan_or_noise, l2_norm_clip
      if clip is None:
        raise ValueError(
            'Expected l2_norm_clip with noise that is not a PrivacyPlan, got '
            'None; write TableNoiseQuery(noise, l2_norm_clip=1.0).')
    else:
      self.noise, clip = self._plan.noise, self._plan.l2_norm_clip
      if l2_norm_clip is not None and (
          tf.is_tensor(l2_norm_clip) or l2_norm_clip != clip):
        raise ValueError(
            f'Expected l2_norm_clip={clip!r} as in the plan, got '
            f'l2_norm_clip={l2_norm_clip!r}; leave it out.')
      self._plan.check_drop_in()
    if not tf.is_tensor(clip):
      clip = _checks.clip_norm(clip)
    elif clip.shape.rank != 0 or not clip.dtype.is_floating:
      raise ValueError(
          f'Expected l2_norm_clip to be a number or a scalar of floats, got {clip!r}.')
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
    """Returns the clipping norm, float64; asserts that a tensor's value is valid."""
    if not tf.is_tensor(self.l2_norm_clip):
      return tf.constant(self.l2_norm_clip, tf.float64)
    clip = tf.cast(self.l2_norm_clip, tf.float64)
    in_range = tf.logical_and(
        clip >= _checks.SMALLEST_CLIP, clip <= _checks.LARGEST_CLIP)
    valid = tf.debugging.Assert(tf.logical_or(clip == 0, in_range), [
        f'Expected l2_norm_clip to be 0, or from {_checks.SMALLEST_CLIP:g} to '
        f'{_checks.LARGEST_CLIP:g}.'])
    with tf.control_dependencies([] if valid is None else [valid]):  # None: eager.
      return tf.identity(clip)

  def derive_sample_params(self, global_state: Any) -> tf.Tensor:
    """Returns the clipping norm."""
    return global_state.l2_norm_clip

  def preprocess_record(self, params: tf.Tensor, record: Any) -> Any:
    """Returns a record clipped to the norm `params`; all zeros if it is not finite.

    `record` is a nested structure of float32 or float64 tensors.
    """
    parts = [tf.convert_to_tensor(part) for part in tf.nest.flatten(record)]
    return tf.nest.pack_sequence_as(
        record, clipping.clipped_sums([part[None] for part in parts], params))

  def accumulate_record(self, params: tf.Tensor, sample_state: Any, record: Any
                        ) -> Any:
    """Returns the sum `sample_state` with one record added, clipped to norm `params`.

    `record` is as for `preprocess_record`, in the structure and shapes of the sum.
    """
    # A row of a Jacobian has no static shape if the batch size is unknown.
    shaped = tf.nest.map_structure(
        lambda part, total: tf.ensure_shape(part, total.shape), record, sample_state)
    return self.accumulate_preprocessed_record(
        sample_state, self.preprocess_record(params, shaped))

  def accumulate_preprocessed_record(self, sample_state: Any,
                                     preprocessed_record: Any) -> Any:
    """Returns the sum `sample_state` with a record that `preprocess_record` returned.

    A part that is None adds nothing. Parts of other shapes than the sum's are refused:
    broadcast over rows, a part would be added once a row.
    """
    return tf.nest.map_structure(_added, sample_state, preprocessed_record)

  def get_noised_result(self, sample_state: Any, global_state: Any) -> Any:
    """Returns (noisy sum, global state unchanged, `DpEvent` of this release).

    `sample_state` is the sum of preprocessed records, `global_state` is as
    `initial_global_state` returned it. The event is that before any amplification by
    sampling. Raises ValueError if the noise is not valid for a vector of this
    dimension.
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
    """Initialises the query; raises ValueError if an argument is invalid.

    Args:
      l2_norm_clip: The clipping norm: a number, or a scalar variable or tensor.
      stddev: Standard deviation of the noise; 0 for no noise, which protects nothing.
      seed: As for `TableNoiseQuery`.
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
    """Returns the Gaussian event of stddev / clipping norm, if both are positive.

    Else returns `NonPrivateDpEvent` without noise, `NoOpDpEvent` for a clipping norm of
    zero, and `UnsupportedDpEvent` for one that the graph does not know yet.
    """
    del dim
    clip = tf.get_static_value(global_state.l2_norm_clip)
    if not self.stddev:
      return dp_accounting.NonPrivateDpEvent()
    if clip is None:
      return dp_accounting.UnsupportedDpEvent()
    if clip == 0:
      return dp_accounting.NoOpDpEvent()
    return dp_accounting.GaussianDpEvent(self.stddev / float(clip))


def _added(total: Any, part: Any) -> tf.Tensor:
  """Returns `total` plus `part`, of the shape of `total`; just `total` for None."""
  if part is None:
    return total
  total = tf.convert_to_tensor(total)
  return total + tf.ensure_shape(tf.convert_to_tensor(part, total.dtype), total.shape)
