"""No noise, to compare training with."""

from __future__ import annotations

import dataclasses

import dp_accounting
import numpy as np

from tfcactus.noise import base
from tfcactus.pairs.dominating_pair import PairBounds
from tfcactus.randomness import Random
from tfcactus.randomness import Size

_REFUSED = ('Expected noise that protects, got no noise at all; use '
            'tfcactus.Gaussian(noise_multiplier).')


@dataclasses.dataclass(frozen=True)
class NoNoise(base.Noise):
  """Adds nothing, to compare with training without noise; protects nothing."""

  kind = 'none'
  name = 'no noise'
  digest = 'none'
  dim = None
  noise_multiplier = 0.0

  def check_accounted(self) -> None:
    """Refused: nothing is protected."""
    raise ValueError(_REFUSED)

  @property
  def dp_event(self) -> dp_accounting.DpEvent:
    """The event of a release that is not private."""
    return dp_accounting.NonPrivateDpEvent()

  def sample(self, rng: Random, size: Size) -> np.ndarray:
    """Zeros of shape `size`."""
    del rng
    return np.zeros(size)

  def dominating_pair(self, shift: int = 1) -> PairBounds:
    """Refused: nothing is protected."""
    del shift
    raise ValueError(_REFUSED)
