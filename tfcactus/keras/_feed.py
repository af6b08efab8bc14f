"""What `fit` is given, and how its batches are accounted for."""

from __future__ import annotations

from typing import Any
from typing import NamedTuple
from typing import Optional

import numpy as np
import tensorflow as tf

from tfcactus.keras._compat import keras
from tfcactus.keras.batches import PoissonBatches
from tfcactus.keras.sampling import Sampling


class Feed(NamedTuple):
  """What Keras is to train on.

  Attributes:
    sampling: How the batches are chosen.
    x: Arrays or a dataset.
    steps_per_epoch: Or None, for what `x` says.
    seeded: Whether the choice repeats.
  """

  sampling: Sampling
  x: Any
  steps_per_epoch: Optional[int]
  seeded: bool = False


def make_feed(plan: Any, x: Any, y: Any, batch_size: Any, sample_weight: Any,
              steps_per_epoch: Optional[int], journal: bool) -> Feed:
  """Finds out how `fit` will choose its batches.

  Args:
    plan: A `PrivacyPlan`.
    x: As in `fit`.
    y: As in `fit`.
    batch_size: As in `fit`.
    sample_weight: As in `fit`.
    steps_per_epoch: As in `fit`.
    journal: Whether the run keeps a journal.

  Raises:
    ValueError: if the data are not those of the plan.
  """
  if isinstance(x, PoissonBatches):
    if not all(v is None for v in (y, batch_size, sample_weight)):
      raise ValueError(
          'Expected y, batch_size and sample_weight to be None with '
          'PoissonBatches, which hold the targets and draw the sizes.')
    check_batches(x, plan)
    if journal and x.seeded:
      raise ValueError(
          'Expected PoissonBatches without a seed in a run with a journal, '
          'got seeded ones: resumed, they would draw the same samples again.')
    return Feed(Sampling.POISSON, x.endless_dataset(),
                steps_per_epoch or x.steps_per_epoch, x.seeded)
  found = _lengths(x)
  if not found or steps_per_epoch is not None:
    return Feed(Sampling.UNKNOWN, x, steps_per_epoch)
  if set(found) != {plan.num_examples}:
    raise ValueError(
        f'Expected num_examples={plan.num_examples} examples as in the '
        f'plan, got {found[0]}.')
  return Feed(Sampling.EACH_EXAMPLE_ONCE, x, None)


def check_batches(batches: PoissonBatches, plan: Any) -> None:
  """Refuses batches that are not drawn as the plan accounts for.

  Raises:
    ValueError: if num_examples or sampling_prob differ.
  """
  for name in ('num_examples', 'sampling_prob'):
    if getattr(batches, name) != getattr(plan, name):
      raise ValueError(
          f'Expected batches with {name}={getattr(plan, name)!r} as in the '
          f'plan, got {name}={getattr(batches, name)!r}; make both from the '
          'same numbers.')


def _lengths(x: Any) -> list:
  """Lengths of the arrays `x` is made of; empty if it is anything else."""
  parts = tf.nest.flatten(x)
  if not all(isinstance(part, (np.ndarray, tf.Tensor)) and len(part.shape)
             for part in parts):
    return []
  return [int(part.shape[0]) for part in parts]


class CountEpochs(keras.callbacks.Callback):
  """Counts a pass when it begins, so that a broken one is counted too."""

  def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
    """Counts."""
    del epoch, logs
    self.model.epochs_begun.assign_add(1)


def with_callback(callbacks: Any, extra: keras.callbacks.Callback) -> Any:
  """`callbacks`, as `fit` takes them, with `extra` before the others."""
  if isinstance(callbacks, keras.callbacks.CallbackList):
    extra.set_model(callbacks.model)
    callbacks.callbacks.insert(0, extra)
    return callbacks
  return [extra] + tf.nest.flatten([] if callbacks is None else callbacks)
