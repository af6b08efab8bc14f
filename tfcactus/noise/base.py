"""What every law of noise offers: it is drawn, it is accounted, it is saved."""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import math
from typing import Any
from typing import ClassVar
from typing import Mapping
from typing import Optional
from typing import Type
from typing import TYPE_CHECKING
from typing import TypeVar

import attr
import dp_accounting
import numpy as np
import numpy.typing as npt

from tfcactus import _checks
from tfcactus.pairs import overlap
from tfcactus.pairs.dominating_pair import PairBounds
from tfcactus.randomness import Random
from tfcactus.randomness import Size

_BLOCK = 1 << 15
"""Coordinates drawn at once, so that they stay in the cache; any number will do."""

_Law = TypeVar('_Law', bound='Noise')


class Noise(abc.ABC):
  """A law of noise, symmetric about zero, in units of the query's sensitivity.

  One law is one file: a frozen dataclass of numbers with the abstract methods
  below, named in `tfcactus.noise.LAWS`. Plans, samplers, accountants, files and
  releases know laws by these methods only.

  Attributes:
    kind: Names the law in configs and files; no two laws have the same.
    noise_multiplier: Standard deviation of one coordinate over the sensitivity.
    dim: The dimension of the query it protects, None for any.
    event_type: The event of dp_accounting that is this law's, constructed from
      its only parameter; None if dp_accounting has none.
  """

  kind: ClassVar[str]
  dim: Optional[int]
  event_type: ClassVar[Optional[Type[dp_accounting.DpEvent]]] = None

  if TYPE_CHECKING:  # A property or a field of a subclass.
    @property
    def noise_multiplier(self) -> float:
      """Standard deviation of one coordinate over the sensitivity."""

  @abc.abstractmethod
  def sample(self, rng: Random, size: Size) -> np.ndarray:
    """Draws noise, the one way in which it is drawn anywhere.

    Args:
      rng: The generator to draw with.
      size: Shape of the result, or (radial noise) how many vectors.

    Returns:
      float64 draws in units of sensitivity.
    """

  @abc.abstractmethod
  def dominating_pair(self, shift: int = 1) -> PairBounds:
    """The pair of the noise against itself, shifted.

    Args:
      shift: 1 for neighbours that differ in one record (add or remove), 2 for
        neighbours where one record is replaced.

    Returns:
      Pairs that bracket the tight dominating pair over all shifts of at most
      `shift` sensitivities: `upper` dominates. Noise being symmetric, the same
      pair serves for adding and for removing a record.

    Raises:
      ValueError: if no guarantee is known.
    """

  def replaced_pair(self, sampling_prob: float) -> PairBounds:
    """Pairs around that of a replaced record under Poisson sampling.

    Here by joint convexity from the pairs of shifts one and two, which holds for
    any law; a law whose worst case is known says so in its own file.

    Args:
      sampling_prob: In (0, 1).

    Returns:
      Bounds whose `upper` dominates; see `tfcactus.pairs.overlap`.
    """
    return overlap.replaced(known_pair(self, 1), known_pair(self, 2), sampling_prob)

  def zeroed_pair(self, sampling_prob: float) -> PairBounds:
    """Pairs around that of a zeroed record under sampling of a fixed size.

    Args:
      sampling_prob: The share of records in the sample, in (0, 1).

    Returns:
      Bounds whose `upper` dominates, P being with the record; the reverse
      dominates for a restored one. See `tfcactus.pairs.overlap`.
    """
    return overlap.zeroed(known_pair(self, 1), known_pair(self, 2), sampling_prob)

  @property
  def name(self) -> str:
    """The mechanism's name as reports show it."""
    return self.kind

  @property
  def range(self) -> float:
    """The largest |noise| there is, in units of sensitivity."""
    return math.inf

  @property
  def gaussian_std(self) -> Optional[float]:
    """The standard deviation if the law is exactly normal, else None.

    Accountants have closed forms for normal noise on a sample.
    """
    return None

  def check_accounted(self) -> None:  # noqa: B027
    """Checks that a guarantee is known for the law, whatever the query.

    Raises:
      ValueError: if none is, saying what would do.
    """

  def check_dim(self, dim: int, note: str = '') -> None:
    """Checks that one draw protects a vector of bounded l2 norm.

    Args:
      dim: Length of the vector.
      note: What a message says of the length, after it.

    Raises:
      ValueError: if no guarantee is known, saying what would do.
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
    """How far off a coordinate of a noisy vector is, but for a share beta.

    Args:
      dim: Length of the vector.
      beta: In (0, 1).

    Returns:
      A t with P(some coordinate of the noise is beyond t) <= beta; inf if none is
      known.
    """
    del dim, beta
    return math.inf

  def sample_vector(self, rng: Random, dim: int) -> np.ndarray:
    """Draws the noise of one vector, float64 of shape (dim,).

    Args:
      rng: The generator to draw with.
      dim: Its length.

    Raises:
      ValueError: if the law has no draw of that length.
    """
    return self.sample(rng, dim)

  @property
  def dp_event(self) -> dp_accounting.DpEvent:
    """The event of one release, in dp_accounting's own words if it has any."""
    if self.event_type is None:
      return NoiseTableDpEvent(self)
    return self.event_type(*self._parameters().values())

  @property
  def digest(self) -> str:
    """16 hex digits naming the distribution."""
    text = f'tfcactus/closed-form/{self.kind}:' + ','.join(
        value.hex() for value in self._parameters().values())
    return hashlib.sha256(text.encode()).hexdigest()[:16]

  def to_config(self) -> dict[str, Any]:
    """What `from_config` needs, as plain JSON values."""
    return dict(self._parameters())

  @classmethod
  def from_config(cls: Type[_Law], config: Mapping[str, Any]) -> _Law:
    """The law of a `to_config`, checked anew.

    Raises:
      ValueError: if the config is damaged.
      TypeError: if it lacks an entry or has one more.
    """
    return cls(**config)

  def _parameters(self) -> dict[str, float]:
    """What defines a law of few numbers, by name."""
    return {field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)}  # type: ignore[arg-type]


