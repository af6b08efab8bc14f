"""The key stream of ChaCha20 (RFC 8439), in TensorFlow operations on any device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

_CONSTANTS = np.frombuffer(b'expand 32-byte k', '<u4')
"""The first four words of a state (RFC 8439, 2.3)."""

_DOUBLE_ROUNDS = 10
"""The 20 rounds of ChaCha20 are column and diagonal rounds by turns."""

_QUARTER_ROUNDS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
                   (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
"""Words of the state that the quarter rounds of a double round mix (RFC 8439, 2.3)."""


def words(key: tf.Tensor, nonce: Sequence[tf.Tensor], first: tf.Tensor, count: int
          ) -> list[tf.Tensor]:
  """Returns `count` successive blocks of a key stream, as 16 tensors of words.

  They are uint32, of shape (count,): word i of each block is in tensor i. `key`, uint32
  of shape (8,), is the 32 bytes of the key as little-endian words. `nonce` is three
  uint32 scalars, `first` the counter of the first block; counters do not pass 2^32.
  All operations are on uint32 and exact, so that every device gives the same words.
  """
  counters = first + tf.cast(tf.range(count), tf.uint32)
  start = [tf.broadcast_to(word, [count]) for word in (
      *(tf.constant(int(word), tf.uint32) for word in _CONSTANTS),
      *tf.unstack(key, 8), counters, *nonce)]
  # Unrolled rounds take XLA ten times as long to compile, and then run slower.
  _, *mixed = tf.while_loop(
      lambda done, *_: done < _DOUBLE_ROUNDS,
      lambda done, *state: (done + 1, *_double_round(state)), (0, *start))
  return [word + initial for word, initial in zip(mixed, start)]


def _double_round(state: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """Returns the 16 words of a state after a column round and a diagonal round."""
  state = list(state)
  for a, b, c, d in _QUARTER_ROUNDS:
    for target, other, mixed, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8),
                                       (c, d, b, 7)):
      state[target] = state[target] + state[other]
      state[mixed] = _rotated(
          tf.bitwise.bitwise_xor(state[mixed], state[target]), bits)
  return state


def _rotated(word: tf.Tensor, bits: int) -> tf.Tensor:
  """Returns uint32 words rotated to the left by `bits`, from 1 to 31."""
  return tf.bitwise.bitwise_or(
      tf.bitwise.left_shift(word, tf.constant(bits, tf.uint32)),
      tf.bitwise.right_shift(word, tf.constant(32 - bits, tf.uint32)))
