"""Differentiable bounds on delta for learning noise.

The forward pass is that of PrivacyBuckets, an upper bound but for rounding. A count has
no derivative with respect to a loss. The slope between the buckets on either side
replaces it, as if the bucket's label followed the loss.

Source: Sommer et al., "Learning Numeric Optimal Differentially Private Truncated
Additive Mechanisms" (2021), Proposition 17 and sections 3.4.2 and 3.4.3.
"""

from __future__ import annotations

import math
from typing import Callable

import tensorflow as tf

PDP_REACH = 0.04
"""Distance to the buckets on either side under probabilistic DP, as a share of h. There
a mass counts in full or not at all; closer buckets would not see this step."""

Pair = tuple[tf.Tensor, tf.Tensor]


def outcome_pairs(full: tf.Tensor, bins: int, sampling_prob: float) -> list[Pair]:
  """Returns (P, Q), outcome masses, for each direction; without sampling, one pair."""
  # `full` has the masses of all cells from left to right, shape (2 n,). The neighbour's
  # noise is shifted by the sensitivity; P and Q have shape (2 n + bins,).
  nothing = tf.zeros([bins], full.dtype)
  p = tf.concat([full, nothing], 0)
  q = tf.concat([nothing, full], 0)
  if sampling_prob == 1:
    return [(p, q)]
  mixed = (1 - sampling_prob) * p + sampling_prob * q
  return [(mixed, p), (p, mixed)]


def moments_delta(pair: Pair, order: tf.Tensor, epsilon: float, steps: int
                  ) -> tf.Tensor:
  """Returns the extended moments accountant's delta, differentiable; may exceed one."""
  # It is 1 - (1 - omega)^n + exp(n Gamma - lambda epsilon), with n = `steps`, lambda =
  # `order`, the P-mass omega of outcomes that Q cannot have, and Gamma the log of the
  # sum of P (P / Q)^lambda over the other outcomes.
  p, q = pair
  both = (p > 0) & (q > 0)
  log_p = tf.math.log(tf.where(both, p, 1.0))
  log_q = tf.math.log(tf.where(both, q, 1.0))
  exponent = tf.where(both, (1 + order) * log_p - order * log_q,
                      tf.constant(-math.inf, p.dtype))
  gamma = tf.reduce_logsumexp(exponent)
  # The probability of any infinite loss, and the moments' bound on finite ones, capped
  # where it says nothing, so that gradients stay finite.
  return -tf.math.expm1(steps * tf.math.log1p(-_omega(pair))) + tf.exp(tf.minimum(
      steps * gamma - order * epsilon, 50.0))


def buckets_delta(pair: Pair, epsilon: float, steps: int, width: tf.Tensor,
                  half: int, *, probabilistic: bool) -> tf.Tensor:
  """Returns PrivacyBuckets' delta of `steps` releases; of PDP if `probabilistic`."""
  # Probabilistic DP (PDP) counts all mass whose loss exceeds epsilon. Approximate DP
  # (ADP) counts the share 1 - e^(epsilon - loss) of it. `width` is the log of the
  # discretisation factor, `half` is h of the buckets -h..h.
  p, q = pair
  both = (p > 0) & (q > 0)
  masses = tf.boolean_mask(p, both)
  loss = tf.math.log(masses) - tf.math.log(tf.boolean_mask(q, both))
  count = _bucketed(half, int(PDP_REACH * half) if probabilistic else 0)
  counted, above = count(masses, loss, width)
  buckets, infinite = _compose(counted, above + _omega(pair), steps, half)
  label = tf.range(-half, half + 1, dtype=p.dtype) * width
  gain = (tf.cast(label > epsilon, p.dtype) if probabilistic else
          -tf.math.expm1(tf.minimum(epsilon - label, 0.0)))
  return infinite + tf.reduce_sum(gain * buckets)


def _omega(pair: Pair) -> tf.Tensor:
  """Returns the P-mass of outcomes that Q cannot have, whose loss is infinite."""
  p, q = pair
  return tf.reduce_sum(tf.where(q > 0, tf.zeros_like(p), p))


def _bucketed(half: int, reach: int) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
  """Returns a function (masses, losses, width) -> (buckets -h..h, mass above them)."""
  # A loss lies between two buckets. Its gradient is the slope between the buckets that
  # are `reach` further out than these two, on either side. Index 2 half + 1 is the mass
  # above all buckets.

  @tf.custom_gradient
  def count(masses, loss, width):
    """Returns (buckets -h..h, mass above them)."""
    place = tf.cast(tf.math.ceil(loss / width), tf.int64) + half
    place = tf.clip_by_value(place, 0, 2 * half + 1)
    counted = tf.math.unsorted_segment_sum(masses, place, 2 * half + 2)

    def gradient(by_buckets, by_above):
      """Maps gradients for (buckets, mass above) to those for masses and losses."""
      by_all = tf.concat([by_buckets, [by_above]], 0)
      high = tf.minimum(place + reach, 2 * half + 1)
      low = tf.maximum(place - 1 - reach, 0)
      slope = (tf.gather(by_all, high) - tf.gather(by_all, low)) / (
          tf.cast(tf.maximum(high - low, 1), masses.dtype) * width)
      return tf.gather(by_all, place), masses * slope, None

    return (counted[:-1], counted[-1]), gradient

  return count


def _compose(buckets: tf.Tensor, infinite: tf.Tensor, steps: int, half: int) -> Pair:
  """Composes `steps` releases of (loss masses -half..half, infinite), by squaring."""
  power = (buckets, infinite)
  while steps & 1 == 0:
    power, steps = _convolve(power, power, half), steps >> 1
  result = power
  while steps > 1:
    power, steps = _convolve(power, power, half), steps >> 1
    if steps & 1:
      result = _convolve(result, power, half)
  return result


def _convolve(first: Pair, second: Pair, half: int) -> Pair:
  """Convolves (buckets, infinite); moves mass < -half up, mass > half to infinite."""
  (a, a_inf), (b, b_inf) = first, second
  size = 4 * half + 1
  length = [1 << (size - 1).bit_length()]
  full = tf.signal.irfft(
      tf.signal.rfft(a, length) * tf.signal.rfft(b, length), length)[:size]
  lowest = tf.reduce_sum(full[:half + 1], keepdims=True)
  kept = tf.concat([lowest, full[half + 1:3 * half + 1]], 0)
  return kept, a_inf + b_inf - a_inf * b_inf + tf.reduce_sum(full[3 * half + 1:])
