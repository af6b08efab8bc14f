"""What a model of the zoo is, and what all of them are made with.

An entry is a function that takes a `Size` and returns a `Case`. It is listed under
a name, with what is expected of it: to run, or the words in which it is refused.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf

from tfcactus.keras.compat.versions import keras, KERAS_3

layers, losses = tf.keras.layers, tf.keras.losses


class Bare:
  """What users of each Keras call between layers."""

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
  """A model, and what it is trained on.

  Attributes:
    model: Not compiled.
    x: Inputs, as `fit` takes them.
    y: Targets.
    loss: As `compile` takes it.
    loss_weights: Likewise.
    sample_weight: As `fit` takes it.
    objective: (model, x, y) -> what its author trains it by, where that is not
      the model's `compute_loss`.
  """

  model: Any
  x: Any
  y: Any
  loss: Any
  loss_weights: Any = None
  sample_weight: Any = None
  objective: Callable[..., Any] | None = None


class Size:
  """Small for a comparison with a loop, real for a benchmark.

  Attributes:
    rows: How many examples.
    rng: Draws them.
  """

  def __init__(self, rows: int, real: bool = False):
    """Initialises the size."""
    self.rows = rows
    self.rng = np.random.default_rng(0)
    self._real = real

  def __call__(self, small: Any, real: Any) -> Any:
    """The one of both that is asked for."""
    return real if self._real else small

  def floats(self, *shape: int) -> np.ndarray:
    """Normal numbers for all examples."""
    return self.rng.normal(size=(self.rows, *shape)).astype(
        keras.backend.floatx())

  def labels(self, classes: int, *shape: int) -> np.ndarray:
    """Labels of so many classes."""
    return self.rng.integers(0, classes, (self.rows, *shape)).astype(np.int32)

  def tokens(self, length: int, vocabulary: int) -> np.ndarray:
    """Texts of any lengths from one, padded with zeros."""
    found = self.rng.integers(1, vocabulary, (self.rows, length))
    ends = self.rng.integers(1, length + 1, (self.rows, 1))
    return np.where(np.arange(length) < ends, found, 0).astype(np.int32)


class Entry(NamedTuple):
  """A line of the zoo.

  Attributes:
    make: Makes the case of a size.
    refused: Words in which it is refused, by the version of Keras; or ''.
    wrong: What its sums are known to be wrong by, by the version of Keras; or ''.
    keras3: Whether it is written for Keras 3 alone.
    fast: Whether it is tested in the default suite.
    float32: Whether float32 is precise enough to compare at all.
    float64: Whether there is a variant in float64.
    policy: Of the dtypes.
    tolerance: Of the comparison in float32 or less.
    penalty: Whether its regularisers are added to what is clipped and noisy.
  """

  make: Callable[[Size], Case]
  refused: dict[int, str]
  wrong: dict[int, str]
  keras3: bool = False
  fast: bool = False
  float32: bool = True
  float64: bool = True
  policy: str = ''
  tolerance: float = 1e-5
  penalty: bool = False


ZOO: dict[str, Entry] = {}
"""All models by name."""


def entry(name: str, refused: str = '', refused2: str = '', refused3: str = '',
          wrong: str = '', wrong2: str = '', wrong3: str = '', **kwargs: Any
         ) -> Callable[[Callable[[Size], Case]], Callable[[Size], Case]]:
  """Lists a function.

  Args:
    name: Of the model.
    refused: Words in which it is refused; '' where it runs.
    refused2: The same under Keras 2 alone.
    refused3: The same under Keras 3 alone.
    wrong: By how much its sums are known to be wrong.
    wrong2: The same under Keras 2 alone.
    wrong3: The same under Keras 3 alone.
    **kwargs: Other attributes of the `Entry`.
  """

  def listed(make: Callable[[Size], Case]) -> Callable[[Size], Case]:
    assert name not in ZOO, name
    ZOO[name] = Entry(make, {2: refused or refused2, 3: refused or refused3},
                      {2: wrong or wrong2, 3: wrong or wrong3}, **kwargs)
    return make

  return listed


def logits_loss() -> Any:
  """The usual loss of a classifier."""
  return losses.SparseCategoricalCrossentropy(from_logits=True)


def classified(s: Size, inputs: Any, outputs: Any, x: Any, classes: int) -> Case:
  """The case of a functional classifier."""
  return Case(tf.keras.Model(inputs, outputs), x, s.labels(classes), logits_loss())


def function(call: Callable[..., Any], shape: Any = None) -> Any:
  """A Lambda layer."""
  return layers.Lambda(call, **({} if shape is None else {'output_shape': shape}))
