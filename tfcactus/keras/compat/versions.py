"""The one place that asks for versions: which Keras this package runs on.

`keras` is whatever `tf.keras` is: Keras 2 on TensorFlow 2.14 and 2.15, and on
later ones with tf-keras and TF_USE_LEGACY_KERAS=1; otherwise Keras 3. What
differs between the two is answered here, so that no other module asks.
"""

from __future__ import annotations

import importlib
import os
from typing import Any
from typing import Iterable
from typing import List
from typing import Mapping
from typing import Optional
from typing import Set
from typing import Tuple

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

_OLDEST_TENSORFLOW = (2, 14)
_OLDEST_KERAS_3 = (3, 5)
_WITHOUT_LEGACY = (2, 16)


def _parts(version: str) -> Tuple[int, int]:
  major, minor = version.split('.')[:2]
  return int(major), int(minor)


def check_versions(tensorflow: str, keras_version: str,
                   backend: str = 'tensorflow') -> None:
  """Refuses what this package does not run on, and says why.

  Args:
    tensorflow: A TensorFlow version such as "2.15.1".
    keras_version: The version of the Keras that it runs on.
    backend: The backend of Keras 3.

  Raises:
    ImportError: naming what to install instead.
  """
  if _parts(tensorflow) < _OLDEST_TENSORFLOW:
    raise ImportError(
        f'Expected TensorFlow 2.14 or later, got TensorFlow {tensorflow}: it '
        'is too old. Install "tensorflow>=2.14".')
  if _parts(keras_version)[0] >= 3 and backend != 'tensorflow':
    raise ImportError(
        f'Expected Keras on TensorFlow, got Keras {keras_version} on the '
        f'backend {backend!r}: gradients per example are taken by TensorFlow. '
        'Set KERAS_BACKEND=tensorflow before Keras is imported, and "backend" '
        'in ~/.keras/keras.json if that names another.')
  if (3, 0) <= _parts(keras_version) < _OLDEST_KERAS_3:
    raise ImportError(
        f'Expected Keras 2, or Keras 3.5 or later, got Keras {keras_version}: '
        'before 3.5 its optimizers do not add up the gradients of several '
        'replicas, silently. Install "keras>=3.5".')


def _import_keras() -> Any:
  """Imports the Keras that `tf.keras` is.

  Raises:
    ImportError: saying why there is none, and what to set or install.
  """
  try:
    # Not tf.keras itself: of Keras 3 it lacks parts, such as `saving`.
    return importlib.import_module(tf.keras.Model.__module__.split('.')[0])
  except Exception as told:  # pylint: disable=broad-except
    # Whatever the reason, TensorFlow says only that Keras is missing.
    reason: Exception = told
    name = 'tf_keras' if os.environ.get('TF_USE_LEGACY_KERAS') in (
        'true', 'True', '1') else 'keras'
    try:
      importlib.import_module(name)
    except Exception as error:  # pylint: disable=broad-except
      reason = error
    variables = ', '.join(
        f'{variable}={os.environ[variable]!r}' if variable in os.environ else
        f'{variable} unset'
        for variable in ('KERAS_BACKEND', 'TF_USE_LEGACY_KERAS'))
    raise ImportError(
        f'Expected a Keras that imports with TensorFlow {tf.__version__}, but '
        f'importing {name} raised {type(reason).__name__}: {reason}. The '
        f'environment has {variables}. Set KERAS_BACKEND=tensorflow, the one '
        'backend that tfcactus trains on; install "tf-keras" for '
        'TF_USE_LEGACY_KERAS=1, or unset it; otherwise install "keras>=3.5".'
        ) from reason


keras = _import_keras()
KERAS_VERSION: str = keras.__version__
KERAS_3: bool = _parts(KERAS_VERSION)[0] >= 3
check_versions(tf.__version__, KERAS_VERSION,
               keras.backend.backend() if KERAS_3 else 'tensorflow')


