"""Batches for Keras, one class a sampling scheme."""

from __future__ import annotations

from typing import Any
from typing import Optional
from typing import Type

from tfcactus import _checks
from tfcactus.keras import data_sources
from tfcactus.keras.sampled_batches import SampledBatches
from tfcactus.plan import PrivacyPlan
from tfcactus.sampling import CyclicAllocationSampling
from tfcactus.sampling import FixedSizeSampling
from tfcactus.sampling import OnePassSampling
from tfcactus.sampling import PoissonSampling
from tfcactus.sampling import RandomAllocationSampling
from tfcactus.sampling.base import checked_size
from tfcactus.sampling.cyclic import CyclicSampling


class PoissonBatches(SampledBatches):
  """Batches that each example enters independently with probability q.

  Batches vary in size; see `SampledBatches` for what they hold. Nothing is ever
  truncated or drawn again, and an empty draw is one padded example.

  Attributes:
    sampling_prob: The probability q.
  """

  def __init__(self, x: Any, y: Any = None,
               sampling_prob: Optional[float] = None, *,
               batch_size: Optional[int] = None,
               steps_per_epoch: Optional[int] = None,
               physical_batch_size: Optional[int] = None,
               seed: Optional[int] = None, sample_weight: Any = None,
               part_of: Optional[int] = None):
    """Initialises the batches.

    Args:
      x: Array or tensor of examples, shape (num_examples, ...), not copied; or a
        dict, list or tuple of them, for a model of several inputs. Or,
        with y=None, the examples as pairs (x, y) or triples (x, y, weight): a
        `tf.data.Dataset`, which is
        read once, in full, or a random access source (with a length and
        `__getitem__`, such as `tfds.data_source` of pairs), which is read as
        examples are drawn.
      y: Array or tensor of targets, shape (num_examples, ...), or several likewise;
        None where no loss takes any.
      sampling_prob: The probability q in (0, 1] of each example to enter.
      batch_size: In its place, the expected size of a batch: q is
        batch_size / num_examples, as in `PrivacyPlan.for_training`.
      steps_per_epoch: Batches per epoch; 1 / q rounded by default, so that an
        epoch sees each example once on average.
      physical_batch_size: Pad each batch to a multiple of this size; by
        default only empty ones are padded. (A `PrivateModel` pads by itself.)
      seed: For repeatable experiments; None takes the system's entropy.
      sample_weight: Array of weights, shape (num_examples,), or one for each output
        in a dict or list. They multiply the losses before clipping.
      part_of: Where each of several workers holds other examples: how many all of
        them hold. Each worker draws of its own; together that is a Poisson batch of
        all. No example may be in two parts.

    Raises:
      ValueError: if an argument is invalid.
    """
    data = data_sources.open_data(x, y, sample_weight)
    total = data.num_examples if part_of is None else (
        _checked_whole(part_of, data.num_examples, seed))
    if batch_size is not None:
      _check_alone('sampling_prob', sampling_prob, batch_size)
      scheme = PoissonSampling.of_batch_size(batch_size, total)
    else:
      scheme = PoissonSampling(total, _checks.sampling_prob(sampling_prob))
    super().__init__(
        data, None, scheme, steps_per_epoch=steps_per_epoch,
        physical_batch_size=physical_batch_size, seed=seed, part_of=part_of)
    self.sampling_prob = scheme.sampling_prob

  @property
  def expected_batch_size(self) -> float:
    """sampling_prob * num_examples."""
    return self.sampling_prob * self.num_examples


class FixedSizeBatches(SampledBatches):
  """Batches of a fixed number of examples, drawn without replacement.

  Each batch is a uniformly random subset of all examples, drawn anew for each
  step. Costs about as much as Poisson batches with half the noise multiplier:
  an example that enters displaces another one, so that a sum changes by up to
  twice the clip norm.

  Attributes:
    batch_size: Examples to a batch.
  """

  def __init__(self, x: Any, y: Any = None, batch_size: Optional[int] = None, *,
               steps_per_epoch: Optional[int] = None,
               seed: Optional[int] = None, sample_weight: Any = None):
    """As `PoissonBatches`, but for the batch size, which has to be the plan's.

    Args:
      x: As for `PoissonBatches`.
      y: As for `PoissonBatches`.
      batch_size: sampling_prob * num_examples of the plan.
      steps_per_epoch: As for `PoissonBatches`.
      seed: As for `PoissonBatches`.
      sample_weight: As for `PoissonBatches`.
    """
    data = data_sources.open_data(x, y, sample_weight)
    scheme = FixedSizeSampling(
        data.num_examples, checked_size(batch_size, data.num_examples))
    super().__init__(data, None, scheme, steps_per_epoch=steps_per_epoch, seed=seed)
    self.batch_size = scheme.batch_size


