"""Noise correlated over steps (banded matrix factorization, DP-FTRL), step by step."""

from __future__ import annotations

import threading
from typing import Callable
from typing import List
from typing import Optional
from typing import Sequence

import numpy as np
import tensorflow as tf

from tfcactus import correlated
from tfcactus.keras.ledger.batch_marks import Place
from tfcactus.keras.noise_addition import NoiseSampler
from tfcactus.noise import Noise
from tfcactus.plan import PrivacyPlan

_REPLAYED_FROM = 2**24
"""Coordinates from which earlier draws are redrawn rather than kept: 128 MB."""


class CorrelatedSampler(NoiseSampler):
  """Sampler of noise correlated over successive steps by a strategy.

  Earlier draws that it keeps are secret and never saved: whoever has them can subtract
  noise. So noise begins anew in a process that resumes a run, where a batch does not
  directly follow the last one of a `fit`, and where other weights are trained. Earlier
  columns of the strategy then end early, which increases no column's norm.
  """

  def __init__(self, noise: Noise, strategy: correlated.Strategy,
               seed: Optional[int] = None):
    """Initialises the sampler; `noise` is Gaussian."""
    super().__init__(noise, seed=seed)
    self._strategy = strategy
    self._rows = strategy.rows()
    self._before: Optional[Place] = None
    self._size = 0
    self._position = 0
    self._lock = threading.Lock()

  def _numbers(self, place: Optional[tf.Tensor]) -> List[tf.Tensor]:
    if place is None:
      raise ValueError('Expected noise that is correlated over steps within a step.')
    return [place]

  def _sample(self, size: int, *numbers: np.ndarray) -> np.ndarray:
    return self._next(Place.of(numbers[0]), size)

  def _part_by_part(self, sums: Sequence[tf.Tensor]) -> bool:
    return False  # A row of the strategy covers all parts.

  def _next(self, place: Optional[Place], size: int) -> np.ndarray:
    """Returns the noise of the step at `place`; restarts unless it follows the last."""
    with self._lock:
      before, self._before = self._before, place
      if place is None or not place.follows(before) or size != self._size:
        self._rows.restart()
      replay = None
      if self._strategy.replays and size >= _REPLAYED_FROM:
        replay = self._replay(self._position, size)
      self._size, self._position = size, self._rng.position
      return self._rows.next(lambda: self.noise.sample_vector(self._rng, size), replay)

  def _replay(self, position: int, size: int) -> Callable[[], np.ndarray]:
    """Returns a function that repeats the previous draw."""
    return lambda: self.noise.sample_vector(self._rng.replayed(position), size)


def sampler(plan: PrivacyPlan, seed: Optional[int]) -> NoiseSampler:
  """Returns the sampler of a plan's noise."""
  if plan.strategy is None or plan.strategy.bands == 1:
    return NoiseSampler(plan.noise, seed=seed)
  return CorrelatedSampler(plan.noise, plan.strategy, seed)
