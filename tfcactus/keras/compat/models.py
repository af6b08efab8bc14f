"""Structure of models: their layers, variables, calls and random number generators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import contextlib
import functools
import hashlib
import inspect
from typing import Any, Callable

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from tfcactus.keras.compat.versions import keras, KERAS_3


@functools.cache
def _functional() -> type:
  """Returns the class of functional models; must not be called on import."""
  # Making a layer starts TensorFlow's devices, which cannot be configured afterwards.
  # Explicit names leave the automatic names of users' layers unchanged.
  # Keras 3.6 to 3.12 refuse a model whose output is its input.
  with tf.init_scope():
    inputs = keras.Input((1,), name='inputs')
    outputs = keras.layers.Activation('linear', name='outputs')(inputs)
    return type(keras.Model(inputs, outputs, name='model'))


@contextlib.contextmanager
def apart() -> Iterator[None]:
  """Restarts Keras' numbering of layer names, before and after the block."""
  # Also frees the Python functions of datasets made inside: TensorFlow would keep them,
  # with all that they refer to, for good.
  graph, name = tf.compat.v1.get_default_graph(), '_py_funcs_used_in_graph'
  before = len(getattr(graph, name, ()))
  _reset_names()
  try:
    yield
  finally:
    _reset_names()
    del getattr(graph, name, [])[before:]


def _reset_names() -> None:
  """Makes Keras number the names of new layers from the start again."""
  if KERAS_3:
    from keras.src.utils import naming  # pylint: disable=import-outside-toplevel
    naming.reset_uids()
  else:
    keras.backend.reset_uids()


def tf_variable(variable: keras.Variable) -> tf.Variable:
  """Returns the `tf.Variable` of a Keras variable."""
  return variable.value if KERAS_3 else variable


def values(variable: keras.Variable) -> np.ndarray:
  """Returns the values of a variable as an array; not for use inside a graph."""
  found: np.ndarray = local(tf_variable(variable)).numpy()
  return found


def stored_dtype(variable: keras.Variable) -> tf.DType:
  """Returns the dtype in which a variable is stored, which autocasting may hide."""
  # Keras 2 wraps variables under mixed precision.
  return tf.as_dtype(getattr(variable, '_variable', variable).dtype)


def name_of(variable: keras.Variable) -> str:
  """Returns the name of a variable, with the name of its layer."""
  name: str = variable.path if KERAS_3 else variable.name
  return name.split(':')[0]


def weights(model: keras.Model) -> list[keras.Variable]:
  """Returns a model's variables, without the vocabularies that Keras 2 lists too."""
  return [each for each in model.weights if not hasattr(each, 'get_tensors')]


def adapted(model: keras.Model) -> int:
  """Returns a 64-bit hash of what `adapt` set beside weights in layers, 0 for nothing.

  `adapt` sets vocabularies, inverse document frequencies and bounds of bins. Functions
  that were traced before keep the old ones.
  """
  parts = [part for layer in flat_layers(model) for part in _beside_weights(layer)]
  return int(np.frombuffer(_digest(parts), np.int64)[0]) if parts else 0


def _beside_weights(layer: keras.layers.Layer) -> list[np.ndarray]:
  """Returns arrays that determine a layer's vocabulary, document frequencies, bins."""
  found = []
  with tf.init_scope():
    table = getattr(layer, 'lookup_table', None)
    if table is not None and int(table.size()):
      rows = tf.strings.join([
          each if each.dtype == tf.string else tf.strings.as_string(each)
          for each in table.export()], '=')
      found.append(np.sort(tf.strings.to_hash_bucket_fast(rows, 2 ** 63 - 1).numpy()))
    beside = [getattr(layer, 'idf_weights_const', None),
              getattr(layer, 'bin_boundaries', None)]
    found += [np.asarray(each, np.float64) for each in beside if each is not None]
  return found


def _digest(arrays: list[np.ndarray]) -> bytes:
  """Returns a digest of eight bytes."""
  text = b''.join(each.tobytes() for each in arrays)
  return hashlib.blake2b(text, digest_size=8).digest()


