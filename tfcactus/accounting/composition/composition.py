"""Composition of steps: picks the method, never the user.

| steps | method | bounds |
|---|---|---|
| one Gaussian release, or unsampled ones only | closed form | rounding |
| subsampled Gaussians | tilted contour | 1e-9 and better, mostly |
| those too few or too rare for one tilt | several contours | the same |
| two of them, whatever their kind | cells against a closed form | 1e-7, mostly 1e-9 |
| by addition, too few or too rare | fine lattice | about 1e-8 |
| few discrete outcomes | their enumeration | 1e-12 for each step |
| anything discrete among many | contour, smoothed by 1e-6 | about 1e-6 |
| few discrete ones, or not certified | lattice | about 1e-5 |
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any
from typing import Callable
from typing import Optional
from typing import Sequence

import numpy as np

from tfcactus import _checks
from tfcactus.accounting import monotone
from tfcactus.accounting.bounds import Bounds
from tfcactus.accounting.bounds import IntractableError
from tfcactus.accounting.composition import contour
from tfcactus.accounting.composition import lattice
from tfcactus.accounting.composition import smoothed_contour
from tfcactus.accounting.composition import split_contours
from tfcactus.accounting.composition.enumeration import Enumeration
from tfcactus.accounting.composition.losses.gaussian import GaussianLoss
from tfcactus.accounting.composition.two_steps import TwoSteps
from tfcactus.pairs.dominating_pair import PairBounds

GOOD = 1e-8
"""Width of bounds, absolute and relative, that no other method need better."""

FLOOR = 2e-14
"""Width for each step that is rounding, whatever the method."""

FINE_CELLS = 1 << 18
"""Cells of a continuous loss when the lattice is all there is."""

PILOT_CELLS = 1 << 12
"""Cells that suffice to choose a tilt and a window."""

COARSE_CELLS = 1 << 14
"""Cells of a continuous loss beside discrete ones."""


@dataclasses.dataclass(frozen=True, eq=False)
class StepLoss:
  """The privacy loss of one step, in one direction.

  Attributes:
    make_bounds: Returns the step's dominating pair, bracketed in a number of
      cells if the loss is continuous.
    loss: The loss in closed form, if it has one.
  """

  make_bounds: Callable[[int], PairBounds]
  loss: Optional[GaussianLoss] = None

  def __post_init__(self):
    # One pair for one number of cells: what is derived from it is kept with it.
    object.__setattr__(self, 'make_bounds', functools.lru_cache(self.make_bounds))

  @classmethod
  def of(cls, bounds: PairBounds) -> StepLoss:
    """The step of a pair."""
    return cls(lambda cells: bounds)

  def bounds(self, cells: int = COARSE_CELLS) -> PairBounds:
    """The step's dominating pair from below and above."""
    return self.make_bounds(cells)

  def renyi_divergence(self, orders: np.ndarray, *, finite: bool = False
                       ) -> np.ndarray:
    """D_order(P || Q) at orders above one, shape (n,).

    Args:
      orders: Shape (n,).
      finite: Of finite losses only, where there are infinite ones.
    """
    if self.loss is not None:
      return self.loss.cumulants(orders - 1)[0] / (orders - 1)
    pair = self.bounds().upper
    return np.array([pair.renyi_divergence(order, finite=finite)
                     for order in orders])


