"""Noise of which each worker adds a share, so that none knows all of it."""

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
  """Adds the share of one worker: Gaussian, of the variance by the number of them.

  A sum of Gaussians is a Gaussian whose variance is theirs added up; no other noise of
  this library is the sum of shares of its kind.
  """

  def __init__(self, noise: Gaussian, worker: int, workers: int,
               seed: Optional[int] = None):
    """Initialises the sampler.

    Args:
      noise: That of the sum of all shares.
      worker: Whose share it is; with a seed each draws other numbers.
      workers: How many there are.
      seed: As for `NoiseSampler`.
    """
    super().__init__(noise, seed=seed, purpose=f'noise of worker {worker}')
    # Rounded up, so that shares are never less than the whole.
    self._part = math.sqrt(1 / workers) * (1 + 2.0**-50)

  def add_to(self, sums: Sequence[tf.Tensor], scale: tf.Tensor,
             place: Optional[tf.Tensor] = None,
             dtypes: Optional[Sequence[tf.DType]] = None) -> List[tf.Tensor]:
    """As `NoiseSampler.add_to`."""
    return super().add_to(
        sums, noise_addition.exact(scale) * self._part, place, dtypes)


def sampler(plan: PrivacyPlan, seed: Optional[int]) -> noise_addition.NoiseSampler:
  """The sampler of this worker's share of a plan's noise.

  Args:
    plan: Of Gaussian noise, drawn for each step by itself.
    seed: As for `NoiseSampler`.

  Raises:
    ValueError: if its noise has no such shares.
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
  """What workers see of each other, in a sentence, or '' where there is one."""
  workers, whole = replicas.workers(), plan.noise.noise_multiplier
  if workers == 1:
    return ''
  others, own = (whole * math.sqrt(part / workers) for part in (workers - 1, 1))
  return (
      f'The noise is the sum of shares of {workers} workers: one that takes its own '
      f'off is left with a noise multiplier of {_format.lower(others)}, and whoever '
      'sees what one worker sends, as its neighbours do, with '
      f'{_format.lower(own)} over that worker\'s examples.')
