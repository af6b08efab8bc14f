"""Tests of proofs that a graph treats each example alone, against its values."""

import numpy as np
import pytest
import tensorflow as tf

from tests.representatives import representatives
from tfcactus.keras.independence import dependence, draws, graph_proof
from tfcactus.keras.independence.dependence import Dependence

_B, _T, _D = 4, 3, 4  # Axes of one size, so that a shape does not tell them apart.
_RNG = np.random.default_rng(0)
_BY_PLACE = _RNG.normal(size=(_B, _T, _D)).astype(np.float32)
_KERNEL = _RNG.normal(size=(_D, _D)).astype(np.float32)


def _found(function, rows):
  """Returns the dependence of a function of examples (rows, _T, _D)."""
  graph = tf.function(function).get_concrete_function(
      tf.TensorSpec((rows, _T, _D))).graph
  return graph_proof.analyse(
      graph, {graph.inputs[0].name: dependence.ROW_WISE}, graph.outputs)[0]


def _over_time(x, places=np.zeros(_D, np.float32)):  # noqa: B008
  """Runs a recurrent cell whose state begins with zeros."""
  steps = tf.TensorArray(tf.float32, _T, element_shape=[x.shape[0], _D]).unstack(
      tf.transpose(x, [1, 0, 2]))
  every = tf.TensorArray(tf.float32, _T, element_shape=[x.shape[0], _D])

  def body(i, state, every):
    state = tf.tanh(steps.read(i) + state @ tf.stop_gradient(_KERNEL) + places)
    return i + 1, state, every.write(i, state)

  _, last, every = tf.while_loop(
      lambda i, *_: i < _T, body,
      (0, tf.zeros([tf.shape(x)[0], _D]), every))
  return last, tf.transpose(every.stack(), [1, 0, 2])


def _gradient_over_time(x, places=np.zeros(_D, np.float32)):  # noqa: B008
  with tf.GradientTape() as tape:
    tape.watch(x)
    last, every = _over_time(x, places)
    total = tf.reduce_sum(tf.square(last)) + tf.reduce_sum(tf.sin(every))
  return tape.gradient(total, x)


def _depthwise_kernel(x, wide, narrow, times=1):
  """Returns a depthwise kernel's gradient, with examples side by side as channels."""
  x = tf.ensure_shape(x, [_B, _T, _D])
  narrow = tf.tile(tf.transpose(tf.cos(x), narrow)[..., None], [1, 1, 1, times])
  wide = tf.reshape(tf.transpose(x, wide), [1, _T, 1, -1])
  narrow = tf.reshape(narrow, [1, _T, 1, -1])
  found = tf.raw_ops.DepthwiseConv2dNativeBackpropFilter(
      input=wide, filter_sizes=[1, 1, _B * _D, narrow.shape[3] // (_B * _D)],
      out_backprop=narrow, strides=[1, 1, 1, 1], padding='VALID')
  return tf.reshape(found, [_B, -1])


def _depthwise_images(x, wide, kernel, times=1):
  """Convolves channels, the examples side by side, each by a kernel of its own."""
  x = tf.ensure_shape(x, [_B, _T, _D])
  kernel = tf.tile(tf.transpose(tf.cos(x), kernel)[..., None], [1, 1, 1, times])
  found = tf.nn.depthwise_conv2d(
      tf.reshape(tf.transpose(x, wide), [1, _T, 1, -1]),
      tf.reshape(kernel[:2], [2, 1, -1, times]), [1, 1, 1, 1], 'VALID',
      dilations=[2, 1])
  return tf.reshape(tf.transpose(found, [3, 0, 1, 2]), [_B, -1])


def _shifted(x, shifts):
  """Shifts rows of numbers as images; shifts have shape (rows,) or (1,)."""
  zero = tf.zeros_like(shifts)
  return tf.raw_ops.ImageProjectiveTransformV3(
      images=x[..., None], fill_value=0.0, interpolation='BILINEAR',
      output_shape=[_T, _D],
      transforms=tf.stack([zero + 1, zero, shifts] + [zero, zero + 1] + [zero] * 3, 1))


_TABLE = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(
    [0, 1], [5, 7], tf.int64, tf.int64), -1)


def _each(x, beside=1.0, each=lambda row, factor: tf.nn.softmax(row * factor)):
  """Computes a function of each entry of the first axis in MapDefun."""
  made = tf.function(each).get_concrete_function(
      tf.TensorSpec(x.shape[1:]), tf.TensorSpec(None))
  return tf.raw_ops.MapDefun(
      arguments=[x], captured_inputs=[beside], output_types=[tf.float32],
      output_shapes=[x.shape[1:]], f=made)[0]


