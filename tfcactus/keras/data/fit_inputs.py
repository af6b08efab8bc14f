"""Turns the arguments of `fit` into batches whose sampling is known, if possible."""

from __future__ import annotations

import importlib.util
import math
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf

from tfcactus import _checks, guarantee, sampling
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.data import batch_marks, data_sources
from tfcactus.keras.data.base import SampledBatches
from tfcactus.keras.data.batch_marks import BatchMarks, Marks, RowMarks
from tfcactus.keras.data.batches import ACCOUNTED
from tfcactus.keras.distribution import replicas
from tfcactus.plan import PrivacyPlan


class Feed(NamedTuple):
  """The data that Keras trains on."""

  marks: Marks  # Recognises the batches.
  x: Any  # What Keras gets as x: arrays, a dataset, or whatever `fit` was given.
  # Batches per epoch; if None, Keras finds the number from `x`.
  steps_per_epoch: int | None
  class_weight: Any = None  # Class weights that Keras still has to apply.
  ordered: bool = False  # Whether Keras has to keep the order of the examples.
  # (x, y, weights) of a few rows to build a model on, for several replicas; or None.
  example: Any = None


def make_feed(plan: PrivacyPlan, x: Any, y: Any, batch_size: object,
              sample_weight: Any, class_weight: Any,
              steps_per_epoch: int | None, journal: bool,
              strategy: tf.distribute.Strategy, canaries: np.ndarray | None = None
             ) -> Feed:
  """Returns the data of `fit`, and how its batches are recognised and accounted for.

  Raises ValueError if the arguments do not fit the plan, or one another.
  `journal`: whether the run has one, which refuses seeded batches. `canaries`, None
  without an audit, tells of each canary whether it is in the data.
  """
  _check_side(plan, x)
  if isinstance(x, SampledBatches):
    if not all(v is None for v in (y, batch_size, sample_weight)):
      raise ValueError(
          'Expected y, batch_size and sample_weight to be None with '
          f'{type(x).__name__}, which hold the targets and know the sizes.')
    x.check_plan(plan)
    if canaries is not None:
      x.plant(canaries)
    return _sampled_feed(x, class_weight, steps_per_epoch, journal, strategy)
  if canaries is not None:
    raise ValueError(
        'Expected PoissonBatches or other batches of tfcactus.keras with audit=, whose '
        f'canaries are drawn beside the examples, got {type(x).__name__}.')
  _check_plain(plan, x)
  found = _lengths(x)
  # No epsilon for data other than arrays, whose batches may be drawn in any way, nor
  # for arrays with steps_per_epoch, whose passes Keras cuts short or repeats.
  if not found or steps_per_epoch is not None:
    return Feed(Marks(), x, steps_per_epoch, class_weight,
                isinstance(x, tf.data.Dataset))
  if found != {plan.num_examples}:
    raise ValueError(f'Expected num_examples={plan.num_examples} examples as in the '
                     f'plan, got {" and ".join(map(str, sorted(found)))}.')
  rows, x = RowMarks(plan.num_examples), data_sources.as_fed(x)
  # From two rows Keras builds metrics and slots where there are several replicas.
  example = None if replicas.number(strategy) == 1 else tf.nest.map_structure(
      lambda part: None if part is None else part[:2], (x, y, sample_weight))
  return Feed(rows, rows.mark(x), None, class_weight, example=example)


def _check_plain(plan: PrivacyPlan, x: Any) -> None:
  """Raises ValueError if `fit` cannot take `x`, which is no batches of this library.

  It takes no sparse matrix, and under a plan of units or correlated noise nothing.
  """
  if plan.unit != 'example':
    raise ValueError(
        f'Expected batches that draw units, as unit={plan.unit!r} of the plan says, '
        f'got {type(x).__name__}; use PoissonBatches(x, y, batch_size=..., units=ids, '
        'examples_per_unit=k).')
  if data_sources.is_sparse(x):
    raise ValueError(
        f'Expected x to be batches or dense arrays, got {type(x).__name__}, a sparse '
        'matrix; draw batches, whose rows become dense as they are drawn: '
        'fit(PoissonBatches(x, y, batch_size=...)); or pass x.toarray().')
  if plan.groups > 1:
    raise ValueError(
        'Expected fit(CyclicBatches(x, y, plan=plan)) under a plan whose noise is '
        f'correlated over {plan.groups} steps, got {type(x).__name__}: it is private '
        'only for batches of groups that take turns.')