def check_same_keras(name: str, thing: Any) -> None:
  """Refuses an object, or a class, of another Keras than `tf.keras` is.

  Args:
    name: Of the argument that it was given as.
    thing: Anything at all.

  Raises:
    ValueError: naming both packages.
  """
  cls = thing if isinstance(thing, type) else type(thing)
  packages = [base.__module__.split('.')[0] for base in cls.__mro__]
  if keras.__name__ in packages:
    return
  if any(base.__module__.startswith('tensorflow.python.keras')
         for base in cls.__mro__):
    other, remedy = 'tensorflow.python.keras, which is internal', ''
  elif 'tf_keras' in packages:
    other, remedy = 'tf_keras', (
        ', or set TF_USE_LEGACY_KERAS=1 before TensorFlow is imported, so that '
        'tf.keras is tf_keras')
  elif 'keras' in packages:
    other, remedy = 'keras', (
        ', or unset TF_USE_LEGACY_KERAS before TensorFlow is imported, so that '
        'tf.keras is keras')
  else:
    return
  raise ValueError(
      f'Expected {name} of the package {keras.__name__} {KERAS_VERSION}, which '
      f'tf.keras is here, got {cls.__name__} of the package {other}. Build it '
      f'with tf.keras{remedy}.')


def whole_tensorflow_privacy_imports() -> bool:
  """Whether `import tensorflow_privacy` works, optimizers included."""
  return _parts(tf.__version__) < _WITHOUT_LEGACY


_OPTIMIZERS = (keras.optimizers if KERAS_3 else keras.optimizers.legacy)
Adagrad = _OPTIMIZERS.Adagrad
Adam = _OPTIMIZERS.Adam
RMSprop = _OPTIMIZERS.RMSprop
SGD = _OPTIMIZERS.SGD

# Of the optimizers of Keras 3, and of those of Keras 2 that are not legacy.
_NOT_LEGACY = ('weight_decay', 'use_ema', 'ema_momentum',
               'ema_overwrite_frequency', 'jit_compile', 'loss_scale_factor')


def check_optimizer_arguments(arguments: Mapping[str, Any]) -> None:
  """Refuses what the Keras at hand has no meaning for, or silently ignores.

  Args:
    arguments: For the base of a drop-in optimizer, by name.

  Raises:
    TypeError: naming what to pass instead.
  """
  for name in _NOT_LEGACY:
    if name in arguments and not KERAS_3:
      raise TypeError(
          f'Expected arguments of tf.keras.optimizers.legacy, got {name}='
          f'{arguments[name]!r}: under Keras 2 drop-in optimizers stand on its '
          'legacy ones, which have no such argument. Leave it out, or use '
          'tfcactus.keras.privatize, which trains with any optimizer.')
  if KERAS_3 and arguments.get('lr') is not None:
    raise TypeError(
        f'Expected learning_rate, got lr={arguments["lr"]!r}, the name that '
        f'Keras 2 had for it; pass learning_rate={arguments["lr"]!r}.')
  if KERAS_3 and arguments.get('decay'):
    raise TypeError(
        f'Expected no decay, which Keras 3 ignores, got decay='
        f'{arguments["decay"]!r}; pass learning_rate=tf.keras.optimizers.'
        'schedules.InverseTimeDecay(learning_rate, decay_steps=1, '
        f'decay_rate={arguments["decay"]!r}), which is the same.')


RANDOM_LAYERS = (
    keras.layers.Dropout, keras.layers.GaussianNoise,
    keras.layers.GaussianDropout, keras.layers.AlphaDropout, keras.layers.Lambda
) + ((keras.layers.SpatialDropout1D, keras.layers.SpatialDropout2D,
      keras.layers.SpatialDropout3D) if KERAS_3 else ())
RECURRENT_LOOPS: bool = KERAS_3
"""Whether gradients per example can be taken through loops over time."""


def _functional_class() -> type:
  """The class that `keras.Model(inputs, outputs)` is of."""
  # Named, so that the names that users' layers are given stay what they were.
  # Keras 3.6 to 3.12 refuse a model whose output is its input.
  inputs = keras.Input((1,), name='inputs')
  outputs = keras.layers.Activation('linear', name='outputs')(inputs)
  return type(keras.Model(inputs, outputs, name='model'))


_FUNCTIONAL = _functional_class()


