"""Noise sampling inside TensorFlow graphs, in float64 and with full tails."""

from __future__ import annotations

from collections.abc import Sequence
import functools
import math
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from tfcactus import _checks, noise as noise_lib
from tfcactus.keras.compat import precision
from tfcactus.keras.distribution import replicas
from tfcactus.keras.noise import device_noise, noise_ahead, random_bits
from tfcactus.randomness import in_threads, PARALLEL, SystemRandom

TOGETHER = 2**21
"""Coordinates up to which the noise of a sum is drawn at once: 16 MB."""

_CHUNK = 2**15
"""Coordinates that are scaled, added and rounded at once, within a core's cache."""

_USED = '_tfcactus_used'
"""Attribute of a key that served a draw."""

_DIGITS = {tf.float64: 51, tf.float32: 22, tf.float16: 9, tf.bfloat16: 6}
"""For each dtype, d such that x (1 - 2^-d), rounded, is below x for normal x > 0."""


class NoiseSampler:
  """Sampler of noise for a sum of vectors of sensitivity one.

  Works eagerly and inside `tf.function`, in float64. On the host tails are full. On the
  device normals have tails out to 12 standard deviations. (`tf.random.normal` stops at
  5.68 standard deviations; that cut would cost delta.)

  The random bits of the host come from AES-256 in counter mode under a key from the
  operating system, fresh for each sampler and each forked process, and never saved.
  That stream makes a key of ChaCha20 for each draw on the device. With a seed the first
  key is made of the seed: draws repeat, and whoever knows the seed can subtract the
  noise. Use a seed for experiments only.

  XLA compiles only noise that is made on the device, and only with a key from outside
  of the compiled function. A key repeats its noise, so pass a new one to each call:

      step = tf.function(lambda key: sampler.draw(1000, key=key), jit_compile=True)
      noise = step(sampler.key())

  A sampler proves nothing about privacy: scalar noise is drawn independently for each
  coordinate, whatever the shape. `PrivacyPlan` and `TableNoiseQuery` check validity.

  Attributes:
    noise: The distribution of the noise.
    dim: Number of coordinates of a draw, or None if it may vary.
    seeded: Whether the draws repeat.
    randomness: 'auto', 'host' or 'device'.
  """

  _repeatable = True  # Whether a draw may be made a step ahead.
  _divisible = True  # Whether parts of a sum may get draws of their own.

  def __init__(self, noise: noise_lib.Noise, dim: int | None = None,
               seed: int | None = None, purpose: str = 'noise',
               randomness: str = 'auto'):
    """Initialises the sampler.

    Args:
      noise: Any noise of this library.
      dim: Number of coordinates of each draw; checked at each draw.
      seed: An integer of at least zero for repeatable experiments, or None.
      purpose: Label of the draws: samplers of one seed and two labels draw differently.
      randomness: 'host', or 'device' for Gaussian noise that is made where the sums
        are; 'auto' chooses the device for large sums on a GPU, unless seeded.

    Raises:
      ValueError: if an argument is invalid, or `dim` is not that of a radial table.
    """
    if not isinstance(noise, noise_lib.Noise):
      noise_lib.check(noise)  # Raises.
    self.noise = noise
    self.dim = None if dim is None else _checks.integer('dim', dim, 1)
    self.seeded = seed is not None
    if seed is not None:
      _checks.integer('seed', seed, 0)
    self.randomness = check_randomness(randomness, noise)
    self._rng = SystemRandom(seed, purpose)
    self._ahead = noise_ahead.NoiseAhead(lambda size: self._sample(size))
    if noise.dim not in (None, 1):
      if self.dim not in (None, noise.dim):
        raise ValueError(
            f'Expected dim={noise.dim}, the dimension of the radial table, got '
            f'dim={self.dim}.')
      self.dim = noise.dim

  def on_device(self, size: int) -> bool:
    """Returns whether the noise of `size` coordinates is made on the device."""
    if self.randomness != 'auto':
      return self.randomness == 'device'
    return (size >= device_noise.LARGE and isinstance(self.noise, noise_lib.Gaussian)
            and not self.seeded and device_noise.serves())

  def key(self) -> tf.Tensor:
    """Returns a fresh key for one draw on the device, uint32, shape (8,)."""
    def drawn() -> np.ndarray:
      """Returns the words of a key; raises for options that rewrite graphs."""
      # Such TensorFlow options may be set after the trace. `add_to` checks them where
      # it draws on the host.
      precision.check_graphs_are_as_written()
      return np.frombuffer(self._rng.key(), '<u4')

    return random_bits.drawn(drawn, 8, tf.uint32)

  def draw(self, size: int, place: tf.Tensor | None = None,
           key: tf.Tensor | None = None) -> tf.Tensor:
    """Draws one noise vector.

    Args:
      size: Number of coordinates.
      place: int64, shape (4,): the fields of the batch's `Place` (feed, serial number,
        step in the pass, length of the pass). Correlated noise finds its row of the
        matrix by it; independent noise ignores it.
      key: For functions that XLA compiles: a `key()` that nothing else used.

    Returns:
      float64, shape (size,), in units of sensitivity.

    Raises:
      ValueError: if `size` is not the sampler's dimension, or `key` may not serve.
      RuntimeError: if the device does not make the noise that the host would.
    """
    size = self._checked(size)
    if not self.noise.noise_multiplier:
      return tf.zeros([size], tf.float64)
    if self.on_device(size) or key is not None:
      return device_noise.added(self._used(key), 0, tf.zeros([size], tf.float64),
                                exact(self.noise.noise_multiplier), None)
    return random_bits.drawn(
        lambda *places: self._sample(size, *places), size, tf.float64,
        *([] if place is None else [place]))

  def _used(self, key: tf.Tensor | None) -> tf.Tensor:
    """Returns `key`, or a fresh one for None; ValueError if it may not serve a draw."""
    if key is None:
      return self.key()
    if self.randomness == 'host':
      raise ValueError(
          "Expected randomness='device' with key=, got 'host', whose draws have none.")
    check_randomness('device', self.noise)
    # A graph that captures a key would make the same noise in each of its runs.
    captured = not tf.executing_eagerly() and (
        getattr(key, 'graph', None) is not tf.compat.v1.get_default_graph())
    if not tf.is_tensor(key) or key.dtype != tf.uint32 or key.shape != (8,):
      raise ValueError(
          'Expected key to be a tensor, uint32 of shape (8,), as sampler.key() makes '
          f'it, got {key!r}.')
    if captured or getattr(key, _USED, False):
      raise ValueError(
          'Expected a key that serves one draw, as an argument of the function that '
          f'draws, got one that {"it captures" if captured else "was used before"}, '
          'and so noise that repeats; call the function with a new sampler.key().')
    setattr(key, _USED, True)
    return key

  def _checked(self, size: int) -> int:
    """Returns `size`; raises ValueError if it is not the sampler's dimension."""
    size = _checks.integer('size', size, 1)
    if self.dim not in (None, size):
      raise ValueError(f'Expected {self.dim} coordinates in total, as {self.noise!r} '
                       f'was built for, got {size}.')
    return size

  def _sample(self, size: int, place: np.ndarray | None = None) -> np.ndarray:
    """Draws noise in units of sensitivity, float64, (size,), which may be changed."""
    del place
    return self.noise.sample_vector(self._rng, size)

  def __call__(self, template: Any, scale: Any = 1.0, place: tf.Tensor | None = None,
               key: tf.Tensor | None = None) -> Any:
    """Draws noise in the structure of `template`, jointly over all its parts.

    Args:
      template: One shape (a tuple or list of ints, or a `TensorShape`), or a nested
        structure of tensors, variables, arrays or `TensorSpec`s of floating dtypes.
      scale: Multiplies the draw; the sensitivity (clipping norm) of the sum.
      place: As for `draw`.
      key: As for `draw`.

    Returns:
      Noise in the structure, shapes and dtypes of `template` (float64 for a bare
      shape), computed in float64.

    Raises:
      ValueError: if a shape is not fully known, a dtype is not floating, the size is
        not `dim`, or `key` may not serve.
      RuntimeError: as for `draw`.
    """
    if isinstance(template, tf.TensorShape) or isinstance(template, (tuple, list)) and (
        all(isinstance(entry, (int, np.integer)) for entry in template)):
      template = tf.TensorSpec(template, tf.float64)
    parts = tf.nest.flatten(template)
    shapes = [_static_shape(part) for part in parts]
    for part in parts:  # Noise that is cut to whole numbers is too small.
      if not tf.as_dtype(part.dtype).is_floating:
        raise ValueError(
            'Expected template of floating dtypes, got '
            f'{tf.as_dtype(part.dtype).name}; cast the sum to float64 before.')
    sizes = [math.prod(shape) for shape in shapes]
    scale = exact(scale)
    flat = self.draw(sum(sizes), place, key) * scale
    return tf.nest.pack_sequence_as(template, [
        self._cast(tf.reshape(piece, shape), part.dtype, scale)
        for piece, shape, part in zip(tf.split(flat, sizes), shapes, parts)])

  def add_to(self, sums: Sequence[tf.Tensor], scale: tf.Tensor,
             place: tf.Tensor | None = None,
             dtypes: Sequence[tf.DType] | None = None,
             key: tf.Tensor | None = None) -> list[tf.Tensor]:
    """Adds one draw, in float64, to a vector given in parts.

    On one replica the noisy sum is final: rounded to a grid (see `precision.grid`),
    then to its dtype. With several replicas the result is this replica's share of the
    noisy sum: `replicas.summed` adds the shares up and rounds. Noise of multiplier zero
    leaves the sums as they are, but for their dtypes.

    Args:
      sums: The parts, such as one sum of gradients for each variable.
      scale: Multiplies the draw; the sensitivity (clipping norm) of the sum.
      place: As for `draw`.
      dtypes: Dtypes of the noisy parts; None for the dtypes of `sums`.
      key: As for `draw`.

    Returns:
      The noisy parts in the shapes of `sums`.

    Raises:
      ValueError: as for `draw`, or if a shape is not fully known.
      RuntimeError: as for `draw`.
    """
    dtypes = [tf.as_dtype(dtype) for dtype in (
        [part.dtype for part in sums] if dtypes is None else dtypes)]
    if not self.noise.noise_multiplier:
      return [tf.cast(part, dtype) for part, dtype in zip(sums, dtypes)]
    scale, size = exact(scale), self._checked(_size(sums))
    # With several replicas nothing is rounded here: `total` rounds the sum of shares.
    step = precision.grid(self.grid_scale(scale)) if replicas.number() == 1 else (
        tf.zeros([], tf.float64))
    add: Callable[..., list[tf.Tensor]]
    if self.on_device(size) or key is not None:
      groups = _groups(sums)
      add = functools.partial(self._added_on_device, self._used(key))
    else:
      # Only noise that is independent over coordinates can be drawn in parts.
      groups = [[part] for part in sums] if self._divisible and size > TOGETHER and (
          self.noise.dim in (None, 1) and self.dim is None) else [list(sums)]
      add = functools.partial(self._added, place, self._draws_ahead(size))
    noisy: list[tf.Tensor] = []
    for number, parts in enumerate(groups):
      # In sequence, so that memory holds the draws of one group and those ahead.
      with tf.control_dependencies(noisy[-1:]):
        noisy.extend(add(
            number, parts, dtypes[len(noisy):][:len(parts)], scale, step))
    return noisy

  def grid_scale(self, scale: tf.Tensor) -> tf.Tensor:
    """Returns the larger of the sensitivity, `scale`, and the noise's deviation.

    It sets the `precision.grid` of a noisy sum: a grid for the sensitivity alone could
    be finer than the resolution of large float64 noise.
    """
    return exact(scale) * max(1.0, self.noise.noise_multiplier)

  def without_noise(self, sums: Sequence[tf.Tensor], scale: tf.Tensor
                    ) -> list[tf.Tensor]:
    """Returns the share of a replica that adds no noise; arguments as for `add_to`."""
    del scale
    return list(sums)

  def total(self, shares: tf.Tensor, scale: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns the sum of all replicas' shares, rounded to a grid and to `dtype`."""
    return precision.rounded_to_grid(shares, self.grid_scale(scale), dtype)

  def _draws_ahead(self, size: int) -> bool:
    """Returns whether the next step's noise, of `size` coordinates, is drawn ahead."""
    # An eager call may be the only one.
    return self._repeatable and not tf.executing_eagerly() and (
        size >= noise_ahead.FROM) and (size <= noise_ahead.MOST_OF_HOST or bool(
            tf.config.list_logical_devices('GPU')))

  def drop_ahead(self) -> None:
    """Frees the memory of noise drawn ahead; with a seed keeps it, to draw it next."""
    if not self.seeded:
      self._ahead.drop()

  def _added(self, place: tf.Tensor | None, ahead: bool, number: int,
             sums: Sequence[tf.Tensor], dtypes: Sequence[tf.DType], scale: tf.Tensor,
             step: tf.Tensor) -> list[tf.Tensor]:
    """Adds the host's draw for group `number` of parts; rounds unless `step` is 0.

    With `ahead` the draw is made a step ahead. Other arguments are as for `add_to`.
    """
    # NumPy adds float32 or float64; results in half precision are cast at the end.
    wide = [part if part.dtype in (tf.float32, tf.float64) else
            tf.cast(part, tf.float64) for part in sums]
    wide_dtypes = [dtype if dtype in (tf.float32, tf.float64) else tf.float64
                   for dtype in dtypes]
    draw = functools.partial(
        self._ahead.take, (number, _size(sums))) if ahead else None
    noisy = random_bits.changed(functools.partial(
        self._noisy, [dtype.as_numpy_dtype for dtype in wide_dtypes], draw),
        wide, wide_dtypes, scale, step, *([] if place is None else [place]))
    return [tf.cast(each, dtype) for each, dtype in zip(noisy, dtypes)]

  def _added_on_device(self, key: tf.Tensor, number: int, sums: Sequence[tf.Tensor],
                       dtypes: Sequence[tf.DType], scale: tf.Tensor, step: tf.Tensor
                      ) -> list[tf.Tensor]:
    """Adds part `number` of the draw under `key` to a group; arguments as `_added`."""
    noisy = device_noise.added(
        key, number, tf.concat(
            [tf.reshape(tf.cast(part, tf.float64), [-1]) for part in sums], 0),
        scale * self.noise.noise_multiplier, step)
    return [tf.cast(tf.reshape(piece, part.shape), dtype) for piece, part, dtype in zip(
        tf.split(noisy, [_size([part]) for part in sums]), sums, dtypes)]

  def _noisy(self, dtypes: Sequence[type], draw: Callable[[], np.ndarray] | None,
             sums: Sequence[np.ndarray], scale: np.ndarray, step: np.ndarray,
             *places: np.ndarray) -> list[np.ndarray]:
    """Returns sums plus noise, rounded to multiples of `step` unless that is 0.

    `draw` returns noise that was drawn ahead; if it is None, noise is drawn now.
    """
    # Checked at run time: options set later rewrite functions traced earlier.
    precision.check_graphs_are_as_written()
    noise = draw() if draw else self._sample(sum(part.size for part in sums), *places)
    ends = np.cumsum([part.size for part in sums])[:-1]
    noisy: list[np.ndarray] = [
        np.empty(part.shape, dtype) for part, dtype in zip(sums, dtypes)]
    for part, part_noise, result in zip(sums, np.split(noise, ends), noisy):
      in_threads(functools.partial(
          _write_sum, part.reshape(-1), part_noise, result.reshape(-1), float(scale),
          self.noise.range, float(step)), range(0, part.size, PARALLEL))
    return noisy

  def _cast(self, noise: tf.Tensor, dtype: tf.DType, scale: tf.Tensor) -> tf.Tensor:
    """Casts to `dtype` without rounding beyond the range of a bounded table."""
    limit = self.noise.range
    if math.isinf(limit):
      return tf.cast(noise, dtype)
    end = limit * tf.abs(scale)
    nearest = tf.cast(end, dtype)
    below = nearest * tf.cast(1 - 2.0**-_DIGITS[tf.as_dtype(dtype)], dtype)
    largest = tf.where(tf.cast(nearest, tf.float64) > end, below, nearest)
    return tf.clip_by_value(tf.cast(noise, dtype), -largest, largest)


def _write_sum(total: np.ndarray, noise: np.ndarray, result: np.ndarray, scale: float,
               limit: float, step: float, start: int) -> None:
  """Writes `total` plus scaled noise to `result`: `PARALLEL` coordinates from `start`.

  Noise is cut to `limit` times the scale. Sums are rounded to `step` unless it is 0.
  """
  for first in range(start, min(start + PARALLEL, total.size), _CHUNK):
    chunk = slice(first, first + _CHUNK)
    piece = noise[chunk] * scale
    if not math.isinf(limit):
      np.clip(piece, -limit * abs(scale), limit * abs(scale), out=piece)
    with np.errstate(over='ignore', invalid='ignore'):
      # Unrounded noise is added: rounded noise would lie on a coarser grid.
      piece += total[chunk]
      if step:
        piece *= 1 / step
        np.rint(piece, out=piece)
        piece *= step
      result[chunk] = piece


def check_randomness(randomness: str, noise: noise_lib.Noise) -> str:
  """Returns `randomness`; raises ValueError if it is unknown or not for the noise."""
  if randomness not in ('auto', 'host', 'device'):
    raise ValueError(
        f"Expected randomness to be 'auto', 'host' or 'device', got {randomness!r}.")
  if randomness == 'device' and not isinstance(noise, noise_lib.Gaussian):
    raise ValueError(
        f"Expected Gaussian noise with randomness='device', got {noise!r}, which is "
        "drawn on the host: pass randomness='host'.")
  return randomness


def _groups(sums: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
  """Groups parts in sequence: `device_noise.TOGETHER` numbers at most, or one part.

  A part without numbers joins any group: the device makes no noise of size zero.
  """
  groups: list[list[tf.Tensor]] = [[]]
  for part in sums:
    before, size = _size(groups[-1]), _size([part])
    if before and size and before + size > device_noise.TOGETHER:
      groups.append([])
    groups[-1].append(part)
  return groups


def exact(scale: Any) -> tf.Tensor:
  """Returns a scale in float64; `tf.cast` would take a Python float through float32."""
  return (tf.constant(scale, tf.float64) if isinstance(scale, float) else
          tf.cast(scale, tf.float64))


def _size(parts: Sequence[tf.Tensor]) -> int:
  """Returns the total number of coordinates of tensors."""
  return sum(math.prod(_static_shape(part)) for part in parts)


def _static_shape(part: tf.Tensor) -> list[int]:
  """Returns the shape of a tensor; raises ValueError if it is not fully known."""
  if not hasattr(part, 'dtype') or not hasattr(part, 'shape'):
    raise ValueError(
        f'Expected template to hold tensors, arrays or TensorSpecs, got {part!r}.')
  shape = tf.TensorShape(part.shape)
  if not shape.is_fully_defined():
    raise ValueError(
        f'Expected shapes that are fully known, got {shape}; noise is drawn '
        'for model variables, whose shapes are fixed.')
  return shape.as_list()
