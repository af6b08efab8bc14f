"""Matrix products of rounded operands, as in TensorFloat-32 and bfloat16."""

import contextlib
from unittest import mock

import tensorflow as tf

SIGNIFICANT_BITS = {'tensor_float_32': 11, 'bfloat16': 8}


def rounded(values, bits):
  """Rounds float32 to nearest, ties to even; returns any other dtype unchanged."""
  if not tf.is_tensor(values) or values.dtype != tf.float32:
    return values
  dropped = 24 - bits
  pattern = tf.bitcast(values, tf.int32)
  last = tf.bitwise.bitwise_and(tf.bitwise.right_shift(pattern, dropped), 1)
  pattern += 2**(dropped - 1) - 1 + last
  return tf.bitcast(tf.bitwise.bitwise_and(pattern, -2**dropped), tf.float32)


@contextlib.contextmanager
def rounding(mode):
  """Rounds operands of float32 products that are called or traced inside."""
  bits = SIGNIFICANT_BITS[mode]
  with contextlib.ExitStack() as stack:
    for owner, name in ((tf, 'matmul'), (tf.linalg, 'matmul'), (tf.linalg, 'matvec'),
                        (tf, 'einsum'), (tf, 'tensordot')):
      product = getattr(owner, name)
      stack.enter_context(mock.patch.object(
          owner, name, lambda *args, product=product, **kwargs: product(
              *(rounded(each, bits) for each in args), **kwargs)))
    yield
