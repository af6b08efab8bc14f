"""Zero noise, a baseline for training without privacy."""

from __future__ import annotations

import dataclasses

import dp_accounting
import numpy as np

from tfcactus.noise import base
from tfcactus.pairs.dominating_pair import PairBounds
from tfcactus.randomness import Random, Size

_REFUSED = ('Expected noise that protects, got no noise at all; use '
            'tfcactus.Gaussian(noise_multiplier).')


@dataclasses.dataclass(frozen=True)
class NoNoise(base.Noise):
  """Zero noise: a baseline for training; protects nothing."""

  kind = 'none'
  name = 'no noise'
  digest = 'none'
  dim = None
  noise_multiplier = 0.0

  def check_accounted(self) -> None:
    """Raises ValueError: zero noise protects nothing."""
    raise ValueError(_REFUSED)

  @property
  def dp_event(self) -> dp_accounting.DpEvent:
    return dp_accounting.NonPrivateDpEvent()

  def sample(self, rng: Random, size: Size) -> np.ndarray:
    del rng
    return np.zeros(size)

  def dominating_pair(self, shift: int = 1) -> PairBounds:
    """Raises ValueError: zero noise has no dominating pair that protects anything."""
    del shift
    raise ValueError(_REFUSED)
