"""Tests of layers of every kind: clipped sums are those of a loop over examples.

To have a new rule tested, list a layer in `LAYERS`, with an input shape.
"""

from collections.abc import Sequence
import inspect
from typing import Any, Callable, NamedTuple

import numpy as np
import pytest

pytest.importorskip('tensorflow')

import tensorflow as tf

from tests.conformance import toy_operation_rule
from tests.keras import freivalds
from tests.representatives import representatives
from tfcactus.keras.checks import example_losses, pass_proof
from tfcactus.keras.compat import versions
from tfcactus.keras.gradients import (
  batched_pass,
  clipping as clipping_lib,
  layer_routes,
)
from tfcactus.keras.gradients.operations import rules

layers = tf.keras.layers
_LOSS = example_losses.loss_per_example(
    tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
_ROWS, _CLASSES, _VOCABULARY = 5, 3, 6
_WEIGHTS = np.array([1, 0.1, 0, 3, 1], np.float32)


class Case(NamedTuple):
  """A layer whose gradients are tried.

  Attributes:
    make: Makes the layer.
    shape: Of one example's input.
    ids: Whether inputs are integers below `_VOCABULARY`.
  """

  make: Callable[[], Any]
  shape: tuple[int, ...]
  ids: bool = False


def _of(kind: Any, *args: Any, **kwargs: Any) -> Callable[[], Any]:
  return lambda: kind(*args, **kwargs)


def _newer(name: str, *args: Any, **kwargs: Any) -> Any:
  """Returns `_of` a layer, or None where Keras lacks the layer or its LoRA."""
  kind = getattr(layers, name, None)
  if not versions.KERAS_3 or kind is None or 'lora_rank' in kwargs and not any(
      'lora_rank' in inspect.signature(base).parameters for base in kind.__mro__[:-1]):
    return None
  return _of(kind, *args, **kwargs)


_KERAS_3 = {
    'rms norm': Case(_newer('RMSNormalization'), (4, 6)),
    'rms norm, axes': Case(_newer('RMSNormalization', axis=[2, 3]), (3, 2, 4)),
    'layer norm, rms': Case(_newer('LayerNormalization', rms_scaling=True), (6,)),
    'reversible embedding': Case(
        _newer('ReversibleEmbedding', _VOCABULARY, 4), (7,), ids=True),
    'dense, lora': Case(_newer('Dense', 4, 'relu', lora_rank=2), (6,)),
    'dense over time, lora': Case(_newer('Dense', 4, lora_rank=2), (3, 6)),
    'einsum dense, lora': Case(
        _newer('EinsumDense', 'abc,cde->abde', (4, 2, 3), bias_axes='de',
            lora_rank=2), (4, 5)),
    'einsum dense, lora, sum over heads': Case(
        _newer('EinsumDense', 'abcd,cde->abe', (3, 4), bias_axes='e', activation='tanh',
               lora_rank=2), (3, 2, 5)),
    'einsum dense, lora, last axis from inputs': Case(
        _newer('EinsumDense', 'abc,dc->ad', 4, lora_rank=3), (4, 5)),
    'einsum dense, lora, last axis kept': Case(
        _newer('EinsumDense', 'abc,dc->abdc', (3, 4, 5), lora_rank=2), (3, 5)),
    'conv2d, lora': Case(_newer('Conv2D', 4, 3, lora_rank=2, groups=2), (5, 4, 2)),
    'conv3d, lora': Case(
        _newer('Conv3D', 4, 2, lora_rank=2, use_bias=False), (3, 4, 3, 2)),
    'conv1d, lora': Case(_newer('Conv1D', 4, 2, lora_rank=1), (4, 2)),
    'embedding, lora': Case(
        _newer('Embedding', _VOCABULARY, 4, lora_rank=2), (7,), ids=True),
}

LAYERS: dict[str, Case] = {
    'dense': Case(_of(layers.Dense, 4, 'relu'), (6,)),
    'dense, no bias': Case(_of(layers.Dense, 4, use_bias=False), (6,)),
    'dense over time': Case(_of(layers.Dense, 4, 'tanh'), (3, 6)),
    'conv1d': Case(_of(layers.Conv1D, 4, 3, padding='causal'), (7, 2)),
    'conv1d, no bias': Case(_of(layers.Conv1D, 4, 3, use_bias=False), (7, 2)),
    'conv2d': Case(_of(layers.Conv2D, 3, 3, strides=2, activation='relu'), (7, 6, 2)),
    'conv2d, no bias': Case(_of(layers.Conv2D, 3, 2, use_bias=False), (5, 4, 2)),
    'conv2d, groups': Case(
        _of(layers.Conv2D, 6, 3, groups=2, padding='same'), (5, 6, 4)),
    'conv1d, groups': Case(_of(layers.Conv1D, 4, 3, groups=4, strides=2), (8, 4)),
    'conv2d, one position': Case(
        _of(layers.Conv2D, 3, (3, 2), activation='relu'), (3, 2, 4)),
    'conv2d, squeezed': Case(
        _of(layers.Conv2D, 3, 1, padding='same'), (1, 1, 4)),
    'dense over one step': Case(_of(layers.Dense, 4, 'tanh'), (1, 6)),
    'conv3d': Case(_of(layers.Conv3D, 3, (2, 3, 2), strides=(2, 1, 2),
                       padding='same', activation='relu'), (5, 4, 6, 2)),
    'conv3d, groups': Case(
        _of(layers.Conv3D, 4, 2, groups=2, strides=(1, 2, 1)), (3, 5, 4, 2)),
    'conv3d, dilated': Case(
        _of(layers.Conv3D, 4, 2, dilation_rate=(1, 2, 1)), (3, 5, 4, 2)),
    'conv1d transposed': Case(_of(layers.Conv1DTranspose, 4, 3, strides=2), (5, 2)),
    'conv2d transposed': Case(
        _of(layers.Conv2DTranspose, 3, (3, 2), strides=2, padding='same',
            activation='relu'), (4, 3, 2)),
    'conv2d transposed, strides': Case(
        _of(layers.Conv2DTranspose, 3, 2, strides=3, use_bias=False), (3, 4, 2)),
    'conv3d transposed': Case(
        _of(layers.Conv3DTranspose, 2, 2, strides=(1, 2, 1)), (2, 3, 3, 2)),
    'depthwise 1d': Case(_of(layers.DepthwiseConv1D, 3, strides=2), (7, 3)),
    'separable 1d': Case(_of(layers.SeparableConv1D, 4, 3, dilation_rate=2), (8, 3)),
    'separable': Case(_of(layers.SeparableConv2D, 4, 3, strides=2, padding='same',
                          depth_multiplier=2, activation='tanh'), (6, 5, 3)),
    'separable, no bias': Case(
        _of(layers.SeparableConv2D, 3, (2, 3), use_bias=False), (5, 4, 2)),
    'einsum dense': Case(_of(layers.EinsumDense, 'abc,cde->abde', (4, 2, 3),
                             bias_axes='de', activation='tanh'), (4, 5)),
    'einsum dense, two axes': Case(
        _of(layers.EinsumDense, 'abcd,cde->abe', (3, 4), bias_axes='e'), (3, 2, 5)),
    'einsum dense, along time': Case(
        _of(layers.EinsumDense, 'abc,bd->adc', (4, 5), bias_axes='d'), (3, 5)),
    'depthwise': Case(_of(layers.DepthwiseConv2D, 3, depth_multiplier=2), (6, 5, 2)),
    'depthwise, strides': Case(
        _of(layers.DepthwiseConv2D, (2, 3), strides=2, padding='same'), (5, 6, 3)),
    'depthwise, dilated': Case(
        _of(layers.DepthwiseConv2D, 2, dilation_rate=(2, 1)), (5, 4, 2)),
    'depthwise, dilated twice': Case(
        _of(layers.DepthwiseConv2D, 3, dilation_rate=2, padding='same',
            depth_multiplier=2), (6, 7, 2)),
    'depthwise 1d, dilated': Case(
        _of(layers.DepthwiseConv1D, 3, dilation_rate=2, padding='same'), (9, 3)),
    'depthwise, wide': Case(
        _of(layers.DepthwiseConv2D, 5, strides=2, padding='same'), (7, 8, 6)),
    'depthwise, a single row': Case(
        _of(layers.DepthwiseConv2D, (3, 2), strides=3), (4, 8, 2)),
    'depthwise, no bias': Case(
        _of(layers.DepthwiseConv2D, 2, use_bias=False), (5, 4, 2)),
    'embedding': Case(_of(layers.Embedding, _VOCABULARY, 4), (7,), ids=True),
    'embedding, many rows': Case(_of(layers.Embedding, 30, 4), (7,), ids=True),
    'layer norm': Case(_of(layers.LayerNormalization), (4, 6)),
    'layer norm, no offset': Case(_of(layers.LayerNormalization, center=False), (6,)),
    'group norm': Case(_of(layers.GroupNormalization, 3), (4, 5, 6)),
    'group norm, no scale': Case(
        _of(layers.GroupNormalization, 2, scale=False), (3, 4)),
    **{name: case for name, case in _KERAS_3.items() if case.make},
    'simple rnn': Case(_of(layers.SimpleRNN, 3), (4, 3)),
    'lstm': Case(_of(layers.LSTM, 3, return_sequences=True), (4, 3)),
    'gru': Case(_of(layers.GRU, 3), (4, 3)),
    'cells': Case(lambda: layers.RNN(layers.LSTMCell(2)), (4, 3)),
    'conv lstm 1d': Case(_of(layers.ConvLSTM1D, 2, 2), (3, 5, 2)),
    'conv lstm 2d': Case(_of(layers.ConvLSTM2D, 2, 2), (3, 4, 3, 2)),
    'conv lstm 3d': Case(_of(layers.ConvLSTM3D, 2, 2), (3, 3, 4, 3, 2)),
    'two directions': Case(
        lambda: layers.Bidirectional(layers.LSTM(2)), (4, 3)),
    'over steps': Case(
        lambda: layers.TimeDistributed(layers.Conv1D(3, 2)),
        (3, 5, 2)),
    'over steps, one position': Case(
        lambda: layers.TimeDistributed(layers.Conv2D(3, 2)), (3, 2, 2, 2)),
    'a rule of a test': Case(toy_operation_rule.Cells, (5, 2)),
}


@pytest.fixture(autouse=True)
def listed(monkeypatch):
  """Lists a rule that is not the library's."""
  monkeypatch.setitem(rules._RULES, 'GatherNd', toy_operation_rule.gather_nd)


def _model(cases: Sequence[Case], policy: str = 'float32', calls: int = 1,
           trainable: bool = True) -> Any:
  """A classifier of inputs that go through layers side by side."""
  tf.keras.utils.set_random_seed(1)
  tf.keras.mixed_precision.set_global_policy(policy)
  try:
    inputs, outputs = [], []
    for case in cases:
      layer = case.make()
      own = [tf.keras.Input(case.shape, dtype='int32' if case.ids else None)
             for _ in range(calls)]
      found = [layer(each) for each in own]
      x = layers.Add()(found) if calls > 1 else found[0]
      inputs += own
      outputs.append(layers.Flatten()(x) if len(x.shape) > 2 else x)
      layer.trainable = trainable  # Set once the layer has its cells and the like.
    x = layers.Concatenate()(outputs) if len(outputs) > 1 else outputs[0]
    # A certain prediction has a gradient of rounding only.
    x = layers.Dense(_CLASSES)(layers.Rescaling(0.3)(layers.Activation('tanh')(x)))
    model = tf.keras.Model(inputs if len(inputs) > 1 else inputs[0], x)
  finally:
    tf.keras.mixed_precision.set_global_policy('float32')
  rng = np.random.default_rng(3)
  # No variable at its initial zeros or ones, where mistakes hide.
  model.set_weights([w + 0.3 * rng.normal(size=w.shape)
                     for w in model.get_weights()])
  return model


def _batch(cases: Sequence[Case], calls: int = 1) -> tuple[Any, np.ndarray]:
  rng = np.random.default_rng(0)
  x = []
  for case in cases:
    shape = (_ROWS, *case.shape)
    x += [rng.integers(0, _VOCABULARY, shape).astype(np.int32) if case.ids else
          2 * rng.normal(size=shape).astype(np.float32) for _ in range(calls)]
  return (x if len(x) > 1 else x[0]), rng.integers(0, _CLASSES, _ROWS)


def _pass(model: Any, x: Any, y: np.ndarray, use: Callable[[Any, Any], Any],
          rows: Sequence[np.ndarray] = (_WEIGHTS,)) -> list[Any]:
  """Returns what `use` makes of gradients and weights, nothing vectorised.

  One pass is traced; it runs once with each of the weights in `rows`.
  """
  routes = layer_routes.routes(model)
  assert not routes.whole
  assert not any(route.vectorized for route in routes.layers)
  run = tf.function(lambda *batch: use(batched_pass.batched(
      model, routes, _LOSS, batch).gradients, batch[-1]), autograph=False)
  return [run(*tf.nest.map_structure(tf.constant, (x, y, weights)))
          for weights in rows]


def _sums(model: Any, x: Any, y: np.ndarray, clip: float,
          rows: Sequence[np.ndarray] = (_WEIGHTS,)) -> list[dict[str, Any]]:
  """Returns {kind of clipping: sums, an array for each variable} for each of `rows`."""
  found = _pass(model, x, y, lambda gradients, weights: {
      clipping: clipping_lib.clip_and_sum(
          gradients, tf.constant(clip), weights != 0, clipping,
          layer_routes.routes(model).groups)[0]
      for clipping in clipping_lib.KINDS}, rows)
  return [{clipping: [part.numpy() for part in sums]
           for clipping, sums in each.items()} for each in found]


def _gradients(model: Any, x: Any, y: np.ndarray) -> Any:
  """Returns each example's gradients, by a tape on a batch of one example."""

  def one(x, y, weight):
    with tf.GradientTape() as tape:
      loss = weight * tf.cast(_LOSS(y, model(x, training=True))[0], tf.float32)
    found = tape.gradient(loss, model.trainable_variables,
                          unconnected_gradients='zero')
    return [tf.convert_to_tensor(part) for part in found]

  rows = [[part.numpy().astype(np.float64) for part in one(
      tf.nest.map_structure(lambda each: tf.constant(each[i:i + 1]), x),  # noqa: B023
      tf.constant(y[i:i + 1]), tf.constant(_WEIGHTS[i]))] for i in range(_ROWS)]
  return [np.stack(each) for each in zip(*rows)]


def _norms(gradients: Any) -> np.ndarray:
  return np.sqrt(sum(np.sum(part.reshape(_ROWS, -1)**2, 1) for part in gradients))


def _loop(model: Any, gradients: Any, clipping: str, clip: float) -> Any:
  """Returns the sums of clipped gradients, computed without the library."""
  if clipping == 'per_layer':
    owners = layer_routes.routes(model).groups
  else:
    owners = [0] * len(gradients)
  bound = clip * (1 - clipping_lib.CLIP_MARGIN) / np.sqrt(len(set(owners)))
  sums = []
  for owner, part in zip(owners, gradients):
    norms = _norms([g for g, other in zip(gradients, owners) if other == owner])
    factors = (bound / (norms + 0.01) if clipping == 'automatic' else
               bound / np.maximum(norms, bound))
    sums.append(np.tensordot(factors * (_WEIGHTS != 0), part, 1))
  return sums


def _names(model: Any) -> list[str]:
  return [getattr(v, 'path', v.name) for v in model.trainable_variables]


def _assert_same(got: Any, want: Any, names: Sequence[str] = (),
                 tolerance: float = 1e-5) -> None:
  """Asserts that differences have small norms, for each name and for all together."""
  for name, *parts in zip(names, got, want):
    assert np.linalg.norm(np.subtract(*parts)) <= tolerance * np.linalg.norm(
        parts[1]), name
  got, want = (np.concatenate([np.ravel(part) for part in each])
               for each in (got, want))
  assert np.linalg.norm(got - want) <= tolerance * np.linalg.norm(want)


def _check_sums(model: Any, data: Any) -> None:
  gradients = _gradients(model, *data)
  clip = float(np.median(_norms(gradients)))  # So that some are clipped.
  for clipping, sums in _sums(model, *data, clip)[0].items():
    _assert_same(sums, _loop(model, gradients, clipping, clip), _names(model))


def _check_rows(model: Any, data: Any) -> None:
  loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  found = freivalds.errors(model, loss, *data)
  assert max(found.values()) < 1e-5, found


_OFTEN = ('dense', 'dense, no bias', 'dense over time', 'conv1d', 'conv1d, no bias',
          'conv2d', 'conv2d, no bias', 'depthwise', 'depthwise, no bias', 'embedding',
          'layer norm', 'layer norm, no offset', 'group norm', 'group norm, no scale',
          'a rule of a test')
"""Layers that every test tries, side by side in `make test`, else one by one."""

_ONCE = ('conv2d, groups', 'conv2d, one position', 'dense over one step',
         'embedding, many rows', 'conv3d',
         'conv2d transposed', 'depthwise, strides', 'depthwise, a single row',
         'depthwise, dilated twice', 'depthwise, wide', 'depthwise 1d, dilated',
         'separable', 'einsum dense', 'rms norm',
         'reversible embedding', 'dense, lora', 'einsum dense, lora',
         'einsum dense, lora, sum over heads', 'embedding, lora',
         'einsum dense, lora, last axis from inputs')
"""Layers that only one test tries there; `make test-slow` tries the others."""


def _cases(often: Sequence[str] = _OFTEN) -> Any:
  """Parametrises with the layers of some names in one model, then with each layer."""
  together = tuple(LAYERS[name] for name in often if name in LAYERS)
  return pytest.mark.parametrize('cases', [
      pytest.param(together, id='side by side'),
      *(pytest.param((case,), id=name, marks=(
          pytest.mark.more if name in often else pytest.mark.slow))
        for name, case in LAYERS.items())])


@_cases(_OFTEN + _ONCE)
def test_clipped_sums_equal_a_loop(cases):
  _check_sums(_model(cases), _batch(cases))


@_cases()
def test_shared_layers_sum_the_gradients_of_their_calls(cases):
  _check_rows(_model(cases, calls=2), _batch(cases, calls=2))


@_cases()
def test_frozen_layers_take_no_part(cases):
  model = _model(cases, trainable=False)
  assert len(model.trainable_variables) == 2
  _check_rows(model, _batch(cases))


@representatives('policy', ['mixed_float16', 'mixed_bfloat16'])
@_cases()
def test_clip_norms_bound_rows_in_mixed_precision(cases, policy):
  model, (x, y) = _model(cases, policy), _batch(cases)
  gradients = _gradients(model, x, y)
  clip = float(np.median(_norms(gradients)))
  # Each example among others of weight zero, since kernels round by the shape.
  all_rows, *rows = _sums(model, x, y, clip, [_WEIGHTS, *np.diag(_WEIGHTS)])
  for clipping, together in all_rows.items():
    alone = [row[clipping] for row in rows]
    _assert_same(together, [sum(parts) for parts in zip(*alone)])
    _assert_same(together, _loop(model, gradients, clipping, clip), tolerance=0.03)
    for each in alone:
      assert np.sqrt(sum(np.sum(part.astype(float)**2) for part in each)) <= clip


@_cases()
@pytest.mark.more
def test_norms_and_sums_are_of_the_same_gradients(cases):
  """Norms and sums are computed apart; both are compared with dense gradients."""
  model, (x, y) = _model(cases), _batch(cases)
  factors = np.random.default_rng(1).normal(size=_ROWS)
  keep = np.array([True, False, True, True, True])
  [found] = _pass(model, x, y, lambda gradients, _: [
      (form.dense(), form.squared_norms(),
       form.where(tf.constant(keep)).weighted_sum(tf.constant(factors)))
      for form in gradients])
  for name, (rows, norms, total), gradients in zip(
      _names(model), found, _gradients(model, x, y)):
    dense = rows.numpy().astype(np.float64)
    np.testing.assert_allclose(dense, gradients, rtol=1e-4, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(norms, np.sum(dense.reshape(_ROWS, -1)**2, 1),
                               rtol=4e-6, atol=1e-35, err_msg=name)
    _assert_same([total], [np.tensordot(factors * keep, dense, 1)], [name], 1e-6)


@_cases()
def test_a_pass_is_proved_to_treat_each_example_alone(cases):
  model, (x, y) = _model(cases), _batch(cases)
  routes = layer_routes.routes(model)

  def run(batch):
    found = batched_pass.batched(model, routes, _LOSS, batch)
    return pass_proof.Pass(
        [*(tensor for form in found.gradients for tensor in form.tensors()),
         found.losses], [found.losses], found.answers, found.edges)

  specs = tf.nest.map_structure(
      lambda each: tf.TensorSpec(each.shape, each.dtype),
      tf.nest.map_structure(tf.constant, (x, y, _WEIGHTS)))
  traced = pass_proof.trace(model, run, specs)
  assert pass_proof.unproved(model, traced) is None
  pass_proof.check_no_writes(model, traced)