def lookup(layer: keras.layers.Layer) -> keras.layers.Layer:
  """Returns the layer that holds the vocabulary of `layer`: an inner one, or itself."""
  return getattr(layer, '_lookup_layer', layer)


def has_vocabulary(layer: keras.layers.Layer) -> bool:
  """Returns whether a lookup was ever given a vocabulary."""
  return lookup(layer)._frozen_vocab_size is not None  # pylint: disable=protected-access


def splits_by_function(layer: keras.layers.Layer) -> bool:
  """Returns whether a layer standardises or splits texts by a function of the user."""
  return callable(getattr(layer, '_standardize', None)) or (
      callable(getattr(layer, '_split', None)))


def tokens(layer: keras.layers.Layer, texts: np.ndarray) -> list[list[bytes]]:
  """Returns the words of each row that a TextVectorization looks up."""
  found = layer._preprocess(tf.constant(texts, tf.string))  # pylint: disable=protected-access
  if isinstance(found, tf.RaggedTensor):
    return found.merge_dims(1, -1).to_list()
  return np.reshape(found, (len(texts), -1)).tolist()


def check_bins(layer: keras.layers.Layer) -> None:
  """Raises ValueError unless Keras can save bins that a Discretization adapts."""
  if (layer.num_bins or 0) < 2 or (layer.built and not KERAS_3):
    raise ValueError(
        'Expected a Discretization of num_bins >= 2, which Keras 2 can save only if no '
        f'model has called it before, got num_bins={layer.num_bins!r} and '
        f'built={layer.built}; make a new layer.')


def set_bins(layer: keras.layers.Layer, boundaries: list[float]) -> None:
  """Sets the boundaries of a Discretization, so that a saved file holds them."""
  layer.bin_boundaries = boundaries
  if not KERAS_3:  # Keras 2 saves boundaries that were given, but not adapted ones.
    layer.input_bin_boundaries, layer.num_bins = boundaries, None


def preparation(layer: keras.layers.Layer) -> str:
  """Returns a digest of a layer's vocabulary, bins or moments, adapted or given.

  Returns '' if the layer has none, or is a Normalization of mean 0 and variance 1, as
  before `adapt`.
  """
  found = _beside_weights(lookup(layer))
  if isinstance(layer, keras.layers.Normalization) and layer.built:
    moments = [np.asarray(each, np.float64) for each in (layer.mean, layer.variance)]
    if np.any(moments[0]) or np.any(moments[1] != 1):
      found += moments
  return _digest(found).hex() if any(each.size for each in found) else ''


def tf_variables(model: keras.Model) -> list[tf.Variable]:
  """Returns this replica's copies of the trainable variables, which tapes watch."""
  return [local(tf_variable(v)) for v in model.trainable_variables]


def trained_variables(layer: keras.layers.Layer) -> list[keras.Variable]:
  """Returns a layer's variables that training a model around it updates, if any."""
  if not KERAS_3:
    return list(layer.trainable_variables)
  # A frozen layer of Keras 3 does not list inner layers that were thawed later. The
  # model around it lists their variables, unless the model is frozen itself.
  return [v for v in getattr(layer, 'variables', ()) if v.trainable]


def lora_variables(layer: keras.layers.Layer) -> list[keras.Variable]:
  """Returns [kernel or embeddings, first factor, second factor] of a LoRA layer."""
  name = 'kernel' if hasattr(layer, '_kernel') else 'embeddings'
  return [getattr(layer, f'_{name}'), *(
      getattr(layer, f'lora_{name}_{which}') for which in 'ab')]


def lora_layers(model: keras.Model) -> list[keras.layers.Layer]:
  """Returns all layers of a model with LoRA."""
  return [layer for layer in flat_layers(model)
          if getattr(layer, 'lora_enabled', False)]


