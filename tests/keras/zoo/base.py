"""Entries of the zoo of models, and helpers that the models share.

An entry is a function that takes a `Size` and returns a `Case`. It is listed under
a name with the expected outcome: that it runs, or the words of its refusal.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf

from tfcactus.keras.compat.versions import keras, KERAS_3

layers, losses = tf.keras.layers, tf.keras.losses
HAS_HUB = importlib.util.find_spec('keras_hub') is not None
"""Whether KerasHub is installed. Entries import it, which takes a second."""


class Bare:
  """Functions that users of each Keras call between layers."""

  if KERAS_3:
    relu, mean, total, exp = (
        keras.ops.relu, keras.ops.mean, keras.ops.sum, keras.ops.exp)
    matmul, softmax, transpose = (
        keras.ops.matmul, keras.ops.softmax, keras.ops.transpose)
    sin, cos, cast, stack, tanh, abs = (
        keras.ops.sin, keras.ops.cos, keras.ops.cast, keras.ops.stack,
        keras.ops.tanh, keras.ops.absolute)
  else:
    relu, mean, total, exp = tf.nn.relu, tf.reduce_mean, tf.reduce_sum, tf.exp
    matmul, softmax, transpose = tf.matmul, tf.nn.softmax, tf.transpose
    sin, cos, cast, stack, tanh, abs = (
        tf.sin, tf.cos, tf.cast, tf.stack, tf.tanh, tf.abs)


class Case(NamedTuple):
  """A model and its training data.

  Attributes:
    model: A model that is not compiled.
    x: Inputs, as `fit` takes them.
    y: Targets.
    loss: Argument of `compile`.
    loss_weights: Argument of `compile`.
    sample_weight: Argument of `fit`.
    objective: (model, x, y) -> the training loss, where that is not the model's
      `compute_loss`.
  """

  model: Any
  x: Any
  y: Any
  loss: Any
  loss_weights: Any = None
  sample_weight: Any = None
  objective: Callable[..., Any] | None = None


class Size:
  """The size of models and data: small for tests, real for a benchmark.

  Attributes:
    rows: Number of examples.
    rng: Draws the examples.
  """

  def __init__(self, rows: int, real: bool = False):
    """Initialises the size."""
    self.rows = rows
    self.rng = np.random.default_rng(0)
    self._real = real

  def __call__(self, small: Any, real: Any) -> Any:
    """Returns the number of the two that this size stands for."""
    return real if self._real else small

  def floats(self, *shape: int) -> np.ndarray:
    """Returns normal numbers for all examples."""
    return self.rng.normal(size=(self.rows, *shape)).astype(
        keras.backend.floatx())

  def labels(self, classes: int, *shape: int) -> np.ndarray:
    """Returns labels of this many classes."""
    return self.rng.integers(0, classes, (self.rows, *shape)).astype(np.int32)

  def tokens(self, length: int, vocabulary: int) -> np.ndarray:
    """Returns texts of length one or more, padded with zeros."""
    found = self.rng.integers(1, vocabulary, (self.rows, length))
    ends = self.rng.integers(1, length + 1, (self.rows, 1))
    return np.where(np.arange(length) < ends, found, 0).astype(np.int32)


class Entry(NamedTuple):
  """A line of the zoo.

  Attributes:
    make: Makes the case of a size.
    refused: Words of the refusal by version of Keras, or ''.
    wrong: A known error of the sums by version of Keras, or ''.
    keras3: Whether the model is written for Keras 3 alone.
    hub: Whether the model is one of KerasHub, which is for Keras 3 alone.
    fast: Whether `make test` or `make test-all` runs it; others are slow.
    float32: Whether float32 is precise enough for a comparison.
    float64: Whether there is a variant in float64.
    policy: The dtype policy.
    tolerance: Tolerance of the comparison in float32 or less.
    penalty: Whether regularisers are added to the clipped and noisy sum.
  """

  make: Callable[[Size], Case]
  refused: dict[int, str]
  wrong: dict[int, str]
  keras3: bool = False
  hub: bool = False
  fast: bool = False
  float32: bool = True
  float64: bool = True
  policy: str = ''
  tolerance: float = 1e-5
  penalty: bool = False

  def topic(self) -> str:
    """Returns the name of the module that has the entry."""
    return self.make.__module__.rpartition('.')[2]

  def missing(self) -> str:
    """Returns what the model needs that is not installed, or ''."""
    if (self.keras3 or self.hub) and not KERAS_3:
      return 'Keras 3'
    return '' if HAS_HUB or not self.hub else 'KerasHub'


ZOO: dict[str, Entry] = {}
"""All models by name."""


def entry(name: str, refused: str = '', refused2: str = '', refused3: str = '',
          wrong: str = '', wrong2: str = '', wrong3: str = '', **kwargs: Any
         ) -> Callable[[Callable[[Size], Case]], Callable[[Size], Case]]:
  """Returns a decorator that lists a function as an entry.

  Args:
    name: Name of the model.
    refused: Words of the refusal, or '' if the model runs.
    refused2: Words of the refusal under Keras 2 alone.
    refused3: Words of the refusal under Keras 3 alone.
    wrong: A known error of the sums.
    wrong2: A known error under Keras 2 alone.
    wrong3: A known error under Keras 3 alone.
    **kwargs: Other attributes of the `Entry`.
  """

  def listed(make: Callable[[Size], Case]) -> Callable[[Size], Case]:
    assert name not in ZOO, name
    ZOO[name] = Entry(make, {2: refused or refused2, 3: refused or refused3},
                      {2: wrong or wrong2, 3: wrong or wrong3}, **kwargs)
    return make

  return listed


def logits_loss() -> Any:
  """Returns the usual loss of a classifier."""
  return losses.SparseCategoricalCrossentropy(from_logits=True)


def classified(s: Size, inputs: Any, outputs: Any, x: Any, classes: int) -> Case:
  """Returns the case of a functional classifier."""
  return Case(tf.keras.Model(inputs, outputs), x, s.labels(classes), logits_loss())


def function(call: Callable[..., Any], shape: Any = None) -> Any:
  """Returns a Lambda layer."""
  return layers.Lambda(call, **({} if shape is None else {'output_shape': shape}))
