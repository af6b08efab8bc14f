"""Accountant by truncated CDP, with dp_accounting's interface."""

from __future__ import annotations

import dataclasses
import math

import attr
import dp_accounting
import numpy as np

from tfcactus import _checks, relations
from tfcactus.accounting import event_steps, truncated_cdp
from tfcactus.accounting.base import PairAccountant
from tfcactus.accounting.renyi import divergence_bounds

ORDERS = 1 + np.geomspace(1e-4, 1e4, 600)
"""Orders at which the divergences of a composition are evaluated."""


@attr.s(frozen=True, slots=True, auto_attribs=True)
class TCDPDpEvent(dp_accounting.DpEvent):
  """A release known by its truncated CDP only.

  Attributes:
    guarantee: (rho, omega), for the accountant's neighbouring relation.
  """

  guarantee: truncated_cdp.TCDP

  def __attrs_post_init__(self) -> None:
    truncated_cdp.check_guarantee(self.guarantee)


@dataclasses.dataclass(frozen=True)
class ClaimStep(event_steps.EventStep):
  """A step known by its truncated CDP only; `guarantee` includes its sampling."""

  guarantee: truncated_cdp.TCDP


@event_steps.steps_of.register(TCDPDpEvent)
def _(event: TCDPDpEvent, sample: event_steps.Sample) -> event_steps.Steps:
  """Yields a step with the guarantee after Theorem 12's sampling, or is Unsupported."""
  covered = relations.REPLACE if sample.fixed_size else relations.ADD_OR_REMOVE
  if sample != event_steps.Sample(sample.relation) and sample.relation != covered:
    raise event_steps.Unsupported(
        event, f'Expected {covered.name} with a truncated CDP under this sampling, '
        f'the relation that Theorem 12 is about, got {sample.relation.name}: a '
        'sample without the record is of neither neighbour.')
  try:
    yield ClaimStep(event.guarantee.subsample(sample.sampling_prob)), 1
  except ValueError as error:
    raise event_steps.Unsupported(event, str(error)) from error


class TCDPAccountant(PairAccountant):
  """Composes by truncated CDP: rhos add, the least omega stays.

  Releases with known dominating pairs enter with the pairs' Renyi divergences, so that
  nearly the least rho holds for each omega. `TCDPDpEvent` releases enter with their
  guarantees, subsampled ones by Theorem 12. `PhiAccountant` refuses `TCDPDpEvent`; for
  all other events truncated CDP, two numbers for a whole profile, loses against it.

  Source: Bun, Dwork, Rothblum and Steinke (STOC 2018), Lemmas 2 and 6 and Theorem 12.
  """

  # All steps can be composed, also those without dominating pairs.
  _takes = event_steps.EventStep
  _last: tuple[dict[event_steps.EventStep, int], list[truncated_cdp.TCDP]] | None = None

  def certificate(self, omega: float) -> truncated_cdp.TCDP:
    """Returns the guarantee of everything composed at `omega`, its rho near the least.

    `omega` is above one and at most that of each `TCDPDpEvent`, and finite unless only
    such releases were composed. Raises ValueError for another omega, or if a divergence
    up to omega is infinite, as without noise.
    """
    if self.non_private:
      raise ValueError(
          'Expected releases with noise, got one without, which no truncated CDP holds '
          'for; compose the others alone.')
    claim, omega = self._claim, truncated_cdp.check_omega(omega)
    if omega > claim.omega:
      raise ValueError(f'Expected omega <= {claim.omega!r}, the least omega composed, '
                       f'got omega={omega!r}.')
    parts = self.compositions().values()
    if not parts:
      return truncated_cdp.TCDP(claim.rho, omega)
    return truncated_cdp.certificate(
        lambda order: max(float(divergence_bounds(part, np.array([order]))[0])
                          for part in parts), omega, orders=ORDERS.size).compose(claim)

  def best(self, target_delta: float) -> truncated_cdp.TCDP:
    """Returns the guarantee whose epsilon is least at `target_delta` in (0, 1).

    Raises ValueError if there is none: divergences are infinite at all orders, or an
    event protects nothing.
    """
    delta = _checks.delta(target_delta, 'target_delta')
    guarantees = self._guarantees()
    if not guarantees:
      raise ValueError(
          'Expected releases with finite Renyi divergences, got some whose '
          'losses may be infinite in their account; use PhiAccountant.')
    return min(guarantees, key=lambda one: one.epsilon(delta))

  def get_epsilon(self, target_delta: float) -> float:
    """Returns an upper bound on epsilon at `target_delta`, by Lemma 6, or inf."""
    delta = _checks.delta(target_delta, 'target_delta')
    return min((one.epsilon(delta) for one in self._guarantees()), default=math.inf)

  def get_delta(self, target_epsilon: float) -> float:
    """Returns an upper bound on delta at `target_epsilon`, by Lemma 6."""
    target = _checks.non_negative('target_epsilon', target_epsilon)
    return min((one.delta(target) for one in self._guarantees()), default=1.0)

  @property
  def _claim(self) -> truncated_cdp.TCDP:
    """The guarantee of all `TCDPDpEvent` releases together; (0, inf) without any."""
    return truncated_cdp.TCDP(0.0).compose(*(
        step.guarantee.self_compose(count) for step, count in self._counts.items()
        if isinstance(step, ClaimStep)))

  def _guarantees(self) -> list[truncated_cdp.TCDP]:
    """Returns `_every_guarantee()`, cached until more is composed."""
    if self._last is None or self._last[0] is not self._counts:
      self._last = self._counts, self._every_guarantee()
    return self._last[1]

  def _every_guarantee(self) -> list[truncated_cdp.TCDP]:
    """Returns a guarantee for each omega worth trying; [] if none is finite."""
    if self.non_private:
      return []
    claim = self._claim
    parts = self.compositions().values()
    if not parts:
      return [claim]
    orders = ORDERS if math.isinf(claim.omega) else np.append(
        ORDERS[ORDERS < claim.omega], claim.omega)
    # In chunks: each call's quadrature is as expensive as its largest order needs.
    divergence = np.concatenate([
        np.max([divergence_bounds(part, chunk) for part in parts], axis=0)
        for chunk in np.array_split(orders, min(15, orders.size))])
    finite = np.isfinite(divergence)
    orders, divergence = orders[finite], divergence[finite]
    if not orders.size:
      return []
    rho = truncated_cdp.running_rho(orders, divergence)
    return [truncated_cdp.TCDP(float(r), float(w)).compose(claim)
            for r, w in zip(rho, orders)]