def choose(*, keras_2: Any, keras_3: Any) -> Any:
  """Returns the argument that is for the Keras at hand."""
  return keras_3 if KERAS_3 else keras_2


def tf_variable(variable: Any) -> tf.Variable:
  """The `tf.Variable` that a variable of Keras is made of."""
  return variable.value if KERAS_3 else variable


def stored_dtype(variable: Any) -> tf.DType:
  """The dtype that a variable is kept in, whatever it is read as."""
  # Keras 2 wraps it under mixed precision.
  return tf.as_dtype(getattr(variable, '_variable', variable).dtype)


def tf_variables(model: Any) -> List[tf.Variable]:
  """The trainable variables of a model or layer, for tapes to watch."""
  return [tf_variable(v) for v in model.trainable_variables]


def depthwise_kernel(layer: Any) -> Any:
  """The kernel of a DepthwiseConv2D."""
  return layer.kernel if KERAS_3 else layer.depthwise_kernel


def counter(value: float, name: str, dtype: str = 'int64') -> Any:
  """Returns a variable that a model holding it saves with its weights.

  Args:
    value: To start with.
    name: Its name.
    dtype: Its dtype.
  """
  if KERAS_3:
    return keras.Variable(value, dtype=dtype, trainable=False, autocast=False,
                          name=name)
  return tf.Variable(value, dtype=dtype, trainable=False, name=name)


def flat_layers(model: Any) -> List[Any]:
  """All layers of a model, those inside of others and models included."""
  return list(model._flatten_layers(recursive=True, include_self=False))  # pylint: disable=protected-access


def is_graph(model: Any) -> bool:
  """Whether a model is nothing but its layers: Sequential or functional.

  True for the classes themselves only, as a subclass may override `call`.
  """
  if type(model) is keras.Sequential:
    return model.built and (
        not KERAS_3 or model._functional is not None)  # pylint: disable=protected-access
  return type(model) is _FUNCTIONAL


def graph_layers(model: Any) -> List[Any]:
  """The layers a model is made of, models inside it opened up.

  Under Keras 3 operations between the layers, which are no layers, are among
  them.
  """
  found = {}
  parts = model.layers
  if KERAS_3 and type(model) is _FUNCTIONAL:
    parts = model.operations
  for layer in parts:
    inner = graph_layers(layer) if is_graph(layer) else [layer]
    found.update((id(part), part) for part in inner)
  return list(found.values())


def layer_classes(names: Iterable[str]) -> Set[type]:
  """Those of the named layers that the Keras at hand has."""
  return {getattr(keras.layers, name) for name in names
          if hasattr(keras.layers, name)}


def mixes_when_frozen(layer: Any) -> bool:
  """Whether a BatchNormalization goes on mixing examples when not trainable."""
  # That of tf.compat.v1 does.
  return not getattr(layer, '_USE_V2_BEHAVIOR', True)


def is_bare_operation(layer: Any) -> bool:
  """Whether a part of a functional model is no layer, but an operation."""
  return (not isinstance(layer, keras.layers.Layer) or
          type(layer).__name__ in ('TFOpLambda', 'SlicingOpLambda'))


def _nodes(layer: Any) -> List[Any]:
  return layer._inbound_nodes  # pylint: disable=protected-access


def call_arguments(layer: Any) -> List[Any]:
  """What a layer was called with, at each place of a functional model."""
  if KERAS_3:
    return [(node.arguments.args, node.arguments.kwargs)
            for node in _nodes(layer)]
  return [(node.call_args, node.call_kwargs) for node in _nodes(layer)]


def output_shapes(layer: Any) -> List[Any]:
  """Shapes of a layer's output at each place of a functional model."""
  return [list(out.shape) for node in _nodes(layer)
          for out in tf.nest.flatten(node.outputs)]


