"""Reads the examples of `tf.data` datasets, each of which comes once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
import warnings

import numpy as np
import tensorflow as tf

from tfcactus.keras.compat import graphs
from tfcactus.keras.independence import draws

_BLOCK = 4096
"""Number of examples of a dataset to read at a time."""


def blocks(dataset: tf.data.Dataset) -> Iterator[Any]:
  """Returns an iterator over blocks of `_BLOCK` pairs or triples of a dataset.

  Warns of random augmentation, which is drawn once for all steps. Raises ValueError
  for elements of unknown shape or of another structure, or as `check_once`.
  """
  spec = dataset.element_spec
  if not isinstance(spec, tuple) or len(spec) not in (2, 3) or not all(
      isinstance(part, tf.TensorSpec) and part.shape.is_fully_defined()
      for part in tf.nest.flatten(spec)):
    raise ValueError(
        'Expected a dataset whose elements are pairs (x, y), or (x, y, weight), of '
        f'known shape, one for each example, got {spec}; use '
        'tfds.load(as_supervised=True), unbatch() one of batches, and make ragged and '
        'sparse parts dense before.')
  check_once(dataset)
  if draw := next((
      node.op for each in _sources(dataset) for function in each._functions()
      for node in graphs.nodes(function.function.graph) if draws.draws(node)), ''):
    warnings.warn(
        f'A dataset that draws at random ({draw}) was read once: what it drew for an '
        'example, such as an augmented image, stays the same in all batches. Put '
        'random layers into the model instead, such as '
        'tf.keras.layers.RandomFlip, or draw in the parse of TFRecordExamples.',
        stacklevel=6)
  return dataset.batch(_BLOCK).as_numpy_iterator()


def check_once(dataset: tf.data.Dataset) -> None:
  """Raises ValueError for an infinite dataset, or one that repeats its elements."""
  # A constant beside examples, a dataset of one element, may be repeated.
  if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY or any(
      type(each).__name__ == '_RepeatDataset' and int(each._count) != 1 and
      int(each._input_dataset.cardinality()) != 1 for each in _sources(dataset)):
    raise ValueError(
        'Expected a dataset of each example once, got one that repeats examples; leave '
        'out repeat(): epsilon is for an example that comes once, and batches are '
        'drawn as often as they are asked for.')


def read(dataset: tf.data.Dataset) -> list[Any]:
  """Reads a dataset once; returns [x, y] or [x, y, weights], structures of arrays."""
  found, spec, count = blocks(dataset), dataset.element_spec, int(dataset.cardinality())
  if count < 0:  # TensorFlow does not know the length in advance.
    parts = list(found) or [tf.nest.map_structure(
        lambda part: np.zeros((0,) + tuple(part.shape)), spec)]
    return list(tf.nest.map_structure(lambda *parts: np.concatenate(parts), *parts))
  # Filled block by block, so that memory never holds the data twice.
  arrays = tf.nest.map_structure(
      lambda part: np.empty([count] + part.shape, part.dtype.as_numpy_dtype), spec)
  done = 0
  for block in found:
    flat = tf.nest.flatten(block)
    for array, part in zip(tf.nest.flatten(arrays), flat):
      array[done:done + len(part)] = part
    done += len(flat[0])
  return list(tf.nest.map_structure(lambda array: array[:done], arrays))


def _sources(dataset: Any) -> Iterator[Any]:
  """Yields a dataset and its inputs, but not what `sample_from_datasets` selects by."""
  yield dataset
  for inner in dataset._inputs():  # pylint: disable=protected-access
    if inner is not getattr(dataset, '_selector_input', None):
      yield from _sources(inner)
