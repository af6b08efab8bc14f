"""An accountant in the words of truncated CDP, behind dp_accounting's interface."""

from __future__ import annotations

import math
from typing import Optional

import attr
import dp_accounting
import numpy as np

from tfcactus import _checks
from tfcactus import relations
from tfcactus.accounting import renyi_curves
from tfcactus.accounting import truncated_cdp
from tfcactus.accounting.base import PairAccountant
from tfcactus.accounting.renyi import known_divergences

ORDERS = 1 + np.geomspace(1e-4, 1e4, 600)
"""Orders at which the divergences of a composition are taken."""

_CHUNKS = 15


@attr.s(frozen=True, slots=True, auto_attribs=True)
class TCDPDpEvent(dp_accounting.DpEvent):
  """A release known by its truncated CDP only.

  Attributes:
    guarantee: (rho, omega), for the accountant's neighbouring relation.
  """

  guarantee: truncated_cdp.TCDP


class TCDPAccountant(PairAccountant):
  """Composes by truncated CDP: rhos add, the least omega stays.

  Releases whose dominating pairs are known enter with their exact Renyi
  divergences, so that the (rho, omega) of the composition is the least there
  is; releases known as `TCDPDpEvent` enter as they are, subsampled ones by
  Theorem 12. What is lost against `PhiAccountant`, which is exact and does not
  take the latter, is lost in the definition.

  Source: Bun, Dwork, Rothblum and Steinke (STOC 2018), Lemmas 2 and 6 and
  Theorem 12.
  """

  def __init__(self, *args, **kwargs):
    """Initializes an empty account; arguments as for `PhiAccountant`."""
    super().__init__(*args, **kwargs)
    self._claims: list[truncated_cdp.TCDP] = []
    self._known: Optional[list[truncated_cdp.TCDP]] = None

  def _maybe_compose(
      self, event: dp_accounting.DpEvent, count: int, do_compose: bool
  ) -> Optional[dp_accounting.PrivacyAccountant.CompositionErrorDetails]:
    if do_compose:
      self._known = None
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
      try:
        times = _checks.integer('count', event.count, 0)
      except ValueError as error:
        return dp_accounting.PrivacyAccountant.CompositionErrorDetails(
            invalid_event=event, error_message=str(error))
      if times == 0 and do_compose:
        return None
      return self._maybe_compose(event.event, times * count, do_compose)
    if isinstance(event, dp_accounting.ComposedDpEvent):
      for part in event.events:
        error = self._maybe_compose(part, count, do_compose)
        if error is not None:
          return error
      return None
    try:
      claim = _claim(event, self.neighboring_relation)
    except ValueError as error:
      return dp_accounting.PrivacyAccountant.CompositionErrorDetails(
          invalid_event=event, error_message=str(error))
    if claim is None:
      return super()._maybe_compose(event, count, do_compose)
    if do_compose:
      self._claims.append(claim.self_compose(count))
    return None

  def certificate(self, omega: float) -> truncated_cdp.TCDP:
    """The least rho that holds with `omega` for all that was composed.

    Args:
      omega: Above one, finite unless only claims were composed.

    Raises:
      ValueError: if a divergence below omega is infinite.
    """
    claimed = self._claimed(omega)
    if not self._counts or self._non_private:
      return claimed
    parts = self.compositions().values()
    exact = truncated_cdp.certificate(
        lambda order: max(float(known_divergences(part, np.array([order]))[0])
                          for part in parts), omega, orders=ORDERS.size)
    return exact.compose(claimed)

  def best(self, target_delta: float) -> truncated_cdp.TCDP:
    """The guarantee whose epsilon is least at `target_delta`.

    Raises:
      ValueError: if there is none, since all divergences are infinite.
    """
    delta = _checks.delta(target_delta, 'target_delta')
    guarantees = self._guarantees()
    if not guarantees:
      raise ValueError(
          'Expected releases with finite Renyi divergences, got some whose '
          'losses may be infinite in their account; use PhiAccountant.')
    return min(guarantees, key=lambda one: one.epsilon(delta))

  def get_epsilon(self, target_delta: float) -> float:
    """An upper bound on epsilon at `target_delta`, by Lemma 6."""
    delta = _checks.delta(target_delta, 'target_delta')
    return min((one.epsilon(delta) for one in self._guarantees()),
               default=math.inf)

  def get_delta(self, target_epsilon: float) -> float:
    """An upper bound on delta at `target_epsilon`, by Lemma 6."""
    target = _checks.non_negative('target_epsilon', target_epsilon)
    return min((one.delta(target) for one in self._guarantees()), default=1.0)

  def _claimed(self, omega: float) -> truncated_cdp.TCDP:
    """What the claims say up to `omega`."""
    if not self._claims:
      return truncated_cdp.TCDP(0.0, omega)
    whole = self._claims[0].compose(*self._claims[1:])
    if omega > whole.omega:
      raise ValueError(
          f'Expected omega <= {whole.omega!r}, the least omega composed, got '
          f'omega={omega!r}.')
    return truncated_cdp.TCDP(whole.rho, omega)

  def _guarantees(self) -> list[truncated_cdp.TCDP]:
    """What `_every_guarantee` gives, computed once for what was composed."""
    if self._known is None:
      self._known = self._every_guarantee()
    return self._known

  def _every_guarantee(self) -> list[truncated_cdp.TCDP]:
    """A guarantee for each omega worth trying; none if nothing is protected."""
    if self._non_private:
      return []
    top = min((claim.omega for claim in self._claims), default=math.inf)
    if not self._counts:
      return [self._claimed(top)]
    orders = ORDERS if math.isinf(top) else np.append(
        ORDERS[ORDERS < top], top)
    # In chunks: the quadrature of one call serves its largest order.
    parts = self.compositions().values()
    divergence = np.concatenate([
        np.max([known_divergences(part, chunk) for part in parts], axis=0)
        for chunk in np.array_split(orders, min(_CHUNKS, orders.size))])
    finite = np.isfinite(divergence)
    orders, divergence = orders[finite], divergence[finite]
    if not orders.size:
      return []
    rho = renyi_curves.running_rho(orders, divergence)
    return [truncated_cdp.TCDP(float(r), float(w)).compose(self._claimed(float(w)))
            for r, w in zip(rho, orders)]


def _claim(event: dp_accounting.DpEvent,
           relation: dp_accounting.NeighboringRelation) -> Optional[truncated_cdp.TCDP]:
  """The guarantee of an event known by one only; None for other events.

  Raises:
    ValueError: if the claim does not survive its sampling.
  """
  if isinstance(event, TCDPDpEvent):
    return event.guarantee
  if isinstance(event, dp_accounting.PoissonSampledDpEvent):
    prob, covered = event.sampling_probability, relations.ADD_OR_REMOVE
  elif isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent):
    prob = event.sample_size / event.source_dataset_size
    covered = relations.REPLACE
  else:
    return None
  claim = _claim(event.event, relation)
  if claim is None:
    return None
  if relation != covered and not (prob == 1 and covered != relations.REPLACE):
    raise ValueError(
        f'Expected {covered.name} with a truncated CDP under this sampling, the '
        f'relation that Theorem 12 is about, got {relation.name}: a sample '
        'without the record is of neither neighbour.')
  return claim.subsample(prob)