def input_spec(model: Any) -> Optional[Any]:
  """What to trace a model with, as `TensorSpec`s; None if not known."""
  inputs = None
  if not KERAS_3:
    if getattr(model, 'inputs', None) and model._is_graph_network:  # pylint: disable=protected-access
      inputs = model.input
    else:  # Keras' record of the first call, without tf.keras.Input.
      inputs = getattr(model, '_saved_model_inputs_spec', None)
  elif is_graph(model) or isinstance(model, _FUNCTIONAL):
    graph = getattr(model, '_functional', None) or model
    inputs = graph._inputs_struct  # pylint: disable=protected-access
  else:
    # Of shapes alone, and only where there is one input.
    shapes = list((getattr(model, '_build_shapes_dict', None) or {}).values())
    if len(shapes) == 1 and isinstance(shapes[0], (tuple, list)) and (
        not any(isinstance(size, (tuple, list, dict)) for size in shapes[0])):
      return tf.TensorSpec((None, *shapes[0][1:]), model.input_dtype)
  return None if inputs is None else tf.nest.map_structure(
      lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), inputs)


def remember_inputs(model: Any, inputs: Any) -> None:
  """Tells a model what it was trained on, for `tf.saved_model.save`.

  Keras 2 learns it when the model itself is called; Keras 3 asks for none.
  """
  if not KERAS_3:
    model._set_save_spec(inputs)  # pylint: disable=protected-access


def is_scaled(layer: Any) -> bool:
  """Whether a layer's weights are not what it computes with (LoRA, int8)."""
  return bool(getattr(layer, 'lora_enabled', False) or
              getattr(layer, 'quantization_mode', None))


def generators(model: Any) -> List[Any]:
  """The random number generators inside a model, of which Keras 2 has none."""
  if not KERAS_3:
    return []
  found = {}
  for layer in [model, *flat_layers(model)]:
    for value in vars(layer).values():
      if isinstance(value, keras.random.SeedGenerator):
        found[id(value)] = value
  return list(found.values())


def compile_arguments(**arguments: Any) -> Any:
  """Arguments for `Model.compile` that each Keras understands.

  Gradients are unscaled before they are clipped, so that no optimizer must
  scale losses.
  """
  if not KERAS_3:
    return arguments
  given = {k: v for k, v in arguments.items() if v is not None}
  return {'auto_scale_loss': False, **given}


def unwrapped(optimizer: Any) -> Any:
  """An optimizer without loss scaling around it."""
  return getattr(optimizer, 'inner_optimizer', optimizer)


def bare_optimizer(model: Any) -> Any:
  """The optimizer of a model, without loss scaling around it."""
  # Keras 2 wraps it under mixed_float16, whatever it is told.
  return unwrapped(model.optimizer)


def is_wrapped(optimizer: Any) -> bool:
  """Whether loss scaling is around an optimizer, where it can know that.

  Keras 2 tells it. Keras 3 does not, and asks it for no gradients either.
  """
  return getattr(optimizer, '_is_wrapped_by_loss_scale_optimizer', False)


def in_xla() -> bool:
  """Whether what is traced now will be compiled by XLA."""
  return not tf.executing_eagerly() and (
      control_flow_util.GraphOrParentsInXlaContext(
          tf.compat.v1.get_default_graph()))


def log_loss(model: Any, predictions: tf.Tensor, losses: tf.Tensor,
             weights: tf.Tensor) -> None:
  """Updates the loss that `fit` logs: the mean over examples.

  Whatever the reduction of the compiled loss, which is not asked.

  Args:
    model: The compiled model.
    predictions: Shape (batch, ...).
    losses: Shape (batch,), not weighted.
    weights: Shape (batch,).
  """
  if not KERAS_3 and not model.compiled_loss.built:
    model.compiled_loss.build(predictions)  # Makes the metric.
  tracker = [metric for metric in model.metrics if metric.name == 'loss'][0]
  tracker.update_state(losses * tf.cast(weights, losses.dtype))


def steps_per_execution(model: Any) -> Optional[int]:
  """How many steps a model runs at a time; None if that may vary."""
  # Keras 2 tells of 'auto' by the first from TensorFlow 2.15 on, by the second
  # before.
  if getattr(model, '_autotune_steps_per_execution', False) or (
      getattr(model, '_steps_per_execution_tuner', None) is not None):
    return None
  steps = (model.steps_per_execution if KERAS_3 else
           getattr(model, '_steps_per_execution', None))
  if isinstance(steps, str):  # 'auto'
    return None
  return 1 if steps is None else int(steps)
