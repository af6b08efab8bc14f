"""Noise drawn inside TensorFlow graphs, in float64 and with its full tails."""

from __future__ import annotations

import functools
import hashlib
import math
from typing import Any
from typing import Callable
from typing import List
from typing import Optional
from typing import Union

import numpy as np
import tensorflow as tf

from tfcactus import _checks
from tfcactus import noise as noise_lib
from tfcactus.keras.random_bits import SystemBits
from tfcactus.randomness import KeyStream

_STEP = 2.0**-52
"""Grid of TensorFlow's float64 uniforms; a second one fills in below it."""

_SMALLEST = 2.0**-104
_LARGEST = 1 - 2.0**-53

_DIGITS = {tf.float64: 51, tf.float32: 22, tf.float16: 9, tf.bfloat16: 6}
"""1 - 2^-digits times a number is below it by more than rounding."""


class NoNoise:
  """Adds nothing, to compare with training without noise; protects nothing.

  Attributes:
    name: 'no noise'.
    digest: 'none'.
    dim: None, for any dimension.
    noise_multiplier: 0.
  """

  name = 'no noise'
  digest = 'none'
  dim = None
  noise_multiplier = 0.0

  def __repr__(self) -> str:
    return 'NoNoise()'


_Bits = Union[tf.random.Generator, SystemBits]
_Draw = Callable[[int], tf.Tensor]


class NoiseSampler(tf.Module):
  """Draws noise for a sum of vectors of sensitivity one.

  Works eagerly and inside `tf.function`. Every uniform is a float64 whose
  resolution near zero is 2^-104, so that tails are drawn as far out as the
  table or the Gaussian has them. (`tf.random.normal` stops at 5.68 standard
  deviations, and that cut would have to be paid for in delta.)

  The random bits come from AES-256 in counter mode under a key from the
  operating system, a fresh one for each sampler and for each forked process;
  it is never saved. With a seed they come from TensorFlow's Philox generator
  instead: the draws repeat, and whoever knows the seed can subtract the noise,
  so use one for experiments only.

  A sampler proves nothing about privacy: scalar noise is drawn independently
  for each coordinate, whatever the shape. `PrivacyPlan` and `TableNoiseQuery`
  refuse what is not valid.

  Attributes:
    noise: The distribution that is drawn.
    dim: The number of coordinates of a draw, or None if it may vary.
    seeded: Whether the draws repeat.

  Source: Definition 6 of Sommer et al., "Learning Numeric Optimal
  Differentially Private Truncated Additive Mechanisms" (2021), for tables;
  Box and Muller (1958) for the Gaussian.
  """

  def __init__(self, noise: noise_lib.Noise, dim: Optional[int] = None,
               seed: Optional[int] = None):
    """Initialises the sampler.

    Args:
      noise: `Gaussian`, `Laplace`, `SinhNormal`, `ScalarTable` or
        `RadialTable`.
      dim: Number of coordinates of each draw; checked at each draw.
      seed: An integer of at least zero for repeatable experiments, or None.

    Raises:
      ValueError: if an argument is invalid or `dim` is not the table's.
    """
    super().__init__(name='noise_sampler')
    self.noise = noise
    self.dim = None if dim is None else _checks.integer('dim', dim, 1)
    self.seeded = seed is not None
    with tf.init_scope():
      self._bits = (
          SystemBits(KeyStream()) if seed is None else
          tf.random.Generator.from_state(_state(seed), alg='philox'))
    self._draw = _make_draw(noise, self._bits)
    if isinstance(noise, noise_lib.RadialTable):
      if self.dim not in (None, noise.dim):
        raise ValueError(
            f'Expected dim={noise.dim}, the dimension of the radial table, got '
            f'dim={self.dim}.')
      self.dim = noise.dim

  def draw(self, size: int) -> tf.Tensor:
    """Draws one noise vector.

    Args:
      size: Its number of coordinates.

    Returns:
      float64, shape (size,), in units of sensitivity.

    Raises:
      ValueError: if `size` is not the sampler's dimension.
    """
    size = _checks.integer('size', size, 1)
    if self.dim not in (None, size):
      raise ValueError(
          f'Expected {self.dim} coordinates in total, as {self.noise!r} was '
          f'built for, got {size}.')
    return self._draw(size)

  def __call__(self, template: Any, scale: Any = 1.0) -> Any:
    """Draws noise in the structure of `template`, jointly over all its parts.

    Args:
      template: One shape (a tuple or list of ints, or a `TensorShape`), or a
        nested structure of tensors, variables, arrays or `TensorSpec`s.
      scale: Multiplies the draw; the sensitivity (clip norm) of the sum.

    Returns:
      The structure of `template`, noise in the shape and dtype of each part
      (float64 for a bare shape), computed in float64.

    Raises:
      ValueError: if a shape is not fully known or the size is not `dim`.
    """
    if _is_shape(template):
      template = tf.TensorSpec(template, tf.float64)
    parts = tf.nest.flatten(template)
    shapes = [_static_shape(part) for part in parts]
    sizes = [math.prod(shape) for shape in shapes]
    # A Python float would pass through float32 on its way.
    scale = (tf.constant(scale, tf.float64) if isinstance(scale, float) else
             tf.cast(scale, tf.float64))
    flat = self.draw(sum(sizes)) * scale
    pieces = tf.split(flat, sizes) if len(sizes) > 1 else [flat]
    return tf.nest.pack_sequence_as(template, [
        self._cast(tf.reshape(piece, shape), part.dtype, scale)
        for piece, shape, part in zip(pieces, shapes, parts)
    ])

  def _cast(self, noise: tf.Tensor, dtype: tf.DType, scale: tf.Tensor
            ) -> tf.Tensor:
    """Casts to `dtype` without rounding out of a bounded table's range."""
    limit = getattr(self.noise, 'range', math.inf)
    if math.isinf(limit):
      return tf.cast(noise, dtype)
    end = limit * tf.abs(scale)
    nearest = tf.cast(end, dtype)
    below = nearest * tf.cast(1 - 2.0**-_DIGITS[tf.as_dtype(dtype)], dtype)
    largest = tf.where(tf.cast(nearest, tf.float64) > end, below, nearest)
    return tf.clip_by_value(tf.cast(noise, dtype), -largest, largest)