class ScalarNoise(Noise):
  """A law on the line, drawn independently for each coordinate."""

  dim: Optional[int] = 1

  @abc.abstractmethod
  def cdf(self, z: npt.ArrayLike) -> np.ndarray:
    """P(Z <= z) of one coordinate, for `z` of any shape."""

  @abc.abstractmethod
  def quantile(self, u: npt.ArrayLike) -> np.ndarray:
    """The inverse of `cdf` for `u` in (0, 1), accurate where u is tiny."""

  @abc.abstractmethod
  def log_density_at(self, z: npt.ArrayLike) -> np.ndarray:
    """Log density of one coordinate at `z` of any shape."""

  @property
  def std(self) -> float:
    """Standard deviation of a coordinate in units of sensitivity."""
    return self.noise_multiplier

  def sample_vector(self, rng: Random, dim: int) -> np.ndarray:
    """Draws `dim` independent coordinates, block by block."""
    if dim <= _BLOCK:
      return self.sample(rng, dim)
    noise = np.empty(dim)
    for start in range(0, dim, _BLOCK):
      part = noise[start:start + _BLOCK]
      part[:] = self.sample(rng, part.size)
    return noise

  def max_error(self, dim: int, beta: float) -> float:
    """The t with P(some of `dim` independent |Z| > t) = beta."""
    tail = -math.expm1(math.log1p(-_checks.delta(beta, 'beta')) / dim)
    return -float(self.quantile(0.5 * tail))

  @property
  def log_concave(self) -> bool:
    """Whether the density is log-concave, proved; False claims nothing."""
    return False

  @property
  def log_concave_on_cells(self) -> bool:
    """Whether it is where all changes are whole numbers of sensitivities."""
    return self.log_concave

  def log_mgf(self, t: float) -> float:
    """An upper bound on log E exp(t Z), for t > 0; inf if none is known."""
    del t
    return math.inf


@attr.s(frozen=True, slots=True, auto_attribs=True, repr=False)
class NoiseTableDpEvent(dp_accounting.DpEvent):
  """Noise of a frozen law, added to a query of sensitivity one.

  Two events are equal when their laws draw the same noise.

  Attributes:
    noise: The law that was sampled.
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
  """`Noise.dominating_pair`, computed once for the same noise."""
  return noise.dominating_pair(shift)
