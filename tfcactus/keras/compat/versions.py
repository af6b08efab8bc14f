"""The Keras that this package runs on: `keras`, its version, and checks.

`keras` is the package behind `tf.keras`: Keras 2 on TensorFlow 2.14 and 2.15, and on
later ones with tf-keras and TF_USE_LEGACY_KERAS=1; otherwise Keras 3. No other module
compares versions.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import tensorflow as tf

_OLDEST_TENSORFLOW = (2, 14)
_OLDEST_KERAS_3 = (3, 5)
_WITHOUT_LEGACY = (2, 16)
"""TensorFlow from which on the optimizers of TensorFlow Privacy fail to import."""


def _parts(version: str) -> tuple[int, int]:
  """Returns (major, minor) of a version string."""
  major, minor = version.split('.')[:2]
  return int(major), int(minor)


def check_versions(tensorflow: str, keras_version: str,
                   backend: str = 'tensorflow') -> None:
  """Raises ImportError, saying what to install, for unsupported versions."""
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
  """Imports the Keras behind `tf.keras`; raises ImportError with reason and remedy."""
  try:
    # Not tf.keras, which lacks parts of Keras 3, such as `saving`.
    return importlib.import_module(tf.keras.Model.__module__.split('.')[0])
  except Exception as first:  # pylint: disable=broad-except
    # Whatever the reason, TensorFlow says only that Keras is missing.
    reason: Exception = first
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


def check_same_keras(name: str, thing: object) -> None:
  """Raises ValueError if `thing`, an argument, is of another Keras than `tf.keras`."""
  cls = thing if isinstance(thing, type) else type(thing)
  packages = [base.__module__.split('.')[0] for base in cls.__mro__]
  if keras.__name__ in packages:
    return
  if any(base.__module__.startswith('tensorflow.python.keras') for base in cls.__mro__):
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
  """Returns whether `import tensorflow_privacy` works, optimizers included."""
  return _parts(tf.__version__) < _WITHOUT_LEGACY


def choose(*, keras_2: Any, keras_3: Any) -> Any:
  """Returns `keras_3` under Keras 3, else `keras_2`."""
  return keras_3 if KERAS_3 else keras_2
