"""Normal noise made and added on the device, from the key stream of ChaCha20."""

from __future__ import annotations

from collections.abc import Sequence
import functools
import math
import os
import warnings

from cryptography.hazmat.primitives.ciphers import algorithms, Cipher
import numpy as np
import tensorflow as tf

from tfcactus.keras.noise import chacha20

NORMALS = 6
"""Normals that are made of one block of the key stream."""

LARGE = 2**20
"""Number of coordinates from which on `randomness='auto'` draws on a GPU."""

TOGETHER = 2**24
"""Coordinates up to which sums are joined, 134 MB, so that few chunks are padded."""

_CHUNK = 2**18
"""Blocks of the key stream that are made at once: 1.6 million normals, 17 MB of words.
Every chunk of a large sum has this size, so that XLA compiles one function for all."""

_SINE = [(-1)**k / math.factorial(2 * k + 1) for k in range(9)]
_COSINE = [(-1)**k / math.factorial(2 * k) for k in range(10)]
"""Taylor coefficients in the square of the angle. Up to pi / 4 the sums err by less
than 1e-19, about 2^-63."""

_TOLERANCE = 2.0**-48
"""Largest accepted difference between a normal of the device and of the host, in units
of r + 1 / r, with r = sqrt(-2 log u) the radius of its pair: a relative error e of the
radius or the side moves the normal by up to e r, an error e of log u by e / r. 2^-48 is
16 units in the last place of float64."""


@functools.cache
def serves() -> bool:
  """Returns whether there is a GPU that makes the same noise as the host.

  Warns once if there is a GPU that makes other noise.
  """
  if not tf.config.list_logical_devices('GPU'):
    return False
  try:
    check(_CHUNK)
  except (RuntimeError, tf.errors.OpError) as error:
    warnings.warn(
        f'Noise is drawn on the host, since the GPU does not draw it: {error}',
        stacklevel=2)
    return False
  return True


