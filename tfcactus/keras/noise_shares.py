"""Gaussian noise in shares, one per worker, so that no worker knows all of it."""

from __future__ import annotations

import math
from typing import List
from typing import Optional
from typing import Sequence

import tensorflow as tf

from tfcactus import _format
from tfcactus.keras import noise_addition
from tfcactus.keras import replicas
from tfcactus.noise import Gaussian
from tfcactus.plan import PrivacyPlan


class ShareSampler(noise_addition.NoiseSampler):
  """Sampler of one worker's share: a Gaussian of the variance divided by all workers.

  Independent Gaussians add up to a Gaussian whose variance is the sum of theirs. No
  other noise of this library is a sum of shares of its kind.
  """

  def __init__(self, noise: Gaussian, worker: int, workers: int,
               seed: Optional[int] = None):
    """Initialises the sampler of a worker; `noise` is that of the sum of all shares."""
    super().__init__(noise, seed=seed, purpose=f'noise of worker {worker}')
    # Rounded up, so that the variances never add up to less than the whole.
    self._part = math.sqrt(1 / workers) * (1 + 2.0**-50)

  def add_to(self, sums: Sequence[tf.Tensor], scale: tf.Tensor,
             place: Optional[tf.Tensor] = None,
             dtypes: Optional[Sequence[tf.DType]] = None) -> List[tf.Tensor]:
    """Adds this worker's share of the noise; arguments as for `NoiseSampler.add_to`."""
    return super().add_to(
        sums, noise_addition.exact(scale) * self._part, place, dtypes)


def sampler(plan: PrivacyPlan, seed: Optional[int]) -> noise_addition.NoiseSampler:
  """Returns the sampler of this worker's share of a plan's noise.

  Raises ValueError unless the noise is Gaussian and independent over steps.
  """
  if plan.strategy is not None or not isinstance(plan.noise, Gaussian):
    found = 'noise correlated over steps' if plan.strategy is not None else (
        repr(plan.noise))
    raise ValueError(
        'Expected split_noise=True with a plan of Gaussian noise and without '
        f'correlation, got {found}: only Gaussians add up to a Gaussian, and the chief '
        'alone keeps earlier draws. Leave split_noise out, and the chief draws all.')
  return ShareSampler(plan.noise, replicas.worker(), replicas.workers(), seed)


def condition(plan: PrivacyPlan) -> str:
  """States in a sentence what workers learn of each other; '' for one worker."""
  workers, whole = replicas.workers(), plan.noise.noise_multiplier
  if workers == 1:
    return ''
  others, own = (whole * math.sqrt(part / workers) for part in (workers - 1, 1))
  return (
      f'The noise is the sum of shares of {workers} workers: one that takes its own '
      f'off is left with a noise multiplier of {_format.lower(others)}, and whoever '
      'sees what one worker sends, as its neighbours do, with '
      f'{_format.lower(own)} over that worker\'s examples.')
