"""Norms of sums of outer products by Gram matrices (ghost norms), never too small.

With inputs a_t of length d and output gradients g_t of length p at T positions,
||sum_t a_t g_t^T||^2 = sum_{s,t} (a_s . a_t) (g_s . g_t), which needs no kernel of d p
entries. The sum may cancel. So an allowance for its rounding is added, in units of S^2
with S = sum_t ||a_t|| ||g_t||. Proof: docs/soundness_numbers.md, point 2. Source: Li
et al., "Large Language Models Can Be Strong Differentially Private Learners" (2022).
"""

from __future__ import annotations

import tensorflow as tf

MOST_CANCELLATION = 256
"""Largest ratio of S to the norm that clipping grants an example, since sums over
examples err in proportion to S. An example whose positions cancel more is clipped as if
its norm were larger. Positions with random signs have a ratio of sqrt(T); 256 is eight
times that of 1,024 positions."""

_MOST_TERMS = 2**40


def allowance(terms: int) -> float:
  """Returns the multiple of S^2 that covers rounding, for `terms` = d + p + T^2.

  Raises ValueError from 2^40 terms on, which the proof does not cover.
  """
  if terms >= _MOST_TERMS:
    raise ValueError(f'Expected fewer than 2^40 terms in a norm, got {terms}.')
  return 1.01 * (terms + 4) * 2.0**-53


def squared_norms(inputs: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
  """Returns squared norms of sum_t inputs_t outputs_t^T, never too small.

  The result is float64, shape (batch,). `inputs` is (batch, positions, d), `outputs`
  (batch, positions, p), both float32 (else TypeError).
  """
  return _bounded(*_moments(inputs, outputs), inputs.shape[2] + outputs.shape[2] +
                  inputs.shape[1]**2)


def squared_norms_of_tied(ids: tf.Tensor, values: tf.Tensor, inputs: tf.Tensor,
                          outputs: tf.Tensor) -> tf.Tensor:
  """Returns squared norms, never too small, for a table looked up and multiplied.

  The gradient is sum_s e(ids_s) values_s^T + sum_t inputs_t outputs_t^T, where e(i) is
  the unit vector of row i. Of several equal ids, at most one has a value that is not
  zero. `ids` is (batch, s), `values` (batch, s, p), `inputs` (batch, t, rows of the
  table), `outputs` (batch, t, p), all but ids float32. The result is float64, shape
  (batch,). The allowance is that of one sum over the positions of both.
  """
  computed, spread = _moments(inputs, outputs)
  with tf.control_dependencies([inputs, outputs]):
    exact = tf.cast(values, tf.float64)
  squares = tf.reduce_sum(tf.square(exact), 2)
  # The inner product of e(i) v^T and a g^T is a_i (v . g): `found` has these a_i.
  found = tf.cast(tf.gather(inputs, ids, axis=2, batch_dims=1), tf.float64)
  cross = found * tf.matmul(tf.cast(outputs, tf.float64), exact, transpose_b=True)
  # d + p + T^2 of `allowance`, with T positions of both kinds together.
  terms = inputs.shape[2] + outputs.shape[2] + (inputs.shape[1] + ids.shape[1])**2
  return _bounded(
      computed + tf.reduce_sum(squares, 1) + 2 * tf.reduce_sum(cross, [1, 2]),
      spread + tf.reduce_sum(tf.sqrt(squares), 1), terms)


def _moments(inputs: tf.Tensor, outputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns computed squared norms, which may be too small, and S; shapes (batch,).

  Raises TypeError unless both factors are float32.
  """
  if not inputs.dtype == outputs.dtype == tf.float32:
    raise TypeError(
        f'Expected factors in float32, got {inputs.dtype} and {outputs.dtype}.')
  first, second = _gram(inputs, outputs), _gram(outputs, inputs)
  spread = tf.sqrt(tf.linalg.diag_part(first) * tf.linalg.diag_part(second))
  return tf.reduce_sum(first * second, [1, 2]), tf.reduce_sum(spread, 1)


def _bounded(computed: tf.Tensor, spread: tf.Tensor, terms: int) -> tf.Tensor:
  """Returns squared norms that are never too small from computed ones and S."""
  square = tf.square(spread)
  return tf.maximum(computed + allowance(terms) * square,
                    square / MOST_CANCELLATION**2)


def _gram(rows: tf.Tensor, wait: tf.Tensor) -> tf.Tensor:
  """Returns Gram matrices, float64, (batch, positions, positions), after `wait`."""
  # Without waiting, activations would get float64 copies as early as the forward pass.
  with tf.control_dependencies([wait]):
    exact = tf.cast(rows, tf.float64)
  return tf.matmul(exact, exact, transpose_b=True)
