"""Batches for Keras, one class per sampling scheme.

A new class has to enter `ACCOUNTED`; without that, its batches have no epsilon.
"""

from __future__ import annotations

from typing import Any

from tfcactus import _checks, sampling as sampling_lib
from tfcactus.keras.data import units as units_lib
from tfcactus.keras.data.base import SampledBatches
from tfcactus.plan import PrivacyPlan
from tfcactus.sampling.base import checked_size
from tfcactus.sampling.cyclic import CyclicSampling


class PoissonBatches(SampledBatches):
  """Poisson-sampled batches: each example enters independently with probability q.

  Batch sizes vary; `SampledBatches` describes the content of a batch. No batch is
  truncated or drawn again. An empty draw becomes a batch of padding.

  Attributes:
    sampling_prob: The sampling probability q.
  """

  def __init__(self, x: Any, y: Any = None,
               sampling_prob: float | None = None, *,
               batch_size: int | None = None,
               steps_per_epoch: int | None = None,
               physical_batch_size: int | None = None,
               seed: int | None = None, sample_weight: Any = None,
               part_of: int | None = None, units: Any = None,
               examples_per_unit: int | None = None):
    """Initialises the batches.

    Args:
      x: Array or tensor of examples, shape (num_examples, ...); or a dict, list or
        tuple of arrays, for a model of several inputs. Numbers are not copied; texts
        are. A column of pandas counts as shape (num_examples, 1), a table of texts and
        numbers as a dict of columns. Rows of a sparse matrix of SciPy become dense as
        they are drawn. With y=None, `x` may also be a source of pairs (x, y) or triples
        (x, y, weight), one per example: a `tf.data.Dataset`, read in full, or a source
        with a length and `__getitem__`, read as examples are drawn.
      y: Targets, shape (num_examples, ...), an array or a structure of arrays; or None.
      sampling_prob: The sampling probability q in (0, 1]; or pass batch_size.
      batch_size: Expected batch size of all workers, q times their examples; sets q.
      steps_per_epoch: Batches per epoch; by default 1 / q rounded, so that an epoch
        uses each example once on average.
      physical_batch_size: Pads batches to a multiple; by default pads only empty ones.
      seed: For repeatable experiments; None takes the system's entropy.
      sample_weight: Array of weights, shape (num_examples,), or one per output in a
        dict or list; they multiply losses before clipping. Weights of tokens, shape
        (num_examples, tokens), multiply the losses of tokens, before their mean.
      part_of: For several workers that hold different examples: the number of
        examples of all workers. Each worker draws from its own part; the draws
        together are a Poisson batch of all. No example may be in two parts.
      units: The id of the owner (user) of each row, or the name of a part of `x` that
        holds the ids. Batches then draw owners and count owners: see `UnitData`.
      examples_per_unit: With `units`, the most rows of an owner in a step.

    Raises:
      ValueError: if an argument is invalid.
    """
    data = units_lib.open_data(x, y, sample_weight, units, examples_per_unit)
    total = data.num_examples if part_of is None else (
        _checks.integer('part_of', part_of, data.num_examples))
    _check_one('sampling_prob', sampling_prob, batch_size)
    if batch_size is not None:
      scheme = sampling_lib.PoissonSampling.of_batch_size(batch_size, total)
    else:
      scheme = sampling_lib.PoissonSampling(total, _checks.sampling_prob(sampling_prob))
    super().__init__(
        data, None, scheme, steps_per_epoch=steps_per_epoch,
        physical_batch_size=physical_batch_size, seed=seed, part_of=part_of)
    self.sampling_prob = scheme.sampling_prob

  @property
  def expected_batch_size(self) -> float:
    """Expected number of examples in a batch: sampling_prob * num_examples."""
    return self.sampling_prob * self.num_examples


class FixedSizeBatches(SampledBatches):
  """Batches of a fixed number of examples, drawn without replacement.

  Each batch is a new uniformly random subset of all examples. For add-or-remove, the
  cost is about that of Poisson batches with half the noise multiplier: an example that
  enters displaces another, so a sum changes by up to twice the clipping norm. For
  replace and zero-out, too, it is usually above that of Poisson batches of equal noise.

  Attributes:
    batch_size: Examples per batch: the plan's sampling_prob * num_examples.
  """

  def __init__(self, x: Any, y: Any = None, batch_size: int | None = None, *,
               steps_per_epoch: int | None = None,
               seed: int | None = None, sample_weight: Any = None,
               units: Any = None, examples_per_unit: int | None = None):
    """Initialises the batches; other arguments, and errors, as for `PoissonBatches`."""
    data = units_lib.open_data(x, y, sample_weight, units, examples_per_unit)
    scheme = sampling_lib.FixedSizeSampling(
        data.num_examples, checked_size(batch_size, data.num_examples))
    super().__init__(data, None, scheme, steps_per_epoch=steps_per_epoch, seed=seed)
    self.batch_size = scheme.batch_size


class _DealtBatches(SampledBatches):
  """Base class of batches that deal out all examples in an epoch."""

  @property
  def num_batches(self) -> int:
    """Batches per epoch; datasets of Keras 3 have this property too."""
    return self.scheme.batches_per_epoch


