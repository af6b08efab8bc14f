"""Noise that is correlated over steps, drawn one step after the other."""

from __future__ import annotations

from typing import Callable
from typing import Optional

import numpy as np

from tfcactus import correlated
from tfcactus.keras.ledger.batch_marks import Place
from tfcactus.keras.noise_addition import NoiseSampler
from tfcactus.noise import Noise
from tfcactus.plan import PrivacyPlan
from tfcactus.randomness import SystemRandom

_REPLAYED_FROM = 2**24
"""Coordinates from which a draw is made again rather than kept: 128 MB."""


class StepNoiseSampler(NoiseSampler):
  """Draws the noise of steps that know where their batches stand.

  What it keeps of earlier draws is secret, and saved nowhere: whoever has it can
  subtract noise. So noise begins anew in a process that resumes a run, and wherever
  a batch does not follow the one before it in the same `fit`: earlier columns of the
  strategy then end early, which makes none of them longer.

  Attributes:
    place: Tells where the batch of the step that runs stands.
  """

  place: Callable[[], Optional[Place]] = staticmethod(lambda: None)


class CorrelatedSampler(StepNoiseSampler):
  """Draws by a strategy."""

  def __init__(self, noise: Noise, strategy: correlated.Strategy,
               seed: Optional[int] = None):
    """Initialises the sampler.

    Args:
      noise: Gaussian.
      strategy: Of `tfcactus.correlated`.
      seed: As for `NoiseSampler`.
    """
    super().__init__(noise, seed=seed)
    self._strategy = strategy
    self._rows = strategy.rows()
    self._before: Optional[Place] = None
    self._position: Optional[int] = None

  def _vector(self, size: int) -> np.ndarray:
    place, before = self.place(), self._before
    self._before = place
    if place is None or not place.follows(before):
      self._rows.restart()
    replay = None
    if self._strategy.replays and size >= _REPLAYED_FROM:
      replay = self._replay(size)
    self._position = self._rng.position
    return self._rows.next(lambda: self.noise.sample_vector(self._rng, size), replay)

  def _replay(self, size: int) -> Callable[[], np.ndarray]:
    """What makes the draw before once more."""
    position = self._position

    def again() -> np.ndarray:
      assert position is not None, 'After a draw.'
      rng: SystemRandom = self._rng.replayed(position)
      return self.noise.sample_vector(rng, size)

    return again


def sampler(plan: PrivacyPlan, seed: Optional[int]) -> StepNoiseSampler:
  """The sampler of a plan's noise."""
  if plan.strategy is None or plan.strategy.bands == 1:
    return StepNoiseSampler(plan.noise, seed=seed)
  return CorrelatedSampler(plan.noise, plan.strategy, seed)
