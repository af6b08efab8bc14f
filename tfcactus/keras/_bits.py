"""Random bits that cannot be predicted, and the numbers made of them."""

from __future__ import annotations

import hashlib
import os
import threading
from typing import Optional

from cryptography.hazmat.primitives.ciphers import algorithms
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers import modes
import numpy as np
import tensorflow as tf

_ZEROS = memoryview(bytes(2**20))
_REACH = 1.3
"""A point of the square lies in the disc with probability 0.785; so many times
the pairs wanted are almost always enough, and more are drawn if they are not."""


class KeyStream:
  """The key stream of AES-256 in counter mode, as 64-bit words.

  Unless seeded, the key comes from the operating system, is never stored, and
  is drawn anew in a forked process, so that no two processes, replicas or
  resumed runs share one. With a seed the words repeat, and whoever knows the
  seed knows the noise: for experiments only.

  Not to be copied or pickled: a copy would repeat the words.
  """

  def __init__(self, seed: Optional[int] = None, purpose: str = ''):
    """Initialises the stream.

    Args:
      seed: For repeatable experiments; None takes the system's entropy.
      purpose: Streams of one seed and several purposes differ.
    """
    self._seed = seed
    self._purpose = purpose
    self._lock = threading.Lock()
    self._rekey()

  def _rekey(self) -> None:
    key = os.urandom(32)
    if self._seed is not None:
      key = hashlib.sha256(
          f'tfcactus/{self._purpose}/{self._seed}'.encode()).digest()
    # A key serves one stream only, so the counter may start at zero.
    self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    self._pid = os.getpid()

  def __reduce__(self):
    raise TypeError(
        'Expected a fresh KeyStream, got a request for a copy of one, which '
        'would repeat its words; make a new sampler or new batches.')

  def words(self, count: int) -> np.ndarray:
    """Returns the next `count` words, uint64."""
    with self._lock:
      if os.getpid() != self._pid:
        self._rekey()
      size = 8 * count
      zeros = _ZEROS[:size] if size <= len(_ZEROS) else bytes(size)
      return np.frombuffer(self._cipher.update(zeros), np.uint64)

  def below(self, probability: float, count: int) -> np.ndarray:
    """Booleans, each True with probability floor(probability 2^64) / 2^64.

    Rounding down: an account for `probability` covers it.

    Args:
      probability: In [0, 1].
      count: How many.
    """
    words = self.words(count)
    if probability >= 1:
      return np.ones(count, bool)
    # Exact: a double below one has 53 bits, shifted by a power of two.
    return words < np.uint64(int(probability * 2.0**64))

  def subset(self, size: int, total: int) -> np.ndarray:
    """A uniformly random set of `size` indices below `total`, ascending.

    Those of the smallest words; drawn again in the case, of probability below
    total^2 / 2^64, that equal words leave the set open.
    """
    if size == total:
      return np.arange(total)
    while True:
      words = self.words(total)
      order = np.argpartition(words, size)
      if words[order[:size]].max() < words[order[size]]:
        return np.sort(order[:size])

  def permutation(self, total: int) -> np.ndarray:
    """The indices below `total` in a uniformly random order."""
    while True:
      words = self.words(total)
      order = np.argsort(words)
      ranked = words[order]
      if np.all(ranked[1:] > ranked[:-1]):
        return order

  def uniforms(self, count: int) -> np.ndarray:
    """float64 in [0, 1) on a grid of 2^-53."""
    return (self.words(count) >> np.uint64(11)) * 2.0**-53

  def normals(self, count: int) -> np.ndarray:
    """Standard normals, float64, with tails out to 13 standard deviations.

    Source: Marsaglia and Bray, "A Convenient Method for Generating Normal
    Variables" (1964), on points of a grid of 2^-63.
    """
    pairs = (count + 1) // 2
    out = np.empty((2, pairs))
    done = 0
    while done < pairs:
      points = self.words(2 * (int((pairs - done) * _REACH) + 16))
      points = points.view(np.int64).reshape(2, -1) * 2.0**-63
      s = points[0] * points[0]
      s += points[1] * points[1]
      inside = np.flatnonzero((s < 1) & (s > 0))[:pairs - done]
      # All indices are valid: mode 'clip' only spares take() to look.
      s = s.take(inside, mode='clip')
      stretch = np.log(s)
      stretch /= s
      stretch *= -2
      np.sqrt(stretch, out=stretch)
      drawn = points.take(inside, axis=1, mode='clip')
      np.multiply(drawn, stretch, out=out[:, done:done + inside.size])
      done += inside.size
    return out.reshape(-1)[:count]


class SystemBits:
  """Numbers inside TensorFlow graphs from a `KeyStream`."""

  def __init__(self, stream: KeyStream):
    """Initialises the source.

    Args:
      stream: Where the bits come from.
    """
    self._stream = stream

  def uniform(self, shape, dtype=tf.float64) -> tf.Tensor:
    """float64 in [0, 1), shape (size,)."""
    (size,) = shape
    return self._call(self._stream.uniforms, size, dtype)

  def normal(self, size: int) -> tf.Tensor:
    """Standard normals, float64, shape (size,)."""
    return self._call(self._stream.normals, size, tf.float64)

  def _call(self, draw, size, dtype):
    values = tf.numpy_function(lambda: draw(size), [], tf.float64)
    return tf.cast(tf.ensure_shape(values, [size]), dtype)
