"""Batches drawn as the accountant assumes, and what each way is accounted as."""

from __future__ import annotations

import abc
import os
import threading
from typing import Any
from typing import Iterator
from typing import Optional
from typing import Tuple

import numpy as np
import tensorflow as tf

from tfcactus import _checks
from tfcactus.keras import data_sources
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.read_only import Fixed
from tfcactus.randomness import KeyStream
from tfcactus.sampling.schemes import Sampling

_Batch = Tuple[np.ndarray, np.ndarray, np.ndarray]


class PrivateBatches(Fixed, abc.ABC):
  """What all ways of choosing batches share.

  The third part of a batch is its weights: 1 for an example that was drawn and
  0 for padding, which contributes nothing. An example with NaN or infinity in
  it is treated as padding whenever it is drawn, which is a matter of that
  example alone.

  Draws come from AES-256 in counter mode under a fresh key from the operating
  system. With a seed they repeat, and amplification by sampling does not hold
  against whoever knows it: for experiments only.

  Attributes:
    num_examples: How many examples there are, a public number.
    steps_per_epoch: Batches per epoch.
    seeded: Whether the draws repeat.
  """

  _FIXED = dict.fromkeys(
      ('num_examples', 'sampling_prob', 'batch_size', 'seeded'),
      'Make other batches, and a plan that accounts for them.')

  sampling: Sampling

  def __init__(self, x: Any, y: Any, seed: Optional[int], purpose: str):
    super().__init__()
    self._data = data_sources.open_data(x, y)
    self.num_examples = self._data.num_examples
    self.seeded = seed is not None
    self._drawn = 0
    self._lock = threading.Lock()
    self._pid = os.getpid()
    if seed is not None:
      seed = _checks.integer('seed', seed, 0)
    self._stream = KeyStream(seed, purpose)

  @property
  def draws(self) -> int:
    """How many batches (passes, if each is shuffled) were drawn so far."""
    return self._drawn

  @abc.abstractmethod
  def check_plan(self, plan: Any) -> None:
    """Refuses a plan that accounts for other batches.

    Raises:
      ValueError: naming what differs.
    """

  @abc.abstractmethod
  def feed(self) -> tf.data.Dataset:
    """Returns what a `PrivateModel` trains on."""

  def two_examples(self) -> Tuple[np.ndarray, np.ndarray]:
    """Returns two usable rows of x and y, to try a loss on; no draw."""
    for start in range(0, self.num_examples, 256):
      x, y = _usable(*self._data.rows(
          np.arange(start, min(start + 256, self.num_examples))))
      if len(x):
        index = np.resize(np.arange(min(len(x), 2)), 2)
        return x[index], y[index]
    return self._data.rows(np.zeros(2, np.int64))

  def _locked(self) -> threading.Lock:
    """The lock to draw under, in the process that made the batches."""
    if os.getpid() != self._pid:
      raise RuntimeError(
          'Expected batches to be drawn in the process that made them: a '
          'forked copy would repeat the draws of the others. Use '
          'fit(..., use_multiprocessing=False).')
    return self._lock

  def _batch(self, index: np.ndarray, size: int = 1) -> _Batch:
    """The examples of a draw, padded to a multiple of `size`."""
    x, y = _usable(*self._data.rows(index))
    rows = max(-(-len(x) // size), 1) * size
    weights = np.zeros(rows, np.float32)
    weights[:len(x)] = 1
    return _pad(x, rows), _pad(y, rows), weights

  def _from_generator(self, generator: Any) -> tf.data.Dataset:
    signature = (*self._data.specs, tf.TensorSpec((None,), tf.float32))
    dataset = tf.data.Dataset.from_generator(
        generator, output_signature=signature)
    return dataset.prefetch(2)

  def _check_examples(self, plan: Any) -> None:
    if self.num_examples != plan.num_examples:
      raise ValueError(
          f'Expected batches with num_examples={plan.num_examples!r} as in the '
          f'plan, got num_examples={self.num_examples!r}; make both from the '
          'same numbers.')


class DrawnBatches(PrivateBatches, keras.utils.Sequence):
  """Batches each of which is a fresh draw, in each epoch."""

  steps_per_epoch: int
  physical_batch_size = 1

  @abc.abstractmethod
  def _draw(self) -> np.ndarray:
    """The indices of one batch's examples."""

  def _next(self) -> _Batch:
    with self._locked():
      index = self._draw()
      self._drawn += 1
    return self._batch(index, self.physical_batch_size)

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

    A `PrivateModel` reports an epsilon only for this object itself: what is
    done to a dataset (cache, repeat, take) cannot be seen.

    Args:
      steps: Number of batches, `steps_per_epoch` by default.
    """
    steps = _checks.integer(
        'steps', self.steps_per_epoch if steps is None else steps, 1)
    dataset = self.feed().take(steps)
    return dataset.apply(tf.data.experimental.assert_cardinality(steps))

  def feed(self) -> tf.data.Dataset:
    """Returns a dataset that draws batches as long as it is asked."""
    return self._from_generator(lambda: iter(self._next, None))


class PoissonBatches(DrawnBatches):
  """Batches that each example enters independently with probability q.

  Goes into `model.fit(batches, epochs=...)`. Batches vary in size; see
  `PrivateBatches` for what they hold. Nothing is ever truncated or drawn again,
  and an empty draw is one padded example.

  Attributes:
    sampling_prob: The probability q.
    physical_batch_size: Sizes are padded to a multiple of it.
  """

  sampling = Sampling.POISSON

  def __init__(self, x: Any, y: Any = None,
               sampling_prob: Optional[float] = None, *,
               steps_per_epoch: Optional[int] = None,
               physical_batch_size: Optional[int] = None,
               seed: Optional[int] = None):
    """Initialises the batches.

    Args:
      x: Array or tensor of examples, shape (num_examples, ...); not copied. Or,
        with y=None, the examples as pairs (x, y): a `tf.data.Dataset`, which is
        read once, in full, or a random access source (with a length and
        `__getitem__`, such as `tfds.data_source` of pairs), which is read as
        examples are drawn.
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
    super().__init__(x, y, seed, 'poisson batches')
    self.sampling_prob = _checks.sampling_prob(sampling_prob)
    self.steps_per_epoch = _checks.integer(
        'steps_per_epoch',
        round(1 / self.sampling_prob) if steps_per_epoch is None else
        steps_per_epoch, 1)
    self.physical_batch_size = _checks.integer(
        'physical_batch_size',
        1 if physical_batch_size is None else physical_batch_size, 1)

  @property
  def expected_batch_size(self) -> float:
    """sampling_prob * num_examples."""
    return self.sampling_prob * self.num_examples

  def check_plan(self, plan: Any) -> None:
    """Refuses a plan of another num_examples or sampling_prob.

    Raises:
      ValueError: naming what differs.
    """
    self._check_examples(plan)
    if self.sampling_prob != plan.sampling_prob:
      raise ValueError(
          f'Expected batches with sampling_prob={plan.sampling_prob!r} as in '
          f'the plan, got sampling_prob={self.sampling_prob!r}; make both from '
          'the same numbers.')

  def _draw(self) -> np.ndarray:
    return np.flatnonzero(
        self._stream.below(self.sampling_prob, self.num_examples))


class FixedSizeBatches(DrawnBatches):
  """Batches of a fixed number of examples, drawn without replacement.

  Each batch is a uniformly random subset of all examples, drawn anew for each
  step. Costs about as much as Poisson batches with half the noise multiplier:
  an example that enters displaces another one, so that a sum changes by up to
  twice the clip norm.

  Attributes:
    batch_size: Examples to a batch.
  """

  sampling = Sampling.FIXED_SIZE

  def __init__(self, x: Any, y: Any = None, batch_size: Optional[int] = None, *,
               steps_per_epoch: Optional[int] = None,
               seed: Optional[int] = None):
    """Initialises the batches.

    Args:
      x: As for `PoissonBatches`.
      y: As for `PoissonBatches`.
      batch_size: Examples to a batch; a plan accounts for it with sampling_prob
        = batch_size / num_examples.
      steps_per_epoch: Batches per epoch; num_examples / batch_size rounded by
        default.
      seed: For repeatable experiments; None takes the system's entropy.

    Raises:
      ValueError: if an argument is invalid.
    """
    super().__init__(x, y, seed, 'fixed-size batches')
    self.batch_size = _checked_size(batch_size, self.num_examples)
    self.steps_per_epoch = _checks.integer(
        'steps_per_epoch',
        round(self.num_examples / self.batch_size) if steps_per_epoch is None
        else steps_per_epoch, 1)

  def check_plan(self, plan: Any) -> None:
    """Refuses a plan of another num_examples or batch size.

    Raises:
      ValueError: naming what differs.
    """
    self._check_examples(plan)
    if self.batch_size != plan.sample_size:
      raise ValueError(
          f'Expected batches with batch_size={plan.sample_size}, the plan\'s '
          f'sampling_prob * num_examples, got batch_size={self.batch_size}.')

  def _draw(self) -> np.ndarray:
    return self._stream.subset(self.batch_size, self.num_examples)


class ShuffledBatches(PrivateBatches):
  """Passes over all examples in a fresh random order, in batches.

  Each example is in one batch of a pass, and the last batch may be smaller. No
  amplification by shuffling is proved for training, so that a pass is accounted
  as what holds for any order: one release that each example takes part in.

  Attributes:
    batch_size: Examples to a batch.
  """

  sampling = Sampling.EACH_EXAMPLE_ONCE

  def __init__(self, x: Any, y: Any = None, batch_size: Optional[int] = None, *,
               seed: Optional[int] = None):
    """Initialises the batches.

    Args:
      x: As for `PoissonBatches`.
      y: As for `PoissonBatches`.
      batch_size: Examples to a batch.
      seed: For repeatable experiments; None takes the system's entropy.

    Raises:
      ValueError: if an argument is invalid.
    """
    super().__init__(x, y, seed, 'shuffled batches')
    self.batch_size = _checked_size(batch_size, self.num_examples)
    self.steps_per_epoch = -(-self.num_examples // self.batch_size)

  def check_plan(self, plan: Any) -> None:
    """Refuses a plan of another num_examples.

    Raises:
      ValueError: naming what differs.
    """
    self._check_examples(plan)

  def __len__(self) -> int:
    return self.steps_per_epoch

  def __iter__(self) -> Iterator[_Batch]:
    """Yields the batches of one pass."""
    with self._locked():
      order = self._stream.permutation(self.num_examples)
      self._drawn += 1
    for start in range(0, self.num_examples, self.batch_size):
      yield self._batch(order[start:start + self.batch_size])

  def feed(self) -> tf.data.Dataset:
    """Returns a dataset that is one pass, in a fresh order each time."""
    return self._from_generator(lambda: iter(self)).apply(
        tf.data.experimental.assert_cardinality(self.steps_per_epoch))


def _checked_size(batch_size: Any, num_examples: int) -> int:
  size = _checks.integer('batch_size', batch_size, 1)
  if size > num_examples:
    raise ValueError(
        f'Expected batch_size of at most num_examples={num_examples}, got '
        f'batch_size={size}.')
  return size


def _usable(x: np.ndarray, y: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
  """The examples without NaN and infinity."""
  usable = data_sources.finite_rows(x) & data_sources.finite_rows(y)
  return (x, y) if usable.all() else (x[usable], y[usable])


def _pad(rows: np.ndarray, size: int) -> np.ndarray:
  if len(rows) == size:
    return rows
  padding = np.zeros((size - len(rows),) + rows.shape[1:], rows.dtype)
  return np.concatenate([rows, padding])