@dataclasses.dataclass(frozen=True, eq=False)
class Composition:
  """Independent groups of steps, in one direction.

  Attributes:
    groups: Pairs (StepLoss or PairBounds, number of steps).
  """

  groups: Sequence[tuple[StepLoss, int]]

  def __post_init__(self):
    groups = tuple(
        (StepLoss.of(step) if isinstance(step, PairBounds) else step,
         _checks.integer('count', count, 1)) for step, count in self.groups)
    if not groups:
      raise ValueError('Expected at least one group of steps, got none.')
    object.__setattr__(self, 'groups', groups)

  def epsilon(self, delta: float) -> Bounds:
    """Bounds on the least epsilon >= 0 at `delta` in (0, 1)."""
    delta = _checks.delta(delta)
    if self._losses is not None and self._single is not None:
      return _solve(self._single, delta)
    if self._losses is not None and self._total_variation <= delta:
      return Bounds(0.0, 0.0, 0.0)
    if self._enumeration is not None:
      return self._enumeration.epsilon(delta)
    try:
      if self._losses is None:
        return smoothed_contour.epsilon(
            [(step.bounds(), count) for step, count in self.groups],
            self._lattice.p_inf, delta)
      return self._best(
          *self._answers(lambda method: method.epsilon(delta)),
          lambda: split_contours.epsilon(self._losses, delta))
    except IntractableError:
      return self._capped(self._lattice.epsilon(delta), delta)

  def _capped(self, bounds: Bounds, delta: float) -> Bounds:
    """Sampling never costs: without it Gaussian releases are one."""
    if self._losses is None or bounds.upper < math.inf:
      return bounds
    cap = _solve(_joint(self._losses), delta).upper
    return Bounds(bounds.lower, cap, cap)

  def stays_below(self, epsilon: float, delta: float) -> bool:
    """Whether `delta` at `epsilon` is quickly shown to be kept; False: unknown."""
    if self._losses is None or any(
        loss.sampling_prob == 1 for loss, _ in self._losses):
      return False
    if all(loss.direction == 'add' for loss, _ in self._losses) and (
        epsilon >= -math.fsum(count * math.log1p(-loss.sampling_prob)
                              for loss, count in self._losses)):
      return True
    try:
      return contour.Contour(self._losses).stays_below(epsilon, math.log(delta))
    except IntractableError:
      return False

  def delta(self, epsilon: float) -> Bounds:
    """Bounds on the least delta at `epsilon` >= 0."""
    epsilon = _checks.non_negative('epsilon', epsilon)
    if self._losses is not None and self._single is not None:
      return self._single.delta_bounds(epsilon)
    if self._enumeration is not None:
      return self._enumeration.delta(epsilon)
    try:
      if self._losses is not None:
        return self._best(
            *self._answers(lambda method: method.delta(epsilon)),
            lambda: split_contours.delta(self._losses, epsilon))
    except IntractableError:
      pass
    return self._lattice.delta(epsilon)

  @property
  def steps(self) -> int:
    """Number of steps."""
    return sum(count for _, count in self.groups)

  def _best(self, *methods: Callable[[], Bounds]) -> Bounds:
    """The first good bounds, or the narrowest.

    Raises:
      IntractableError: if no method has an answer.
    """
    found = []
    for method in methods:
      try:
        bounds = method()
      except IntractableError:
        continue
      if bounds.upper - bounds.lower <= max(
          GOOD * min(bounds.upper, 1.0), FLOOR * self.steps):
        return bounds
      found.append(bounds)
    if not found:
      raise IntractableError
    return min(found, key=lambda bounds: bounds.upper - bounds.lower)

  @property
  def p_inf(self) -> tuple[float, float]:
    """(lower, upper) probability of an infinite loss."""
    return (0.0, 0.0) if self._losses is not None else self._lattice.p_inf

  def log_phi(self, t: np.ndarray) -> np.ndarray:
    """log of E_P[exp(i t loss)] over finite losses, at real `t` of shape (n,).

    Of the pairs that dominate; continuous losses by atoms that bracket them.
    """
    t = np.asarray(t, dtype=np.float64)
    return sum(count * step.bounds().upper.log_phi(t)
               for step, count in self.groups)

  def renyi_divergence(self, order: Any, *, finite: bool = False
                       ) -> np.ndarray:
    """The Renyi divergence D_order(P || Q) of the composition.

    Args:
      order: Above one, any shape.
      finite: Of finite losses only, where there are infinite ones.
    """
    order = np.asarray(order, dtype=np.float64)
    if not np.all(order > 1):
      raise ValueError(f'Expected order > 1, got order={order!r}.')
    value = sum(count * step.renyi_divergence(order.ravel(), finite=finite)
                for step, count in self.groups)
    return value.reshape(order.shape)

  @functools.cached_property
  def _losses(self) -> Optional[tuple[tuple[GaussianLoss, int], ...]]:
    """The losses, if all are in closed form."""
    if any(step.loss is None for step, _ in self.groups):
      return None
    return tuple((step.loss, count) for step, count in self.groups)

  @functools.cached_property
  def _single(self) -> Optional[GaussianLoss]:
    """One Gaussian release that is the same as the whole."""
    if all(loss.sampling_prob == 1 for loss, _ in self._losses):
      return _joint(self._losses)
    if len(self._losses) == 1 and self._losses[0][1] == 1:
      return self._losses[0][0]
    return None

  def _answers(self, ask: Callable[[Any], Bounds]) -> list[Callable[[], Bounds]]:
    """Ways to an answer, the one that is mostly fastest first."""
    whole = contour.Contour(self._losses)
    if self.steps != 2:
      return [lambda: ask(whole)]
    return [lambda: ask(dataclasses.replace(whole, quick=True)),
            lambda: ask(self._two_steps()), lambda: ask(whole)]

  def _two_steps(self) -> TwoSteps:
    """The composition, of two releases.

    Raises:
      IntractableError: if masses of cells would not be numbers.
    """
    losses = [loss for loss, count in self._losses for _ in range(count)]
    return TwoSteps.of(*losses)

  @functools.cached_property
  def _enumeration(self) -> Optional[Enumeration]:
    """All outcomes, if they are discrete and not too many."""
    if self._losses is not None:
      return None
    return Enumeration.of([(step.bounds(), count) for step, count in self.groups],
                          self._lattice.p_inf)

  @functools.cached_property
  def _total_variation(self) -> float:
    """A bound on delta at zero, the sum of the steps' own."""
    return math.fsum(count * float(sum(loss.delta(0.0)))
                     for loss, count in self._losses)

  @functools.cached_property
  def _lattice(self) -> lattice.Lattice:
    fine = self._losses is not None
    groups = [(step.bounds(FINE_CELLS if fine else COARSE_CELLS), count)
              for step, count in self.groups]
    return lattice.Lattice(
        groups, lattice.FINE if fine else lattice.Resolution(),
        [(step.bounds(PILOT_CELLS), count) for step, count in self.groups]
        if fine else groups)


def _joint(losses: Sequence[tuple[GaussianLoss, int]]) -> GaussianLoss:
  """One release that is the same as several, none of them sampled."""
  mu = math.sqrt(math.fsum(count * loss.mu**2 for loss, count in losses))
  return GaussianLoss(mu, 1.0, 'remove')


def _solve(loss: GaussianLoss, delta: float) -> Bounds:
  """epsilon of a loss whose delta is in closed form."""
  near = monotone.root(lambda x: float(loss.delta(x)[0]), delta)
  if near == 0 and loss.delta_bounds(0.0).upper <= delta:
    return Bounds(0.0, 0.0, 0.0)
  move = 4e-15 * (1 + near)
  return monotone.epsilon_bounds(loss.delta_bounds, delta, near, move, move)