ALONE = {
    'mapped': _each,
    'lookup': lambda x: _TABLE.lookup(tf.cast(x, tf.int64)),
    'words': lambda x: tf.strings.to_hash_bucket_strong(
        tf.strings.lower(tf.strings.join([tf.as_string(x), 'X'])), 5, [3, 4]),
    'sum': lambda x: tf.reduce_sum(x, [1, 2]),
    'layer norm': lambda x: x - tf.reduce_mean(x, -1, keepdims=True),
    'matmul': lambda x: x @ _KERNEL,
    'gram': lambda x: tf.matmul(x, x, transpose_b=True),
    'flatten': lambda x: tf.reshape(x, [tf.shape(x)[0], -1]),
    'there and back': lambda x: tf.reshape(
        tf.nn.relu(tf.reshape(x, [-1, _D]) @ _KERNEL), [-1, _T, _D]),
    'transposes': lambda x: tf.transpose(
        tf.nn.softmax(tf.transpose(x, [1, 0, 2])), [1, 0, 2]),
    'einsum': lambda x: tf.einsum('btd,bsd->bts', x, x),
    'gather by rows': lambda x: tf.gather(
        x, tf.argmax(x[:, :, 0], 1), batch_dims=1),
    'reverse': lambda x: tf.reverse(x, [1]),
    'stack': lambda x: tf.stack([x, 2 * x], 1),
    'slices': lambda x: x[:, 1:, None, ::2],
    'of ones': lambda x: x * tf.ones_like(x) + tf.zeros(tf.shape(x)),
    'loop': lambda x: tf.while_loop(
        lambda i, _: i < 3, lambda i, v: (i + 1, v @ _KERNEL), (0, x))[1],
    'function': lambda x: tf.function(lambda v: tf.nn.softmax(v))(x),
    'over time': lambda x: tf.transpose(tf.scan(
        lambda a, b: tf.tanh(a + b), tf.transpose(x, [1, 0, 2])), [1, 0, 2]),
    'over time from zeros': lambda x: _over_time(x)[0],
    'its gradient': lambda x: _gradient_over_time(x),
    'one hot': lambda x: tf.one_hot(tf.argmax(x, -1), 5),
    'conv': lambda x: tf.nn.conv1d(x, _KERNEL[None], 1, 'VALID'),
    'depthwise': lambda x: _depthwise_kernel(x, [1, 0, 2], [1, 0, 2]),
    'depthwise, two of each': lambda x: _depthwise_kernel(x, [1, 0, 2], [1, 0, 2], 2),
    'depthwise images': lambda x: _depthwise_images(x, [1, 0, 2], [1, 0, 2]),
    'depthwise images, two of each': lambda x: _depthwise_images(
        x, [1, 0, 2], [1, 0, 2], 2),
    'shifted at random': lambda x: _shifted(x, tf.random.uniform([tf.shape(x)[0]])),
    'shifted by themselves': lambda x: _shifted(x, tf.reduce_mean(x, [1, 2])),
    'noise': lambda x: 0 * tf.random.normal(tf.shape(x)) + x,
}

ACROSS = {
    'mapped over time': lambda x: _each(tf.transpose(x, [1, 0, 2])),
    'mapped with draws': lambda x: _each(
        x, each=lambda row, factor: row + tf.random.normal(row.shape, seed=1)),
    'mapped with draws in a function': lambda x: _each(
        x, each=lambda row, factor: tf.function(
            lambda row: row + tf.random.uniform(row.shape))(row)),
    'mapped with others': lambda x: _each(x, tf.reduce_sum(x)),
    'mapped beside all': lambda x: _each(x, x),
    'lookup by others': lambda x: tf.raw_ops.LookupTableFindV2(
        table_handle=_TABLE.resource_handle, keys=tf.cast(x, tf.int64),
        default_value=tf.reduce_sum(tf.cast(x, tf.int64))),
    'words of all': lambda x: tf.strings.length(tf.strings.reduce_join(
        tf.as_string(x), 0)),
    'words with others': lambda x: tf.strings.to_hash_bucket_fast(tf.strings.join(
        [tf.as_string(x), tf.as_string(x[::-1])]), 5),
    'sum': lambda x: x - tf.reduce_sum(x, 0),
    'negative': lambda x: x - tf.reduce_sum(x, -3),
    'all': lambda x: x - tf.reduce_max(x),
    'flat softmax': lambda x: tf.nn.softmax(tf.reshape(x, [-1])),
    'transposed': lambda x: tf.nn.softmax(tf.transpose(x)),
    'pairs': lambda x: x[:, None] - x,
    'gram': lambda x: tf.tensordot(x, x, [[0], [0]]),
    'einsum': lambda x: tf.einsum('btd,std->bts', x, x),
    'reverse': lambda x: x[::-1], 'part': lambda x: x[1:], 'roll': lambda x:
    tf.roll(x, 1, 0), 'cumsum': tf.cumsum, 'sort': lambda x: tf.sort(x, 0),
    'gather': lambda x: tf.gather(x, [0, 1, 2, 2]),
    'doubled': lambda x: tf.concat([x, x], 0),
    'swapped': lambda x: tf.transpose(x, [1, 0, 2]),
    'mixed reshape': lambda x: tf.reshape(tf.transpose(x, [1, 0, 2]),
                                          [-1, _T, _D]),
    'depthwise, channels first': lambda x: _depthwise_kernel(x, [1, 2, 0], [1, 0, 2]),
    'depthwise, swapped': lambda x: _depthwise_kernel(x, [1, 0, 2], [1, 2, 0]),
    'depthwise images, channels first': lambda x: _depthwise_images(
        x, [1, 2, 0], [1, 0, 2]),
    'depthwise images, swapped': lambda x: _depthwise_images(
        x, [1, 0, 2], [1, 2, 0]),
    'depthwise images, the same kernels': lambda x: _depthwise_images(
        x, [1, 0, 2], [1, 0, 2]) + tf.reduce_sum(tf.nn.depthwise_conv2d(
            x[:, :, None], tf.ones([1, 1, _D, 1]) * x[:1, :1, :, None],
            [1, 1, 1, 1], 'VALID')),
    'depthwise, over examples': lambda x: tf.tile(
        tf.raw_ops.DepthwiseConv2dNativeBackpropFilter(
            input=x[:, None], filter_sizes=[1, 1, _D, 1], out_backprop=x[:, None],
            strides=[1, 1, 1, 1], padding='VALID')[0], [_B, 1, 1]),
    'branch': lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: -x),
    'loop': lambda x: tf.while_loop(
        lambda v: tf.reduce_sum(v) < 100, lambda v: (v + 1,), (x,))[0],
    'scan': lambda x: tf.scan(lambda a, b: a + b, x),
    'over time by place': lambda x: _over_time(x, _BY_PLACE[:, 0])[0],
    'gradient by place': lambda x: _gradient_over_time(x, _BY_PLACE[:, 0]),
    # An id out of range would be a place of the next example.
    'gradient of a gather by rows': lambda x: tf.gradients(
        ALONE['gather by rows'](x), x)[0],
    'gradient by rows': lambda x: _gradient_over_time(tf.transpose(x, [1, 0, 2])),
    'where': lambda x: tf.boolean_mask(x, x[:, 0, 0] > 0),
    'segments': lambda x: tf.math.unsorted_segment_sum(
        x, tf.zeros(tf.shape(x)[0], tf.int32), _B),
    'in a function': lambda x: tf.function(lambda v: v - tf.reduce_mean(v))(x),
    'shifted by place': lambda x: _shifted(
        x, tf.cast(tf.range(tf.shape(x)[0]), tf.float32)),
    'shifted by constants': lambda x: _shifted(x, tf.constant([0.1, 0.2, 0.3, 0.4])),
    'shifted by others': lambda x: _shifted(x, tf.reduce_mean(x, [1, 2])[::-1]),
    'place': lambda x: x * tf.cast(
        tf.range(tf.shape(x)[0]), tf.float32)[:, None, None],
}


