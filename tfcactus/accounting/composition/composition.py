"""Composition of steps: picks the method, never the user.

| steps | method | bounds |
|---|---|---|
| one Gaussian release, or unsampled ones only | closed form | rounding |
| subsampled or allocated Gaussians | tilted contour | 1e-9 and better, mostly |
| subsampled ones too few or too rare for one tilt | several contours | the same |
| two of them, whatever their kind | cells against a closed form | 1e-7, mostly 1e-9 |
| by addition, too few or too rare | fine lattice | about 1e-8 |
| few discrete outcomes | their enumeration | 1e-12 for each step |
| Laplace releases of one scale | residues in whole numbers | rounding |
| discrete ones or Laplace beside Gaussians | contour | 1e-11 for each step |
| anything discrete among many | contour, smoothed by 1e-6 | about 1e-6 |
| few discrete ones, or not certified | lattice | about 1e-5 |
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Callable
from typing import Optional
from typing import Sequence

import numpy as np
import numpy.typing as npt

from tfcactus import _checks
from tfcactus.accounting.bounds import Bounds
from tfcactus.accounting.bounds import IntractableError
from tfcactus.accounting.bounds import Method
from tfcactus.accounting.composition import contour
from tfcactus.accounting.composition import lattice
from tfcactus.accounting.composition.enumeration import Enumeration
from tfcactus.accounting.composition.laplace_sum import LaplaceSum
from tfcactus.accounting.composition.losses.base import Loss
from tfcactus.accounting.composition.losses.base import ReleaseLoss
from tfcactus.accounting.composition.losses.gaussian import ClosedForm
from tfcactus.accounting.composition.losses.gaussian import GaussianLoss
from tfcactus.accounting.composition.losses.laplace import LaplaceLoss
from tfcactus.accounting.composition.mixed_contours import MixedContours
from tfcactus.accounting.composition.smoothed_contours import SmoothedContours
from tfcactus.accounting.composition.split_contours import SplitContours
from tfcactus.accounting.composition.two_steps import TwoSteps
from tfcactus.pairs.dominating_pair import PairBounds

GOOD = 1e-8
"""Width of bounds, absolute and relative, that no other method need better."""

FAIR = 1e-4
"""Relative width of bounds on allocated releases that a lattice hardly betters."""

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
    loss: The loss in closed form, if it is of a Gaussian release.
    scalar: The loss in closed form, if it is of another.
  """

  make_bounds: Callable[[int], PairBounds]
  loss: Optional[ReleaseLoss] = None
  scalar: Optional[Loss] = None

  def __post_init__(self) -> None:
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
    """D_order(P || Q), shape (n,).

    Args:
      orders: Shape (n,), positive, other than one.
      finite: Of finite losses only, where there are infinite ones.
    """
    below = orders < 1
    if self.loss is not None and np.any(below):
      return self._around_one(self.loss, orders, below)
    if self.loss is not None and self.loss.moments_are_proved:
      return self.loss.cumulants(orders - 1)[0] / (orders - 1)
    if self.loss is not None:
      return np.array([self.loss.log_moment(float(order)) / order
                       for order in orders - 1])
    pair = self.bounds().upper
    return np.array([pair.renyi_divergence(order, finite=finite)
                     for order in orders])

  def _around_one(self, loss: ReleaseLoss, orders: np.ndarray, below: np.ndarray
                  ) -> np.ndarray:
    """Of a loss in closed form, orders below one by the upper pair's atoms.

    Its moments are asked for on the right half plane only. What dominates has larger
    divergences at every order, each being a mean of hockey sticks (but for signs).
    """
    found = np.empty(orders.shape)
    if not np.all(below):
      found[~below] = self.renyi_divergence(orders[~below])
    if loss.normal:
      found[below] = 0.5 * orders[below] * loss.mu**2
    else:
      pair = self.bounds().upper
      found[below] = [pair.renyi_divergence(order) for order in orders[below]]
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class Composition:
  """Independent groups of steps, in one direction.

  Attributes:
    groups: Pairs (StepLoss or PairBounds, number of steps).
  """

  groups: Sequence[tuple[StepLoss, int]]

  def __post_init__(self) -> None:
    groups = tuple(
        (StepLoss.of(step) if isinstance(step, PairBounds) else step,
         _checks.integer('count', count, 1)) for step, count in self.groups)
    if not groups:
      raise ValueError('Expected at least one group of steps, got none.')
    object.__setattr__(self, 'groups', groups)

  def epsilon(self, delta: float) -> Bounds:
    """Bounds on the least epsilon >= 0 at `delta` in (0, 1)."""
    delta = _checks.delta(delta)
    losses = self._losses
    if self._total_variation <= delta:
      return Bounds(0.0, 0.0, 0.0)
    bounds = self._ask(lambda method: method.epsilon(delta))
    if losses is None and math.isinf(bounds.upper) and delta > self._lattice.p_inf[1]:
      # No finite loss is above the largest of all.
      top = max(self._lattice.top, bounds.lower)
      bounds = Bounds(bounds.lower, min(bounds.estimate, top), top)
    if losses is None or not self._allocates and bounds.upper < math.inf:
      return bounds
    # Chance never costs: without it Gaussian releases are one.
    try:
      cap = _unsampled(losses).epsilon(delta).upper
    except IntractableError:  # A delta next to the least number.
      return bounds
    return Bounds(bounds.lower, min(bounds.estimate, cap), min(bounds.upper, cap))

  def delta(self, epsilon: float) -> Bounds:
    """Bounds on the least delta at `epsilon` >= 0."""
    epsilon = _checks.non_negative('epsilon', epsilon)
    return self._ask(lambda method: method.delta(epsilon))

  def stays_below(self, epsilon: float, delta: float) -> bool:
    """Whether `delta` at `epsilon` is quickly shown to be kept; False: unknown."""
    losses = self._losses
    if losses is None or any(loss.normal for loss, _ in losses):
      return False
    if epsilon >= math.fsum(count * loss.largest for loss, count in losses):
      return True
    try:
      return contour.Contour(losses).stays_below(epsilon, math.log(delta))
    except IntractableError:
      return False

  @property
  def p_inf(self) -> tuple[float, float]:
    """(lower, upper) probability of an infinite loss."""
    return (0.0, 0.0) if self._losses is not None else self._lattice.p_inf

  def renyi_divergence(self, order: npt.ArrayLike, *, finite: bool = False
                       ) -> np.ndarray:
    """The Renyi divergence D_order(P || Q) of the composition.

    Args:
      order: Positive, other than one, any shape.
      finite: Of finite losses only, where there are infinite ones.
    """
    order = np.asarray(order, dtype=np.float64)
    if not np.all((order > 0) & (order != 1)):
      raise ValueError(f'Expected order > 0 and other than 1, got order={order!r}.')
    return np.sum([
        count * step.renyi_divergence(order.ravel(), finite=finite)
        for step, count in self.groups], axis=0).reshape(order.shape)

  def _ask(self, ask: Callable[[Method], Bounds]) -> Bounds:
    """The first good bounds, or the narrowest; of no other method the lattice's."""
    found = []
    for make in self._methods():
      try:
        bounds = ask(make())
      except IntractableError:
        continue
      if bounds.upper - bounds.lower <= max(
          GOOD * min(bounds.upper, 1.0), FLOOR * self._steps):
        return bounds
      found.append(bounds)
    best = min(found, key=lambda bounds: bounds.upper - bounds.lower, default=None)
    if best is not None and (not self._allocates or
                             best.upper - best.lower <= FAIR * best.upper):
      return best
    other = ask(self._lattice)
    if best is None:
      return other
    low, high = max(best.lower, other.lower), min(best.upper, other.upper)
    return Bounds(low, min(max(best.estimate, low), high), high)

  def _methods(self) -> Sequence[Callable[[], Method]]:
    """Ways to an answer, the one that is mostly fastest first."""
    losses, gaussians = self._losses, self._gaussians
    if losses is None:
      return self._discrete_methods()
    whole = contour.Contour(losses)
    if gaussians is None:
      return [lambda: whole]
    if all(loss.normal for loss, _ in gaussians):
      return [lambda: _unsampled(gaussians)]
    if self._steps == 1:
      return [lambda: ClosedForm(gaussians[0][0])]
    split = SplitContours(gaussians)
    if self._steps != 2:
      return [lambda: whole, lambda: split]
    return [lambda: dataclasses.replace(whole, quick=True),
            lambda: TwoSteps.of(*(loss for loss, n in gaussians for _ in range(n))),
            lambda: whole, lambda: split]

  def _discrete_methods(self) -> Sequence[Callable[[], Method]]:
    """Likewise, where not all losses are of Gaussian releases."""
    mixed: list[Callable[[], Method]] = []
    if self._laplace is not None:
      top, count = self._laplace
      mixed = [lambda: LaplaceSum.of(top, count)]
    if any(step.loss or step.scalar for step, _ in self.groups):
      mixed.append(lambda: MixedContours(
          [(step.loss or step.scalar or step.bounds(), count)
           for step, count in self.groups], self._closed_p_inf))
    enumeration = self._enumeration
    if enumeration is None:
      return [*mixed, lambda: SmoothedContours(self._pairs, self._lattice.p_inf)]
    return [*mixed, lambda: enumeration]

  @property
  def _laplace(self) -> Optional[tuple[float, int]]:
    """(largest loss of one, how many), if all are Laplace releases of one scale."""
    tops = {step.scalar.top if isinstance(step.scalar, LaplaceLoss) else math.nan
            for step, _ in self.groups}
    [top, *others] = tops
    return None if others or math.isnan(top) else (top, self._steps)

  @property
  def _closed_p_inf(self) -> tuple[float, float]:
    """(lower, upper) probability of an infinite loss of the discrete steps alone."""
    pairs = [(step.bounds(), count) for step, count in self.groups
             if not (step.loss or step.scalar)]
    return lattice.Lattice(pairs).p_inf if pairs else (0.0, 0.0)

  @property
  def _steps(self) -> int:
    return sum(count for _, count in self.groups)

  @functools.cached_property
  def _losses(self) -> Optional[tuple[tuple[ReleaseLoss, int], ...]]:
    """The losses, if all are in closed form."""
    losses = tuple((step.loss, count) for step, count in self.groups
                   if step.loss is not None)
    return losses if len(losses) == len(self.groups) else None

  @functools.cached_property
  def _gaussians(self) -> Optional[tuple[tuple[GaussianLoss, int], ...]]:
    """The losses, if all are of Gaussian releases, sampled or not."""
    losses = tuple((loss, count) for loss, count in self._losses or ()
                   if isinstance(loss, GaussianLoss))
    return losses if len(losses) == len(self.groups) else None

  @property
  def _allocates(self) -> bool:
    """Whether all losses are in closed form, but not all of samples."""
    return self._losses is not None and self._gaussians is None

  @property
  def _total_variation(self) -> float:
    """A bound on delta at zero, the sum of the steps' own if those are known."""
    if self._gaussians is None or all(loss.normal for loss, _ in self._gaussians):
      return math.inf
    return math.fsum(count * float(sum(loss.delta(0.0)))
                     for loss, count in self._gaussians)

  @functools.cached_property
  def _pairs(self) -> list[tuple[PairBounds, int]]:
    return [(step.bounds(), count) for step, count in self.groups]

  @functools.cached_property
  def _enumeration(self) -> Optional[Enumeration]:
    """All outcomes, if they are not too many."""
    return Enumeration.of(self._pairs, self._lattice.p_inf)

  @functools.cached_property
  def _lattice(self) -> lattice.Lattice:
    if self._losses is None:
      return lattice.Lattice(self._pairs)
    fine, pilot = ([(step.bounds(cells), count) for step, count in self.groups]
                   for cells in (FINE_CELLS, PILOT_CELLS))
    return lattice.Lattice(fine, lattice.FINE, pilot)


def _unsampled(losses: Sequence[tuple[ReleaseLoss, int]]) -> ClosedForm:
  """The one release that is the same as several if none were sampled."""
  mu = math.sqrt(math.fsum(count * loss.mu**2 for loss, count in losses))
  return ClosedForm(GaussianLoss(mu, 1.0, 'remove'))
