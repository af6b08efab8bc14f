"""Composition of steps: the kinds of privacy losses decide the method.

| steps | method | width of the bounds |
|---|---|---|
| one Gaussian release, or only unsampled ones | closed form | rounding |
| subsampled or randomly allocated Gaussians | contour at one tilt | 1e-9, mostly |
| several rows of a person, subsampled | contour without rare samples | 1e-10, mostly |
| removal, too few or too rare for one tilt | several contours | 1e-9, mostly |
| two Gaussians, addition or removal | cells and a closed form | 1e-7, mostly 1e-9 |
| addition, too few or too rare | fine lattice | about 1e-8 |
| few discrete outcomes | enumeration | 1e-12 of epsilon per step |
| Laplace releases of one scale | residues in integers | rounding |
| Laplace or Gaussian steps beside others | contour | 1e-12 of epsilon per step |
| other steps, also replacement in samples | lattice | about 1e-6, mostly |

Widths are relative to the bounded epsilon or delta, but 'of epsilon per step' is
absolute.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Callable

import numpy as np
import numpy.typing as npt

from tfcactus import _checks
from tfcactus.accounting.bounds import Bounds, IntractableError, Method
from tfcactus.accounting.composition import contour, lattice
from tfcactus.accounting.composition.discrete_contours import MixedContours
from tfcactus.accounting.composition.enumeration import Enumeration
from tfcactus.accounting.composition.laplace_sum import LaplaceSum
from tfcactus.accounting.composition.losses.base import Loss, ReleaseLoss
from tfcactus.accounting.composition.losses.gaussian import ClosedForm, GaussianLoss
from tfcactus.accounting.composition.losses.grouped import GroupedGaussian
from tfcactus.accounting.composition.losses.laplace import LaplaceLoss
from tfcactus.accounting.composition.repeated import Repeated
from tfcactus.accounting.composition.split_contours import SplitContours
from tfcactus.accounting.composition.two_steps import TwoSteps
from tfcactus.noise import gaussian
from tfcactus.pairs.cells import CELLS
from tfcactus.pairs.dominating_pair import PairBounds

GOOD = 1e-8
"""Bounds of this width, relative to min(upper, 1), are accepted at once."""

FAIR = 1e-4
"""Relative width of bounds up to which `Composition._allocates` needs no lattice."""

FLOOR = 2e-14
"""Width per step from rounding, in every method. Such bounds are accepted at once."""

FINE_CELLS = 1 << 18
"""Number of cells per continuous loss on the fine lattice."""

PILOT_CELLS = 1 << 12
"""Number of cells per continuous loss to choose a tilt and a window from."""


@dataclasses.dataclass(frozen=True, eq=False)
class StepLoss:
  """The privacy loss of one step, in one direction (add, remove or replace).

  Attributes:
    make_bounds: Returns bounds on the step's dominating pair, given the number of cells
      of a continuous loss.
    loss: The loss of a Gaussian release as a formula, also if it is sampled or
      allocated. None for others, and if a record is replaced in a sample.
    scalar: The loss of another mechanism as a formula, or None.
  """

  make_bounds: Callable[[int], PairBounds]
  loss: ReleaseLoss | None = None
  scalar: Loss | None = None

  def __post_init__(self) -> None:
    # Methods cache what they derive from a pair by the pair: make each pair only once.
    object.__setattr__(self, 'make_bounds', functools.lru_cache(self.make_bounds))

  @classmethod
  def of(cls, bounds: PairBounds) -> StepLoss:
    """Returns the step whose dominating pair has these bounds."""
    return cls(lambda cells: bounds)

  def bounds(self, cells: int = CELLS) -> PairBounds:
    """Returns bounds on the step's pair, with `cells` cells of a continuous loss."""
    return self.make_bounds(cells)

  def renyi_divergence(self, orders: np.ndarray, *, finite: bool = False) -> np.ndarray:
    """Returns Renyi divergences D_order(P || Q), or upper bounds on them, shape (n,).

    Args:
      orders: Shape (n,), positive, other than one.
      finite: Leave out the mass `p_inf` of the upper pair. It includes the mass of
        finite losses beyond the pair's cells, so that the results bound the
        divergences of the other losses alone.
    """
    loss, divergences = self.loss, np.empty(orders.shape)
    if loss is not None and loss.normal:
      return 0.5 * orders * loss.mu**2
    # Orders below one, and steps without `loss`, have no formula. They use the upper
    # pair, whose hockey-stick divergences are larger: a Renyi divergence increases with
    # each of these.
    of_pair = (orders < 1) | (loss is None)
    above = orders[~of_pair] - 1
    if loss is not None and above.size:
      divergences[~of_pair] = (
          loss.cumulants(above)[0] if loss.moments_are_proved else
          np.array([loss.log_moment(order) for order in above.tolist()])) / above
    if np.any(of_pair):
      pair = self.bounds().upper
      divergences[of_pair] = [pair.renyi_divergence(order, finite=finite)
                              for order in orders[of_pair]]
    return divergences


