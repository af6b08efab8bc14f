"""Events beside those of dp_accounting: noise, pairs, sampling schemes."""

from __future__ import annotations

import abc
from typing import Union

import attr
import dp_accounting
import numpy as np

from tfcactus import _checks
from tfcactus import _numerics
from tfcactus import noise as noise_lib
from tfcactus.noise.base import Noise
from tfcactus.noise.base import NoiseTableDpEvent
from tfcactus.pairs import dominating_pair as pair_lib

__all__ = ['DominatingPairDpEvent', 'NoiseTableDpEvent', 'RandomAllocationDpEvent',
           'dominating_pair', 'noise_event', 'randomized_response_event']

_MOST = 2**53
"""Batches or buckets: more are none that a float counts."""


@attr.s(frozen=True, slots=True, auto_attribs=True, repr=False, eq=False)
class DominatingPairDpEvent(dp_accounting.DpEvent):
  """A release known by its dominating pair only, such as a discrete mechanism.

  Attributes:
    pair: Dominates the release; for an added record if the relation is add or
      remove, for a restored one if it is zero-out (REPLACE_SPECIAL). Or pairs around
      it, whose upper one dominates.
    neighboring_relation: The relation the pair is for.

  Raises:
    ValueError: if the pair is not one of two distributions, or of pairs around it the
      lower one is not dominated by the upper one.
  """

  pair: Union[pair_lib.DominatingPair, pair_lib.PairBounds]
  neighboring_relation: dp_accounting.NeighboringRelation = (
      dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)

  def __attrs_post_init__(self) -> None:
    if not isinstance(self.pair, (pair_lib.DominatingPair, pair_lib.PairBounds)):
      raise ValueError(
          f'Expected pair to be a DominatingPair or PairBounds, got {self.pair!r}.')
    for pair in {self.bounds.lower, self.bounds.upper}:
      pair.check()
    _check_order(self.bounds)
    if not isinstance(
        self.neighboring_relation, dp_accounting.NeighboringRelation):
      raise ValueError(
          'Expected neighboring_relation to be a NeighboringRelation of '
          f'dp_accounting, got {self.neighboring_relation!r}.')

  @property
  def bounds(self) -> pair_lib.PairBounds:
    """The pair from below and above."""
    return self.pair if isinstance(self.pair, pair_lib.PairBounds) else (
        pair_lib.PairBounds.exact(self.pair))

  def __repr__(self) -> str:
    return (f'DominatingPairDpEvent({self.bounds.upper.loss.size} atoms, '
            f'{self.neighboring_relation.name})')


def _check_order(bounds: pair_lib.PairBounds) -> None:
  """Checks that the lower pair's profile is nowhere above the upper one's.

  Both are chords of e^loss between the losses of atoms: what holds there holds.
  """
  if bounds.lower is bounds.upper:
    return
  loss = np.concatenate([bounds.lower.loss, bounds.upper.loss])
  above = _profile(bounds.lower, loss) - _profile(bounds.upper, loss)
  above = np.append(above, bounds.lower.p_inf - bounds.upper.p_inf)
  # Either pair's masses may miss one by as much, at no loss at all too.
  if np.max(above) > 4 * pair_lib.MASS_TOLERANCE:
    raise ValueError(
        'Expected the upper pair to dominate the lower one, got a lower delta that is '
        f'larger by {np.max(above):.3g} somewhere; are they PairBounds(lower, upper)?')


def _profile(pair: pair_lib.DominatingPair, loss: np.ndarray) -> np.ndarray:
  """H(e^loss) of a pair, up to rounding, by sums from its largest loss down."""
  order = np.argsort(-pair.loss)
  p, q = (np.append(0.0, np.cumsum(mass[order])) for mass in (pair.p, pair.q))
  count = np.searchsorted(-pair.loss[order], -loss)
  with np.errstate(under='ignore'):
    # The atoms above a loss have less of Q than e^-loss of P.
    lost = np.exp(np.minimum(loss + _numerics.log_mass(q[count]), 0.0))
  return p[count] - lost + pair.p_inf