def saves_exactly(model: keras.Model) -> bool:
  """Returns whether Keras saves all weights as they are, not quantised anew."""
  # Keras adds the factors of LoRA to the weights that it saves.
  return not any(getattr(layer, 'quantization_mode', None)
                 for layer in lora_layers(model))


def flat_layers(model: keras.Model) -> list[keras.layers.Layer]:
  """Returns all layers of a model, including nested ones."""
  return list(model._flatten_layers(recursive=True, include_self=False))  # pylint: disable=protected-access


def direct_layers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
  """Returns the layers that a layer holds directly, not those inside them."""
  return list(layer._flatten_layers(recursive=False, include_self=False))  # pylint: disable=protected-access


def is_graph(model: keras.Model) -> bool:
  """Returns whether a model is a built Sequential or functional, and no subclass."""
  if type(model) is keras.Sequential:
    return model.built and (
        not KERAS_3 or model._functional is not None)  # pylint: disable=protected-access
  return type(model) is _functional()


def graph_layers(model: keras.Model) -> list[keras.layers.Layer]:
  """Returns a model's layers, each once; replaces nested models by their layers."""
  # Under Keras 3, operations between the layers of a functional model, such as `a + b`,
  # are listed too.
  found: dict[int, keras.layers.Layer] = {}
  functional: bool = type(model) is _functional()
  for layer in model.operations if KERAS_3 and functional else model.layers:
    inner = graph_layers(layer) if is_graph(layer) else [layer]
    found.update((id(each), each) for each in inner)
  return list(found.values())


def layer_classes(names: Iterable[str]) -> set[type]:
  """Returns the classes of the named layers; leaves out those this Keras lacks."""
  return {getattr(keras.layers, name) for name in names if hasattr(keras.layers, name)}


def mixes_when_frozen(layer: keras.layers.Layer) -> bool:
  """Returns whether a BatchNormalization uses batch statistics when not trainable."""
  # The BatchNormalization of tf.compat.v1 does.
  return not getattr(layer, '_USE_V2_BEHAVIOR', True)


def splits_texts(layer: keras.layers.Layer) -> bool:
  """Returns whether a layer splits texts into a variable number of words."""
  return isinstance(layer, keras.layers.TextVectorization) and (
      getattr(layer, '_split', None) is not None)


def has_fixed_length(layer: keras.layers.Layer) -> bool:
  """Returns whether a TextVectorization gives outputs of one length for all texts."""
  if layer._output_mode != 'int':  # pylint: disable=protected-access
    return True
  return layer._output_sequence_length is not None and not layer._ragged  # pylint: disable=protected-access


def is_bare_operation(layer: keras.layers.Layer) -> bool:
  """Returns whether an entry of `graph_layers` is an operation, not a layer."""
  return (not isinstance(layer, keras.layers.Layer) or
          type(layer).__name__ in ('TFOpLambda', 'SlicingOpLambda'))


def _nodes(layer: keras.layers.Layer) -> list[Any]:
  """Returns Keras' record (node) of each call of a layer in a functional model."""
  return layer._inbound_nodes  # pylint: disable=protected-access


def last_layers(model: keras.Model) -> list[Any]:
  """Returns the layer that makes each output of a model, [] for a subclassed model.

  Looks into nested models; None stands for an output of a nested subclassed model.
  """
  if type(model) is keras.Sequential:  # Maybe not built: then it has no outputs yet.
    return last_layers(model.layers[-1]) if model.layers and isinstance(
        model.layers[-1], keras.Model) else model.layers[-1:]
  if not is_graph(model):
    return []
  found: list[Any] = []
  for out in model.outputs:
    layer, _, index = out._keras_history  # pylint: disable=protected-access
    if isinstance(layer, keras.Model):  # `out` is its output number `index`.
      inner = last_layers(layer)
      layer = inner[index] if index < len(inner) else None
    found.append(layer)
  return found


