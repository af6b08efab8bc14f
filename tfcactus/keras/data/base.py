"""Base class of batches for Keras: drawn by a sampling scheme, padded and marked."""

from __future__ import annotations

from collections.abc import Iterator
import copy
import itertools
import os
import threading
from typing import Any, Callable
import weakref
import zlib

import numpy as np
import tensorflow as tf

from tfcactus import _checks
from tfcactus._checks import Fixed
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.data import data_sources, plain_fit, units as units_lib
from tfcactus.keras.data.batch_marks import BatchMarks
from tfcactus.keras.distribution.replicas import Shares, WHOLE
from tfcactus.plan import PrivacyPlan
from tfcactus.randomness import KeyStream
from tfcactus.sampling import SamplingScheme

_Batch = tuple[Any, Any, Any]


class SampledBatches(Fixed, keras.utils.Sequence):
  """Batches of the examples that a sampling scheme draws.

  Goes into `model.fit(batches, epochs=...)`. The third part of a batch is weights: for
  an example drawn 1, or its `sample_weight`, and 0 for padding, which contributes
  nothing. An example that holds NaN or infinity is left out whenever it is drawn; this
  depends on no other example.

  With `units`, the scheme draws units, such as users, and a step takes up to
  `examples_per_unit` rows of each; see `UnitData`. num_examples and batch sizes then
  count units, and `fit` needs a plan with a `unit`.

  A `fit` of a model that is not private raises ValueError, since noise was most likely
  forgotten; for such training pass `batches.for_plain_training()`.

  Draws come from AES-256 in counter mode under a fresh key from the operating system.
  Use a seed for experiments only: amplification by sampling does not hold against
  whoever knows it.

  Attributes:
    scheme: The `SamplingScheme`.
    num_examples: Number of examples (public), over all workers.
    size: Number of examples that this worker holds.
    side: The `Side` of a `Split` that the examples are on; None without a split.
    examples_per_unit: Most rows of a unit in a step; None if examples are rows.
    part_of: `num_examples` if each worker holds a part of the examples, else None.
    steps_per_epoch: Batches per epoch.
    physical_batch_size: Batches are padded to a multiple of this size.
    seeded: Whether the draws repeat.
  """

  _FIXED = dict.fromkeys(
      ('scheme', 'num_examples', 'part_of', 'sampling_prob', 'batch_size', 'seeded',
       'draws', 'side', 'steps_per_epoch', 'examples_per_unit'),
      'Make other batches, and a plan that accounts for them.')

  def __init__(self, x: Any, y: Any, scheme: SamplingScheme, *,
               steps_per_epoch: int | None = None,
               physical_batch_size: int | None = None,
               seed: int | None = None, sample_weight: Any = None,
               part_of: int | None = None, units: Any = None,
               examples_per_unit: int | None = None):
    """Initialises the batches; other arguments, and errors, as for `PoissonBatches`.

    Args:
      scheme: A sampling scheme of `tfcactus.sampling`.
      steps_per_epoch: Batches per epoch; by default the scheme's `batches_per_epoch`.
        Leave it out for a scheme that draws epochs as a whole.
      part_of: Only for schemes that draw examples independently.
    """
    super().__init__()
    self._data = units_lib.open_data(x, y, sample_weight, units, examples_per_unit)
    data_sources.check_weights(self._data.flat)
    self.size, self.side = self._data.num_examples, self._data.side
    self.examples_per_unit = getattr(self._data, 'examples_per_unit', None)
    self.part_of = part_of
    self.num_examples = self.size if part_of is None else part_of
    _check_scheme(scheme, self.num_examples, steps_per_epoch)
    self.scheme = scheme
    self.steps_per_epoch = _checks.integer(
        'steps_per_epoch', scheme.batches_per_epoch if steps_per_epoch is None else
        steps_per_epoch, 1)
    self.physical_batch_size = _checks.integer(
        'physical_batch_size',
        1 if physical_batch_size is None else physical_batch_size, 1)
    self.seeded = seed is not None
    if self.seeded and part_of is not None:
      raise ValueError(
          f'Expected no seed with part_of, got seed={seed!r}: all workers would draw '
          'alike, and the draws of their parts would not be independent.')
    seed = None if seed is None else _checks.integer('seed', seed, 0)
    self._stream = KeyStream(seed, f'{scheme.name} batches')
    if isinstance(self._data, units_lib.UnitData):
      self._data = self._data.drawn_by(seed)
    drawn = scheme if part_of is None else scheme.of_part(self.size)
    self._next_draw = drawn.drawer(self._stream)
    self._share_begins = False  # Whether `share` was called for the next iteration.
    self._canaries: np.ndarray | None = None
    self._drawn = 0
    self._lock = threading.Lock()
    self._pid = os.getpid()
    self._plain = False

  def for_plain_training(self) -> SampledBatches:
    """Returns a copy for models without privacy, drawing on from the same stream."""
    plain = copy.copy(self)
    plain._plain = True
    return plain

  @property
  def has_canaries(self) -> bool:
    """True if batches contain canaries, which `plant` adds to the data."""
    return self._canaries is not None

  def plant(self, present: np.ndarray) -> None:
    """Makes all further draws include canaries, as examples after those of the data.

    A scheme of the same kind draws canaries, so that draws of examples do not change.
    `present`, bool, shape (canaries,), says which canaries have a row in the batches
    that draw them: a row of padding, whose mark has the canary's number. Does nothing
    if `present` itself is planted already. Raises ValueError if batches are seeded,
    hold a part of the examples or another audit's canaries, or if no canary would be
    drawn.
    """
    if self._canaries is present:
      return
    if self.seeded or self.part_of is not None:
      raise ValueError(
          'Expected batches without seed and part_of with audit=, got '
          f'{"a seed" if self.seeded else "part_of"}: canaries are drawn in secret, by '
          'the process that holds all examples.')
    if self._canaries is not None:
      raise ValueError(
          f'Expected {type(self).__name__} without the canaries of another model with '
          'audit=, got batches that hold them; make new ones.')
    none = np.zeros(0, np.int64)
    with self._lock:
      # Indices of canaries follow those of the examples. Drawn records beyond the
      # number of canaries (see `SamplingScheme.beside`) are left out.
      examples = self._next_draw
      canaries = self.scheme.beside(present.size).drawer(self._stream)
      self._canaries = present
      self._next_draw = lambda: [
          np.append(index, self.size + drawn[drawn < present.size])
          for index, drawn in itertools.zip_longest(
              examples(), canaries(), fillvalue=none)]

  def _check_private(self, source: Any) -> None:
    """Raises ValueError if a plain model is fitted on `source`, these or a dataset."""
    if not self._plain:
      plain_fit.refuse(source)

  def fingerprint(self) -> int:
    """Returns the `data_sources.checksum` of the examples; workers compare theirs."""
    return data_sources.checksum(self._data)

  def share(self, secret: bytes) -> None:
    """Makes the next `fit` draw from `secret`, a key that all workers use."""
    with self._lock:
      self._stream = KeyStream.of_key(secret)
      self._next_draw = self.scheme.drawer(self._stream)
      self._share_begins = True

  @property
  def draws(self) -> int:
    """Number of draws of the scheme so far: batches, or epochs."""
    return self._drawn

  def check_plan(self, plan: PrivacyPlan) -> None:
    """Raises ValueError, naming the difference, if the plan is for other batches."""
    if (plan.unit == 'example') != (self.examples_per_unit is None):
      raise ValueError(
          'Expected batches of the unit of the plan, '
          f'unit={plan.unit!r}, got batches that draw '
          f'{"rows" if self.examples_per_unit is None else "units"}; make both '
          "alike: PrivacyPlan.for_training(unit='user', num_units=...) with "
          'batches of units=ids, examples_per_unit=k, or neither.')
    self.scheme.check_plan(plan)

  def __repr__(self) -> str:
    kind = 'examples' if self.examples_per_unit is None else 'units'
    return (f'<{type(self).__name__} of {self.num_examples:,} {kind}: {self.scheme}, '
            f'{self.steps_per_epoch} batches per epoch, {self._drawn} drawn'
            f'{", seeded" if self.seeded else ""}>')

  def two_examples(self) -> tuple[Any, Any]:
    """Returns (x, y) of two rows of the data, or one twice, to try a loss on.

    The rows hold no NaN and infinity, unless all rows do. Draws no batch.
    """
    data = self._data.flat
    for parts in map(_usable, data.blocks(256)):
      if _count(parts):
        return tf.nest.map_structure(
            lambda part: part[np.resize(np.arange(min(len(part), 2)), 2)], parts[:2])
    return data.rows(np.zeros(2, np.int64))[:2]

  def example_batch(self) -> _Batch:
    """Returns a batch of the first row twice, padded, to build a model on; no draw."""
    return _with_tensors(self._batch_of(self._data.flat.rows(np.zeros(2, np.int64))))

  def __len__(self) -> int:
    """Returns the batches per epoch; refuses `fit` of a plain model."""
    self._check_private(self)
    return self.steps_per_epoch

  def __getitem__(self, index: int) -> _Batch:
    """Returns a batch drawn afresh for any index below `steps_per_epoch`.

    Raises TypeError if the scheme draws epochs, IndexError for other indices.
    """
    self._check_private(self)
    if self.scheme.draws_epochs:
      raise TypeError(
          f'Expected iteration over the batches of {type(self.scheme).__name__}, '
          'which draws an epoch as a whole, got an index.')
    if not 0 <= index < self.steps_per_epoch:
      raise IndexError(
          f'Expected a batch index in [0, {self.steps_per_epoch}), got {index}.')
    index_of_examples, = self._draw()
    return _with_tensors(self._flat_batch(index_of_examples))

  def __iter__(self) -> Iterator[_Batch]:
    """Yields the batches of an epoch, drawn afresh."""
    draws = self._draw() if self.scheme.draws_epochs else itertools.islice(
        self._draws(), self.steps_per_epoch)
    return (_with_tensors(self._flat_batch(index)) for index in draws)

  def feed(self, marks: BatchMarks | None = None, shares: Shares = WHOLE
          ) -> tf.data.Dataset:
    """Returns the dataset that a `PrivateModel` trains on.

    Its elements (x, y, weights) are the parts `shares` of each batch in sequence, with
    `marks`, if given, to recognise them. It is infinite; or, if the scheme draws epochs
    and `shares` is `WHOLE`, one epoch, drawn afresh in each iteration.
    """
    whole = self.scheme.draws_epochs and shares == WHOLE
    dataset = self._dataset(whole, marks, shares)
    return dataset.apply(tf.data.experimental.assert_cardinality(
        self.steps_per_epoch)) if whole else dataset

  def dataset(self, steps: int | None = None) -> tf.data.Dataset:
    """Returns the batches of one epoch as a dataset; each pass draws afresh.

    For drop-in optimizers: a `PrivateModel` reports no epsilon for a dataset. A plain
    model's `fit` on this dataset is refused; `fit` on a dataset derived from it (map,
    cache, take) goes unnoticed. `steps` is `steps_per_epoch` by default.

    Raises:
      ValueError: if `steps` is below one; or above `steps_per_epoch` for a scheme that
        draws epochs as a whole.
    """
    steps = _checks.integer(
        'steps', self.steps_per_epoch if steps is None else steps, 1)
    if self.scheme.draws_epochs and steps > self.steps_per_epoch:
      raise ValueError(
          f'Expected at most the {self.steps_per_epoch} batches of an epoch, which '
          f'{type(self.scheme).__name__} draws as a whole, got steps={steps}; iterate '
          'over the dataset once for each epoch.')
    # A weak reference to the dataset, which is made after its generator, and which the
    # generator must not keep alive.
    own: list[Callable[[], Any]] = []
    dataset = self._dataset(
        self.scheme.draws_epochs, None, WHOLE, lambda: self._check_private(own[0]()))
    dataset = dataset.take(steps).apply(tf.data.experimental.assert_cardinality(steps))
    own.append(weakref.ref(dataset))
    return dataset

  def _draw(self) -> list[np.ndarray]:
    """Returns the indices of each batch of a draw; RuntimeError in a forked process."""
    if os.getpid() != self._pid:
      raise RuntimeError(
          'Expected batches to be drawn in the process that made them: a '
          'forked copy would repeat the draws of the others. Use '
          'fit(..., use_multiprocessing=False).')
    with self._lock:
      self._drawn += 1
      return self._next_draw()

  def _draws(self) -> Iterator[np.ndarray]:
    """Yields the indices of the examples of each batch, without end."""
    while True:
      yield from self._draw()

  def _batch(self, index: np.ndarray) -> tuple[_Batch, np.ndarray | None]:
    """Returns (padded (x, y, weights) of the usable examples at `index`, canaries).

    Canaries are int64, (rows,), counted from one, 0 for none; None without an audit.
    """
    if self._canaries is None:
      return self._batch_of(_usable(self._data.rows(index))), None
    # Indices from `size` on are those of canaries.
    parts = _usable(self._data.rows(index[index < self.size]))
    drawn, count = index[index >= self.size] - self.size, _count(parts)
    present = drawn[self._canaries[drawn]]
    batch = self._batch_of(parts, present.size)
    numbers = np.zeros(_count(batch), np.int64)
    numbers[count:count + present.size] = present + 1
    return batch, numbers

  def _flat_batch(self, index: np.ndarray) -> _Batch:
    """Returns (x, y, weights) of `_batch`, with the rows of all units in one axis."""
    most, batch = self.examples_per_unit, self._batch(index)[0]
    return batch if most is None else data_sources.each_array(
        lambda part: part.reshape(-1, *part.shape[2:]), batch)

  def _batch_of(self, parts: data_sources.Rows, more: int = 0) -> _Batch:
    """Returns (x, y, float32 weights): `parts`, then at least `more` rows of padding.

    The rows are a multiple of `physical_batch_size`, and at least one.
    """
    size, count = self.physical_batch_size, _count(parts)
    rows = max(-(-(count + more) // size), 1) * size
    x, y, *given = parts
    weights = given[0] if given else np.ones(count, np.float32)
    weights = data_sources.each_array(
        lambda part: part.astype(np.float32, copy=False), weights)
    return data_sources.each_array(
        lambda part: data_sources.padded(part, rows), (x, y, weights))

  def _dataset(self, once: bool, marks: BatchMarks | None, shares: Shares,
               begin: Callable[[], None] = lambda: None) -> tf.data.Dataset:
    """Returns parts `shares` of batches, without end, or of one pass if `once`.

    An iteration first calls `begin`. It raises RuntimeError if other workers draw too,
    unless batches are seeded or `share` was called for it.
    """
    draws = self._draw if self.scheme.draws_epochs else self._draws
    alike = shares.total > shares.here  # Other workers make the same draws.
    batch: Callable[[np.ndarray], Any] = (
        self._flat_batch if marks is None else self._batch)

    def generator() -> Iterator[Any]:
      """Yields the parts; makes each batch only when its parts are asked for."""
      begin()
      if alike and not self._share_begins and not self.seeded:
        raise RuntimeError(
            'Expected batches that fit agreed on with all workers, once for each call, '
            'got others; train by fit of a PrivateModel.')
      self._share_begins = False
      for _ in range(1) if once else itertools.count():
        # (checksum of the indices drawn, which other workers compare; padded parts of
        # the batch that this process takes).
        batches = ((zlib.crc32(index.astype(np.int64).tobytes()) if alike else 0,
                    map(batch, shares.of(index))) for index in draws())
        for parts in marks.mark(batches) if marks is not None else (
            parts for _, parts in batches):
          yield from parts

    x, y, *given = (self._data.flat if marks is None else self._data).specs
    weights = given[0] if given else tf.TensorSpec((None,))
    weights = tf.nest.map_structure(
        lambda spec: tf.TensorSpec(spec.shape, tf.float32), weights)
    return tf.data.Dataset.from_generator(
        generator,
        output_signature=(
            x if marks is None else marks.specs(x, self.examples_per_unit), y, weights)
        ).prefetch(2)


def _check_scheme(scheme: SamplingScheme, num_examples: int,
                  steps_per_epoch: int | None) -> None:
  """Raises ValueError unless `num_examples` and `steps_per_epoch` fit the scheme."""
  if scheme.num_examples != num_examples:
    raise ValueError(
        f'Expected the num_examples={scheme.num_examples} examples of the '
        f'sampling scheme, got {num_examples}.')
  if scheme.draws_epochs and steps_per_epoch is not None:
    raise ValueError(
        f'Expected steps_per_epoch=None with {type(scheme).__name__}, which draws '
        f'the batches of an epoch as a whole, got {steps_per_epoch!r}.')


def _count(parts: data_sources.Rows) -> int:
  """Returns the number of rows of inputs, targets and any weights."""
  return len(tf.nest.flatten(parts)[0])


def _with_tensors(batch: _Batch) -> _Batch:
  """Returns a batch with texts as tensors: Keras 3 takes no arrays of objects."""
  x, y, weights = batch
  return data_sources.each_array(
      lambda part: tf.constant(part) if part.dtype.kind == 'O' else part, x), y, weights


def _usable(parts: data_sources.Rows) -> data_sources.Rows:
  """Returns the rows that hold neither NaN nor infinity."""
  usable = data_sources.finite_rows(parts)
  if usable.all():
    return parts
  return data_sources.each_array(lambda part: part[usable], parts)
