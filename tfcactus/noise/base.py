"""Base classes of noise distributions: how they are drawn, accounted and saved."""

from __future__ import annotations

import abc
from collections.abc import Mapping
import dataclasses
import functools
import hashlib
import math
from typing import Any, ClassVar, TYPE_CHECKING, TypeVar

import attr
import dp_accounting
import numpy as np
import numpy.typing as npt

from tfcactus import _checks
from tfcactus.pairs import overlap
from tfcactus.pairs.dominating_pair import PairBounds
from tfcactus.randomness import Random, Size

_BLOCK = 1 << 15
"""Coordinates drawn at once, so that they stay in the cache; any number is correct."""

_NO_NOISE = ('Expected noise that protects, got no noise at all; use '
            'tfcactus.Gaussian(noise_multiplier).')

_Law = TypeVar('_Law', bound='Noise')


class Noise(abc.ABC):
  """Base class of noise distributions, symmetric about zero, in units of sensitivity.

  Each distribution is a frozen dataclass; `tfcactus.noise.LAWS` lists those that can be
  saved. Plans, samplers, accountants, files and releases use a
  distribution through the methods below only.

  Attributes:
    kind: Name of the distribution in configs and files, unique.
    noise_multiplier: Standard deviation of one coordinate over the sensitivity.
    dim: Dimension of the query that the noise protects; None for any dimension.
    event_type: Event class of dp_accounting for the distribution, constructed from
      its only parameter; None if dp_accounting has none.
  """

  kind: ClassVar[str]
  dim: int | None
  event_type: ClassVar[type[dp_accounting.DpEvent] | None] = None

  if TYPE_CHECKING:  # A property or a field in subclasses.
    @property
    def noise_multiplier(self) -> float:
      """Standard deviation of one coordinate over the sensitivity."""

  @abc.abstractmethod
  def sample(self, rng: Random, size: Size) -> np.ndarray:
    """Draws noise; all noise is drawn through this method.

    Args:
      rng: The generator to draw with.
      size: Shape of the result; for radial noise, number or array shape of vectors.

    Returns:
      float64 draws in units of sensitivity.
    """

  @abc.abstractmethod
  def dominating_pair(self, shift: int = 1) -> PairBounds:
    """Returns bounds on the dominating pair of the noise against its shift.

    Args:
      shift: 1 for neighbours that differ in one record (add or remove), 2 for
        neighbours where one record is replaced.

    Returns:
      Pairs that bracket the tight dominating pair over all shifts of at most
      `shift` sensitivities: `upper` dominates. The noise is symmetric, so one pair
      serves both for adding and for removing a record.

    Raises:
      ValueError: if no guarantee is known.
    """

  def replaced_pair(self, sampling_prob: float) -> PairBounds:
    """Returns bounds on the pair of a replaced record under Poisson sampling.

    This default follows by joint convexity from the pairs of shifts one and two and
    holds for any noise. Distributions whose worst case is known override it.

    Args:
      sampling_prob: Sampling probability, in (0, 1).

    Returns:
      Bounds whose `upper` dominates; see `tfcactus.pairs.overlap`.
    """
    return overlap.replaced(known_pair(self, 1), known_pair(self, 2),
                            _checks.delta(sampling_prob, 'sampling_prob'))

  def zeroed_pair(self, sampling_prob: float) -> PairBounds:
    """Returns bounds on the pair of a zeroed record under sampling of a fixed size.

    Args:
      sampling_prob: The share of records in the sample, in (0, 1).

    Returns:
      Bounds whose `upper` dominates, where P is the output with the record. The
      reverse dominates for a restored record. See `tfcactus.pairs.overlap`.
    """
    return overlap.zeroed(known_pair(self, 1), known_pair(self, 2),
                          _checks.delta(sampling_prob, 'sampling_prob'))

  @property
  def name(self) -> str:
    """Name of the mechanism in reports."""
    return self.kind

  @property
  def range(self) -> float:
    """Largest possible |noise|, in units of sensitivity."""
    return math.inf

  @property
  def gaussian_std(self) -> float | None:
    """Standard deviation if the distribution is exactly normal, else None.

    Accountants have closed forms for subsampled Gaussian noise.
    """
    return None

  def check_accounted(self) -> None:  # noqa: B027
    """Checks that a privacy guarantee is known, whatever the query.

    Raises:
      ValueError: if none is known; the message names a remedy.
    """

  def check_dim(self, dim: int, note: str = '') -> None:
    """Checks that one draw protects a vector of bounded l2 norm.

    Args:
      dim: Length of the vector.
      note: Text that the error message appends to the length.

    Raises:
      ValueError: if no guarantee is known; the message names a remedy.
    """
    if self.dim in (None, dim):
      return
    if self.dim != 1:
      raise ValueError(
          f'Expected noise for {dim} dimensions{note}, got a radial table '
          f'for {self.dim}: its guarantee holds in its own dimension only. '
          f'Solve one for dim={dim}, or use the Gaussian.')
    raise ValueError(
        f'Expected noise that protects an l2-clipped vector of length {dim}{note}, '
        f'got scalar noise ({self.name}): i.i.d. scalar noise other than the '
        'Gaussian has no valid one-dimensional account for a vector. Use the '
        f'Gaussian or an isotropic table of dim={dim}; to account one number, '
        'as was published, which is no guarantee, pass '
        "accounting='scalar-unproven' to the plan.")

  def max_error(self, dim: int, beta: float) -> float:
    """Returns t with P(|noise| > t in some of `dim` coordinates) <= beta, or inf."""
    return math.inf

  def sample_vector(self, rng: Random, dim: int) -> np.ndarray:
    """Draws the noise of one vector, float64 of shape (dim,).

    Raises:
      ValueError: if the distribution has no draw of this length.
    """
    return self.sample(rng, dim)

  @property
  def dp_event(self) -> dp_accounting.DpEvent:
    """The event of one release; dp_accounting's own event if it has one."""
    if self.event_type is None:
      return NoiseTableDpEvent(self)
    return self.event_type(*self._parameters().values())

  @property
  def digest(self) -> str:
    """16 hex digits that identify the distribution."""
    text = f'tfcactus/closed-form/{self.kind}:' + ','.join(
        value.hex() for value in self._parameters().values())
    return hashlib.sha256(text.encode()).hexdigest()[:16]

  def to_config(self) -> dict[str, Any]:
    """Returns the arguments of `from_config` as plain JSON values."""
    return dict(self._parameters())

  @classmethod
  def from_config(cls: type[_Law], config: Mapping[str, Any]) -> _Law:
    """Returns the distribution that `to_config` saved, validated again.

    Raises:
      ValueError: if the config is damaged.
      TypeError: if an entry is missing or unknown.
    """
    return cls(**config)

  def _parameters(self) -> dict[str, float]:
    """Returns the parameters of a closed-form distribution by name."""
    return {field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)}  # type: ignore[arg-type]


