"""Noise for vector queries: a radial piecewise-constant density in R^dim.

`RadialTable` is the law of the noise; the functions below it compute its dominating
pairs, shifted and as mixtures at three points of a line, +e, 0 and -e.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import numpy.typing as npt
from scipy import special

from tfcactus import _checks, _numerics
from tfcactus.noise import base, shell_geometry, table_file
from tfcactus.pairs import cells as cells_lib, dominating_pair as pair_lib, overlap
from tfcactus.pairs.dominating_pair import PairBounds
from tfcactus.randomness import fine_uniform, Random, shape, Size

ROWS_AT_ONCE = 1024
"""Shells processed together, to bound memory."""

EMPTY_SHELL = 1e-27
"""Shells beyond the last one whose mass exceeds this count as privacy failures."""

REACH_ROUNDOFF = 1e-12
"""Relative error allowed in a radius."""

LARGEST_LOG = 700.0
"""Largest log density ratio x for which alpha = 1 + q (e^x - 1) is looked at, q being
the sampling probability. The profile's value at the last alpha counts as infinite
losses."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RadialTable(table_file.NoiseTable):
  """A noise table on R^dim whose density depends only on |z|, constant on shells.

  Shell 0 is the ball of radius `first_radius`; shell i > 0 lies between the
  radii first_radius + (i - 1) * width and first_radius + i * width. Definition
  2 of the paper is first_radius = width = 1 / n. In high dimension the mass
  concentrates in a thin layer far out. A larger first_radius turns everything
  below it into one core ball of constant density, so the density stays monotone.

  Attributes:
    dim: The dimension m of the query that the noise protects.
    first_radius: Radius of the innermost ball, in units of sensitivity.
    width: Width of every other shell, in units of sensitivity.
    log_density: Shape (N + 1,), log of the density on shells 0..N in units of
      volume in which the innermost ball has volume one. (True densities in
      26,010 dimensions have logarithms near 1e5, too large to keep 13 digits.)
    log_tail_ratio: Log of the density ratio of neighbouring shells beyond N,
      below zero; -inf for noise that ends with shell N.
    info: Provenance of the table. Not part of its identity.

  Raises:
    ValueError: if an argument is out of range or the mass is not one to 1e-9.

  Source: Definition 2 of Alghamdi et al., "Optimal Multidimensional
  Differentially Private Mechanisms in the Large-Composition Regime" (ISIT 2023).
  """

  dim: int
  first_radius: float
  width: float
  log_density: np.ndarray
  log_tail_ratio: float
  info: table_file.Info = dataclasses.field(default_factory=dict)

  kind = 'radial'

  def __post_init__(self):
    set_field = functools.partial(object.__setattr__, self)
    set_field('dim', _checks.count('dim', self.dim))
    set_field('first_radius', _checks.positive('first_radius', self.first_radius))
    set_field('width', _checks.positive('width', self.width))
    self._check_table()
    self._check_mass(self._shells[1])

  @classmethod
  def normalized(cls, dim: int, first_radius: float, width: float,
                 log_density: npt.ArrayLike, log_tail_ratio: float,
                 info: table_file.Info | None = None) -> RadialTable:
    """Builds a table from log densities known up to an additive constant."""
    log_density = _checks.vector('log_density', log_density)
    log_mass = _numerics.log_sum(
        shell_geometry.enumerate_shells(
            _checks.count('dim', dim),
            _checks.positive('first_radius', first_radius),
            _checks.positive('width', width), log_density,
            table_file.check_tail_ratio(log_tail_ratio))[1])
    return cls(dim, first_radius, width, log_density - log_mass,
               log_tail_ratio, info or {})

  def __repr__(self) -> str:
    return (f'RadialTable({self.name!r}, dim={self.dim}, '
            f'shells={self.log_density.size}, '
            f'noise_multiplier={self.noise_multiplier:.6g}, digest={self.digest})')

  @functools.cached_property
  def _shells(self) -> tuple[np.ndarray, np.ndarray]:
    """(Log densities, log masses) of all shells, the tail enumerated."""
    return shell_geometry.enumerate_shells(
        self.dim, self.first_radius, self.width, self.log_density,
        self.log_tail_ratio)

  @property
  def shell_log_density(self) -> np.ndarray:
    """Log densities of all shells, the tail enumerated to a mass of 1e-30."""
    return self._shells[0]

  @functools.cached_property
  def shell_mass(self) -> np.ndarray:
    """Probability of each enumerated shell; sums to one."""
    mass = np.exp(self._shells[1])
    return _checks.read_only(mass / np.sum(mass))

  @functools.cached_property
  def radii(self) -> np.ndarray:
    """Outer radius of each enumerated shell."""
    return _checks.read_only(
        self.first_radius + self.width * np.arange(self.shell_log_density.size))

  @functools.cached_property
  def survival(self) -> np.ndarray:
    """P(shell >= i) over the enumerated shells, summed from the tail inwards."""
    survival = np.cumsum(self.shell_mass[::-1])[::-1]
    return _checks.read_only(survival / survival[0])

  @functools.cached_property
  def log_hollow(self) -> np.ndarray:
    """dim * log(inner radius / outer radius) of each enumerated shell."""
    return _checks.read_only(
        shell_geometry.log_hollow(self.dim, self.radii, self.width))

  def moment(self, power: float) -> float:
    """Returns E|Z|^power of the Euclidean norm, power > 0, in sensitivities^power.

    It is right to a relative 1e-9. Raises ValueError if a tail of mass 1e-30 counts, or
    the moment is beyond floats.
    """
    power = _checks.positive('power', power)
    # Inside a shell the radius has density m rho^(m-1) / (b^m - a^m).
    ratio = np.expm1(self.log_hollow * (1 + power / self.dim)) / np.expm1(
        self.log_hollow)
    with np.errstate(over='ignore', invalid='ignore'):
      inside = self.radii**power * ratio * self.dim / (self.dim + power)
      return self._moment(power, self.shell_mass * inside)

  @functools.cached_property
  def noise_multiplier(self) -> float:
    """sqrt(E|Z|^2 / dim): standard deviation of one coordinate over sensitivity."""
    return float(np.sqrt(self.moment(2) / self.dim))

  def log_density_at(self, z: npt.ArrayLike) -> np.ndarray:
    """Returns the log density at points `z` of shape (..., dim), per unit of volume."""
    z = _checks.numbers_of('z', z)
    if z.ndim == 0 or z.shape[-1] != self.dim:
      raise ValueError(f'Expected z of shape (..., {self.dim}), got {z.shape}.')
    radius = np.linalg.norm(z, axis=-1)
    shell = np.maximum(np.ceil((radius - self.first_radius) / self.width), 0)
    log_ball = (0.5 * self.dim * np.log(np.pi) -
                special.gammaln(0.5 * self.dim + 1) +
                self.dim * np.log(self.first_radius))
    return self._log_density_of(shell) - log_ball

  def radius_cdf(self, radius: npt.ArrayLike) -> np.ndarray:
    """Returns P(|Z| <= radius), radii of any shape; leaves out a tail of mass 1e-30."""
    radius = np.maximum(_checks.numbers_of('radius', radius), 0.0)
    shell = np.clip(np.ceil((radius - self.first_radius) / self.width), 0,
                    self.radii.size - 1).astype(np.int64)
    beyond = np.append(self.survival[1:], 0.0)
    with np.errstate(divide='ignore'):
      log_fill = self.dim * np.log(np.minimum(radius / self.radii[shell], 1.0))
    outside = np.expm1(log_fill) / np.expm1(self.log_hollow[shell])
    return 1 - beyond[shell] - self.shell_mass[shell] * outside

  def radius_quantile(self, u: npt.ArrayLike) -> np.ndarray:
    """Returns the inverse of `radius_cdf` for `u` in (0, 1), any shape."""
    return self._radius_beyond(1 - _checks.shares('u', u, inner=True))

  def sample_radius(self, rng: Random, size: Size) -> np.ndarray:
    """Draws |Z|: a shell by its mass, then rho with density ~ rho^(dim - 1).

    Source: Definition 6 of Sommer et al. (2021), in the volume of R^dim.
    """
    shell = self._shell_of(fine_uniform(rng, size))
    return self._radius_inside(shell, rng.random(size))

  def sample(self, rng: Random, size: Size) -> np.ndarray:
    """Draws noise vectors, shape (*size, dim): a radius times a uniform direction."""
    sizes = shape(size)
    drawn = rng.standard_normal((*sizes, self.dim))
    radius = self.sample_radius(rng, sizes) / np.linalg.norm(drawn, axis=-1)
    drawn *= radius[..., None]
    return drawn

  def sample_vector(self, rng: Random, dim: int) -> np.ndarray:
    """Draws one noise vector, shape (dim,); ValueError unless `dim` is the table's."""
    if dim != self.dim:
      raise ValueError(
          f'Expected {self.dim} coordinates in total, as {self!r} was built for, '
          f'got {dim}.')
    return self.sample(rng, 1)[0]

  def max_error(self, dim: int, beta: float) -> float:
    """Returns the (1 - beta)-quantile of the radius, which bounds every coordinate.

    It is inf for `beta` of at most 1e-29, since a tail of mass 1e-30 is left out.
    """
    tail = np.array(_checks.delta(beta, 'beta'))
    return float(self._radius_beyond(tail)) if tail > 1e-29 else np.inf

  def check_accounted(self) -> None:
    """Raises ValueError if the density increases with the radius somewhere."""
    if not self.monotone:
      raise ValueError(
          'Expected a radial table whose density never increases with the radius '
          '(only then does the full shift dominate every smaller one), got '
          f'{self!r}: no guarantee is known for it.')

  def dominating_pair(self, shift: int = 1) -> PairBounds:
    """Returns bounds from shell-to-shell transitions; needs a monotone density."""
    self.check_accounted()
    return shifted_pair(self, _checks.integer('shift', shift, 1))

  def replaced_pair(self, sampling_prob: float) -> PairBounds:
    """Returns bounds on the pair of a Poisson-sampled record and its negative.

    The upper pair comes from the joint law of the distances to three points of a line.
    The lower pair compares the record with one that contributes nothing.
    """
    return overlap.mixture_bounds(
        base.known_pair(self, 1),
        *_three_point_profile(self, sampling_prob, opposite=True),
        sampling_prob)

  def zeroed_pair(self, sampling_prob: float) -> PairBounds:
    """Returns bounds on the pair of a zeroed record in samples of a fixed size.

    P is the output with the record. The upper pair comes from the joint law of the
    distances to three points of a line for alpha >= 1, below from an added record's.
    """
    near = base.known_pair(self, 1)
    above = overlap.mixture_bounds(
        near, *_three_point_profile(self, sampling_prob, opposite=False),
        sampling_prob)
    return overlap.zeroed_by(above, near, sampling_prob)

  def _radius_beyond(self, tail: np.ndarray) -> np.ndarray:
    """Returns the radius beyond which the mass is `tail`."""
    shell = self._shell_of(tail)
    beyond = np.append(self.survival[1:], 0.0)[shell]
    outside = np.clip((tail - beyond) / self.shell_mass[shell], 0.0, 1.0)
    return self._radius_inside(shell, outside)

  def _shell_of(self, u: np.ndarray) -> np.ndarray:
    """Returns the largest shell i with survival[i] > u."""
    return self.survival.size - 1 - np.searchsorted(
        self.survival[::-1], u, side='right')

  def _radius_inside(self, shell: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """Returns the radius with a fraction `outside` of its shell's volume beyond it."""
    log_fill = np.log1p(outside * np.expm1(self.log_hollow[shell]))
    return self.radii[shell] * np.exp(log_fill / self.dim)


def shifted_pair(table: RadialTable, shift: int) -> pair_lib.PairBounds:
  """Returns bounds on the pair of a radial table from binned shell-to-shell losses.

  `shift` is in sensitivities. Noise and shifted noise are mirror images: moves
  outwards, of positive loss, are enough. Chances to move out by more than d shells have
  an error: the upper pair adds it, since losses increase outwards, the lower subtracts.
  """
  log_f, mass = table.shell_log_density, table.shell_mass
  count = int(np.flatnonzero(mass > EMPTY_SHELL)[-1]) + 1
  further, error = shell_geometry.outward(
      table.dim, table.first_radius / shift, table.width / shift, count)
  band = further.shape[1] - 1
  padded, top = _padded(log_f, count, band)
  # Grid of losses: `width` is at most 1e-3 unless that takes more than 4 CELLS points.
  width = max(min(2 * top / cells_lib.CELLS, 1e-3), top / (4 * cells_lib.CELLS))
  size = int(np.ceil(top / width)) + 4
  # P-masses on grid points 0, `width`, ... of the upper pair, masses of cells between
  # them of the lower one, and the mass of infinite losses of both.
  raised, merged_p, merged_q = np.zeros((3, size))
  infinite = [0.0, 0.0]
  for start in range(0, count, ROWS_AT_ONCE):
    rows = np.arange(start, min(start + ROWS_AT_ONCE, count))
    loss = log_f[rows, None] - padded[rows[:, None] + np.arange(1, band + 2)]
    # Losses are infinite beyond the band (last column, not in the lower pair), and
    # beyond the last shell; in the lower pair a tail is as dense as that shell.
    loss[:, -1] = np.inf
    least = loss if np.isneginf(table.log_tail_ratio) else np.minimum(
        loss, log_f[rows, None] - log_f[-1])
    for side, (sign, losses) in enumerate(((1, loss), (-1, least))):
      moved = mass[rows, None] * _rates(further[rows] + sign * error[rows])
      counted = (moved > 0) & ((sign > 0) | (np.arange(band + 1) < band))
      finite = counted & np.isfinite(losses)
      infinite[side] += float(np.sum(moved[counted & ~finite]))
      x, p = losses[finite], moved[finite]
      q = p * np.exp(-np.minimum(x, pair_lib.LARGEST_LOSS))
      if sign < 0:
        cell = np.floor(x / width).astype(np.int64)
        merged_p += np.bincount(cell, p, size)
        merged_q += np.bincount(cell, q, size)
      elif x.size:
        first, p = pair_lib.split_to_grid(pair_lib.DominatingPair(x, p, q), width)
        raised[first:first + p.size] += p
  known = np.arange(size) * width <= pair_lib.LARGEST_LOSS
  lost = infinite[0] + float(np.sum(mass[count:])) + float(np.sum(raised[~known]))
  loss, raised = np.arange(size)[known] * width, raised[known]
  real = (merged_p > 0) & (merged_q > 0)
  p, q = merged_p[real], merged_q[real]
  return pair_lib.PairBounds(
      pair_lib.DominatingPair.symmetric(np.log(p) - np.log(q), p, q, infinite[1]),
      pair_lib.DominatingPair.symmetric(loss, raised, raised * np.exp(-loss), lost))


def _padded(log_f: np.ndarray, count: int, band: int) -> tuple[np.ndarray, float]:
  """Returns log densities with -inf for band + 1 more shells, and the largest loss."""
  # The loss is of moves by `band` from the first `count` shells, to enumerated ones.
  padded = np.append(log_f, np.full(band + 1, -np.inf))
  drop = log_f[:count] - np.maximum(padded[band:count + band], log_f[-1])
  return padded, max(float(np.max(drop)), 1e-3)


def _rates(further: np.ndarray) -> np.ndarray:
  """Returns chances of moves out by d + 1 shells, given those by more than d shells.

  The last column has the moves beyond the band.
  """
  survival = np.clip(further, 0.0, 1.0)
  survival = np.maximum.accumulate(survival[:, ::-1], axis=1)[:, ::-1]
  return -np.diff(survival, axis=1, append=0.0)


def _three_point_profile(table: RadialTable, prob: float, opposite: bool
                         ) -> tuple[np.ndarray, np.ndarray]:
  """Returns (alpha, value): the profile at each alpha >= 1 is at most its value."""
  # An outcome at distances r_+, r_0 and r_- from +e, 0 and -e has r_0^2 = (r_+^2 +
  # r_-^2) / 2 - 1. So the joint law of (r_+, r_-), the transition under a shift of two,
  # gives all three densities. Within one of its cells r_0 varies by about a shell; the
  # least density around 0 there can only raise the profile.
  # The profile is of two mixtures that share a component. The other component, of share
  # `prob`, is at +e in the first law. In the second it is at -e if `opposite` (replaced
  # record), with the shared one at 0; else (zeroed record) at 0, the shared one at -e.
  prob = _checks.delta(prob, 'sampling_prob')
  log_f, mass = table.shell_log_density, table.shell_mass
  count = int(np.flatnonzero(mass > EMPTY_SHELL)[-1]) + 1
  transition, error = shell_geometry.transition(
      table.dim, table.first_radius / 2, table.width / 2, count)
  band = transition.shape[1] // 2
  padded, top = _padded(log_f, count, band)
  top = min(max(top, 1.0), LARGEST_LOG)
  alpha = 1 + prob * np.expm1(np.linspace(0.0, top, cells_lib.CELLS + 1))
  log_alpha = np.log(alpha)
  # P-masses, Q-masses and numbers of the terms between neighbouring alphas.
  totals = np.zeros((2, alpha.size + 1))
  terms = np.zeros(alpha.size + 1)
  for start in range(0, count, ROWS_AT_ONCE):
    rows = np.arange(start, min(start + ROWS_AT_ONCE, count))[:, None]
    columns = rows + np.arange(-band, band + 1)
    p = mass[rows] * transition[rows[:, 0]]
    exists = (p > 0) & (columns >= 0)
    other, middle = _densities(table, padded, rows, np.maximum(columns, 0))
    drawn, shared = (other, middle) if opposite else (middle, other)
    # Densities of the two mixtures, divided by that around +e, of which p has the mass.
    first = prob + (1 - prob) * shared[exists]
    second = prob * drawn[exists] + (1 - prob) * shared[exists]
    with np.errstate(divide='ignore'):
      place = np.searchsorted(log_alpha, np.log(first) - np.log(second))
    terms += np.bincount(place, minlength=alpha.size + 1)
    for total, part in zip(totals, (first, second)):
      total += np.bincount(place, p[exists] * part, alpha.size + 1)
  above, below = (np.cumsum(total[::-1])[::-1][1:] for total in totals)
  value = above - alpha * below
  # Rounding of the sums over terms and of the running sums.
  value += np.finfo(np.float64).eps * (np.max(terms[1:]) + terms.size) * (
      above + alpha * below)
  # Bounds the profile's gain from mass moved by rounding and from shells left out.
  unknown = float(np.sum(mass[:count] * error) + np.sum(mass[count:]))
  return alpha, np.clip(value + prob * unknown, 0.0, 1.0)


def _densities(table: RadialTable, log_f: np.ndarray, rows: np.ndarray,
               columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns the densities around -e and 0, divided by the density around +e."""
  # Cell (i, j) of the transition holds the points of shell i (`rows`) around +e and
  # shell j (`columns`) around -e. `middle` is the largest distance from 0 in the cell,
  # sqrt((r_+^2 + r_-^2) / 2 - 1) for the outer radii: the least density around 0 can
  # only raise the profile.
  radii = table.first_radius + table.width * np.arange(log_f.size)
  middle = np.sqrt(np.maximum(0.5 * (radii[rows]**2 + radii[columns]**2) - 1, 0.0))
  shell = np.ceil((middle * (1 + REACH_ROUNDOFF) - table.first_radius) /
                  table.width).astype(np.int64)
  shell = np.clip(shell, 0, log_f.size - 1)
  return (np.exp(log_f[columns] - log_f[rows]), np.exp(log_f[shell] - log_f[rows]))
