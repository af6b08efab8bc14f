"""Tests of the list of allowed operations against all that TensorFlow registers.

The tests decide a second time what a forward and backward pass may contain, from the
registration of each operation and a table of exceptions. An unknown operation of a new
TensorFlow fails them.
"""

import re

import pytest
import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session

from tfcactus.keras.checks import state_writes
from tfcactus.keras.compat import converters
from tfcactus.keras.independence import draws, graph_proof, operations


def _registered():
  found = op_def_pb2.OpList()
  found.ParseFromString(pywrap_tf_session.TF_GetBuffer(
      pywrap_tf_session.TF_GetAllOpList()))
  return {op.name: op for op in found.op}


_OPERATIONS = _registered()
_READS = re.compile(
    r'ReadVariableOp|ResourceGather(Nd)?|VariableShape|VarIsInitializedOp|'
    r'DisableCopyOnRead|LookupTable(Find|Size)V2')
_HARMLESS = re.compile(
    r'TensorArray(Read|Write|Gather|Scatter|Concat|Split|Size|Grad|Close)?V3|'
    r'StatefulPartitionedCall|If|Case|While|Assert|CheckNumerics(V2)?|Print(V2)?|'
    r'DeviceIndex|GraphDefVersion|StatelessRandomGetAlg|'
    r'CudnnRNN(Backprop)?(V[23])?')
_RANDOM = re.compile(
    r'[Rr]andom|Sampl|Shuffle|Multinomial|[Dd]ropout|Distorted|Crop|Skipgram|'
    r'NonDeterministic|Bernoulli|Poisson|Gamma$')
_NO_DRAWS = re.compile(
    r'Dataset|Resample|Histogram|Queue|SeedGenerator|(Igamma|Lgamma)|'
    r'StatelessRandomGet|BoostedTrees|CropAndResize|DownsampleV|EdgeOff|'
    r'ChannelShuffle|NonMax|StringToHashBucketStrong')


def _refused(name):
  node = tf.compat.v1.NodeDef(name='node', op=name)
  for attr in _OPERATIONS[name].attr:
    if attr.HasField('default_value'):
      node.attr[attr.name].CopyFrom(attr.default_value)
  return not state_writes._is_allowed(node)


def _marked():
  return [name for name, op in _OPERATIONS.items() if op.is_stateful or any(
      arg.is_ref or arg.type == tf.resource.as_datatype_enum
      for arg in [*op.input_arg, *op.output_arg])]


def test_operations_marked_stateful_are_refused_or_in_a_table():
  marked = _marked()
  assert len(marked) > 500
  for name in marked:
    known = _READS.fullmatch(name) or _HARMLESS.fullmatch(name)
    assert _refused(name) != bool(known), name


def test_stateful_operations_that_are_not_marked_are_refused():
  for name in ('InplaceAdd', 'InplaceSub', 'InplaceUpdate', 'ImmutableConst',
               'DebugIdentity', 'Copy', 'Batch', 'Unbatch', 'DecodeProtoV2',
               'GetElementAtIndex', 'DatasetCardinality', 'FractionalMaxPool',
               'FractionalAvgPool'):
    assert _refused(name), name
  for name in {*operations.TRANSFER, *converters.RELIED_ON} & set(_OPERATIONS):
    assert not _refused(name), name


def test_each_allowed_operation_has_a_known_reason_and_exists():
  kinds = set(state_writes.ALLOWED.values())
  assert len(kinds) == 7 and all(kinds)
  for name in state_writes.ALLOWED:
    assert name in _OPERATIONS or name == 'DisableCopyOnRead'


def test_operations_with_a_seed_or_a_shared_name_are_refused():
  for name, op in _OPERATIONS.items():
    if any(attr.name in ('seed', 'shared_name') for attr in op.attr):
      assert _refused(name) or name in state_writes.ALLOWED, name


def test_operations_that_reach_files_or_python_are_refused():
  reaching = [name for name in _OPERATIONS if re.search(
      r'PyFunc|^(Read|Write|Matching)File', name)]
  assert len(reaching) >= 5
  assert all(map(_refused, reaching))


def test_operations_that_draw_are_refused_or_no_row_is_taken_for_an_example():
  """The proof knows draws that are not stateful from `draws` alone."""
  drawing = [name for name, op in _OPERATIONS.items()
             if (_RANDOM.search(name) or any(
                 arg.name in ('seed', 'seed2', 'key', 'counter')
                 for arg in [*op.input_arg, *op.attr]))
             and not _NO_DRAWS.search(name)]
  assert len(drawing) > 60
  followed = {*operations.TRANSFER, *graph_proof.CALLS}
  for name in drawing:
    assert _refused(name) or name not in followed, name
  assert set(draws.SHAPE_ARGUMENT) <= set(_OPERATIONS)


@pytest.mark.parametrize('name', sorted(draws.SHAPE_ARGUMENT))
def test_the_table_of_draws_names_their_seeds_and_shapes(name):
  op = _OPERATIONS[name]
  keys = [i for i, arg in enumerate(op.input_arg)
          if arg.name in ('seed', 'key', 'counter')]
  # Draws from a generator's state are refused.
  assert op.is_stateful == (not keys) == _refused(name)
  assert tuple(keys) == draws._KEYS.get(name, ())
  assert [i for i, arg in enumerate(op.input_arg) if arg.name == 'shape'] == [
      draws.SHAPE_ARGUMENT[name]]


def test_dropout_of_a_fused_kernel_is_refused():
  node = tf.compat.v1.NodeDef(name='node', op='CudnnRNNV3')
  assert state_writes._is_allowed(node)
  node.attr['dropout'].f = .5
  assert not state_writes._is_allowed(node)