@pytest.mark.parametrize('rows', [_B, None])
@pytest.mark.parametrize('name', ALONE)
def test_functions_of_each_example_are_proved(name, rows):
  if rows is None and name == 'its gradient':
    pytest.skip('Followed where the number of rows is known, as in a private step')
  assert dependence.first_violation([_found(ALONE[name], rows)]) is None


@pytest.mark.parametrize('rows', [_B, None])
@pytest.mark.parametrize('name', ACROSS)
def test_functions_that_mix_examples_are_not_proved(name, rows):
  assert dependence.first_violation([_found(ACROSS[name], rows)]).why


@pytest.mark.parametrize('by_size', [
    lambda x, number: tf.nn.conv1d(x, _KERNEL[None] / number, 1, 'VALID'),
    lambda x, number: tf.image.resize(x[..., None], [tf.cast(number, tf.int32), _D]),
    lambda x, number: tf.compat.v1.where(tf.range(number) > 1, x, -x),
    lambda x, number: _shifted(x, number[None]),
])
def test_images_that_depend_on_the_number_of_examples_are_noticed(by_size):
  found = _found(lambda x: by_size(x, tf.cast(tf.shape(x)[0], tf.float32)), None)
  assert 'how many examples' in dependence.first_violation([found]).why
  same = _found(lambda x: by_size(x, tf.cast(tf.shape(x)[1], tf.float32)), None)
  assert same.dependence <= Dependence.ROW_WISE or 'place' in same.why


@pytest.mark.parametrize('shaped', [
    lambda x, sizes: tf.broadcast_to(x[:, :1, 0], sizes[:2]),
    lambda x, sizes: tf.nn.conv2d_transpose(
        x[:, :1, None, :1], tf.ones([1, 1, 1, 1]), sizes, [8, 8]),
    lambda x, sizes: tf.raw_ops.AvgPoolGrad(
        orig_input_shape=sizes, grad=x[:, :1, None, :1], ksize=[1, 8, 8, 1],
        strides=[1, 8, 8, 1], padding='SAME'),
], ids=['broadcast', 'transposed convolution', 'pooling gradient'])
def test_an_axis_as_long_as_the_batch_beside_the_examples_mixes(shaped):
  def of(length):
    return _found(lambda x: shaped(
        x, tf.stack([tf.shape(x)[0], length(x), 1, 1])), None)

  assert 'how many examples' in of(lambda x: tf.shape(x)[0]).why
  assert of(lambda x: 6) == dependence.ROW_WISE


def test_a_shape_made_of_the_examples_mixes():
  found = _found(lambda x: tf.broadcast_to(
      x[:, :1, 0], tf.cast(x[:, 0, 0], tf.int32)), 2)
  assert 'shape that depends on the examples' in found.why


def test_a_table_of_lists_may_look_up_examples_together():
  none = -tf.ones([_B], tf.int32)
  table = tf.lookup.experimental.DenseHashTable(
      tf.int32, tf.int32, default_value=0 * none, empty_key=none, deleted_key=2 * none)

  def together(x):
    keys = tf.cast(tf.transpose(x[:, :, 0]), tf.int32)
    found = table.lookup(keys)
    found.set_shape(keys.shape)
    return tf.transpose(found)

  assert 'not known' in _found(together, _B).why


def test_the_number_of_examples_mixes_only_where_it_varies():
  by_size = lambda x: x / tf.cast(tf.shape(x)[0], tf.float32)
  counted = lambda x: x + tf.reduce_sum(tf.ones(tf.shape(x)[0]))
  for function in (by_size, counted):
    assert dependence.first_violation([_found(function, _B)]) is None
    assert _found(function, None).dependence == Dependence.MIXED


def _first_item(tensor):
  """Returns an item of a list, by way of operations that keep or add up lists."""
  items = tf.raw_ops.TensorListFromTensor(
      tensor=tensor, element_shape=tensor.shape[1:])
  items, = tf.raw_ops.IdentityN(input=[tf.identity(items)])
  return tf.raw_ops.TensorListGetItem(
      input_handle=tf.raw_ops.AddN(inputs=[items, tf.zeros_like(items)]), index=0,
      element_shape=tensor.shape[1:], element_dtype=tf.float32)


