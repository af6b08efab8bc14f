"""Releases by additive noise: numbers, vectors, clipped sums and histograms."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from tfcactus import _checks, accounting, arithmetic as modes, noise as noise_lib
from tfcactus.release import _records, noise_sources, whole_numbers
from tfcactus.release.result import Release

_MOST_BINS = 2**28
"""Most counts of a histogram, or numbers of a sum, which memory holds."""

_SUM_FINENESS = 30
"""Summands are truncated to clipping norm / 2^30 or so: sums of 2^32 are exact."""


def noisy_value(value: float, *, sensitivity: float, noise: noise_lib.ScalarNoise,
                resolution: float | None = None, seed: int | None = None,
                arithmetic: str = 'float') -> Release:
  """Releases a number with noise.

  Args:
    value: The exact answer.
    sensitivity: The largest change of the value by one added or removed record.
    noise: Scalar noise, in units of the sensitivity.
    resolution: A power of two of which the answer is a multiple, whatever the records:
      1 for integer queries, whose answer is an int. None rounds to a grid of about
      2^-20 of the sensitivity, so that low bits leak nothing. The type of `value` has
      no effect.
    seed: For repeatable experiments; None draws from the system.
    arithmetic: 'float'; or 'integer', which adds the noise of a Gaussian, a Laplace law
      or a scalar table in whole numbers and counts all rounding. The noise is then up
      to 2 % larger.

  Returns:
    Release whose value is a float, or an int on a grid of whole numbers.

  Raises:
    ValueError: if an argument is out of range or the value is not finite.
  """
  scale = noise_sources.sensitivity(sensitivity)
  steps, step, scale = noise_sources.lattice(value, scale, resolution)
  if steps.ndim:
    raise ValueError(
        f'Expected one number, got shape {steps.shape}; use noisy_vector, which '
        'asks how one record changes the whole.')
  return _noisy_number(steps, step, scale, noise, seed, arithmetic)


def noisy_vector(value: npt.ArrayLike, *, noise: noise_lib.Noise,
                 l2_sensitivity: float | None = None,
                 l1_sensitivity: float | None = None,
                 resolution: float | None = None,
                 seed: int | None = None, arithmetic: str = 'float') -> Release:
  """Releases a vector with noise.

  Args:
    value: Shape (dim,).
    noise: For an l2 sensitivity, Gaussian noise or a radial table of that dimension;
      for an l1 sensitivity, log-concave closed-form noise, drawn for each coordinate.
    l2_sensitivity: Bound on the Euclidean norm of the change by one added or removed
      record. Exactly one of the two sensitivities is given.
    l1_sensitivity: Bound on the sum of the absolute changes.
    resolution: As for `noisy_value`, of all coordinates.
    seed: As for `noisy_value`.
    arithmetic: As for `noisy_value`.

  Returns:
    Release whose value has shape (dim,).

  Raises:
    ValueError: if an argument is out of range, or the noise does not protect such a
      vector.
  """
  if (l2_sensitivity is None) == (l1_sensitivity is None):
    raise ValueError(
        'Expected exactly one of l2_sensitivity and l1_sensitivity, got '
        f'l2_sensitivity={l2_sensitivity!r} and l1_sensitivity={l1_sensitivity!r}.')
  scale = noise_sources.sensitivity(*(
      (l1_sensitivity, 'l1_sensitivity') if l2_sensitivity is None else
      (l2_sensitivity, 'l2_sensitivity')))
  steps, step, _ = noise_sources.lattice(value, scale, resolution)
  if steps.ndim != 1:
    raise ValueError(f'Expected a vector, got shape {steps.shape}.')
  dim = steps.size
  if l2_sensitivity is None:
    noise_sources.spread_noise(noise)
    rounding = float(dim)
  else:
    noise_lib.check(noise).check_dim(dim)
    rounding = math.sqrt(dim)
  # Each coordinate is rounded: `rounding` is the norm of a vector of ones.
  if resolution is None:
    scale += rounding * noise_sources.ROUNDING * step
  return _noisy_vector(steps, step, scale, noise, seed, arithmetic, rounding)


def noisy_sum(records: _records.Records, *, l2_norm_clip: float, noise: noise_lib.Noise,
              dim: int | None = None, seed: int | None = None,
              arithmetic: str = 'float') -> Release:
  """Releases the sum of clipped records, on a grid set by the clipping norm.

  Args:
    records: Shape (n, dim) or (n,), or an iterable of such batches, such as a batched
      `tf.data.Dataset`: each element of an iterable is a batch.
    l2_norm_clip: Each record is scaled down to this norm, which is the sensitivity.
    noise: As for `noisy_vector` with an l2 sensitivity; any scalar noise for records
      that are numbers.
    dim: Length of records that are vectors. With it there may be no records, such as
      an empty list; None takes it from the records.
    seed: As for `noisy_value`.
    arithmetic: As for `noisy_value`.

  Returns:
    Release whose value is a number, or has shape (dim,).

  Raises:
    ValueError: if an argument is out of range, records have several shapes or entries
      that are not finite, or the noise does not protect such a sum.
  """
  clip = noise_sources.sensitivity(l2_norm_clip, 'l2_norm_clip')
  step = noise_sources.step_below(clip, _SUM_FINENESS)
  total: np.ndarray | None = None
  if dim is not None:
    total = np.zeros(_checks.integer('dim', dim, 1, _MOST_BINS), np.int64)
  for batch in _records.batches(records):
    if total is not None and np.shape(batch) == (0,):
      continue  # An empty batch does not tell the length of records.
    part = np.sum(_clipped_steps(batch, clip, step), axis=0)
    if total is not None and np.shape(total) != np.shape(part):
      raise ValueError(
          f'Expected records of one shape, {np.shape(total)}, got some of '
          f'shape {np.shape(part)}.')
    total = part if total is None else total + part
  if total is None:
    raise ValueError(
        'Expected at least one batch, or dim of records that are vectors, got none.')
  if np.ndim(total) == 0:
    return _noisy_number(np.asarray(total), step, clip, noise, seed, arithmetic)
  noise_lib.check(noise).check_dim(total.size)
  return _noisy_vector(
      total, step, clip, noise, seed, arithmetic, math.sqrt(total.size))


def _clipped_steps(batch: np.ndarray, clip: float, step: float) -> np.ndarray:
  """Returns records clipped to `clip`, in whole steps rounded towards zero, int64."""
  # In C order, the rounding of a record's norm depends on no other record.
  rows = np.asarray(batch, dtype=np.float64, order='C')
  if rows.ndim not in (1, 2) or rows.shape[1:] == (0,):
    raise ValueError(
        'Expected records of shape (n,) or (n, dim), dim >= 1, got a batch of shape '
        f'{rows.shape}.')
  if not np.all(np.isfinite(rows)):
    raise ValueError(
        'Expected finite records, got infinite ones; replace such records one '
        'by one, before the release.')
  columns = rows if rows.ndim == 2 else rows[:, np.newaxis]
  size = np.max(np.abs(columns), axis=1, keepdims=True, initial=0.0)
  # Divides by the largest entry first: no intermediate number overflows or
  # underflows, whatever the record and the clipping norm are.
  unit = columns / np.where(size > 0, size, 1.0)
  norm = np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1.0)
  # Rounding must not carry a record past the clipping norm.
  slack = 1 - (columns.shape[1] + 16) * np.finfo(np.float64).eps
  factor = np.minimum(size, clip / norm) / step * slack
  # Truncation towards zero makes no record longer.
  return np.trunc(unit * factor).astype(np.int64).reshape(rows.shape)


def histogram(records: _records.Records, *, num_bins: int, noise: noise_lib.ScalarNoise,
              outside: str = 'refuse', seed: int | None = None,
              arithmetic: str = 'float') -> Release:
  """Releases noisy counts of each value: integers, which may be negative.

  A replaced record changes two counts by one, which for log-concave noise costs no more
  than one count changing by two.

  Args:
    records: Integers in [0, num_bins), one per record: an array or an iterable of
      batches. May be empty.
    num_bins: Size of the domain: public, never computed from the data.
    noise: Log-concave scalar noise, in units of one record.
    outside: 'refuse' raises on values outside of the domain, which reveals that there
      are some; 'drop' does not count them.
    seed: As for `noisy_value`.
    arithmetic: As for `noisy_value`.

  Returns:
    Release whose value has shape (num_bins,), int64.
  """
  counts = exact_counts(records, num_bins=num_bins, outside=outside)
  noise_sources.spread_noise(noise, whole=True)
  # A record changes one count, so that rounding adds one whole number.
  return _noisy_steps(
      counts, 1.0, 1.0, noise, seed, arithmetic, 1.0, 1,
      f'a histogram of {counts.size} counts, each record in one of them at most, with '
      f'{noise.name} noise', 'largest error of a count', off=0.5)


def exact_counts(records: _records.Records, *, num_bins: int, outside: str = 'refuse',
                 name: str = 'num_bins') -> np.ndarray:
  """Returns how often each value occurs, without noise; errors call num_bins `name`."""
  num_bins = _checks.integer(name, num_bins, 1)
  if num_bins > _MOST_BINS:
    raise ValueError(
        f'Expected at most 2^28 bins, got {name}={num_bins}; use '
        'threshold_sketch or quantile for larger domains.')
  _checks.choice('outside', outside, ('refuse', 'drop'))
  counts = np.zeros(num_bins, np.int64)
  for batch in _records.scalar_batches(records):
    if batch.dtype.kind == 'f' and np.any(batch != np.rint(batch)):
      raise ValueError('Expected integer records, got fractions.')
    known = (batch >= 0) & (batch < num_bins)
    if outside == 'refuse' and not np.all(known):
      raise ValueError(
          f'Expected records in [0, {num_bins}), got others; pass a domain '
          "that holds all of them, or outside='drop'.")
    counts += np.bincount(batch[known].astype(np.int64), minlength=num_bins)
  return counts


def _noisy_number(steps: np.ndarray, step: float, scale: float,
                  noise: noise_lib.Noise, seed: int | None, arithmetic: str) -> Release:
  """Releases the number steps * step, which a record changes by at most `scale`."""
  law = noise_lib.check_scalar(noise)
  found = _noisy_steps(steps, step, scale, law, seed, arithmetic, 1.0, 1,
                       f'a number with {law.name} noise', 'absolute error')
  return dataclasses.replace(found, value=found.value.item())


def _noisy_vector(steps: np.ndarray, step: float, scale: float,
                  noise: noise_lib.Noise, seed: int | None, arithmetic: str,
                  rounding: float) -> Release:
  """Releases the vector steps * step; arguments as for `_noisy_steps`."""
  return _noisy_steps(
      steps, step, scale, noise, seed, arithmetic, rounding, steps.size,
      f'a vector of length {steps.size} with {noise.name} noise',
      'largest error of a coordinate')


def _noisy_steps(steps: np.ndarray, step: float, scale: float,
                 noise: noise_lib.Noise, seed: int | None, arithmetic: str,
                 rounding: float, changed: int, words: str, error_kind: str,
                 off: float = 1.0) -> Release:
  """Adds noise to steps * step, whose sensitivity is `scale` in the noise's norm.

  `rounding` and `changed` are `rounding` and `coordinates` of `whole_numbers.scaled`.
  Rounding moves the release by up to `off` steps. `words` name the mechanism.
  """
  _checks.choice('arithmetic', arithmetic, modes.MODES)
  rng, count = noise_sources.generator(seed), steps.size
  if arithmetic == 'float':
    event, larger = accounting.noise_event(noise), 1.0
    drawn = noise_sources.in_steps(
        noise, noise.sample_vector(rng, count), scale, step)
    blur = noise_sources.blur(noise, scale, step)
    drawn += rng.integers(2 * blur + 1, count) - blur
    off += blur
    noisy = steps + drawn.reshape(steps.shape)
  else:
    unit, larger, event = whole_numbers.scaled(
        noise, scale, step, changed, rounding)
    off += whole_numbers.OFF / unit
    noisy = whole_numbers.released(steps, noise, unit, rng)
    words += ' in whole numbers'
    if step == 1:
      noisy = noisy.astype(np.int64)
  return Release(
      value=noisy if step == 1 else noisy * step, event=event, mechanism=words,
      seeded=seed is not None, error_kind=error_kind, error_bound=lambda beta: (
          scale * larger * noise.max_error(count, beta) + off * step))