def added(key: tf.Tensor, part: int, sums: tf.Tensor, scale: tf.Tensor,
          step: tf.Tensor | None) -> tf.Tensor:
  """Returns sums plus independent normals times `scale`, float64, shape (size,).

  `sums` is float64, shape (size,), of size at least 1. `key`, uint32 of shape (8,), is
  a key of ChaCha20 that serves one draw of noise; parts of one draw have different
  numbers `part`. `scale` and `step` are float64 scalars. Results are rounded to
  multiples of `step`, a power of two from `precision.grid`; 0 or None does not round.
  Raises RuntimeError as `check`.
  """
  size = sums.shape[0]
  blocks = min(_CHUNK, -(-size // NORMALS))
  check(blocks)
  chunks = -(-size // (blocks * NORMALS))
  rows = tf.reshape(tf.pad(sums, [[0, chunks * blocks * NORMALS - size]]), [chunks, -1])
  step = tf.zeros([], tf.float64) if step is None else step
  number = tf.constant(part, tf.uint32)

  def chunk(index: tf.Tensor) -> tf.Tensor:
    """Returns row `index` with noise from its own blocks of the key stream."""
    first = tf.cast(index * blocks, tf.uint32)
    return _chunk(key, number, first, rows[index], scale, step)

  if chunks == 1:
    return chunk(tf.constant(0))[:size]
  _, done = tf.while_loop(
      lambda index, _: index < chunks,
      lambda index, done: (index + 1, done.write(index, chunk(index))),
      (0, tf.TensorArray(tf.float64, chunks, element_shape=rows.shape[1:])),
      parallel_iterations=1)
  return tf.reshape(done.stack(), [-1])[:size]


@functools.partial(tf.function, jit_compile=True, autograph=False)
def _chunk(key: tf.Tensor, part: tf.Tensor, first: tf.Tensor, sums: tf.Tensor,
           scale: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
  """Returns sums, `NORMALS` for each block, plus noise; rounded unless `step` is 0."""
  noisy = sums + scale * normals(key, part, first, sums.shape[0] // NORMALS)
  # Dividing and multiplying by a power of two is exact: only `round` rounds.
  grid = tf.where(step > 0, step, tf.ones_like(step))
  return tf.where(step > 0, tf.round(noisy * (1 / grid)) * grid, noisy)


@functools.cache
def check(blocks: int) -> None:
  """Compares the device's noise of a chunk of `blocks` blocks with the host's.

  Does so once in a process for each number of blocks, for which XLA compiles anew.
  Raises RuntimeError if the device's bits or functions are not those of the host.
  """
  key = np.frombuffer(os.urandom(32), '<u4')
  with tf.init_scope():  # Part 3 and first block 5 stand for all.
    made = _chunk(
        tf.constant(key), tf.constant(3, tf.uint32), tf.constant(5, tf.uint32),
        tf.zeros([NORMALS * blocks], tf.float64), tf.ones([], tf.float64),
        tf.zeros([], tf.float64)).numpy()
  expected, radii = host_normals(key.tobytes(), 3, 5, blocks)
  # In units of `_TOLERANCE`, which tells why.
  worst = float(np.max(np.abs(made - expected) / (radii + 1 / radii)))
  if not worst <= _TOLERANCE:
    raise RuntimeError(
        "Expected noise made with randomness='device' to be what the host makes from "
        f'the same key, got normals that differ by {worst:.2g}: the device or its '
        "compiler is at fault. Pass randomness='host'.")


def host_normals(key: bytes, part: int, first: int, blocks: int
                 ) -> tuple[np.ndarray, np.ndarray]:
  """Returns what `normals` returns, by other code, and the radius of each one's pair.

  Both arrays are float64, (6 blocks,). Radii are at least 1e-8.
  """
  nonce = np.array([first, part, 0, 0], '<u4').tobytes()
  stream = Cipher(algorithms.ChaCha20(key, nonce), None).encryptor().update(
      bytes(64 * blocks))
  words = np.frombuffer(stream, '<u4').reshape(-1, 16).T.astype(np.uint64)
  result, radii = [], []
  for pair in range(3):
    one, two, three, four, five = words[5 * pair:5 * pair + 5]
    more = words[15] >> np.uint64(10 * pair) & np.uint64(1023)
    low = ((more + 0.5) * 2.0**-10 + three) * 2.0**-32 + two
    radius = np.sqrt(-2 * np.log((low * 2.0**-32 + one) * 2.0**-32))
    turn = ((five + 0.5) * 2.0**-32 + (four & np.uint64(2**29 - 1))) * 2.0**-29
    sides = np.sin(turn * np.pi / 4), np.cos(turn * np.pi / 4)
    swap = four >> np.uint64(29) & np.uint64(1) == 1
    for axis, bit in enumerate((30, 31)):
      sign = 1.0 - 2.0 * (four >> np.uint64(bit) & np.uint64(1))
      result.append(radius * sign * np.where(swap, sides[1 - axis], sides[axis]))
      radii.append(radius)
  # A uniform that rounds to one gives the radius zero, by which `check` cannot divide.
  return np.concatenate(result), np.maximum(np.concatenate(radii), 1e-8)


def normals(key: tf.Tensor, part: tf.Tensor, first: tf.Tensor, blocks: int
            ) -> tf.Tensor:
  """Returns standard normals of `blocks` successive blocks, float64, (6 blocks,).

  `key` is as for `added`. The number `part` is in the nonce, `first` is the counter of
  the first block; both are uint32 scalars.
  """
  zero = tf.zeros_like(part)
  words = chacha20.words(key, (part, zero, zero), first, blocks)
  # The last word has ten more bits for each of the three pairs.
  return tf.concat([each for pair in range(3) for each in _pair(
      words[5 * pair:5 * pair + 5], _bits(words[15], 10 * pair, 10))], 0)


def _pair(words: Sequence[tf.Tensor], more: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns two independent standard normals made of five words and ten more bits.

  All are tensors of shape (blocks,): an entry is of one block of the key stream.
  """
  # Source: Box and Muller, "A Note on the Generation of Random Normal Deviates" (1958).
  # The uniform is the middle of a cell of a grid of 2^-106, so that tails reach 12
  # standard deviations. In whatever order it is summed, rounding keeps it in (0, 1].
  low = _wide(words[2], -96) + (tf.cast(more, tf.float64) + 0.5) * 2.0**-106
  uniform = _wide(words[0], -32) + (_wide(words[1], -64) + low)
  radius = tf.sqrt(-2.0 * tf.math.log(uniform))
  # An angle in (0, pi / 4), in steps of 2^-61 of it, and three bits for the octant.
  part = _wide(_bits(words[3], 0, 29), -29) + (
      tf.cast(words[4], tf.float64) + 0.5) * 2.0**-61
  angle = part * (math.pi / 4)
  square = angle * angle
  sine, cosine = (tf.math.polyval(  # Its first coefficient is of the highest power.
      [tf.constant(each, tf.float64) for each in reversed(coefficients)], square)
                  for coefficients in (_SINE, _COSINE))
  swap = tf.equal(_bits(words[3], 29, 1), 1)
  sine = angle * sine
  return (radius * _sign(words[3], 30) * tf.where(swap, cosine, sine),
          radius * _sign(words[3], 31) * tf.where(swap, sine, cosine))


def _bits(word: tf.Tensor, start: int, count: int) -> tf.Tensor:
  """Returns `count` bits of words, from bit `start` on, as uint32."""
  return tf.bitwise.bitwise_and(
      tf.bitwise.right_shift(word, tf.constant(start, tf.uint32)),
      tf.constant(2**count - 1, tf.uint32))


def _sign(word: tf.Tensor, place: int) -> tf.Tensor:
  """Returns, float64, -1 for words in which bit `place` is set, else 1."""
  return 1.0 - 2.0 * tf.cast(_bits(word, place, 1), tf.float64)


def _wide(word: tf.Tensor, exponent: int) -> tf.Tensor:
  """Returns words times a power of two, exactly, float64."""
  return tf.cast(word, tf.float64) * 2.0**exponent