class SteppedDpEvent(dp_accounting.DpEvent, abc.ABC):
  """A step that says its own pairs: where a new sampling scheme comes in.

  One event is one step, what it samples included; steps of several kinds are a
  ComposedDpEvent of several events. Every accountant then takes it. A subclass is
  a frozen attrs class: equal events are counted together, as steps that cost the
  same.

  Attributes:
    proved_relations: The neighbouring relations that `pair_bounds` has a proof for;
      under others the event is refused.
  """

  proved_relations: tuple[dp_accounting.NeighboringRelation, ...]

  @abc.abstractmethod
  def pair_bounds(self, relation: dp_accounting.NeighboringRelation,
                  direction: str) -> pair_lib.PairBounds:
    """Pairs that one step dominates and that dominate it.

    Args:
      relation: One of `proved_relations`.
      direction: 'remove', where P is the law with the record (not zeroed), 'add',
        where Q is, or 'replace' for REPLACE_ONE.

    Returns:
      (lower, upper): the upper pair's privacy profile is an upper bound for all
      neighbours in that direction, the lower pair's a lower bound for the worst.
    """


@attr.s(frozen=True, slots=True, auto_attribs=True)
class RandomAllocationDpEvent(dp_accounting.DpEvent):
  """An epoch in which each record enters one of several batches, drawn at random.

  Each record draws its batch uniformly and independently of the others, anew for
  each event: sizes vary, and one record more moves no other. A mechanism runs once on
  each batch, and may depend on what it returned before. For Gaussian noise, one
  record added, removed or zeroed; others are refused.

  Attributes:
    num_batches: How many batches there are, used or not; public.
    event: What one batch costs a record known to be in it.

  Raises:
    ValueError: if num_batches is no whole number from one to 2^53.

  Source: Feldman and Shenfeld, "Privacy amplification by random allocation" (2025).
  """

  num_batches: int
  event: dp_accounting.DpEvent

  proved_relations = (dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
                      dp_accounting.NeighboringRelation.REPLACE_SPECIAL)

  def __attrs_post_init__(self) -> None:
    _checks.integer('num_batches', self.num_batches, 1, _MOST)
    if not isinstance(self.event, dp_accounting.DpEvent):
      raise ValueError(
          f'Expected event to be a DpEvent of dp_accounting, got {self.event!r}.')


def randomized_response_event(noise_parameter: float, num_buckets: int
                              ) -> DominatingPairDpEvent:
  """Randomised response: with probability noise_parameter a uniform bucket.

  Args:
    noise_parameter: In (0, 1].
    num_buckets: From 2 to 2^53.

  Returns:
    The event, for records that are replaced.
  """
  prob = _checks.sampling_prob(noise_parameter, 'noise_parameter')
  buckets = _checks.integer('num_buckets', num_buckets, 2, _MOST)
  other = prob / buckets
  own = 1 - prob + other
  rest = [(buckets - 2) * other] if buckets > 2 else []
  pair = pair_lib.DominatingPair.from_masses(
      [own, other, *rest], [other, own, *rest])
  return DominatingPairDpEvent(
      pair, dp_accounting.NeighboringRelation.REPLACE_ONE)


def noise_event(noise: Noise) -> dp_accounting.DpEvent:
  """The event of one release with `noise`, in dp_accounting's own words if any.

  Args:
    noise: Any noise of this library.
  """
  return noise.dp_event


def dominating_pair(noise: Noise, *, shift: int = 1) -> pair_lib.PairBounds:
  """The pair of `noise` against itself shifted by `shift` sensitivities.

  Args:
    noise: Any noise of this library.
    shift: 1 for neighbours that differ in one record (add or remove), 2 for
      neighbours where one record is replaced.

  Returns:
    Pairs that bracket the tight dominating pair over all shifts of at most
    `shift` sensitivities.

  Raises:
    ValueError: if no guarantee is known for the noise.
  """
  return noise_lib.check(noise).dominating_pair(shift)
