"""Every operation that TensorFlow registers, held against the list of those allowed.

What a pass may hold is decided here a second time, by what an operation's
registration says and by a table of reasons, so that a TensorFlow with an operation
that nobody thought of shows it.
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
    r'ChannelShuffle|NonMax')


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


def test_what_tensorflow_marks_is_refused_or_has_a_reason():
  marked = _marked()
  assert len(marked) > 500
  for name in marked:
    known = _READS.fullmatch(name) or _HARMLESS.fullmatch(name)
    assert _refused(name) != bool(known), name


def test_what_keeps_or_reaches_something_unmarked_is_refused():
  for name in ('InplaceAdd', 'InplaceSub', 'InplaceUpdate', 'ImmutableConst',
               'DebugIdentity', 'Copy', 'Batch', 'Unbatch', 'DecodeProtoV2',
               'GetElementAtIndex', 'DatasetCardinality', 'FractionalMaxPool',
               'FractionalAvgPool'):
    assert _refused(name), name
  for name in {*operations.TRANSFER, *converters.RELIED_ON} & set(_OPERATIONS):
    assert not _refused(name), name


def test_every_reason_is_of_a_kind_and_of_an_operation_that_may_need_one():
  kinds = set(state_writes.ALLOWED.values())
  assert len(kinds) == 7 and all(kinds)
  for name in state_writes.ALLOWED:
    assert name in _OPERATIONS or name == 'DisableCopyOnRead'


def test_what_has_a_seed_or_a_shared_name_is_refused():
  for name, op in _OPERATIONS.items():
    if any(attr.name in ('seed', 'shared_name') for attr in op.attr):
      assert _refused(name) or name in state_writes.ALLOWED, name


def test_what_reaches_files_or_python_is_refused_though_it_is_not_marked():
  reaching = [name for name in _OPERATIONS if re.search(
      r'PyFunc|^(Read|Write|Matching)File', name)]
  assert len(reaching) >= 5
  assert all(map(_refused, reaching))


def test_what_draws_is_refused_or_no_row_of_it_is_taken_for_an_example():
  """A draw that is not stateful is known to the proof by `draws` alone."""
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
def test_a_draw_by_no_secret_seed_follows_the_place(name):
  op = _OPERATIONS[name]
  keys = [i for i, arg in enumerate(op.input_arg)
          if arg.name in ('seed', 'key', 'counter')]
  # Those of the state are refused wherever they stand.
  assert op.is_stateful == (not keys) == _refused(name)
  assert tuple(keys) == draws._KEYS.get(name, ())
  assert [i for i, arg in enumerate(op.input_arg) if arg.name == 'shape'] == [
      draws.SHAPE_ARGUMENT[name]]


def test_dropout_of_a_fused_kernel_is_refused():
  node = tf.compat.v1.NodeDef(name='node', op='CudnnRNNV3')
  assert state_writes._is_allowed(node)
  node.attr['dropout'].f = .5
  assert not state_writes._is_allowed(node)
