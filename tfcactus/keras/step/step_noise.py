"""Samplers of noise: whole numbers, noise correlated over steps (DP-FTRL), shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import math
import threading
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from tfcactus import _format, arithmetic, correlated
from tfcactus.keras.compat import precision
from tfcactus.keras.data.batch_marks import Place
from tfcactus.keras.distribution import replicas
from tfcactus.keras.noise import noise_addition
from tfcactus.keras.noise.noise_addition import NoiseSampler
from tfcactus.noise import discrete_gaussian, Gaussian, Noise
from tfcactus.plan import PrivacyPlan

_REPLAYED_FROM = 2**24
"""From this many coordinates (128 MB) on, draws of earlier steps are made again from
their place in the random stream, not kept in memory, if the strategy allows it."""

_PURPOSE = 'noise of worker {}'
"""Label of a worker's draws."""

_LARGEST = 2.0**62
"""Rounded sums are clipped to this absolute value, so that int64 sums do not overflow.
Clipping moves no two numbers further apart."""


class IntegerSampler(NoiseSampler):
  """Sampler of Gaussian noise that adds whole numbers to sums rounded to whole numbers.

  Clipped gradients are summed in float64 before that. Whole noisy sums are scaled back
  to floats and rounded to their dtypes, which is post-processing. With several
  replicas, each rounds its own sum; `total` scales the sum of their whole numbers.
  """

  _drawn_scale = discrete_gaussian.SCALE  # Standard deviation of `_drawn`.
  _repeatable = False  # `whole` draws where it adds.

  def __init__(self, noise: Noise, seed: int | None = None, purpose: str = 'noise',
               shares: int = 1):
    """Initialises the sampler of one of `shares` draws, which add up to the noise."""
    super().__init__(noise, seed=seed, purpose=purpose, randomness='host')
    # Standard deviation of the sum of all shares' draws.
    self._scale = self._drawn_scale * math.sqrt(shares)

  def _sample(self, size: int, place: np.ndarray | None = None) -> np.ndarray:
    """Returns noise in units of sensitivity, float64, shape (size,)."""
    del place
    return self._drawn(size) / self.per_unit(1.0)

  def _drawn(self, count: int) -> np.ndarray:
    """Returns whole noise of deviation `_drawn_scale`, int64, shape (count,)."""
    return discrete_gaussian.draw(self._rng, count)

  def _noisy(self, dtypes: Sequence[type], draw: Callable[[], np.ndarray] | None,
             sums: Sequence[np.ndarray], scale: np.ndarray, step: np.ndarray,
             *places: np.ndarray) -> list[np.ndarray]:
    """Returns noisy sums in the given dtypes; whole ones, float64, if `step` is 0."""
    del draw, places
    # Checked at run time: options set later rewrite functions traced earlier.
    precision.check_graphs_are_as_written()
    per_unit = self.per_unit(float(scale))
    noisy = self.whole(sums, per_unit)
    if not step:  # With several replicas. `arithmetic.check_step` keeps float64 exact.
      return [whole.astype(np.float64) for whole in noisy]
    return [(whole * (1 / per_unit)).astype(dtype) for whole, dtype in zip(
        noisy, dtypes)]

  def without_noise(self, sums: Sequence[tf.Tensor], scale: tf.Tensor
                    ) -> list[tf.Tensor]:
    """Returns the share of a replica that adds no noise: whole numbers, float64."""
    per_unit = self.per_unit(noise_addition.exact(scale))
    return [tf.round(tf.cast(part, tf.float64) * per_unit) for part in sums]

  def total(self, whole: tf.Tensor, scale: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns the whole sum of all replicas' shares, scaled back, in `dtype`."""
    return tf.cast(whole * (1 / self.per_unit(noise_addition.exact(scale))), dtype)

  def per_unit(self, scale: Any) -> Any:
    """Returns the factor that turns sums of sensitivity `scale` to whole numbers."""
    return self._scale / self.noise.noise_multiplier / scale

  def whole(self, sums: Sequence[np.ndarray], per_unit: float) -> list[np.ndarray]:
    """Returns sums times `per_unit`, rounded, plus noise: int64, shaped as the sums."""
    noisy = []
    for part in sums:
      scaled = np.asarray(np.multiply(part, per_unit, dtype=np.float64))
      np.clip(np.rint(scaled, out=scaled), -_LARGEST, _LARGEST, out=scaled)
      noise = self._drawn(part.size)
      noisy.append(scaled.astype(np.int64) + noise.reshape(part.shape))
    return noisy


class _Succession:
  """Tells whether a step follows the step before it; runs one step at a time."""

  def __init__(self) -> None:
    """Begins before any step."""
    self._before: Place | None = None
    self._size = 0
    self._lock = threading.Lock()

  @contextlib.contextmanager
  def step(self, place: Place | None, size: int) -> Iterator[bool]:
    """Yields whether the step at `place`, of `size` coordinates, follows the last."""
    with self._lock:
      before, self._before = self._before, None  # A step that fails has no successor.
      yield place is not None and place.follows(before) and size == self._size
      self._before, self._size = place, size


class CorrelatedSampler(NoiseSampler):
  """Sampler of noise correlated over successive steps by a strategy.

  Earlier draws that it keeps are never saved: whoever has them can subtract noise. So
  the strategy restarts in a process that resumes a run, when a batch does not directly
  follow the previous one of a `fit`, and when the number of trained weights changes. A
  restart ends columns of the strategy early, which increases no column's norm.
  """

  # One step of the strategy draws noise for all parts together, for its place.
  _repeatable = _divisible = False

  def __init__(self, noise: Noise, strategy: correlated.Strategy,
               seed: int | None = None):
    """Initialises the sampler; `noise` is Gaussian."""
    super().__init__(noise, seed=seed, randomness='host')
    self._strategy = strategy
    self._rows = strategy.rows()  # Draws the noise of one step after another.
    self._steps = _Succession()
    self._position = 0

  def _sample(self, size: int, place: np.ndarray | None = None) -> np.ndarray:
    """Draws the noise of the step at `place`, or of a first step for None."""
    return self._next(None if place is None else Place.of(place), size)

  def _next(self, place: Place | None, size: int) -> np.ndarray:
    """Returns the noise at `place`; restarts unless it follows the previous place."""
    with self._steps.step(place, size) as follows:
      if not follows:
        self._rows.restart()
      # Where the previous step's draw begins in the random stream.
      before, self._position = self._position, self._rng.position
      replays = self._strategy.replays and size >= _REPLAYED_FROM
      return self._rows.next(
          lambda: self.noise.sample_vector(self._rng, size), (
              lambda: self.noise.sample_vector(self._rng.replayed(before), size)
          ) if replays else None)


class CorrelatedIntegerSampler(IntegerSampler):
  """Sampler of correlated noise that adds whole numbers to products of C with sums.

  A step multiplies its own sum, and sums of steps before it, by the strategy C. It
  rounds this row of the product to whole numbers and adds whole noise. The rows times
  the inverse of C are released: the sum plus correlated noise. An example moves
  roundings in several rows, so that whole numbers are finer (`FINE_SCALE`) than without
  correlation. The sampler never saves the sums that it keeps, and drops them where a
  `CorrelatedSampler` restarts. It keeps 2 `Strategy.buffers` float64 vectors in all.
  """

  _drawn_scale = discrete_gaussian.FINE_SCALE
  _divisible = False  # One step of the strategy has all parts together.

  def __init__(self, noise: Noise, strategy: correlated.Strategy,
               seed: int | None = None):
    """Initialises the sampler; `noise` is Gaussian."""
    super().__init__(noise, seed)
    self._product, self._rows = strategy.product(), strategy.rows()
    self._steps = _Succession()

  def _sample(self, size: int, place: np.ndarray | None = None) -> np.ndarray:
    """Returns correlated noise in units of sensitivity, float64, shape (size,)."""
    places = [] if place is None else [place]
    return self._noisy([np.float64], None, [np.zeros(size)], np.ones(()), np.ones(()),
                       *places)[0]

  def _drawn(self, count: int) -> np.ndarray:
    """Returns whole noise of deviation `FINE_SCALE`, int64, shape (count,)."""
    return discrete_gaussian.fine_draw(self._rng, count)

  def _noisy(self, dtypes: Sequence[type], draw: Callable[[], np.ndarray] | None,
             sums: Sequence[np.ndarray], scale: np.ndarray, step: np.ndarray,
             *places: np.ndarray) -> list[np.ndarray]:
    """Returns sums plus correlated noise, in the given dtypes."""
    del draw, step  # There is one replica: see `arithmetic.check_step`.
    precision.check_graphs_are_as_written()
    per_unit = self.per_unit(float(scale))
    scaled = np.concatenate([np.ravel(part) for part in sums], dtype=np.float64)
    scaled *= per_unit
    place = Place.of(places[0]) if places else None
    # Adds noise to this step's row of C times the sums, then multiplies by C^-1.
    with self._steps.step(place, scaled.size) as follows:
      if not follows:
        self._product.restart()
        self._rows.restart()
      # From here on, all is computed from whole numbers that are released.
      whole, = self.whole([self._product.next(scaled)], 1.0)
      noisy = self._rows.next(lambda: whole.astype(np.float64))
    ends = np.cumsum([part.size for part in sums])[:-1]
    return [(piece * (1 / per_unit)).astype(dtype).reshape(part.shape)
            for piece, part, dtype in zip(np.split(noisy, ends), sums, dtypes)]


def sampler(plan: PrivacyPlan, seed: int | None, randomness: str = 'auto'
            ) -> NoiseSampler:
  """Returns the sampler of a plan's noise; ValueError if `randomness` excludes it."""
  whole = plan.arithmetic == 'integer'
  strategy = plan.strategy if plan.groups > 1 else None
  if not whole and strategy is None:
    return NoiseSampler(plan.noise, seed=seed, randomness=randomness)
  _check_host(plan, randomness)
  if strategy is None:
    return IntegerSampler(plan.noise, seed)
  return (CorrelatedIntegerSampler if whole else CorrelatedSampler)(
      plan.noise, strategy, seed)


def _check_host(plan: PrivacyPlan, randomness: str) -> None:
  """Raises ValueError for 'device': only the host makes integer or correlated noise."""
  if noise_addition.check_randomness(randomness, plan.noise) == 'device':
    kind = 'arithmetic=integer' if plan.arithmetic == 'integer' else 'correlation'
    raise ValueError(
        "Expected float noise that is independent over steps with randomness='device', "
        f"got a plan with {kind}, whose noise is made on the host: pass "
        "randomness='host'.")


class ShareSampler(NoiseSampler):
  """Sampler of one worker's share of Gaussian noise.

  A share has the variance of the whole noise over the number of workers: independent
  Gaussians add up to a Gaussian whose variance is the sum of theirs.
  """

  def __init__(self, noise: Gaussian, worker: int, workers: int,
               seed: int | None = None, randomness: str = 'auto'):
    """Initialises the sampler of a worker; `noise` is the sum of all shares."""
    super().__init__(noise, seed=seed, purpose=_PURPOSE.format(worker),
                     randomness=randomness)
    # Rounded up, so that the variances never add up to less than the whole noise's.
    self._part = math.sqrt(1 / workers) * (1 + 2.0**-50)

  def add_to(self, sums: Sequence[tf.Tensor], scale: tf.Tensor,
             place: tf.Tensor | None = None,
             dtypes: Sequence[tf.DType] | None = None,
             key: tf.Tensor | None = None) -> list[tf.Tensor]:
    """Adds this worker's share of the noise; arguments as for `NoiseSampler.add_to`."""
    return super().add_to(
        sums, noise_addition.exact(scale) * self._part, place, dtypes, key)


def share_sampler(plan: PrivacyPlan, seed: int | None, randomness: str = 'auto'
                  ) -> NoiseSampler:
  """Returns this worker's sampler of its share of the noise.

  Raises ValueError unless the noise is Gaussian and independent over steps.
  """
  if plan.strategy is not None or not isinstance(plan.noise, Gaussian):
    noise = 'noise correlated over steps' if plan.strategy is not None else (
        repr(plan.noise))
    raise ValueError(
        'Expected split_noise=True with a plan of Gaussian noise and without '
        f'correlation, got {noise}: only Gaussians add up to a Gaussian, and the chief '
        'alone keeps earlier draws. Leave split_noise out, and the chief draws all.')
  worker, workers = replicas.worker(), replicas.workers()
  if plan.arithmetic == 'integer':
    _check_host(plan, randomness)
    return IntegerSampler(plan.noise, seed, _PURPOSE.format(worker), workers)
  return ShareSampler(plan.noise, worker, workers, seed, randomness)


def condition(plan: PrivacyPlan) -> str:
  """States in a sentence what workers learn of each other; '' for one worker."""
  if (workers := replicas.workers()) == 1:
    return ''
  whole = arithmetic.accounted(plan, plan.noise).noise_multiplier
  others, own = (whole * math.sqrt(part / workers) for part in (workers - 1, 1))
  return (
      f'The noise is the sum of shares of {workers} workers: a worker that subtracts '
      f'its own share sees a noise multiplier of {_format.lower(others)}, and whoever '
      'sees what one worker sends, as its neighbours do, with '
      f'{_format.lower(own)} over that worker\'s part of a batch, or with '
      f'{_format.lower(own / 2)} where one example more moves another one between '
      'workers (without part_of).')