@dataclasses.dataclass(frozen=True, eq=False)
class Composition:
  """The composition of groups of steps, in one direction (add, remove or replace).

  Dominating pairs are composed as if independent. That composition also dominates
  steps that are chosen adaptively.

  Attributes:
    groups: Pairs (StepLoss or PairBounds, number of steps).
  """

  groups: Sequence[tuple[StepLoss, int]]

  def __post_init__(self) -> None:
    groups = tuple(
        (StepLoss.of(step) if isinstance(step, PairBounds) else step,
         _checks.integer('count', count, 1)) for step, count in self.groups)
    for step, _ in groups:
      if not isinstance(step, StepLoss):
        raise ValueError('Expected StepLoss or PairBounds in groups, got '
                         f'{step!r}; a pair has PairBounds.exact(pair).')
    if not groups:
      raise ValueError('Expected at least one group of steps, got none.')
    object.__setattr__(self, 'groups', groups)

  def epsilon(self, delta: float) -> Bounds:
    """Returns bounds on the least epsilon >= 0 at `delta` in (0, 1).

    All are inf if `delta` is below `p_inf[0]`.
    """
    delta = _checks.delta(delta)
    losses, gaussians = self._losses, self._gaussians
    # The composition's delta(0) is at most the sum of the steps' delta(0). `delta` of a
    # loss returns a value and its error, whose sum is an upper bound.
    if gaussians is not None and not all(loss.normal for loss, _ in gaussians) and (
        math.fsum(count * float(sum(loss.delta(0.0)))
                  for loss, count in gaussians) <= delta):
      return Bounds(0.0, 0.0, 0.0)
    bounds = self._ask(lambda method: method.epsilon(delta))
    if losses is None and math.isinf(bounds.upper) and (
        delta >= self._lattice.p_inf[1]):
      # At this delta, epsilon is at most the largest finite total loss.
      top = max(self._lattice.top, bounds.lower)
      bounds = Bounds(bounds.lower, min(bounds.estimate, top), top)
    if losses is None or not self._allocates and bounds.upper < math.inf:
      return bounds
    # Cap epsilon where the methods above may be loose: if `_allocates`, or if they gave
    # inf. Sampling never costs privacy; unsampled Gaussians compose to one Gaussian.
    try:
      cap = _unsampled(losses).epsilon(delta).upper
    except IntractableError:  # delta is near the least float.
      return bounds
    return Bounds(bounds.lower, min(bounds.estimate, cap), min(bounds.upper, cap))

  def delta(self, epsilon: float) -> Bounds:
    """Returns bounds on the least delta at `epsilon` >= 0."""
    epsilon = _checks.non_negative('epsilon', epsilon)
    return self._ask(lambda method: method.delta(epsilon))

  def repeated(self, rows: int) -> Composition | Repeated:
    """Returns the account of a person with several rows; this one is for one row.

    Upper bounds hold if this account does for each row, whatever the other rows are. An
    account of rows added or removed under samples of fixed size does not. Lower bounds
    are those of the worst mechanism with this account; others may cost less.

    Args:
      rows: Number of rows, all added, all removed, or all replaced.

    Raises:
      ValueError: if `rows` is not an integer of at least one.
    """
    rows = _checks.integer('rows', rows, 1)
    losses = self._losses
    if losses is not None and all(loss.normal for loss, _ in losses):
      mu = rows * _unsampled(losses).loss.mu
      return Composition([(StepLoss(lambda cells: gaussian.shifted_pair(mu, cells),
                                    GaussianLoss(mu, 1.0, 'remove')), 1)])
    return Repeated(self, rows, self.p_inf[0])

  def stays_below(self, epsilon: float, delta: float) -> bool:
    """Returns whether delta(`epsilon`) <= `delta` is quickly shown; False: unknown."""
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
    """Bounds (lower, upper) on the probability of an infinite loss."""
    return (0.0, 0.0) if self._losses is not None else self._lattice.p_inf

  def renyi_divergence(self, order: npt.ArrayLike, *, finite: bool = False
                       ) -> np.ndarray:
    """Returns the composition's Renyi divergence D_order(P || Q), or a bound above it.

    Args:
      order: Finite, positive, other than one, any shape.
      finite: Leave out the mass `p_inf` of the steps' upper pairs, as in
        `StepLoss.renyi_divergence`.

    Raises:
      ValueError: if an order is out of range.
      IntractableError: if an order is so large that its quadrature costs too much.
    """
    order = np.asarray(order, dtype=np.float64)
    if not np.all((order > 0) & (order != 1) & np.isfinite(order)):
      raise ValueError(
          f'Expected finite order > 0 and other than 1, got order={order!r}.')
    return np.sum([
        count * step.renyi_divergence(order.ravel(), finite=finite)
        for step, count in self.groups], axis=0).reshape(order.shape)

  def _ask(self, ask: Callable[[Method], Bounds]) -> Bounds:
    """Returns the first method's bounds within tolerance, else the narrowest.

    `ask` asks a method for epsilon or delta. The lattice is the last resort; if
    `_allocates`, it also narrows wide bounds.
    """
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
    of_lattice = ask(self._lattice)
    if best is None:
      return of_lattice
    low = max(best.lower, of_lattice.lower)
    high = min(best.upper, of_lattice.upper)
    return Bounds(low, min(max(best.estimate, low), high), high)

  def _methods(self) -> Sequence[Callable[[], Method]]:
    """Returns constructors of the methods to try, mostly the fastest first."""
    losses, gaussians = self._losses, self._gaussians
    if losses is None:
      return self._discrete_methods()
    first = losses[0][0]
    if self._steps == 1 and isinstance(first, GroupedGaussian):
      return [lambda: ClosedForm(first)]
    if any(isinstance(loss, GroupedGaussian) for loss, _ in losses):
      return [lambda: contour.GroupedContours(losses)]
    whole = self._contour
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
    """Returns constructors of the methods to try if some step has no `loss`."""
    methods: list[Callable[[], Method]] = []
    # The largest losses of all Laplace releases, and None for steps of other kinds.
    # `LaplaceSum` needs one largest loss for all steps.
    tops = {step.scalar.top if isinstance(step.scalar, LaplaceLoss) else None
            for step, _ in self.groups}
    top = tops.pop()
    if top is not None and not tops:
      methods.append(lambda: LaplaceSum.of(top, self._steps))
    parts = [(step.loss or step.scalar or step.bounds(), count)
             for step, count in self.groups]
    pairs = [(part, count) for part, count in parts if isinstance(part, PairBounds)]
    if len(pairs) < len(parts):
      methods.append(lambda: MixedContours(parts, lattice.Lattice(pairs).p_inf))
    return [*methods, lambda: self._enumeration]

  @property
  def _steps(self) -> int:
    """The number of steps of all groups."""
    return sum(count for _, count in self.groups)

  @functools.cached_property
  def _losses(self) -> tuple[tuple[ReleaseLoss, int], ...] | None:
    """The losses with counts if all steps have a (Gaussian) `loss`, else None."""
    losses = tuple((step.loss, count) for step, count in self.groups
                   if step.loss is not None)
    return losses if len(losses) == len(self.groups) else None

  @functools.cached_property
  def _gaussians(self) -> tuple[tuple[GaussianLoss, int], ...] | None:
    """The losses with counts, or None if one is allocated or of several rows."""
    losses = tuple((loss, count) for loss, count in self._losses or ()
                   if isinstance(loss, GaussianLoss))
    return losses if len(losses) == len(self.groups) else None

  @property
  def _allocates(self) -> bool:
    """True if all steps are Gaussian and at least one is not plainly sampled.

    Such a step is randomly allocated, or covers several rows of a person.
    """
    return self._losses is not None and self._gaussians is None

  @functools.cached_property
  def _contour(self) -> contour.Contour:
    """The contour of all steps, which keeps its last table; for Gaussian releases."""
    return contour.Contour(self._losses or ())

  @functools.cached_property
  def _enumeration(self) -> Enumeration:
    """The enumeration of all outcomes; IntractableError if there are too many."""
    return Enumeration.of(self._lattice.groups, self._lattice.p_inf)

  @functools.cached_property
  def _lattice(self) -> lattice.Lattice:
    """The lattice; a fine one with a coarse pilot if all releases are Gaussian."""
    if self._losses is None:
      return lattice.Lattice([(step.bounds(), count) for step, count in self.groups])
    fine, pilot = ([(step.bounds(cells), count) for step, count in self.groups]
                   for cells in (FINE_CELLS, PILOT_CELLS))
    return lattice.Lattice(fine, lattice.FINE, pilot)


def _unsampled(losses: Sequence[tuple[ReleaseLoss, int]]) -> ClosedForm:
  """Returns the one Gaussian release that all releases compose to if unsampled."""
  mu = math.sqrt(math.fsum(count * loss.mu**2 for loss, count in losses))
  return ClosedForm(GaussianLoss(mu, 1.0, 'remove'))
