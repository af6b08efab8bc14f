"""Tests of converters of operations against a loop over unlike rows."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import one_by_one
from tests.keras.compat import vectorized_cases
from tests.keras.compat.all_cases import CASES
from tests.keras.compat.control_flow_cases import REFUSED, RIGHT
from tests.keras.compat.vectorized_cases import ROWS
from tests.keras.drop_in import test_backward_passes
from tests.representatives import representatives
from tfcactus.keras.compat import converters

# Operations that some TensorFlow vectorises wrongly, or not; every third is in
# `make test`.
_WRONG = '''BatchMatMulV2 MatMul BiasAdd BiasAddGrad Conv2DBackpropFilter ClipByValue
Equal NotEqual PadV2 GatherV2 Slice Squeeze Roll UnsortedSegmentMax UnsortedSegmentMin
UnsortedSegmentSum UnsortedSegmentProd FakeQuantWithMinMaxVarsGradient
FakeQuantWithMinMaxVarsPerChannelGradient FakeQuantWithMinMaxVars'''.split()
_OTHERS = sorted(set(CASES) - set(_WRONG))
_PARTS = 8


def _difference(cases):
  return vectorized_cases.first_difference(cases, converters.vectorized_map)


@representatives('op', _WRONG)
def test_operations_that_some_converter_mistakes(op):
  assert _difference(CASES[op]) is None


@pytest.mark.slow
@pytest.mark.parametrize('part', range(_PARTS))
def test_operations_that_are_relied_on(part):
  assert _difference([case for op in _OTHERS[part::_PARTS] for case in CASES[op]]
                     ) is None


def _rows():
  rng = np.random.default_rng(0)
  x = rng.normal(size=(ROWS, 3))
  x[::8] *= 5
  return (tf.constant(x.astype(np.float32)),
          tf.constant(rng.integers(0, 6, ROWS).astype(np.int32)))


@representatives('name', RIGHT, 2)
def test_branches_loops_and_calls(name):
  run, x = RIGHT[name], _rows()
  got = tf.function(lambda: converters.vectorized_map(run, x))()
  one = tf.function(lambda x, n: run((x, n)))
  apart = [tf.nest.flatten(one(*row)) for row in zip(*x)]
  for left, right in zip(tf.nest.flatten(got), map(np.stack, zip(*apart))):
    np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)


@representatives('name', REFUSED, 3)
def test_lists_of_tensors_whose_sizes_depend_on_the_row_are_refused(name):
  with pytest.raises((TypeError, ValueError)):
    tf.function(lambda: converters.vectorized_map(REFUSED[name], _rows()))()


def test_every_operation_that_is_relied_on_has_cases():
  x = _rows()
  seen = set()
  for run in RIGHT.values():
    graph = tf.function(lambda x, n, run=run: run((x, n))).get_concrete_function(
        x[0][0], x[1][0]).graph
    seen.update(node.op for node in graph.as_graph_def().node)
    seen.update(node.op for function in graph.as_graph_def().library.function
                for node in function.node_def)
  left = converters.RELIED_ON - set(CASES) - seen
  assert left == set()


@pytest.mark.more
def test_each_case_has_the_operation_that_it_names():
  for op, cases in CASES.items():
    graph = tf.function(lambda *row, case=cases[0]: case.run(*row)
                       ).get_concrete_function(*[
                           tf.TensorSpec(each.shape[1:], each.dtype)
                           for each in cases[0].tensors]).graph
    assert op in {node.op for node in graph.as_graph_def().node}


def test_operations_that_are_not_relied_on_run_row_by_row():
  names = set()
  original = converters._loop  # pylint: disable=protected-access

  def noted(pfor_input, *args, **kwargs):
    names.add(pfor_input.op_type)
    return original(pfor_input, *args, **kwargs)

  x = _rows()[0]
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(converters, '_loop', noted)
    got = converters.vectorized_map(
        lambda row: (tf.linalg.cholesky(tf.linalg.diag(tf.square(row) + 1)),
                     tf.strings.as_string(row), tf.roll(row, 1, -1)), x)
  assert {'AsString', 'Cholesky', 'Roll'} <= names and 'Square' not in names
  np.testing.assert_allclose(
      got[0], [np.diag(np.sqrt(np.square(row) + 1)) for row in x], rtol=1e-6)


def test_operations_that_write_are_refused_by_name():
  variable = tf.Variable(0.)

  def run(row):
    with tf.control_dependencies([variable.assign_add(row[0])]):
      return tf.identity(row)

  with pytest.raises(ValueError, match='Expected operations .* AssignAddVariableOp'):
    tf.function(lambda: converters.vectorized_map(run, _rows()[0]))()


@pytest.mark.parametrize('size, stride, channels', [(4, 1, 1), (2, 1, 2)])
def test_gradients_of_pooling_read_no_other_row(size, stride, channels):
  # TensorFlow reads beyond a gradient that is too small for these images.
  images = tf.ones([ROWS, 1, 2, 2, 1])
  with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match='of pool'):
    converters.vectorized_map(lambda row: tf.raw_ops.AvgPoolGrad(
        orig_input_shape=[1, size, size, channels], grad=row, ksize=[1] * 4,
        strides=[1, stride, stride, channels], padding='VALID'), images)


def test_ids_of_no_segment_add_to_no_other_row():
  # Some devices, and compiled functions, accept such ids.
  data = tf.constant(np.arange(1., 7, dtype=np.float32).reshape(2, 3))
  ids = tf.constant([[0, 2, 3], [-1, 1, 7]])
  got = converters.vectorized_map(
      lambda row: tf.math.unsorted_segment_sum(*row, 3), (data, ids))
  np.testing.assert_array_equal(got, [[1, 0, 2], [0, 5, 0]])


_LOOKUPS = {
    'gather': tf.gather,
    'with a batch': lambda x, ids: tf.gather(x[None], ids[None], batch_dims=1)[0],
    'last axis': lambda x, ids: tf.transpose(tf.gather(tf.transpose(x), ids, axis=-1)),
    'n-dimensional': lambda x, ids: tf.gather_nd(x, ids[:, None])}


@pytest.mark.parametrize('name', ['gather', 'with a batch', 'last axis'])
def test_gradients_of_ids_of_sixteen_bits(name):
  x = tf.constant(np.arange(24, dtype=np.float32).reshape(3, 4, 2))

  @tf.function
  def gradient(ids):
    found = converters.vectorized_map(lambda row: _LOOKUPS[name](*row), (x, ids))
    return tf.gradients(found**2, x)[0]

  ids = np.array([[0, 3], [2, 1], [1, 1]])
  np.testing.assert_array_equal(
      gradient(ids.astype(np.int16)), gradient(ids.astype(np.int32)))


@pytest.mark.parametrize('name', _LOOKUPS)
def test_gradients_of_ids_out_of_range_reach_no_other_row(name):
  # CPUs refuse such ids. GPUs and compiled functions return a number for them.
  x = tf.constant(np.arange(24, dtype=np.float32).reshape(3, 4, 2))
  ids = np.array([[0, 4], [-1, 1], [9, 3]], np.int32)
  upstream = np.arange(1, 13, dtype=np.float32).reshape(3, 2, 2)

  @tf.function(jit_compile=True)
  def run(x, ids):
    found = converters.vectorized_map(lambda row: _LOOKUPS[name](*row), (x, ids))
    return found, tf.gradients(found, x, upstream)[0]

  want = np.zeros((3, 4, 2))
  for row, place in ((0, 0), (1, 1), (2, 1)):
    want[row, ids[row, place]] = upstream[row, place]
  np.testing.assert_array_equal(run(x, ids)[1], want)
  with pytest.raises(tf.errors.InvalidArgumentError):
    tf.function(lambda: converters.vectorized_map(
        lambda row: _LOOKUPS[name](*row), (x, ids)))()


def test_gradients_of_lookups_in_a_loop():
  x, ids = tf.ones([3, 4]), tf.constant([[0, 3], [1, 1], [2, 3]])

  @tf.function
  def run(x):
    found = converters.vectorized_map(lambda row: tf.while_loop(
        lambda i, _: i < 2, lambda i, y: (i + 1, y + tf.gather(*row)),
        (0, tf.zeros([2])))[1], (x, ids))
    return tf.gradients(found, x)[0]

  np.testing.assert_array_equal(run(x), 2 * np.sum(np.eye(4)[ids], 1))


def test_gradients_of_products_over_segments_reach_no_other_row():
  x = tf.constant([[1e30, 1e30], [2, 3]])  # The product of the first row overflows.

  @tf.function
  def run(ids):
    found = converters.vectorized_map(
        lambda row: tf.math.unsorted_segment_prod(*row, 2), (x, ids))
    return tf.gradients(found, x)[0][1]

  np.testing.assert_array_equal(run(tf.constant([[0, 0], [-1, 1]])), [0, 1])


def test_every_row_is_printed(capfd):
  def run(row):
    with tf.control_dependencies([tf.print('row', row[1])]):
      return tf.identity(row)

  x = tf.reshape(tf.range(4), [2, 2])
  tf.function(lambda: converters.vectorized_map(run, x))()
  assert 'row 1\nrow 3' in capfd.readouterr().err


@representatives('vectorize', [False, True])
def test_private_layers_that_roll_leave_examples_apart(vectorize):
  tf.keras.utils.set_random_seed(1)
  model = one_by_one.shake(tf.keras.Sequential([
      tf.keras.layers.Input((5, 4)), tf.keras.layers.Dense(4),
      test_backward_passes.Rolled(), tf.keras.layers.Flatten(),
      tf.keras.layers.Dense(1)]))
  x = np.full((ROWS, 5, 4), .01, np.float32)
  x[8::8, :, :2], x[8::8, :, 2:], x[0] = 3, -3, 5
  y, loss = np.zeros((ROWS, 1), np.float32), tf.keras.losses.MeanSquaredError('none')
  whole = one_by_one.engine_sums(model, loss, x, y, vectorize).sums
  fewer = one_by_one.engine_sums(model, loss, x[1:], y[1:], vectorize).sums
  assert np.linalg.norm(whole - fewer) <= one_by_one.CLIP * (1 + 1e-4)
  alone = one_by_one.loop_sums(model, loss, x, y).sums
  np.testing.assert_allclose(whole, alone, atol=1e-4 * one_by_one.CLIP)


def test_the_registry_of_converters_is_restored():
  registry = converters._registry  # pylint: disable=protected-access
  before = dict(registry)
  converters.vectorized_map(tf.square, tf.range(3))
  assert registry == before


def test_softmax_of_more_than_five_dimensions_with_its_rows():
  assert _difference(CASES['Softmax'] + CASES['LogSoftmax']) is None


def test_outputs_of_a_size_that_depends_on_the_row_are_told():
  run = tf.function(lambda x: converters.vectorized_map(
      lambda row: tf.where(row > 0)[:, 0], x))
  np.testing.assert_array_equal(run(tf.constant([[1., -1, 1], [1, 1, -1]])),
                                [[0, 2], [0, 1]])
  with pytest.raises(tf.errors.InvalidArgumentError, match='as many numbers'):
    run(tf.constant([[1., -1, 1], [1, 1, 1]]))