class _DealtBatches(SampledBatches):
  """Batches of which each epoch has a number of its own, settled beforehand."""

  @property
  def num_batches(self) -> int:
    """Batches to an epoch; of Keras 3's datasets, too."""
    return self.scheme.batches_per_epoch


class AllocatedBatches(_DealtBatches):
  """Batches of epochs in which each example enters one, drawn at random.

  Every example is used once an epoch, as in a shuffled pass, and amplification is
  proved, as for Poisson batches: with Gaussian noise an epoch costs no more than
  Poisson batches of the same size do in all that was computed. Batches vary in size.
  The noise has to be Gaussian, and examples added, removed or zeroed.

  An epoch counts when it begins, and whole: one that is broken off and begun again
  counts twice.
  """

  def __init__(self, x: Any, y: Any = None, num_batches: Optional[int] = None, *,
               batch_size: Optional[int] = None,
               physical_batch_size: Optional[int] = None,
               seed: Optional[int] = None, sample_weight: Any = None):
    """Initialises the batches.

    Args:
      x: As for `PoissonBatches`.
      y: As for `PoissonBatches`.
      num_batches: Batches to an epoch: one over the plan's sampling_prob.
      batch_size: In its place, the expected size of a batch, about: there are
        num_examples / batch_size batches, rounded, as in
        `PrivacyPlan.for_training(..., sampling=RandomAllocationSampling)`.
      physical_batch_size: As for `PoissonBatches`.
      seed: As for `PoissonBatches`.
      sample_weight: As for `PoissonBatches`.

    Raises:
      ValueError: if an argument is invalid.
    """
    data = data_sources.open_data(x, y, sample_weight)
    if batch_size is not None:
      _check_alone('num_batches', num_batches, batch_size)
      scheme = RandomAllocationSampling.of_batch_size(batch_size, data.num_examples)
    else:
      scheme = RandomAllocationSampling(
          data.num_examples, _checks.integer('num_batches', num_batches, 1))
    super().__init__(data, None, scheme, physical_batch_size=physical_batch_size,
                     seed=seed)


class CyclicBatches(_DealtBatches):
  """Batches of groups of examples that take turns, for noise correlated over steps.

  Which group an example is in is drawn once, when these are made; which of the group's
  batches it enters in each epoch.

  The noise of a plan is correlated within one call of `fit`, and begins anew where
  batches are left out; the guarantee holds whatever happens, but noise adds up to
  more. An epoch counts when it begins, and whole.
  """

  def __init__(self, x: Any, y: Any = None, *, plan: PrivacyPlan,
               sampling: Type[CyclicSampling] = CyclicAllocationSampling,
               physical_batch_size: Optional[int] = None,
               seed: Optional[int] = None, sample_weight: Any = None):
    """Initialises the batches.

    Args:
      x: As for `PoissonBatches`.
      y: As for `PoissonBatches`.
      plan: Of `num_examples` and so many batches an epoch as one over its
        `sampling_prob`, in as many groups as its `correlation` has bands.
      sampling: `CyclicAllocationSampling`: each example in one batch of each epoch;
        or `CyclicPoissonSampling`: by chance in any that its group has.
      physical_batch_size: As for `PoissonBatches`.
      seed: As for `PoissonBatches`.
      sample_weight: As for `PoissonBatches`.

    Raises:
      ValueError: if an argument is invalid, or not that of the plan.
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
                     sample_weight=sample_weight)


class ShuffledBatches(SampledBatches):
  """Passes over all examples in a fresh random order, in batches.

  Each example is in one batch of a pass, and the last batch may be smaller. No
  amplification by shuffling is proved for training, so that a pass is accounted
  as what holds for any order: one release that each example takes part in.

  Attributes:
    batch_size: Examples to a batch.
  """

  def __init__(self, x: Any, y: Any = None, batch_size: Optional[int] = None, *,
               seed: Optional[int] = None, sample_weight: Any = None):
    """As `FixedSizeBatches`; any batch size goes with a plan."""
    data = data_sources.open_data(x, y, sample_weight)
    scheme = OnePassSampling(
        data.num_examples, checked_size(batch_size, data.num_examples))
    super().__init__(data, None, scheme, seed=seed)
    self.batch_size = scheme.batch_size


def _checked_whole(part_of: object, size: int, seed: Optional[int]) -> int:
  """How many examples all workers hold."""
  if seed is not None:
    raise ValueError(
        f'Expected no seed with part_of, got seed={seed!r}: all workers would draw '
        'by it, and examples of several parts enter together.')
  return _checks.integer('part_of', part_of, size)


def _check_alone(name: str, value: object, batch_size: object) -> None:
  """Refuses what a batch size stands in for, beside one."""
  if value is not None:
    raise ValueError(
        f'Expected either {name} or batch_size, got {value!r} and {batch_size!r}.')