def _state(seed: int) -> np.ndarray:
  """Philox state: 128 bits of counter and 64 bits of key, as int64."""
  seed = _checks.integer('seed', seed, 0)
  # Hashed so that a seed shared with other generators gives other bits.
  data = hashlib.sha256(f'tfcactus/noise/{seed}'.encode()).digest()[:24]
  return np.frombuffer(data, dtype=np.int64)


def _is_shape(template: Any) -> bool:
  if isinstance(template, tf.TensorShape):
    return True
  return isinstance(template, (tuple, list)) and all(
      isinstance(entry, (int, np.integer)) for entry in template)


def _static_shape(part: Any) -> List[int]:
  if not hasattr(part, 'dtype') or not hasattr(part, 'shape'):
    raise ValueError(
        'Expected template to hold tensors, arrays or TensorSpecs, got '
        f'{part!r}.')
  shape = tf.TensorShape(part.shape)
  if not shape.is_fully_defined():
    raise ValueError(
        f'Expected shapes that are fully known, got {shape}; noise is drawn '
        'for model variables, whose shapes are fixed.')
  return shape.as_list()


def fine_uniform(bits: _Bits, size: int) -> tf.Tensor:
  """float64 uniforms in (0, 1), shape (size,), resolved to 2^-104 near zero."""
  coarse = bits.uniform([size], dtype=tf.float64)
  fill = bits.uniform([size], dtype=tf.float64)
  # The sum may round up to one, and both halves may be zero.
  return tf.clip_by_value(coarse + fill * _STEP, _SMALLEST, _LARGEST)


def box_muller(u: tf.Tensor, turn: tf.Tensor) -> tf.Tensor:
  """Turns k pairs of uniforms into 2 k independent standard normals.

  Args:
    u: float64 in (0, 1), shape (k,); its smallest values are the tails.
    turn: float64 in [0, 1), shape (k,), the angle as a fraction of a circle.

  Returns:
    float64, shape (2 k,).
  """
  radius = tf.sqrt(-2.0 * tf.math.log(u))
  angle = 2.0 * math.pi * turn
  return tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], axis=0)


