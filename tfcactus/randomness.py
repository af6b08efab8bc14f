"""Cryptographic random bits, and the random numbers made of them."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent import futures
import hashlib
import math
import os
import threading
from typing import Any, Callable, Protocol, TypeVar, Union
import weakref

from cryptography.hazmat.primitives.ciphers import algorithms, Cipher, modes
import numpy as np

from tfcactus import _checks

PARALLEL = 2**19
"""Larger numbers of draws are shared by several threads."""

_PARTS = 8  # Streams that share a large number of draws.
_CHUNK = 2**15  # Draws made at once, so that they stay in a core's cache.
Size = Union[int, tuple[int, ...]]
_ZEROS = memoryview(bytes(2**20))
_Stream = TypeVar('_Stream', bound='KeyStream')
_REACH = 1.3
"""Points drawn for each pair of normals wanted. A point of the square lies in the disc
with probability pi / 4, so these are almost always enough; if not, more are drawn."""


def in_threads(task: Callable[..., None], *items: Iterable[Any]) -> None:
  """Calls `task(*each)` for each of zip(*items), in threads if there are several.

  Where Python starts no more threads, calls `task` for all, one after the other; again
  for those that were begun, so a second call must change nothing.
  """
  listed = [*zip(*items)]
  if len(listed) > 1:
    try:
      with futures.ThreadPoolExecutor(min(_PARTS, os.cpu_count() or 1)) as pool:
        begun = [pool.submit(task, *each) for each in listed]
    except RuntimeError:  # There are no new threads once the main thread has ended.
      pass
    else:
      for done in begun:
        done.result()
      return
  for each in listed:
    task(*each)


class KeyStream:
  """The key stream of AES-256 in counter mode, as 64-bit words.

  Without a seed, the key comes from the operating system and is never saved, and a
  forked process draws a new one. With a seed the words repeat, also after a fork: seeds
  are for experiments only. Copying or pickling a stream raises TypeError.
  """

  def __init__(self, seed: int | None = None, purpose: str = ''):
    """Creates a stream; streams of one seed differ if their purposes differ."""
    self._seed = seed
    self._purpose = purpose
    self._lock = threading.Lock()
    self._rekey()
    _STREAMS.add(self)

  @classmethod
  def of_key(cls, key: bytes) -> KeyStream:
    """Returns the stream of a 32-byte key that has no other purpose.

    Processes that share the key get the same words; a forked process draws a new key.
    """
    stream = cls()
    stream._start(bytes(key))
    return stream

  def _start(self, key: bytes, block: int = 0) -> None:
    """Begins the key stream of `key` at a block of the cipher, of two words each."""
    self._key = key
    self._cipher = Cipher(algorithms.AES(key), modes.CTR(
        block.to_bytes(16, 'big'))).encryptor()

  def _rekey(self) -> None:
    """Starts with a new key: random without a seed, else derived from the seed."""
    self._start(os.urandom(32) if self._seed is None else hashlib.sha256(
        f'tfcactus/{self._purpose}/{self._seed}'.encode()).digest())
    self._used = 0
    self._pid = os.getpid()

  @property
  def position(self) -> int:
    """Number of words drawn so far under the key."""
    return self._used

  def replayed(self: _Stream, position: int) -> _Stream:
    """Returns a stream that repeats this stream's words from `position` on.

    Read no more words than this stream has drawn: it will draw the next ones itself.
    Raises ValueError unless this process drew the word at `position`.
    """
    if self._pid != os.getpid() or not 0 <= position < self._used:
      raise ValueError(
          f'Expected a position below {self._used}, from which this process has drawn, '
          f'got {position!r}.')
    stream = type(self)(self._seed, self._purpose)
    start, skipped = divmod(position, 2)  # A block of the cipher holds two words.
    stream._start(self._key, start)
    stream.words(skipped)
    stream._used = position
    return stream

  def __reduce__(self):
    raise TypeError(
        'Expected a fresh KeyStream, got a request for a copy of one, which '
        'would repeat its words; make a new sampler or new batches.')

  def key(self) -> bytes:
    """Returns 32 bytes of the stream, as the key of another stream."""
    return self.words(4).tobytes()

  def words(self, count: int) -> np.ndarray:
    """Returns the next `count` words, uint64."""
    with self._lock:
      if os.getpid() != self._pid:
        self._rekey()
      size = 8 * count
      self._used += count
      # Encrypting zeros gives the key stream itself.
      zeros = _ZEROS[:size] if size <= len(_ZEROS) else bytes(size)
      return np.frombuffer(self._cipher.update(zeros), np.uint64)

  def below(self, probability: float, count: int) -> np.ndarray:
    """Returns `count` booleans, True with `probability` rounded down to 2^-64 units."""
    words = self.words(count)
    if probability >= 1:
      return np.ones(count, bool)
    # A float times a power of two is exact: only `int` rounds, downwards.
    return words < np.uint64(int(probability * 2.0**64))

  def subset(self, size: int, total: int) -> np.ndarray:
    """Returns a uniformly random subset of `size` > 0 indices < `total`, ascending."""
    # The subset has the smallest words. If equal words leave it ambiguous (probability
    # below total^2 / 2^64), the words are drawn again.
    if size == total:
      return np.arange(total)
    while True:
      words = self.words(total)
      order = np.argpartition(words, size)
      if words[order[:size]].max() < words[order[size]]:
        return np.sort(order[:size])

  def permutation(self, total: int) -> np.ndarray:
    """Returns the indices below `total` in a uniformly random order."""
    while True:
      words = self.words(total)
      order = np.argsort(words)
      ranked = words[order]
      # Equal words would be ranked by the sort, not at random: then draw again.
      if np.all(ranked[1:] > ranked[:-1]):
        return order

  def integers(self, span: int, count: int) -> np.ndarray:
    """Returns `count` int64 in [0, span), exactly uniform; 0 < span < 2^63."""
    # Words beyond the last whole multiple of the span would bias the remainder.
    last = np.uint64(2**64 - 1 - 2**64 % span)
    words = self.words(count)
    while not np.all(words <= last):
      words = words[words <= last]
      words = np.append(words, self.words(count - words.size))
    return (words % np.uint64(span)).astype(np.int64)

  def uniforms(self, count: int) -> np.ndarray:
    """Returns float64 uniforms in [0, 1) on a grid of 2^-53."""
    return (self.words(count) >> np.uint64(11)) * 2.0**-53

  def normals(self, count: int) -> np.ndarray:
    """Returns standard normals, float64, with tails out to 13 standard deviations."""
    # Source: Marsaglia and Bray, "A Convenient Method for Generating Normal Variables"
    # (1964), on points of a grid of 2^-63: sqrt(-2 log 2^-126) = 13.
    return self.filled(count, np.float64, KeyStream._few_normals)

  def filled(self, count: int, dtype: type,
             draw: Callable[[KeyStream, int], np.ndarray]) -> np.ndarray:
    """Returns `count` draws of `draw(stream, number)`, made in chunks.

    More than `PARALLEL` draws come from parallel streams, whose keys this stream draws.
    """
    if count <= _CHUNK:
      return draw(self, count)
    out: np.ndarray = np.empty(count, dtype)
    if count > PARALLEL:
      self._fill_parts(out, draw)
      return out
    for start in range(0, count, _CHUNK):
      part = out[start:start + _CHUNK]
      part[:] = draw(self, part.size)
    return out

  def _fill_parts(self, out: np.ndarray,
                  draw: Callable[[KeyStream, int], np.ndarray]) -> None:
    """Fills an array from `_PARTS` parallel streams, whose keys this stream draws."""
    # The number of parts is fixed, so that a seed repeats on every machine.
    parts = np.array_split(out, _PARTS)
    streams = [KeyStream.of_key(self.key()) for _ in parts]

    def fill(part: np.ndarray, stream: KeyStream) -> None:
      """Fills a part from its stream, in pieces that `filled` draws in this thread."""
      for start in range(0, part.size, PARALLEL):
        piece = part[start:start + PARALLEL]
        piece[:] = stream.filled(piece.size, out.dtype.type, draw)

    in_threads(fill, parts, streams)

  def _few_normals(self, count: int) -> np.ndarray:
    """Returns normals as `normals` does, all at once and in this thread."""
    # A uniform point of the unit disc, of squared radius s, gives two normals: its
    # coordinates times sqrt(-2 log(s) / s).
    pairs = (count + 1) // 2
    out = np.empty((2, pairs))
    done = 0
    while done < pairs:
      points = self.words(2 * (int((pairs - done) * _REACH) + 16))
      points = points.view(np.int64).reshape(2, -1) * 2.0**-63
      s = points[0] * points[0]
      s += points[1] * points[1]
      inside = np.flatnonzero((s < 1) & (s > 0))[:pairs - done]
      # All indices are valid: mode 'clip' only makes take() skip its check.
      s = s.take(inside, mode='clip')
      stretch = np.log(s)
      stretch /= s
      stretch *= -2
      np.sqrt(stretch, out=stretch)
      drawn = points.take(inside, axis=1, mode='clip')
      np.multiply(drawn, stretch, out=out[:, done:done + inside.size])
      done += inside.size
    return out.reshape(-1)[:count]


_STREAMS: weakref.WeakSet[KeyStream] = weakref.WeakSet()


def _unlock() -> None:
  """Gives streams new locks: a thread that the fork left behind may hold an old one."""
  for stream in list(_STREAMS):
    stream._lock = threading.Lock()


if hasattr(os, 'register_at_fork'):  # Windows has no forks.
  os.register_at_fork(after_in_child=_unlock)


class Random(Protocol):
  """Generator of noise, such as `numpy.random.Generator` or `SystemRandom`: float64."""

  def random(self, size: Size) -> np.ndarray: ...

  def standard_normal(self, size: Size) -> np.ndarray: ...


class SystemRandom(KeyStream):
  """A `KeyStream` with the methods of `numpy.random.Generator` for noise."""

  def __init__(self, seed: int | None = None, purpose: str = 'release'):
    """Creates a generator; see `KeyStream` for the seed and the purpose."""
    super().__init__(seed, purpose)

  def random(self, size: Size = ()) -> np.ndarray:
    """Returns float64 uniforms in [0, 1) on a grid of 2^-53."""
    return self.uniforms(math.prod(shape(size))).reshape(shape(size))

  def standard_normal(self, size: Size = ()) -> np.ndarray:
    """Returns standard normals with tails out to 13 standard deviations."""
    return self.normals(math.prod(shape(size))).reshape(shape(size))


def fine_uniform(rng: Random, size: Size) -> np.ndarray:
  """Returns uniforms in (0, 1) whose resolution near zero is 2^-106, not 2^-53."""
  # Inverted survival functions then draw cells far rarer than 2^-53 as often as due.
  u = rng.random(size) + rng.random(size) * 2.0**-53
  # Both halves are zero with probability 2^-106; the sum rounds up to one with 2^-54.
  return np.clip(u, 2.0**-106, 1 - 2.0**-53)


def exponentials(rng: Random, size: Size) -> np.ndarray:
  """Returns exponential random numbers of mean one, accurate near zero and far out."""
  # With u = half, uniform in (0, 1/2), they are -log(1 - u) or -log(u).
  half = 0.5 * fine_uniform(rng, size)
  return np.where(rng.random(size) < 0.5, -np.log1p(-half), -np.log(half))


def shape(size: Size) -> tuple[int, ...]:
  """Returns a shape; an integer is the length of a vector. ValueError for others."""
  sizes = size if isinstance(size, (tuple, list)) else (size,)
  return tuple(_checks.integer('size', each, 0) for each in sizes)