class ScalarNoise(Noise):
  """Base class of distributions on the line; coordinates are drawn independently."""

  dim: int | None = 1

  @abc.abstractmethod
  def cdf(self, z: npt.ArrayLike) -> np.ndarray:
    """Returns P(Z <= z) of one coordinate, for `z` of any shape."""

  @abc.abstractmethod
  def quantile(self, u: npt.ArrayLike) -> np.ndarray:
    """Returns the inverse of `cdf` for u in (0, 1), any shape; accurate for tiny u."""

  @abc.abstractmethod
  def log_density_at(self, z: npt.ArrayLike) -> np.ndarray:
    """Returns the log density of one coordinate at `z` of any shape."""

  @property
  def std(self) -> float:
    """Standard deviation of a coordinate, in units of sensitivity."""
    return self.noise_multiplier

  def sample_vector(self, rng: Random, dim: int) -> np.ndarray:
    """Draws `dim` independent coordinates, float64 of shape (dim,), block by block."""
    if _checks.integer('dim', dim, 0) <= _BLOCK:
      return self.sample(rng, dim)
    noise = np.empty(dim)
    for start in range(0, dim, _BLOCK):
      part = noise[start:start + _BLOCK]
      part[:] = self.sample(rng, part.size)
    return noise

  def max_error(self, dim: int, beta: float) -> float:
    """Returns the t with P(some of `dim` independent |Z| > t) = beta, in (0, 1)."""
    dim = _checks.count('dim', dim)
    tail = -math.expm1(math.log1p(-_checks.delta(beta, 'beta')) / dim)
    return -float(self.quantile(0.5 * tail))

  @property
  def log_concave(self) -> bool:
    """Returns whether the density is proved to be log-concave; False claims nothing."""
    return False

  @property
  def log_concave_on_cells(self) -> bool:
    """Returns whether the density at z + k is log-concave in integer k for all z."""
    return self.log_concave

  def log_mgf(self, t: float) -> float:
    """Returns an upper bound on log E exp(t Z), for t > 0; inf if none is known."""
    return math.inf


@dataclasses.dataclass(frozen=True)
class NoNoise(Noise):
  """Zero noise: a baseline for training; protects nothing."""

  kind = 'none'
  name = 'no noise'
  digest = 'none'
  dim = None
  noise_multiplier = 0.0

  def check_accounted(self) -> None:
    """Raises ValueError: zero noise protects nothing."""
    raise ValueError(_NO_NOISE)

  @property
  def dp_event(self) -> dp_accounting.DpEvent:
    return dp_accounting.NonPrivateDpEvent()

  def sample(self, rng: Random, size: Size) -> np.ndarray:
    return np.zeros(size)

  def dominating_pair(self, shift: int = 1) -> PairBounds:
    """Raises ValueError: zero noise has no dominating pair that protects anything."""
    raise ValueError(_NO_NOISE)


@attr.s(frozen=True, slots=True, auto_attribs=True, repr=False)
class NoiseTableDpEvent(dp_accounting.DpEvent):
  """Event of one release: noise of this library added to a query of sensitivity one.

  Two events are equal if their noise has the same distribution.

  Attributes:
    noise: The distribution that was sampled.
  """

  noise: Noise

  def __attrs_post_init__(self) -> None:
    if not isinstance(self.noise, Noise):
      raise ValueError(f'Expected noise of tfcactus, got {self.noise!r}.')

  def __repr__(self) -> str:
    return (f'NoiseTableDpEvent({self.noise.name}, dim={self.noise.dim}, '
            f'digest={self.noise.digest})')


@functools.lru_cache(maxsize=32)
def known_pair(noise: Noise, shift: int) -> PairBounds:
  """Returns `noise.dominating_pair(shift)`, cached for equal noise."""
  return noise.dominating_pair(shift)
