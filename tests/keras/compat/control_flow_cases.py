"""Functions of one row with branches, loops, calls and lists of tensors."""

import tensorflow as tf

_KERNEL = tf.constant([[.3, -.5, .2], [.1, .4, -.6], [-.2, .7, .3]])


def with_gradient(run):
  """Returns a function of a row that returns the result of `run` and its gradient.

  A row is (x, n); the gradient is that with respect to x.
  """
  def both(row):
    x, n = row
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = run((x, n))
    return y, tape.gradient(y, x)
  return both


def _cell(h, x):
  return tf.tanh(tf.linalg.matvec(_KERNEL, h)) + x


def _loop(row):
  x, _ = row
  return tf.while_loop(lambda i, h: i < 4, lambda i, h: (i + 1, _cell(h, x)), (0, x))[1]


def _by_count(row):
  x, n = row
  return tf.while_loop(lambda i, h: i < n, lambda i, h: (i + 1, _cell(h, x)), (0, x))[1]


def _by_value(row):
  return tf.while_loop(
      lambda h: tf.reduce_sum(tf.square(h)) < 20, lambda h: (h * 1.5 + row[0],),
      (row[0],))[0]


def _branch(row):
  x, n = row
  return tf.cond(n > 2, lambda: tf.roll(tf.tanh(x), 1, -1), lambda: _cell(x, x))


def _branch_of_one_row(row):
  x, _ = row
  return tf.cond(tf.reduce_max(tf.abs(x)) > 9.5, lambda: tf.squeeze(2 * x[None]),
                 lambda: x)


def _shared_branch(row):
  return tf.cond(tf.reduce_sum(_KERNEL) > 0, lambda: tf.tanh(row[0]), lambda: row[0])


def _branch_in_loop(row):
  x, n = row
  return tf.while_loop(lambda i, h: i < n, lambda i, h: (i + 1, tf.cond(
      h[0] > 0, lambda: _cell(h, x), lambda: h + x)), (0, x))[1]


def _loop_in_branch(row):
  return tf.cond(row[0][0] > 0, lambda: _by_count(row), lambda: _loop(row))


def _loop_in_loop(row):
  x, n = row
  return tf.while_loop(lambda i, h: i < n, lambda i, h: (
      i + 1, .1 * _by_value((h + x, n))), (0, x))[1]


def _case(row):
  x, n = row
  return tf.switch_case(n // 2, [lambda: x, lambda: tf.tanh(x), lambda: x * x])


def _call(row):
  return tf.function(lambda x: _cell(x, tf.roll(x, 1, -1)))(row[0])


def _compiled(row):
  return tf.function(lambda x: _cell(x, tf.roll(x, 1, -1)), jit_compile=True)(row[0])


def _asserted(row):
  def checked():
    with tf.control_dependencies([tf.debugging.Assert(row[1] < 9, [row[1]])]):
      return tf.function(lambda x: tf.debugging.assert_all_finite(x, ''))(row[0])

  return tf.cond(row[0][0] > 0, checked, lambda: -row[0])


def _list(row):
  x, _ = row
  array = tf.TensorArray(tf.float32, 4, element_shape=[3])
  array = tf.while_loop(lambda i, a: i < 4, lambda i, a: (
      i + 1, a.write(i, x * tf.cast(i + 1, tf.float32))), (0, array))[1]
  return array.stack()


def _list_of_parts(row):
  x, _ = row
  array = tf.TensorArray(tf.float32, 3).unstack(tf.tensordot(x, x, 0))
  return tf.while_loop(lambda i, h: i < 3, lambda i, h: (
      i + 1, _cell(h, array.read(i))), (0, x))[1]


def _list_by_count(row):
  x, n = row
  array = tf.TensorArray(tf.float32, 6).unstack(tf.zeros([6, 3]))
  return tf.while_loop(lambda i, a: i < n, lambda i, a: (
      i + 1, a.write(i, x * tf.cast(i + 1, tf.float32))), (0, array))[1].stack()


def _read_by_count(row):
  x, n = row
  return tf.TensorArray(tf.float32, 6).unstack(
      tf.reshape(tf.range(6.), [6, 1]) * x).read(n)


def _read_of_shared(row):
  return tf.TensorArray(tf.float32, 3).unstack(_KERNEL).read(row[1] // 2)


_RIGHT_FORWARD = {
    'by count': _by_count, 'by value': _by_value, 'branch': _branch,
    'branch of one row': _branch_of_one_row, 'branch in loop': _branch_in_loop,
    'loop in branch': _loop_in_branch, 'loop in loop': _loop_in_loop, 'case': _case,
    'assertions': _asserted, 'compiled': _compiled, 'shared branch': _shared_branch,
    'read of shared': _read_of_shared, 'list of parts': _list_of_parts}
RIGHT = {
    **_RIGHT_FORWARD,
    **{name: with_gradient(run) for name, run in (
        ('loop', _loop), ('call', _call),
        ('list', _list))}}
"""Functions that vectorised are what they are row by row."""

REFUSED = {
    'list by count': _list_by_count, 'read by count': _read_by_count,
    **{f'gradient, {name}': with_gradient(run) for name, run in (
        ('by count', _by_count), ('branch', _branch), ('case', _case),
        ('shared branch', _shared_branch), ('list of parts', _list_of_parts),
        ('branch in loop', _branch_in_loop), ('loop in branch', _loop_in_branch))}}
"""Functions that are refused."""
