"""Norms of sums of outer products by Gram matrices (ghost norms), never too small.

With inputs a_t and output gradients g_t at T positions,

  ||sum_t a_t g_t^T||^2 = sum_{s,t} (a_s . a_t) (g_s . g_t),

which takes T^2 (d + p) products and no kernel of d p entries. The sum may cancel. So an
allowance is added, which is proved here. Let S = sum_t ||a_t|| ||g_t|| and u = 2^-53.

- The factors are float32 numbers, cast to float64. A product of two of them is exact;
  it neither overflows nor underflows. So a computed a_s . a_t errs by at most
  gamma_d ||a_s|| ||a_t|| for any order of summation, with gamma_n = n u / (1 - n u),
  and g_s . g_t by at most gamma_p ||g_s|| ||g_t||.
- The sum of T^2 products of these errs by at most gamma_n S^2 in all, with
  n = d + p + T^2 (Higham, "Accuracy and Stability of Numerical Algorithms", Lemma 3.3).
- The computed S, from the diagonals, has no negative term. Its relative error is at
  most ((d + p + 1) / 2 + 4 + T) u, far below .001; 4 u is assumed of the square root.
  The final sum rounds once, by at most u (1 + gamma_n) S^2. So 1.01 (n + 4) u S^2
  covers all, for n < 2^40.

The result is also at least (S / `MOST_CANCELLATION`)^2. The float64 sum over the
examples errs in proportion to S, not to the norm (docs/soundness.md, "Numbers"). An
example whose positions cancel more than that is clipped as if its norm were larger.

Source: Li et al., "Large Language Models Can Be Strong Differentially Private
Learners" (2022), for the Gram matrices, without the allowance.
"""

from __future__ import annotations

import tensorflow as tf

MOST_CANCELLATION = 256
"""Largest ratio of S to the norm that clipping grants an example. Positions with random
signs have a ratio of sqrt(T); 256 is eight times that of 1,024 positions."""

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
  computed, spread = _moments(inputs, outputs)
  terms = inputs.shape[2] + outputs.shape[2] + inputs.shape[1]**2
  return _bounded(computed, spread, terms)


def squared_norms_of_tied(ids: tf.Tensor, values: tf.Tensor, inputs: tf.Tensor,
                          outputs: tf.Tensor) -> tf.Tensor:
  """Returns squared norms, never too small, for a table looked up and multiplied.

  The gradient is sum_s e(ids_s) values_s^T + sum_t inputs_t outputs_t^T, where e(i) is
  the unit vector of row i. Of several equal ids, at most one has a value that is not
  zero. `ids` is (batch, s), `values` (batch, s, p), `inputs` (batch, t, rows of the
  table), `outputs` (batch, t, p), all but ids float32. The result is float64, shape
  (batch,). The proof is that of the module, with the positions of both sums.
  """
  computed, spread = _moments(inputs, outputs)
  with tf.control_dependencies([inputs, outputs]):
    exact = tf.cast(values, tf.float64)
  squares = tf.reduce_sum(tf.square(exact), 2)
  # The inner product of e(i) v^T and a g^T is a_i (v . g): `found` has these a_i.
  found = tf.cast(tf.gather(inputs, ids, axis=2, batch_dims=1), tf.float64)
  cross = found * tf.matmul(tf.cast(outputs, tf.float64), exact, transpose_b=True)
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
