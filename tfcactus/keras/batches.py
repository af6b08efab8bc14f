"""Poisson-sampled batches: the sampling that the accountant assumes."""

from __future__ import annotations

import os
import threading
from typing import Any
from typing import Iterator
from typing import Optional
from typing import Tuple

import numpy as np
import tensorflow as tf

from tfcactus import _checks
from tfcactus.keras._compat import keras
from tfcactus.noise.bits import KeyStream

_Batch = Tuple[np.ndarray, np.ndarray, np.ndarray]


class PoissonBatches(keras.utils.Sequence):
  """Batches that each example enters independently with probability q.

  Goes into `model.fit(batches, epochs=...)`. Each batch is a fresh draw, in
  each epoch. Batches vary in size; the third part of a batch is its weights: 1
  for an example that was drawn and 0 for padding, which contributes nothing.
  Nothing is ever truncated or drawn again, and an empty draw is one padded
  example. An example with NaN or infinity in it is treated as padding whenever
  it is drawn, which is a matter of that example alone.

  Draws come from AES-256 in counter mode under a fresh key from the operating
  system. With a seed they repeat, and amplification by sampling does not hold
  against whoever knows it: for experiments only.

  Attributes:
    num_examples: How many examples there are, a public number.
    sampling_prob: The probability q.
    steps_per_epoch: Batches per epoch.
    physical_batch_size: Sizes are padded to a multiple of it.
    seeded: Whether the draws repeat.
    draws: How many batches were drawn so far.
  """

  def __init__(self, x: Any, y: Any, sampling_prob: float, *,
               steps_per_epoch: Optional[int] = None,
               physical_batch_size: Optional[int] = None,
               seed: Optional[int] = None):
    """Initialises the batches.

    Args:
      x: Array or tensor of examples, shape (num_examples, ...).
      y: Array or tensor of targets, shape (num_examples, ...).
      sampling_prob: The probability q in (0, 1] of each example to enter.
      steps_per_epoch: Batches per epoch; 1 / q rounded by default, so that an
        epoch sees each example once on average.
      physical_batch_size: Pad each batch to a multiple of this size; by
        default only empty ones are padded. (A `PrivateModel` pads by itself.)
      seed: For repeatable experiments; None takes the system's entropy.

    Raises:
      ValueError: if an argument is invalid.
    """
    super().__init__()
    self._x, self._y = _array('x', x), _array('y', y)
    if len(self._x) != len(self._y) or not len(self._x):
      raise ValueError(
          'Expected x and y of the same length of at least one, got '
          f'{len(self._x)} examples in x and {len(self._y)} in y.')
    self.num_examples = len(self._x)
    self._usable = _finite_rows(self._x) & _finite_rows(self._y)
    self.sampling_prob = _checks.sampling_prob(sampling_prob)
    self.steps_per_epoch = _checks.integer(
        'steps_per_epoch',
        round(1 / self.sampling_prob) if steps_per_epoch is None else
        steps_per_epoch, 1)
    self.physical_batch_size = _checks.integer(
        'physical_batch_size',
        1 if physical_batch_size is None else physical_batch_size, 1)
    self.seeded = seed is not None
    self.draws = 0
    self._lock = threading.Lock()
    self._pid = os.getpid()
    if seed is not None:
      seed = _checks.integer('seed', seed, 0)
    self._stream = KeyStream(seed, 'poisson batches')

  @property
  def expected_batch_size(self) -> float:
    """sampling_prob * num_examples."""
    return self.sampling_prob * self.num_examples

  def __len__(self) -> int:
    return self.steps_per_epoch

  def __getitem__(self, index: int) -> _Batch:
    if not 0 <= index < self.steps_per_epoch:
      raise IndexError(
          f'Expected a batch index in [0, {self.steps_per_epoch}), got '
          f'{index}.')
    return self._next()

  def __iter__(self) -> Iterator[_Batch]:
    for _ in range(self.steps_per_epoch):
      yield self._next()

  def dataset(self, steps: Optional[int] = None) -> tf.data.Dataset:
    """Returns the batches of one epoch as a dataset; each pass draws afresh.

    A `PrivateModel` reports an epsilon only for the `PoissonBatches` object
    itself: what is done to a dataset (cache, repeat, take) cannot be seen.

    Args:
      steps: Number of batches, `steps_per_epoch` by default.
    """
    steps = _checks.integer(
        'steps', self.steps_per_epoch if steps is None else steps, 1)
    dataset = self.endless_dataset().take(steps)
    return dataset.apply(tf.data.experimental.assert_cardinality(steps))

  def endless_dataset(self) -> tf.data.Dataset:
    """Returns a dataset that draws batches as long as it is asked."""
    signature = (
        tf.TensorSpec((None,) + self._x.shape[1:], self._x.dtype),
        tf.TensorSpec((None,) + self._y.shape[1:], self._y.dtype),
        tf.TensorSpec((None,), tf.float32))
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(self._next, None), output_signature=signature)
    return dataset.prefetch(2)

  def two_examples(self) -> Tuple[np.ndarray, np.ndarray]:
    """Returns two usable rows of x and y, to try a loss on; no draw."""
    index = np.resize(np.flatnonzero(self._usable)[:2], 2)
    return self._x[index], self._y[index]

  def _next(self) -> _Batch:
    """Draws one batch and pads it."""
    with self._lock:
      if os.getpid() != self._pid:
        raise RuntimeError(
            'Expected batches to be drawn in the process that made them: a '
            'forked copy would repeat the draws of the others. Use '
            'fit(..., use_multiprocessing=False).')
      drawn = self._stream.below(self.sampling_prob, self.num_examples)
      self.draws += 1
    index = np.flatnonzero(drawn & self._usable)
    size = self.physical_batch_size
    rows = max(-(-index.size // size), 1) * size
    weights = np.zeros(rows, np.float32)
    weights[:index.size] = 1
    return _pad(self._x[index], rows), _pad(self._y[index], rows), weights


def _array(name: str, value: Any) -> np.ndarray:
  array = np.asarray(value)
  if array.ndim == 0 or array.dtype.kind not in 'fiub':
    raise ValueError(
        f'Expected {name} to be an array of numbers with examples along its '
        f'first axis, got shape {array.shape} and dtype {array.dtype}.')
  return array


def _finite_rows(array: np.ndarray) -> np.ndarray:
  axes = tuple(range(1, array.ndim))
  return np.all(np.isfinite(array), axis=axes)


def _pad(rows: np.ndarray, size: int) -> np.ndarray:
  padding = np.zeros((size - len(rows),) + rows.shape[1:], rows.dtype)
  return np.concatenate([rows, padding])
