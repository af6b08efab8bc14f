"""The DpEvent of table noise, beside those of dp_accounting."""

from __future__ import annotations

import attr
import dp_accounting

from tfcactus import noise as noise_lib


def _digest(noise: noise_lib.Noise) -> str:
  return noise.digest


@attr.s(frozen=True, slots=True, auto_attribs=True, repr=False)
class NoiseTableDpEvent(dp_accounting.DpEvent):
  """Noise drawn from a frozen table, added to a query of sensitivity one.

  Two events are equal when their tables draw the same noise.

  Attributes:
    noise: The ScalarTable or RadialTable that was sampled.
  """

  noise: noise_lib.Noise = attr.ib(eq=_digest)

  def __repr__(self) -> str:
    return (f'NoiseTableDpEvent({self.noise.name}, dim={self.noise.dim}, '
            f'digest={self.noise.digest})')


def noise_event(noise: noise_lib.Noise) -> dp_accounting.DpEvent:
  """The event of one release with `noise`, in dp_accounting's own words if any.

  Args:
    noise: Any noise of this library.
  """
  if isinstance(noise, noise_lib.Gaussian):
    return dp_accounting.GaussianDpEvent(noise.noise_multiplier)
  if isinstance(noise, noise_lib.Laplace):
    return dp_accounting.LaplaceDpEvent(noise.scale)
  return NoiseTableDpEvent(noise)