def _standard_normal(bits: _Bits, size: int) -> tf.Tensor:
  if isinstance(bits, SystemBits):
    return bits.normal(size)
  pairs = (size + 1) // 2
  turn = bits.uniform([pairs], dtype=tf.float64)
  return box_muller(fine_uniform(bits, pairs), turn)[:size]


def _sign(bits: _Bits, size: int) -> tf.Tensor:
  negative = bits.uniform([size], dtype=tf.float64) < 0.5
  return tf.where(negative, tf.constant(-1.0, tf.float64), 1.0)


def _last_above(ascending: tf.Tensor, u: tf.Tensor) -> tf.Tensor:
  """The largest i with survival[i] > u, given survival in reverse."""
  below = tf.searchsorted(ascending, u, side='right')
  return ascending.shape[0] - 1 - below


@functools.singledispatch
def _make_draw(noise: Any, bits: _Bits) -> _Draw:
  """Returns the function size -> noise vector in units of sensitivity."""
  raise ValueError(
      'Expected noise to be Gaussian, Laplace, SinhNormal, ScalarTable or '
      f'RadialTable, got noise={noise!r}; Gaussian noise is tfcactus.noise.Gaussian('
      'noise_multiplier).')


@_make_draw.register(noise_lib.Gaussian)
def _gaussian(noise: noise_lib.Gaussian, bits: _Bits) -> _Draw:
  return lambda size: noise.noise_multiplier * _standard_normal(bits, size)


@_make_draw.register(NoNoise)
def _none(noise: NoNoise, bits: _Bits) -> _Draw:
  del noise, bits
  return lambda size: tf.zeros([size], tf.float64)


@_make_draw.register(noise_lib.Laplace)
def _laplace(noise: noise_lib.Laplace, bits: _Bits) -> _Draw:
  return lambda size: (-noise.scale * _sign(bits, size) *
                       tf.math.log(fine_uniform(bits, size)))


@_make_draw.register(noise_lib.SinhNormal)
def _sinh_normal(noise: noise_lib.SinhNormal, bits: _Bits) -> _Draw:
  return lambda size: noise.bend * tf.asinh(
      noise.sigma / noise.bend * _standard_normal(bits, size))


@_make_draw.register(noise_lib.ScalarTable)
def _scalar(noise: noise_lib.ScalarTable, bits: _Bits) -> _Draw:
  ascending = np.ascontiguousarray(noise.survival[::-1])

  def draw(size: int) -> tf.Tensor:
    cell = _last_above(tf.constant(ascending), fine_uniform(bits, size))
    distance = tf.cast(cell, tf.float64)
    if np.isfinite(noise.log_tail_ratio):
      depth = tf.floor(
          tf.math.log(fine_uniform(bits, size)) / noise.log_tail_ratio)
      in_tail = tf.equal(cell, ascending.size - 1)
      distance += tf.where(in_tail, depth, tf.zeros_like(depth))
    dither = bits.uniform([size], dtype=tf.float64)
    if noise.edge_at_zero:
      # Division rounds to no more than the range; see ScalarTable.sample.
      return _sign(bits, size) * (distance + dither) / noise.bins
    return (_sign(bits, size) * distance + (dither - 0.5)) * noise.width

  return draw


@_make_draw.register(noise_lib.RadialTable)
def _radial(noise: noise_lib.RadialTable, bits: _Bits) -> _Draw:
  ascending = np.ascontiguousarray(noise.survival[::-1])
  minus_filled = np.expm1(noise.log_hollow)

  def draw(size: int) -> tf.Tensor:
    shell = _last_above(tf.constant(ascending), fine_uniform(bits, 1))
    outside = bits.uniform([1], dtype=tf.float64)
    # rho^dim is uniform inside a shell; in logarithms, as it overflows.
    log_fill = tf.math.log1p(outside * tf.gather(minus_filled, shell))
    radius = tf.gather(noise.radii, shell) * tf.exp(log_fill / noise.dim)
    direction = _standard_normal(bits, size)
    return direction * (radius / tf.norm(direction))

  return draw