_CONSTANTS = (
    lambda c, k: tf.matmul(c, _KERNEL[:c.shape[-1]]) if c.shape[-1] <= _D else c,
    lambda c, k: tf.matmul(_KERNEL[:, :c.shape[-2]], c) if c.shape[-2] <= _D else c,
    lambda c, k: tf.matmul(c, c, transpose_a=k % 2 == 0, transpose_b=k % 2 == 1),
    lambda c, k: tf.nn.conv1d(c, _KERNEL[None, :c.shape[-1]], 1, 'VALID') if (
        c.shape.rank == 3 and c.shape[-1] <= _D) else c,
    lambda c, k: tf.split(c, [1, -1], k % c.shape.rank)[k % 2] if (
        c.shape[k % c.shape.rank] > 1) else c,
    lambda c, k: tf.concat([c, c], k % c.shape.rank),
    lambda c, k: tf.expand_dims(c, k % c.shape.rank),
    lambda c, k: tf.squeeze(c, [0]) if c.shape[0] == 1 and c.shape.rank > 2 else c,
    lambda c, k: tf.slice(c, [0] * c.shape.rank, [
        -1 if i != k % c.shape.rank else 1 for i in range(c.shape.rank)]),
    lambda c, k: tf.nn.bias_add(c, np.arange(c.shape[-1], dtype=np.float32)),
    lambda c, k: tf.TensorArray(tf.float32, c.shape[0]).unstack(c).stack(),
    lambda c, k: tf.TensorArray(tf.float32, c.shape[0]).unstack(c).write(
        0, c[0] + 1).read(0) if c.shape.rank > 2 else c,
    lambda c, k: _first_item(c) if c.shape.rank > 2 else c,
    lambda c, k: c[(slice(None),) * (k % c.shape.rank) + (slice(k % 2, None),)] if (
        c.shape[k % c.shape.rank] > 1) else c,
    lambda c, k: tf.tanh(c) + 1,
    lambda c, k: tf.transpose(c, np.roll(range(c.shape.rank), k)),
    lambda c, k: tf.reshape(c, [
        [-1], [c.shape[0], -1], [*c.shape[:-1], 1, c.shape[-1]],
        [c.shape[0] * c.shape[1], *c.shape[2:]], [*c.shape[:-2], -1, 1], [1, -1]][k]),
    lambda c, k: tf.einsum('abc,abd->adb', c, c) if c.shape.rank == 3 else c,
    lambda c, k: tf.tile(c, [3 if size == 1 else 1 for size in c.shape]),
    lambda c, k: tf.cumsum(c, k % c.shape.rank),
    lambda c, k: tf.pad(c, [[0, i == k % c.shape.rank] for i in range(c.shape.rank)]),
    lambda c, k: tf.gather(c, [0, 0], axis=k % c.shape.rank),
    lambda c, k: tf.nn.softmax(c),
)


@representatives('seed', range(20), 2)
def test_constants_vary_only_where_that_is_known(seed):
  rng = np.random.default_rng(seed)
  known = 0
  for _ in range(5):
    steps = [(_CONSTANTS[rng.integers(len(_CONSTANTS))], int(rng.integers(6)))
             for _ in range(rng.integers(1, 4))]
    alike = tuple(k for k in range(3) if rng.integers(2))

    def program(steps=steps, alike=alike):
      c = np.ones((_B, _T, _D), np.float32) * _BY_PLACE.mean(alike, keepdims=True)
      c = tf.constant(c.astype(np.float32))
      for step, k in steps:
        c = step(c, k) if c.shape.rank > 1 else c
      return c

    graph = tf.function(program, autograph=False).get_concrete_function().graph
    found, = graph_proof.analyse(graph, {}, graph.outputs)
    assert found.dependence == Dependence.CONSTANT
    if found.varies is None:
      continue
    known += 1
    values = program().numpy()
    for axis in set(range(values.ndim)) - found.varies:
      np.testing.assert_allclose(
          values, np.broadcast_to(values.take([0], axis), values.shape), rtol=1e-4,
          atol=1e-5)
  assert known


@pytest.mark.parametrize('constant', [
    lambda: tf.tile(tf.reshape(_KERNEL[0], [1, 1, _D]), [_B, _T, 1]),
    lambda: tf.broadcast_to(tf.reshape(_KERNEL[0], [1, 1, _D]), [_B, _T, _D]),
    lambda: tf.broadcast_to(_BY_PLACE[0], [_B, _T, _D]),
    lambda: tf.slice(tf.tile(_BY_PLACE[:1], [2 * _B, 1, 1]), [1, 0, 0], [_B, -1, -1]),
    lambda: tf.split(tf.tile(_BY_PLACE[:1], [2 * _B, 1, 1]), 2)[1],
    lambda: tf.nn.softmax(tf.tile(_BY_PLACE[:1], [_B, 1, 1])),
], ids=['tile', 'broadcast', 'new axis', 'slice', 'split', 'softmax'])
def test_constants_that_are_repeated_for_each_example_are_alike(constant):
  assert _found(lambda x: x + constant(), _B) == dependence.ROW_WISE