def _check_side(plan: PrivacyPlan, x: Any) -> None:
  """Raises ValueError unless `x` is the training side of the plan's split, if any."""
  side = getattr(x, 'side', None)
  for event in guarantee.validations(plan.releases):
    if event.by and (
        side is None or side.held_out or side.name != event.split):
      raise ValueError(
          'Expected batches of the training side of the split that the validation of '
          f'the plan uses, got {type(x).__name__} of '
          f'{"no split" if side is None else "another side or split"}; use '
          'PoissonBatches(split.sides(x, y).training, batch_size=...). In another '
          'process, make the split with its key: Split(..., key=key).')


def given(callbacks: Any) -> list[Any]:
  """Returns the given callbacks as a list; ImportError if TensorBoard is missing."""
  found = tf.nest.flatten(getattr(callbacks, 'callbacks', callbacks) or [])
  # Keras notices at the end of the first epoch, whose steps are released by then.
  if any(isinstance(each, keras.callbacks.TensorBoard) for each in found) and (
      importlib.util.find_spec('tensorboard') is None):
    raise ImportError(
        'Expected TensorBoard for its callback, found none, which TensorFlow 2.21 no '
        'longer brings; install "tfcactus[tensorboard]", or tensorboard alone.')
  return found


def _from_pandas(name: str, value: Any) -> Any:
  """Returns a table or column of pandas as an array; other values are unchanged.

  Inputs `x` of texts and numbers become a dict of columns. Raises ValueError for others
  than numbers in `y` and `sample_weight`.
  """
  if not (hasattr(value, 'to_numpy') and hasattr(value, 'iloc')):
    return value
  array = value.to_numpy()
  if array.dtype.kind in 'fiub':
    return array
  if name == 'x':
    found = data_sources.columns(value)
    return data_sources.as_fed(array if found is value else found)
  raise ValueError(
      f'Expected {name} to be a pandas {type(value).__name__} of numbers of one '
      f'type, got dtype {array.dtype}; convert it, {name}.astype("float32"), after '
      'strings and missing values have become numbers.')


def split(plan: PrivacyPlan, x: Any, y: Any, sample_weight: Any,
          validation_data: Any, validation_split: float) -> tuple[Any, Any, Any, Any]:
  """Separates the last examples of arrays for validation; pandas become arrays.

  Returns (x, y, sample_weight, validation_data). Without a `validation_split`, or if
  `validation_data` is given, these are all examples and `validation_data`. Raises
  ValueError if `x` cannot be split so, or not as many examples are left as the plan
  has.
  """
  x, y, sample_weight = map(_from_pandas, ('x', 'y', 'sample_weight'),
                            (x, y, sample_weight))
  if not validation_split or validation_data is not None:
    return x, y, sample_weight, validation_data
  if isinstance(x, SampledBatches):
    kind = type(x).__name__
    kept = int(math.floor(x.num_examples * (1 - validation_split)))
    raise ValueError(
        f'Expected validation_split=0 with {kind}, got {validation_split!r}: '
        f'they draw from all {x.num_examples} examples, of which none is left for '
        f'validation. Split before: batches = {kind}(x[:{kept}], y[:{kept}], ...), '
        f'with a plan for num_examples={kept}, and fit(batches, '
        f'validation_data=(x[{kept}:], y[{kept}:])).')
  found = _lengths(x)
  if len(found) != 1 or not 0 < validation_split < 1:
    raise ValueError(
        f'Expected validation_split=0 with {type(x).__name__}, got '
        f'{validation_split!r}: only arrays are split, by a part between 0 and 1; '
        'split the data before and pass validation_data.')
  total = found.pop()
  kept = int(math.floor(total * (1 - validation_split)))
  if kept != plan.num_examples:
    raise ValueError(
        f'Expected a validation_split that leaves the num_examples='
        f'{plan.num_examples} of the plan, got {validation_split!r} of {total} '
        f'examples, which leaves {kept}; plan for num_examples={kept}, or split the '
        'data before and pass validation_data.')
  first, last = (tf.nest.map_structure(
      lambda part, rows=rows: None if part is None else part[rows],
      (x, y, sample_weight)) for rows in (slice(kept), slice(kept, None)))
  return (*first, last[:2] if sample_weight is None else last)


