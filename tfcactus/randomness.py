"""Random bits that cannot be predicted, and the numbers made of them."""

from __future__ import annotations

from concurrent import futures
import hashlib
import math
import os
import threading
from typing import Optional
from typing import Protocol
from typing import Tuple
from typing import Union

from cryptography.hazmat.primitives.ciphers import algorithms
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers import modes
import numpy as np

PARALLEL = 2**19
"""Normals above which several threads draw them."""

_PARTS = 8
_CHUNK = 2**15
Size = Union[int, Tuple[int, ...]]
_ZEROS = memoryview(bytes(2**20))
_REACH = 1.3
"""A point of the square lies in the disc with probability 0.785; so many times
the pairs wanted are almost always enough, and more are drawn if they are not."""


class KeyStream:
  """The key stream of AES-256 in counter mode, as 64-bit words.

  Unless seeded, the key comes from the operating system, is never saved, and
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

  @classmethod
  def of_key(cls, key: bytes) -> KeyStream:
    """The stream of a key that processes share, so that they draw alike.

    Args:
      key: 32 bytes that came from the operating system, for this stream alone.
    """
    stream = cls()  # A fork has a key of its own.
    stream._key = bytes(key)
    stream._cipher = Cipher(algorithms.AES(stream._key), modes.CTR(bytes(16))
                            ).encryptor()
    return stream

  def _rekey(self) -> None:
    self._key = key = os.urandom(32)
    if self._seed is not None:
      self._key = key = hashlib.sha256(
          f'tfcactus/{self._purpose}/{self._seed}'.encode()).digest()
    # A key serves one stream only, so the counter may start at zero.
    self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    self._used = 0
    self._pid = os.getpid()

  @property
  def position(self) -> int:
    """Words drawn so far under the key."""
    return self._used

  def replayed(self, position: int) -> KeyStream:
    """A stream of the same words once more, from a `position` on; this one goes on.

    For numbers that are needed again and were not worth keeping: never for others,
    which have to be fresh. To be read up to where this one is.

    Raises:
      ValueError: if nothing was drawn there yet, or in another process.
    """
    if self._pid != os.getpid() or not 0 <= position < self._used:
      raise ValueError(
          f'Expected a position below {self._used}, from which this process has drawn, '
          f'got {position!r}.')
    stream = KeyStream(self._seed, self._purpose)
    start, odd = divmod(position, 2)  # A block of the cipher is two words.
    stream._key = self._key
    stream._cipher = Cipher(algorithms.AES(self._key), modes.CTR(
        start.to_bytes(16, 'big'))).encryptor()
    stream.words(odd)
    stream._used = position
    return stream

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
      self._used += count
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

  def integers(self, span: int, count: int) -> np.ndarray:
    """int64 in [0, span), uniform to the last bit.

    Args:
      span: Positive, below 2^63.
      count: How many.
    """
    # Words beyond the last whole multiple of the span are drawn again.
    last = np.uint64(2**64 - 1 - 2**64 % span)
    words = self.words(count)
    while not np.all(words <= last):
      words = words[words <= last]
      words = np.append(words, self.words(count - words.size))
    return (words % np.uint64(span)).astype(np.int64)

  def uniforms(self, count: int) -> np.ndarray:
    """float64 in [0, 1) on a grid of 2^-53."""
    return (self.words(count) >> np.uint64(11)) * 2.0**-53

  def normals(self, count: int) -> np.ndarray:
    """Standard normals, float64, with tails out to 13 standard deviations.

    Source: Marsaglia and Bray, "A Convenient Method for Generating Normal
    Variables" (1964), on points of a grid of 2^-63.
    """
    if count > PARALLEL:
      return self._normals_in_parts(count)
    if count <= _CHUNK:
      return self._few_normals(count)
    out = np.empty(count)
    for start in range(0, count, _CHUNK):  # What stays in a core's cache.
      part = out[start:start + _CHUNK]
      part[:] = self._few_normals(part.size)
    return out

  def _normals_in_parts(self, count: int) -> np.ndarray:
    """Normals of several streams at once, each under a key that this one gives."""
    out = np.empty(count)
    # As many parts whatever the machine, so that seeds repeat on others.
    parts = np.array_split(out, _PARTS)
    streams = [KeyStream.of_key(self.words(4).tobytes()) for _ in parts]

    def fill(part: np.ndarray, stream: KeyStream) -> None:
      for start in range(0, part.size, PARALLEL):
        piece = part[start:start + PARALLEL]
        piece[:] = stream.normals(piece.size)

    with futures.ThreadPoolExecutor(min(_PARTS, os.cpu_count() or 1)) as pool:
      list(pool.map(fill, parts, streams))
    return out

  def _few_normals(self, count: int) -> np.ndarray:
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


class Random(Protocol):
  """What noise is drawn with: `numpy.random.Generator` or `SystemRandom`."""

  def random(self, size: Size) -> np.ndarray:
    """float64 in [0, 1)."""

  def standard_normal(self, size: Size) -> np.ndarray:
    """float64 standard normals."""


class SystemRandom:
  """The methods of `numpy.random.Generator` that noise draws with.

  Bits come from a `KeyStream`: unpredictable unless seeded. Any noise of this
  library takes it where it takes a numpy generator.
  """

  def __init__(self, seed: Optional[int] = None, purpose: str = 'release'):
    """Initialises the generator.

    Args:
      seed: For repeatable experiments; None takes a key from the system.
      purpose: Generators of one seed and several purposes differ.
    """
    self._stream = KeyStream(seed, purpose)

  @property
  def position(self) -> int:
    """As of its `KeyStream`."""
    return self._stream.position

  def replayed(self, position: int) -> SystemRandom:
    """As `KeyStream.replayed`."""
    rng = SystemRandom()
    rng._stream = self._stream.replayed(position)
    return rng

  def random(self, size: Size = ()) -> np.ndarray:
    """float64 in [0, 1) on a grid of 2^-53."""
    return self._stream.uniforms(math.prod(_shape(size))).reshape(_shape(size))

  def standard_normal(self, size: Size = ()) -> np.ndarray:
    """Standard normals with tails out to 13 standard deviations."""
    return self._stream.normals(math.prod(_shape(size))).reshape(_shape(size))

  def laplace(self, loc: float = 0.0, scale: float = 1.0, size: Size = ()
              ) -> np.ndarray:
    """Laplace noise with tails out to 70 scales."""
    sign = np.where(self.random(size) < 0.5, -1.0, 1.0)
    return loc - scale * sign * np.log(fine_uniform(self, size))

  def integers(self, low: int, high: int, size: Size = ()) -> np.ndarray:
    """int64 in [low, high), uniform to the last bit."""
    span = int(high) - int(low)
    if not 0 < span < 2**63:
      raise ValueError(f'Expected low < high, got {low!r} and {high!r}.')
    count = math.prod(_shape(size))
    return self._stream.integers(span, count).reshape(_shape(size)) + int(low)


def fine_uniform(rng: Random, size: Size) -> np.ndarray:
  """Uniforms in (0, 1) whose resolution near zero is 2^-106, not 2^-53.

  Survival functions are inverted at these, so that cells far rarer than 2^-53
  are drawn as often as they should be.
  """
  u = rng.random(size) + rng.random(size) * 2.0**-53
  # Both halves zero has probability 2^-106; rounding up to one has 2^-54.
  return np.clip(u, 2.0**-106, 1 - 2.0**-53)


def _shape(size: Size) -> tuple[int, ...]:
  return tuple(size) if isinstance(size, (tuple, list)) else (int(size),)