_STEPS = (
    # Not x @ _KERNEL: TensorFlow 2.16 to 2.21 write past the end of memory where
    # products of some shapes broadcast. It is traced above, and not run.
    lambda x, k: tf.tensordot(x, _KERNEL, 1) if x.shape[-1] == _D else tf.sin(x),
    lambda x, k: x + _BY_PLACE if x.shape.rank == 3 and x.shape[1:] == (
        _T, _D) and x.shape[0] == _B else tf.tanh(x),
    lambda x, k: x - tf.reduce_mean(x, k % x.shape.rank, keepdims=True),
    lambda x, k: tf.transpose(tf.math.unsorted_segment_sum(
        tf.transpose(x), np.arange(x.shape[-1]) // 2, x.shape[-1])),
    lambda x, k: tf.reduce_max(x, k % x.shape.rank) if x.shape.rank > 2 else -x,
    lambda x, k: tf.nn.softmax(x, axis=k % x.shape.rank),
    lambda x, k: tf.transpose(x, np.roll(range(x.shape.rank), k)),
    lambda x, k: tf.reshape(x, [-1, x.shape[-1]]),
    lambda x, k: tf.reshape(x, [-1, _T, _D]) if (
        np.prod(x.shape) % (_T * _D) == 0) else tf.square(x),
    lambda x, k: tf.reverse(x, [k % x.shape.rank]),
    lambda x, k: tf.matmul(x, x, transpose_b=True),
    lambda x, k: tf.concat([x, tf.abs(x)], k % x.shape.rank),
    lambda x, k: tf.stack([x, tf.cos(x)], k % x.shape.rank),
    lambda x, k: tf.gather(
        x, [0, x.shape[k % x.shape.rank] - 1, 0], axis=k % x.shape.rank),
    lambda x, k: tf.pad(x, [[0, int(i == k % x.shape.rank)]
                            for i in range(x.shape.rank)]),
    lambda x, k: tf.tile(x, [1 + (i == k % x.shape.rank)
                             for i in range(x.shape.rank)]),
    lambda x, k: tf.cumsum(x, k % x.shape.rank),
    lambda x, k: tf.expand_dims(x, k % x.shape.rank),
    lambda x, k: tf.split(x, 2, k % x.shape.rank)[1] if (
        x.shape[k % x.shape.rank] % 2 == 0) else tf.exp(-tf.square(x)),
    lambda x, k: tf.repeat(x, 2, k % x.shape.rank),
    lambda x, k: x * tf.ones(x.shape[k % x.shape.rank:]),
    lambda x, k: tf.where(x > 0, x, tf.reduce_min(x, -1, keepdims=True)),
    lambda x, k: x[tuple([slice(None)] * (k % x.shape.rank) + [slice(0, 2)])],
)


@representatives('seed', range(60), 4)
def test_proofs_of_random_programs_hold_in_numbers(seed):
  rng = np.random.default_rng(seed)
  proved = 0
  for _ in range(4):
    steps = [(_STEPS[rng.integers(len(_STEPS))], int(rng.integers(6)))
             for _ in range(rng.integers(1, 6))]

    def program(x, steps=steps):
      for step, k in steps:
        x = step(x, k)
      return x

    found = _found(program, _B)
    if found.dependence != Dependence.ROW_WISE or found.block < 1:
      continue
    proved += 1
    x = rng.normal(size=(_B, _T, _D)).astype(np.float32)
    order = rng.permutation(_B)
    other = x.copy()
    other[1:] = 5 * rng.normal(size=(_B - 1, _T, _D))

    def places(values, found=found):
      rows = np.moveaxis(program(tf.constant(values)).numpy(), found.axis, 0)
      return rows.reshape((_B, found.block, *rows.shape[1:]))

    first = places(x)
    np.testing.assert_allclose(places(x[order]), first[order], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(places(other)[0], first[0], rtol=1e-4, atol=1e-5)
  if seed == 0:
    assert proved  # The proof does not reject every program.


def test_an_item_of_a_list_by_the_number_of_examples_is_not_alone():
  def by_number(x):
    steps = tf.TensorArray(tf.float32, _T, element_shape=[None, _D]).unstack(
        tf.transpose(x, [1, 0, 2]))
    return steps.read(tf.shape(x)[0] % _T)

  def by_place(x):
    steps = tf.TensorArray(tf.float32, _T, element_shape=[None, _D]).unstack(
        tf.transpose(x, [1, 0, 2]))
    return steps.read(1)

  assert _found(by_place, None).dependence == Dependence.ROW_WISE
  assert 'by the number of examples' in _found(by_number, None).why


def test_a_list_of_constants_by_place_stays_one():
  places = lambda: tf.transpose(_BY_PLACE, [1, 0, 2])
  by_place = lambda x: x[:, 0] + _first_item(places())
  assert 'by their place' in _found(by_place, _B).why
  alike = lambda x: x[:, 0] + _first_item(tf.ones([_T, _B, _D]))
  assert _found(alike, _B) == dependence.ROW_WISE
  own = lambda x: _first_item(tf.transpose(x, [1, 0, 2]))
  assert _found(own, _B) == dependence.ROW_WISE


def test_the_shape_of_the_items_of_a_list_tells_the_number_of_examples():
  def shape_of(handle):
    return tf.raw_ops.TensorListElementShape(input_handle=handle, shape_type=tf.int32)

  def by_reserved(x):
    reserved = tf.raw_ops.TensorListReserve(
        element_shape=tf.shape(x)[:1], num_elements=1, element_dtype=tf.float32)
    return x / tf.cast(shape_of(reserved)[0], tf.float32)

  def by_items(x):
    items = tf.raw_ops.TensorListFromTensor(
        tensor=tf.transpose(x, [1, 0, 2]), element_shape=[-1, _D])
    return x / tf.cast(shape_of(items)[0], tf.float32)

  for function in (by_reserved, by_items):
    graph = tf.function(function).get_concrete_function(
        tf.TensorSpec((None, _T, _D))).graph
    assert graph_proof.first_dependence(graph, graph.inputs[:1], graph.outputs)


def _by_size(number):
  """Returns 2 for even numbers of examples, and 1 for the odd ones that are tried."""
  return tf.gather(tf.constant([2, 1] * 10), number)


_TWO = tf.Variable(2)


def _one_by_its_size(x, choice, made):
  """Returns rows of x, cut as many times as a tensor of one row has rows."""
  joined = [made(tf.equal(choice, number), x) for number in (2, 3)]
  return x[:, 0] * 0 + tf.reduce_sum(tf.reshape(
      joined[0], tf.stack([tf.shape(joined[1])[0], -1])), 1)


def _branches(chosen, x):
  return tf.cond(chosen, lambda: x, lambda: tf.ones([1, _D]))


def _rounds(chosen, x):
  return tf.while_loop(
      lambda i, _: i < tf.cast(chosen, tf.int32), lambda i, _: (i + 1, x),
      (0, tf.ones([1, _D])), shape_invariants=(
          tf.TensorShape([]), tf.TensorShape([None, _D])))[1]


def _list_item(x, reserved, read):
  """Returns an item that was never set, zeros of a shape, of a list with item x."""
  items = _reserved(reserved)
  return _read(items, [-1, -1]) if read is None else _read(_beside(x, items), read)


def _rows_by(x, other):
  """Returns sums of x over as many rows as another tensor has, one an example."""
  return tf.reduce_sum(tf.reshape(x, tf.stack([tf.shape(other)[0], -1])), 1) * tf.ones(
      [tf.shape(x)[0]])


def _reserved(shape=None):
  """Returns a list whose items are zeros of a shape that is settled when it runs."""
  return tf.raw_ops.TensorListReserve(
      element_shape=tf.stack([_TWO, _D]) if shape is None else shape, num_elements=2,
      element_dtype=tf.float32)


def _one_row(items=None):
  """Returns a list that may hold items of any number of rows, with one row at 1."""
  return _beside(tf.ones([1, _D]), items, 1)


def _beside(x, items=None, index=0):
  """Returns a list with the examples x at `index`."""
  items = _reserved([-1, _D]) if items is None else items
  return tf.raw_ops.TensorListSetItem(input_handle=items, index=index, item=x)


def _read(items, shape=(-1, _D)):
  return tf.raw_ops.TensorListGetItem(
      input_handle=items, index=1, element_dtype=tf.float32, element_shape=shape)


_LISTS = {
    'a list of unlike items': lambda x: _one_row(_beside(x)),
    'a list of unlike items, examples last': lambda x: _beside(x, _one_row()),
    'a list out of a vector of lists': lambda x: _beside(
        x, tf.reshape(tf.fill([1], _one_row()), [])),
    'the sum of unlike lists': lambda x: tf.raw_ops.AddN(
        inputs=[_beside(x), _one_row()]),
    'one of two unlike lists': lambda x: tf.cond(
        tf.equal(_TWO, 3), lambda: _beside(x, index=1), _one_row),
    'a list with zeros of another shape': lambda x: tf.cond(
        tf.equal(_TWO, 3), lambda: _beside(x, _reserved(), 1), _reserved),
    'a list like one with another shape': lambda x: tf.cond(
        tf.equal(_TWO, 3), lambda: _beside(x, _reserved_like(), 1), _reserved_like),
    'zeros like a list with another shape': lambda x: tf.cond(
        tf.equal(_TWO, 3), lambda: _beside(x, _zeros(_reserved()), 1),
        lambda: _zeros(_reserved())),
    'zeros like a list of which no rule tells': lambda x: _beside(x, _zeros(
        tf.while_loop(lambda i, _: i < 1, lambda i, items: (i + 1, _one_row(items)),
                      (0, _one_row()))[1])),
    'zeros like a list of unknown rank': lambda x: _beside(x, _zeros(
        tf.raw_ops.TensorListFromTensor(
            tensor=tf.ensure_shape(tf.compat.v1.placeholder_with_default(
                tf.ones([2, 1, _D]), None), None), element_shape=[-1, -1]))),
}


def _zeros(items):
  return tf.raw_ops.ZerosLike(x=items)


def _reserved_like():
  return _reserved(tf.raw_ops.TensorListElementShape(
      input_handle=_reserved(), shape_type=tf.int32))


def _parity(number):
  """Returns 1 for odd numbers and 0 for even ones, by products that overflow."""
  for _ in range(31):
    number = number * number
  return number


def _twice(x):
  return tf.stack([tf.shape(x)[0]] * 2)


def _wide(x, *sizes):
  """Returns x with the examples on axis 1, between axes of two sizes."""
  return tf.transpose(tf.reshape(x, [-1, *sizes]), [1, 0, 2])


def _in_order(x, y, dy):
  """Returns a gradient whose entries are paired in order, back with examples first."""
  found = tf.raw_ops.TanhGrad(y=y, dy=dy)
  return tf.reshape(tf.transpose(found, [1, 0, 2]), [-1, x.shape[1]])


def _places(x):
  return tf.cast(tf.range(tf.shape(x)[0]), tf.float32)


def _images(x):
  return tf.reshape(x, [-1, 2, 2, 1])


def _joined_along(axis):
  """Returns 2 for axis 2, and 1 for axes from 3 to 6, by lists joined along it."""
  parts = [tf.reshape(part, [1, 1, 2, 1, 1, 1, 1]) for part in ([1, 2], [1, 4])]
  return tf.reshape(tf.raw_ops.ConcatV2(values=parts, axis=axis), [-1])[1]


_UNLIKE_OTHERS = {
    'entries of examples in another order': (lambda x: _in_order(
        x, _wide(x, 2, 3), _wide(x, 3, 2)), [None, 6]),
    'entries of examples and of constants': (lambda x: tf.raw_ops.SigmoidGrad(
        y=x, dy=tf.reshape(_BY_PLACE[0], [1, -1])), [_T, _D]),
    'entries of two constants': (lambda x: x + tf.raw_ops.SqrtGrad(
        y=tf.ones([_T, _D]), dy=tf.reshape(_BY_PLACE[0], [1, -1])), [_T, _D]),
    'rows resized by the size of one': (lambda x: tf.reduce_sum(tf.reshape(
        tf.raw_ops.ResizeBilinearGrad(
            grads=_images(x), original_image=tf.ones([1, 2, 2, 1])), [1, -1]), 1) +
                                        x[:, 0], [None, 4]),
    'one row, resized by the size of all': (lambda x: _rows_by(
        x, tf.raw_ops.ResizeBicubicGrad(
            grads=tf.ones([1, 2, 2, 1]), original_image=_images(x))), [None, 4]),
    'constants resized by the size of one': (
        lambda x: x + tf.raw_ops.ResizeBilinearGrad(
            grads=_BY_PLACE[..., None], original_image=tf.ones([1, 1, _D, 1])
        )[:, 0, :, 0], [_B, _D]),
    'rows resized to fewer channels': (lambda x: tf.reduce_sum(tf.reshape(
        tf.raw_ops.ResizeBilinearGrad(
            grads=tf.reshape(x, [-1, 2, 2, 2]), original_image=_images(x[:, :4])),
        [-1, 4]), 1), [_B, 8]),
    'places resized to the size of one': (lambda x: x * tf.cast(
        tf.shape(tf.raw_ops.ResizeBilinearGrad(
            grads=_places(x)[:, None, None, None],
            original_image=tf.ones([1, 1, 1, _TWO])))[0], tf.float32), [None, _D]),
    'gradients of pooled images of another size': (lambda x: tf.raw_ops.AvgPoolGrad(
        orig_input_shape=[_B, 4, 4, 1], grad=_images(x), ksize=[1, 1, 1, 1],
        strides=[1, 1, 1, 1], padding='VALID'), [_B, 4]),
    'a vector of one gradient': (lambda x: tf.raw_ops.TanhGrad(
        y=x, dy=tf.ones([])), [None]),
    'one part of another size': (lambda x: tf.raw_ops.SplitV(
        value=tf.transpose(x[:, :_TWO]), size_splits=[1], axis=0, num_split=1)[0][0],
                                 [_B, _D]),
    'statistics that are never set': (lambda x: x + tf.raw_ops.FusedBatchNormV3(
        x=x[:, None, None], scale=[1.0] * _D, offset=[0.0] * _D, mean=[0.0] * _D,
        variance=[1.0] * _D, is_training=False)[3], [_B, _D]),
    'channels left out by pooling': (lambda x: tf.raw_ops.AvgPool(
        value=x, ksize=[1] * 4, strides=[1, 1, 1, 2], padding='VALID'), [_B, 2, 2, 2]),
    'gradients of pooled channels': (lambda x: tf.raw_ops.AvgPoolGrad(
        orig_input_shape=[_B, 2, 2, 2], grad=_images(x), ksize=[1, 1, 1, 2],
        strides=[1, 1, 1, 2], padding='VALID'), [_B, 4]),
    'volumes dilated by unlike rates': (lambda x: tf.raw_ops.Conv3D(
        input=x, filter=tf.ones([1, 2, 1, 1, 1]), strides=[1] * 5, padding='VALID',
        dilations=[1, 1, 2, 1, 1]), [_B, 3, 3, 3, 1]),
    'a size joined along the number of examples': (lambda x: tf.reduce_sum(tf.reshape(
        x, tf.stack([-1, _D * _joined_along(tf.shape(x)[0])])), 1), [None, _D]),
    'a constant that is read as one row': (lambda x: x + _read(_beside(
        _BY_PLACE[:, 0], _reserved([-1, -1]), 1), [1, _D]), [_B, _D]),
    'constants of two branches, read as one row': (lambda x: x + _read(tf.cond(
        tf.equal(_TWO, 2), lambda: _beside(_BY_PLACE[:, 0], index=1), _one_row),
                                                            [1, _D]), [_B, _D]),
    'constants of a loop, read as one row': (lambda x: x + _read(tf.while_loop(
        lambda i, _: i < _TWO, lambda i, items: (
            i + 1, _beside(_BY_PLACE[:, 0], items, 1)), (0, _one_row()))[1],
                                                      [1, _D]), [_B, _D]),
    'a vector that is read as a number': (lambda x: x[:, 0] + _read(
        tf.raw_ops.TensorListResize(input_handle=_beside(
            _BY_PLACE[:, 0, 0], _reserved(-1), 1), size=3), []), [_B, _D]),
    'vectors beside a number that is read': (lambda x: _rows_by(x, x[:, 0] + _read(
        _beside(1.0, _beside(tf.ones([_B]), _reserved(-1), 1)), [])), [None, _D]),
    'a matrix that is read as a vector': (lambda x: tf.reduce_sum(x, 1) + _read(
        _beside(x, _reserved(-1), 1), [-1]), [None, _D]),
    **{f'{made.__name__} of one row, {rows}': (
        lambda x, made=made: _one_by_its_size(x, _TWO, made), [rows, _D])
       for made in (_branches, _rounds) for rows in (_B, None)},
    **{name: (lambda x, made=made: _rows_by(x, _read(made(x))), [None, _D])
       for name, made in _LISTS.items()},
    'an item that is not set, read by another shape': (lambda x: _rows_by(
        x, _read(_beside(x), tf.stack([_TWO, _D]))), [None, _D]),
    'one example repeated to a fixed size': (lambda x: tf.broadcast_to(
        x, [_B, _D]), [None, _D]),
    'one example repeated to twice the size': (lambda x: tf.broadcast_to(
        x, tf.stack([2 * tf.shape(x)[0], _D])), [None, _D]),
    'one example repeated to the shape of two rows each': (lambda x: tf.broadcast_to(
        x[:, :2], tf.shape(tf.reshape(x, [-1, 2]))), [None, 4]),
    'the shape of a square': (lambda x: tf.reduce_sum(tf.broadcast_to(
        x[:, :1], tf.shape(tf.zeros(_twice(x)))), 1), [None, _D]),
    'no item of a square': (lambda x: x * tf.reduce_sum(tf.cos(
        _list_item(x, _twice(x), None))), [None, _D]),
    'no item read as a square': (lambda x: tf.reduce_sum(tf.cos(
        _list_item(x, -1, _twice(x))), 1), [None, _D]),
    'a product that overflows': (lambda x: tf.reduce_sum(tf.reshape(x, tf.stack([
        -1, tf.gather([2 * _D, _D], _parity(tf.shape(x)[0]))])), 1), [None, _D]),
    'one example or five': (lambda x: x + tf.zeros([5, _D]), [None, _D]),
    'rows of indices': (lambda x: tf.gather(
        x, np.arange(2 * _B).reshape(_B, 2) % _T, axis=1, batch_dims=-1), [_B, _T]),
    'labels broadcast to a matrix': (
        lambda x: tf.raw_ops.SoftmaxCrossEntropyWithLogits(
            features=tf.zeros([_B, _B]), labels=x)[0], [_B]),
    'labels of one row': (lambda x: tf.raw_ops.SoftmaxCrossEntropyWithLogits(
        features=x, labels=tf.ones([1, _D]))[0], [None, _D]),
    'channels first in volumes': (lambda x: tf.transpose(tf.raw_ops.FusedBatchNormV3(
        x=tf.transpose(x, [1, 2, 3, 4, 0]), scale=tf.ones([_B]), offset=tf.zeros([_B]),
        mean=[], variance=[], data_format='NCDHW')[0], [4, 0, 1, 2, 3]),
                                  [_B, 1, _B, 1, 1]),
    'upstream gradients by place': (lambda x: tf.raw_ops.FusedBatchNormGradV3(
        y_backprop=_BY_PLACE[:, None], x=x[:, None], scale=[1.0] * _D,
        reserve_space_1=[0.0] * _D, reserve_space_2=[1.0] * _D,
        reserve_space_3=[0.0] * _D, is_training=False)[0], [_B, _T, _D]),
    'two unknown axes': (lambda x: tf.reduce_sum(tf.reshape(
        tf.transpose(x)[:_TWO], [-1, 3]), 0), [None, _D]),
    'a looked up size': (lambda x: tf.reduce_sum(tf.reshape(
        x, tf.stack([-1, _D * _by_size(tf.shape(x)[0])])), 1), [None, _D]),
    'a rounded size': (lambda x: tf.reduce_sum(tf.reshape(x, tf.stack([tf.cast(
        1.1 * tf.cast(tf.shape(x)[0], tf.float32), tf.int32), -1])), 1), [None, _D]),
    'a size and a new axis': (lambda x: tf.reduce_sum(x, 1) + tf.cast(tf.reduce_sum(
        tf.strided_slice(tf.shape(x), [1], [2], [1], new_axis_mask=1,
                         shrink_axis_mask=1)), tf.float32), [None, _D]),
    'an unknown rank': (lambda x: tf.einsum('...a,ab->...b', tf.ensure_shape(
        tf.compat.v1.placeholder_with_default(tf.ones([_B, _B]), None), None), x),
                        [_B, _D]),
}


@pytest.mark.parametrize('name', _UNLIKE_OTHERS)
def test_operations_with_unlike_arguments_are_not_proved(name):
  function, shape = _UNLIKE_OTHERS[name]
  graph = tf.function(function).get_concrete_function(tf.TensorSpec(shape)).graph
  assert graph_proof.first_dependence(graph, graph.inputs[:1], graph.outputs, shape[0])


def test_one_example_has_an_axis():
  graph = tf.function(lambda x: tf.reshape(x, [_D, -1])).get_concrete_function(
      tf.TensorSpec([_D, 1, 1])).graph
  found, = graph_proof.analyse(
      graph, {graph.inputs[0].name: dependence.ROW_WISE._replace(axis=2)},
      graph.outputs)
  assert found == dependence.ROW_WISE._replace(axis=1)


def test_a_list_like_one_of_other_blocks_is_not_proved():
  def function(x):
    many = tf.reshape(tf.tile(x[:, None], [1, _B, 1]), [_B * _B, _D])
    like = lambda: _reserved(tf.raw_ops.TensorListElementShape(
        input_handle=_beside(x, _reserved([_B, _D])), shape_type=tf.int32))
    few = _read(tf.cond(
        tf.equal(_TWO, 3), lambda: _beside(many, like(), 1), like))
    rows = tf.reduce_sum(tf.reshape(
        _read(_beside(many, index=1)), tf.stack([tf.shape(few)[0], -1])), 1)
    return tf.reduce_sum(tf.reshape(rows, [-1, _B]), 1) + 0 * x[:, 0]

  graph = tf.function(function).get_concrete_function(tf.TensorSpec([_B, _D])).graph
  assert graph_proof.first_dependence(graph, graph.inputs[:1], graph.outputs, _B)


def test_an_item_that_is_read_in_another_shape_is_not_proved():
  def function(x):
    column = tf.raw_ops.TensorListGetItem(  # Has shape [_B, _D], which is not noticed.
        input_handle=_beside(x, _reserved([-1, -1])), index=0,
        element_dtype=tf.float32, element_shape=[_B, 1])
    return tf.reshape(tf.pad(tf.reshape(column, [-1, 1]), [[0, 0], [0, 1]]), [_B, -1])

  graph = tf.function(function).get_concrete_function(tf.TensorSpec([_B, _D])).graph
  assert graph_proof.first_dependence(graph, graph.inputs[:1], graph.outputs, _B)


@pytest.mark.parametrize('function', [
    _gradient_over_time, lambda x: tf.gradients(tf.map_fn(
        tf.nn.softmax, tf.transpose(x, [1, 0, 2])), x)[0]])
def test_gradients_of_loops_over_lists_are_proved_for_a_private_step(function):
  graph = tf.function(function).get_concrete_function(
      tf.TensorSpec([_B, _T, _D])).graph
  assert graph_proof.first_dependence(
      graph, graph.inputs[:1], graph.outputs, _B) is None


def test_items_of_a_list_that_a_loop_makes_of_constants_are_read():
  def function(x):
    _, items = tf.while_loop(
        lambda i, _: i < _T, lambda i, items: (
            i + 1, items.write(i, tf.fill([_D], tf.cast(i, tf.float32)))),
        (0, tf.TensorArray(tf.float32, _T)))
    return x + items.read(1)

  for rows in (_B, None):
    graph = tf.function(function).get_concrete_function(tf.TensorSpec([rows, _D])).graph
    assert graph_proof.first_dependence(
        graph, graph.inputs[:1], graph.outputs, rows) is None


@pytest.mark.parametrize('loop', [False, True])
def test_draws_of_one_function_from_shifted_counters_are_not_proved(loop):
  @tf.function
  def drawn(x, key, counter):
    return x + tf.raw_ops.StatelessRandomNormalV2(
        shape=[_B, _D], key=key, counter=counter, alg=1)

  @tf.function
  def function(x):
    seed = draws.secret_seed()
    key, _ = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    # Rows of the second draw are those of the first from the second row on.
    first, second = (tf.concat([
        tf.constant([place], tf.uint64), tf.cast(seed[:1], tf.uint64)], 0)
                     for place in (0, 1))
    if loop:
      return tf.while_loop(lambda i, *_: i < 2, lambda i, x, one, other: (
          i + 1, drawn(2 * x, key, one), other, one), (0, x, first, second))[1]
    return drawn(x, key, first) - drawn(x, key, second)

  graph = function.get_concrete_function(tf.TensorSpec([_B, _D])).graph
  assert graph_proof.first_dependence(graph, graph.inputs[:1], graph.outputs, _B)


def test_a_bias_without_a_data_format_is_followed():
  assert _found(lambda x: tf.raw_ops.BiasAddV1(value=x, bias=tf.ones([_D])), None) == (
      dependence.ROW_WISE)


def test_a_size_that_is_used_twice_sixty_times_is_computed_at_once():
  def doubled(x):
    size = tf.stack([tf.shape(x)[1], 2])
    for _ in range(60):
      size = tf.minimum(tf.maximum(size, size), size * 1)
    return size

  graph = tf.function(doubled).get_concrete_function(tf.TensorSpec([None, _D])).graph
  np.testing.assert_array_equal(dependence.static(graph.outputs[0]), [_D, 2])