def call_arguments(layer: keras.layers.Layer) -> list[Any]:
  """Returns (args, kwargs) of each call of a layer in a functional model."""
  if KERAS_3:
    return [(node.arguments.args, node.arguments.kwargs) for node in _nodes(layer)]
  return [(node.call_args, node.call_kwargs) for node in _nodes(layer)]


def output_shapes(layer: keras.layers.Layer) -> list[Any]:
  """Returns the shapes of a layer's outputs in all its calls in a functional model."""
  return [list(out.shape) for node in _nodes(layer)
          for out in tf.nest.flatten(node.outputs)]


def input_shapes(layer: keras.layers.Layer) -> list[Any]:
  """Returns the shapes of a layer's inputs in all its calls in a functional model."""
  return [list(each.shape) for node in _nodes(layer)
          for each in tf.nest.flatten(node.input_tensors)]


def input_spec(model: keras.Model) -> Any | None:
  """Returns `TensorSpec`s of a model's inputs, to trace it; None if unknown."""
  inputs = None
  if not KERAS_3:
    if getattr(model, 'inputs', None) and model._is_graph_network:  # pylint: disable=protected-access
      inputs = _unwrapped(model.input)
    else:  # Recorded by Keras at the first call, without tf.keras.Input.
      inputs = getattr(model, '_saved_model_inputs_spec', None)
  elif is_graph(model) or isinstance(model, _functional()):
    graph = getattr(model, '_functional', None) or model
    inputs = graph._inputs_struct  # pylint: disable=protected-access
  else:
    # Keras records shapes only, which suffices for a single input.
    shapes = list((getattr(model, '_build_shapes_dict', None) or {}).values())
    if len(shapes) == 1 and isinstance(shapes[0], (tuple, list)) and (
        not any(isinstance(size, (tuple, list, dict)) for size in shapes[0])):
      return tf.TensorSpec((None, *shapes[0][1:]), model.input_dtype)
  return None if inputs is None else tf.nest.map_structure(
      lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), inputs)


def _unwrapped(structure: Any) -> Any:
  """Returns a structure with plain dicts in place of TensorFlow's wrapped dicts."""
  if isinstance(structure, dict):
    return {key: _unwrapped(part) for key, part in structure.items()}
  return structure


def generators(model: keras.Model) -> list[keras.random.SeedGenerator]:
  """Returns the seed generators that layers hold as attributes; Keras 2 has none."""
  if not KERAS_3:
    return []
  found = {}
  for layer in [model, *flat_layers(model)]:
    for value in vars(layer).values():
      if isinstance(value, keras.random.SeedGenerator):
        found[id(value)] = value
  return list(found.values())


def in_xla() -> bool:
  """Returns whether the function traced now will be compiled by XLA."""
  return not tf.executing_eagerly() and (
      control_flow_util.GraphOrParentsInXlaContext(
          tf.compat.v1.get_default_graph()))


def handle(variable: keras.Variable) -> tf.Tensor:
  """Returns the resource tensor through which a graph reads a variable."""
  return local(tf_variable(variable)).handle


def local(variable: tf.Variable) -> tf.Variable:
  """Returns this replica's copy of a variable; outside of replicas the primary copy."""
  if not isinstance(variable, tf.distribute.DistributedValues):
    return variable
  if tf.distribute.in_cross_replica_context():
    return variable._primary  # pylint: disable=protected-access
  return variable._get()  # pylint: disable=protected-access


def clone(model: keras.Model, copied: Callable[[Any], Any]) -> keras.Model:
  """Copies a Sequential or functional model; `copied` returns the copy of a layer."""
  if not KERAS_3:
    return keras.models.clone_model(model, clone_function=copied)

  def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a copied layer without None for arguments that its `call` lacks."""
    known = inspect.signature(layer.call).parameters
    # Keras 3 repeats the arguments of the original layer's call.
    return layer(*args, **{name: value for name, value in kwargs.items()
                           if value is not None or name in known})

  if type(model) is keras.Sequential:
    return keras.models.clone_model(model, clone_function=copied)
  return keras.models.clone_model(model, clone_function=copied, call_function=call)