def _sampled_feed(batches: SampledBatches, class_weight: Any,
                  steps_per_epoch: int | None, journal: bool,
                  strategy: tf.distribute.Strategy) -> Feed:
  """Returns the feed of batches, marked if class and scheme have an account."""
  kind, scheme = type(batches), type(batches.scheme)
  if journal and batches.seeded:
    raise ValueError(
        f'Expected {kind.__name__} without a seed in a run with a journal, got '
        'seeded ones: resumed, they would draw the same samples again.')
  if not scheme.draws_epochs:
    steps_per_epoch = steps_per_epoch or batches.steps_per_epoch
  elif steps_per_epoch is not None:
    raise ValueError(
        f'Expected steps_per_epoch=None with {kind.__name__}, whose passes are '
        f'accounted for as a whole, got {steps_per_epoch!r}.')
  known = kind in ACCOUNTED and scheme in sampling.SCHEMES
  marks = BatchMarks(
      scheme, batches.seeded, batches.scheme.batches_per_epoch,
      batches.examples_per_unit is not None, batches.has_canaries) if known else None
  shares = replicas.shares(strategy)
  if batches.part_of is not None:  # Each worker draws from its own examples alone.
    shares = replicas.Shares(shares.here, 0, shares.here)
  feed = batches.feed(marks, shares)
  if class_weight is not None:
    # Keras applies class weights only without sample weights, which padding needs.
    feed = feed.map(_weighing(class_weight))
  found = Feed(marks or Marks(), feed, steps_per_epoch, ordered=True)
  if replicas.number(strategy) == 1:
    return found
  # Replicas of this process take elements of the feed in turn. The feed is infinite, so
  # Keras needs a number of steps.
  return found._replace(
      x=strategy.distribute_datasets_from_function(lambda _: feed),
      example=batches.example_batch(),
      steps_per_epoch=steps_per_epoch or batches.steps_per_epoch)


def _weighing(class_weight: Any) -> Callable[..., Any]:
  """Returns a function (x, y, weights) -> (x, y, weights times class weights of y)."""
  try:
    weights = {int(label): _checks.non_negative('class_weight', weight)
               for label, weight in class_weight.items()}
  except (AttributeError, TypeError, ValueError) as error:
    raise ValueError(
        'Expected class_weight to be a dict of labels and weights that are not '
        'negative, such as {0: 1.0, 1: 2.5}, got '
        f'{class_weight!r}.') from error

  def weigh(x, y, weight):
    """Returns (x, y, weight times the class weight of y, by default 1)."""
    _, y_rows, weight_rows, _, rows_each = batch_marks.unmarked(x, y, weight)
    weighed = weigh_rows(y_rows, weight_rows)
    return x, y, weighed if rows_each == 1 else tf.reshape(weighed, tf.shape(weight))

  def weigh_rows(y, weight):
    """Returns the weights of rows times the class weights of their targets.

    Raises ValueError for targets that are not one label, or classes, per weight.
    """
    rank = weight.shape.rank if tf.is_tensor(weight) else 0
    if not rank or not tf.is_tensor(y) or y.shape.rank not in (rank, rank + 1):
      raise ValueError(
          'Expected targets of shape (batch,) or (batch, classes) with class_weight, '
          'or (batch, tokens) or (batch, tokens, classes) beside weights of tokens, '
          f'got {y!r} beside weights {weight!r}; pass weights of examples instead.')
    one_hot = y.shape.rank > rank and y.shape[-1] != 1
    labels = tf.argmax(y, -1) if one_hot else tf.reshape(y, tf.shape(y)[:rank])
    same = tf.equal(tf.cast(labels, tf.int64)[..., None],
                    tf.constant(list(weights), tf.int64))
    factors = tf.where(same, tf.constant(list(weights.values()), tf.float32), 0)
    return weight * tf.where(tf.reduce_any(same, -1), tf.reduce_sum(factors, -1), 1.0)

  return weigh


def _lengths(x: Any) -> set[int]:
  """Returns the set of lengths of arrays in `x`, empty if `x` holds anything else."""
  parts = tf.nest.flatten(x)
  if not all(map(data_sources.is_array, parts)):
    return set()
  return {int(part.shape[0]) for part in parts}