class AllocatedBatches(_DealtBatches):
  """Batches by balls-in-bins (random allocation): each example in one batch an epoch.

  Every epoch uses every example once, in a batch drawn uniformly at random. Batch sizes
  vary. Amplification by this sampling is proved, for add-or-remove and zero-out. In all
  cases computed, an epoch with Gaussian noise costs no more than Poisson batches of
  this size.

  An epoch is counted as a whole when it begins. An epoch that is interrupted and begun
  again is counted twice.
  """

  def __init__(self, x: Any, y: Any = None, num_batches: int | None = None, *,
               batch_size: int | None = None,
               physical_batch_size: int | None = None,
               seed: int | None = None, sample_weight: Any = None,
               units: Any = None, examples_per_unit: int | None = None):
    """Initialises the batches; other arguments, and errors, as for `PoissonBatches`.

    Args:
      num_batches: Batches per epoch: 1 / sampling_prob of the plan.
      batch_size: Approximate expected batch size, instead of num_batches, which is
        then num_examples / batch_size rounded, as in
        `PrivacyPlan.for_training(..., sampling=RandomAllocationSampling)`.
    """
    data = units_lib.open_data(x, y, sample_weight, units, examples_per_unit)
    _check_one('num_batches', num_batches, batch_size)
    if batch_size is not None:
      scheme = sampling_lib.RandomAllocationSampling.of_batch_size(
          batch_size, data.num_examples)
    else:
      scheme = sampling_lib.RandomAllocationSampling(
          data.num_examples, _checks.integer('num_batches', num_batches, 1))
    super().__init__(data, None, scheme, physical_batch_size=physical_batch_size,
                     seed=seed)


class CyclicBatches(_DealtBatches):
  """Cyclic batches: groups of examples in turn, for correlated noise (BandMF, DP-FTRL).

  The group of an example is drawn once, when the batches are made (by several workers,
  for each call of `fit`). Which of the group's batches the example enters is drawn in
  each epoch.

  The plan's noise is correlated within one call of `fit`. Where batches are skipped,
  the correlation starts anew: the guarantee still holds, but the noise over all steps
  adds up to more. An epoch is counted as a whole when it begins.
  """

  def __init__(self, x: Any, y: Any = None, *, plan: PrivacyPlan,
               sampling: type[CyclicSampling] = sampling_lib.CyclicAllocationSampling,
               physical_batch_size: int | None = None,
               seed: int | None = None, sample_weight: Any = None,
               units: Any = None, examples_per_unit: int | None = None):
    """Initialises the batches; other arguments, and errors, as for `PoissonBatches`.

    Args:
      plan: A plan with a `correlation`. It sets the number of examples, the batches per
        epoch (1 / `sampling_prob`) and the number of groups (bands of the noise).
        Without a correlation there is one group.
      sampling: `CyclicAllocationSampling`: each example enters one batch of its group
        an epoch; or `CyclicPoissonSampling`: each batch is a Poisson sample of its
        group.
    """
    if not (isinstance(sampling, type) and issubclass(sampling, CyclicSampling)):
      raise ValueError(
          'Expected sampling to be CyclicAllocationSampling or CyclicPoissonSampling '
          f'of tfcactus.sampling, got {sampling!r}.')
    if not isinstance(plan, PrivacyPlan):
      raise ValueError(
          'Expected plan=PrivacyPlan(..., correlation=...), the one that the model is '
          f'privatized with, got {plan!r}.')
    super().__init__(x, y, sampling.of_plan(plan), seed=seed,
                     physical_batch_size=physical_batch_size,
                     sample_weight=sample_weight, units=units,
                     examples_per_unit=examples_per_unit)


class ShuffledBatches(SampledBatches):
  """Shuffled batches: passes over all examples, each in a fresh random order.

  Each example is in one batch of a pass; the last batch may be smaller. No
  amplification by shuffling is proved for training. So a pass costs as much as a pass
  in a fixed order: each example takes part in one release without amplification.

  Attributes:
    batch_size: Examples per batch, in [1, num_examples].
  """

  def __init__(self, x: Any, y: Any = None, batch_size: int | None = None, *,
               seed: int | None = None, sample_weight: Any = None,
               units: Any = None, examples_per_unit: int | None = None):
    """Initialises the batches; other arguments, and errors, as for `PoissonBatches`."""
    data = units_lib.open_data(x, y, sample_weight, units, examples_per_unit)
    scheme = sampling_lib.OnePassSampling(
        data.num_examples, checked_size(batch_size, data.num_examples))
    super().__init__(data, None, scheme, seed=seed)
    self.batch_size = scheme.batch_size


ACCOUNTED = (SampledBatches, AllocatedBatches, CyclicBatches, FixedSizeBatches,
             PoissonBatches, ShuffledBatches)
"""Classes whose batches have an epsilon. Their subclasses have none: they may draw in
another way."""


def _check_one(name: str, value: object, batch_size: object) -> None:
  """Raises ValueError unless either batch_size or what it replaces is given."""
  if (value is None) == (batch_size is None):
    raise ValueError(
        f'Expected either {name} or batch_size, got {value!r} and {batch_size!r}.')
