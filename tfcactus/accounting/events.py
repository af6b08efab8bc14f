"""Events (no accountant) that dp_accounting lacks: noise, pairs, sampling schemes."""

from __future__ import annotations

import abc

import attr
import dp_accounting
import numpy as np

from tfcactus import _checks, noise as noise_lib, relations
from tfcactus.noise.base import known_pair, Noise
from tfcactus.pairs import dominating_pair as pair_lib, envelope


@attr.s(frozen=True, slots=True, auto_attribs=True, repr=False)
class DominatingPairDpEvent(dp_accounting.DpEvent):
  """A release known by its dominating pair only, such as a discrete mechanism.

  Attributes:
    pair: Dominates the release, for an added record under add-or-remove, for a restored
      record under zero-out (REPLACE_SPECIAL) and for a replaced record under
      REPLACE_ONE. `PairBounds` bracket the release: their upper pair dominates.
    neighboring_relation: The relation that the pair is for.

  Raises ValueError if a pair does not consist of two distributions, or the upper pair
  does not dominate the lower one.
  """

  pair: pair_lib.DominatingPair | pair_lib.PairBounds
  neighboring_relation: dp_accounting.NeighboringRelation = relations.ADD_OR_REMOVE

  def __attrs_post_init__(self) -> None:
    if not isinstance(self.pair, (pair_lib.DominatingPair, pair_lib.PairBounds)):
      raise ValueError(
          f'Expected pair to be a DominatingPair or PairBounds, got {self.pair!r}.')
    if self.bounds.lower is self.bounds.upper:
      self.bounds.upper.check()
    else:
      # Bounds by cells have room for rounding: mass is missing below, too much above.
      self.bounds.lower.check(less=pair_lib.MASS_TOLERANCE)
      self.bounds.upper.check(more=0.5 * pair_lib.MASS_TOLERANCE)
    _check_order(self.bounds)
    if not isinstance(self.neighboring_relation, dp_accounting.NeighboringRelation):
      raise ValueError(
          'Expected neighboring_relation to be a NeighboringRelation of '
          f'dp_accounting, got {self.neighboring_relation!r}.')

  @property
  def bounds(self) -> pair_lib.PairBounds:
    """Lower and upper pair; one object if the pair is exact."""
    return self.pair if isinstance(self.pair, pair_lib.PairBounds) else (
        pair_lib.PairBounds.exact(self.pair))

  def __repr__(self) -> str:
    return (f'DominatingPairDpEvent({self.bounds.upper.loss.size} atoms, '
            f'{self.neighboring_relation.name})')


def _check_order(bounds: pair_lib.PairBounds) -> None:
  """Raises ValueError unless the upper profile bounds the lower one up to rounding."""
  # Both profiles are linear in e^loss between atoms, so comparing at atoms suffices.
  if bounds.lower is bounds.upper:
    return
  loss = np.minimum(np.concatenate([bounds.lower.loss, bounds.upper.loss]),
                    pair_lib.LARGEST_LOSS)
  above = (envelope.profile_at(bounds.lower, loss)[0] -
           envelope.profile_at(bounds.upper, loss)[0])
  above = np.append(above, bounds.lower.p_inf - bounds.upper.p_inf)
  # P- and Q-masses of either pair may each miss one by MASS_TOLERANCE.
  if np.max(above) > 4 * pair_lib.MASS_TOLERANCE:
    raise ValueError(
        'Expected the upper pair to dominate the lower one, got a lower delta that is '
        f'larger by {np.max(above):.3g} somewhere; are they PairBounds(lower, upper)?')


class SteppedDpEvent(dp_accounting.DpEvent, abc.ABC):
  """Base class of events that supply their dominating pairs.

  A new sampling scheme with a proof of its own has a subclass as its event. One event
  is one step, sampling included; accountants refuse it where another event samples it.
  A subclass is a frozen attrs class: accountants count equal events together. Events of
  a class that does not say which are equal are equal only to themselves.

  Attributes:
    proved_relations: Neighbouring relations for which `pair_bounds` is proved;
      accountants refuse the event under others.
  """

  proved_relations: tuple[dp_accounting.NeighboringRelation, ...]

  # DpEvent's own comparison sees no fields: all events of a class would be equal.
  __eq__ = object.__eq__
  __hash__ = object.__hash__

  @abc.abstractmethod
  def pair_bounds(self, relation: dp_accounting.NeighboringRelation,
                  direction: str) -> pair_lib.PairBounds:
    """Returns pairs that bracket the privacy profile of one step.

    The upper pair's profile is an upper bound for all neighbours in the direction, the
    lower pair's a lower bound for the worst ones.

    Args:
      relation: One of `proved_relations`.
      direction: 'remove', where P is the law with the record (not zeroed), 'add', where
        Q is the law with the record, or 'replace' for REPLACE_ONE.
    """


@attr.s(frozen=True, slots=True, auto_attribs=True)
class RandomAllocationDpEvent(dp_accounting.DpEvent):
  """Balls-in-bins: an epoch in which each record enters one of several batches.

  Each record draws its batch uniformly and independently, anew for each event. A
  mechanism runs once on each batch and may depend on its earlier outputs. The account
  is proved for one release of each batch, or several with Gaussian noise, and for one
  record added, removed or, with noise, zeroed.

  Attributes:
    num_batches: Number of batches, from 1 to 2^53, empty ones included; public.
    event: Event of one batch for a record known to be in it.

  Source: Feldman and Shenfeld, "Privacy amplification by random allocation" (2025).
  """

  num_batches: int
  event: dp_accounting.DpEvent

  proved_relations = (relations.ADD_OR_REMOVE, relations.ZERO_OUT)

  def __attrs_post_init__(self) -> None:
    _checks.count('num_batches', self.num_batches)
    if not isinstance(self.event, dp_accounting.DpEvent):
      raise ValueError(
          f'Expected event to be a DpEvent of dp_accounting, got {self.event!r}.')


@attr.s(frozen=True, slots=True, auto_attribs=True)
class ThresholdDpEvent(SteppedDpEvent):
  """A release that shows what one record alone holds, with a small probability.

  The release is (0, delta)-differentially private, such as the choice of the words
  whose noisy counts pass a threshold, among words that one record alone may hold.

  Attributes:
    delta: Bound on that probability, in (0, 1).
  """

  delta: float

  proved_relations = (relations.ADD_OR_REMOVE, relations.REPLACE, relations.ZERO_OUT)

  def __attrs_post_init__(self) -> None:
    _checks.delta(self.delta)

  def pair_bounds(self, relation: dp_accounting.NeighboringRelation,
                  direction: str) -> pair_lib.PairBounds:
    """Returns the pair of all (0, delta)-private releases, for all directions."""
    del relation, direction
    return pair_lib.PairBounds.exact(pair_lib.DominatingPair.from_masses(
        [1 - self.delta, self.delta, 0], [1 - self.delta, 0, self.delta]))


@attr.s(frozen=True, slots=True, auto_attribs=True)
class DistanceDpEvent(dp_accounting.DpEvent):
  """A release that is close to one with noise, such as noise in whole numbers.

  Attributes:
    event: Event of one release with noise.
    distance: Bound, in (0, 1), on the total variation distance between what is released
      and what is computed from a release with that noise, for the same data, in the
      coordinates that one added or removed record may change. It adds up over records.
  """

  event: dp_accounting.DpEvent
  distance: float

  def __attrs_post_init__(self) -> None:
    _noise_of(self.event)
    _checks.delta(self.distance, 'distance')

  def leak(self, shift: int) -> float:
    """Returns a probability of showing the data that makes up for the distance.

    The noise, and a release that shows the data with this probability, together
    dominate the release for a change by `shift` sensitivities; a result of one or more
    means that there is no account.
    """
    # Every loss gives a bound: docs/soundness_releases.md, "Whole numbers in releases".
    bounds = known_pair(_noise_of(self.event), shift)
    pair, always = bounds.upper, bounds.lower.p_inf
    loss, order = np.linspace(0.0, 80.0, 1601), np.argsort(pair.loss)
    first = np.searchsorted(pair.loss[order], loss - 1e-9)
    # P- and Q-masses of losses from each of `loss` on, and the P-mass of smaller ones,
    # each summed from its own end.
    p_above, q_above = (np.append(np.cumsum(mass[order][::-1])[::-1], 0.0)[first]
                        for mass in (pair.p, pair.q))
    p_below = np.append(0.0, np.cumsum(pair.p[order]))[first]
    added = shift * self.distance * (1 + np.exp(loss))
    with np.errstate(divide='ignore'):
      # 1.01 covers rounding, and 1.07 also the e^0.05 between two losses.
      within = np.maximum.accumulate(1.07 * added / (p_below + np.exp(loss) * q_above))
      beyond = (1.01 * added + (1 + 1e-9) * (p_above + pair.p_inf - always)) / np.sum(
          pair.p)
    return float(np.min(np.maximum(within, beyond)))


def _noise_of(event: dp_accounting.DpEvent) -> Noise:
  """Returns the noise of an event; ValueError if it is not one release with noise."""
  noise = noise_lib.of_event(event)
  if noise is None:
    raise ValueError(f'Expected event to be one release with noise, got {event!r}.')
  return noise_lib.check(noise)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class AdaptedDpEvent(dp_accounting.ComposedDpEvent):
  """The releases by which a preprocessing layer was adapted, composed.

  Attributes:
    events: The releases.
    digest: Digest of what the layer holds, by which run cards recognise the layer; ''
      in an account, where the release is entered before the layer changes.
    of_units: Whether a record is all rows of an owner, instead of one row.
  """

  events: list[dp_accounting.DpEvent]
  digest: str
  of_units: bool


PROVED_OF_SPLITS = {
    'coin': (relations.ADD_OR_REMOVE, relations.ZERO_OUT, relations.REPLACE),
    'id': (relations.ADD_OR_REMOVE, relations.ZERO_OUT),
    'position': (relations.ZERO_OUT, relations.REPLACE)}
"""Relations, by kind of split, for which the maximum of the sides is proved."""

_UNPROVED = {
    'id': 'a record that replaces another has another id, so that one side may lose a '
          "record and the other gain one; use Split(fraction), a secret coin",
    'position': 'an added record moves others to other positions, and so to the other '
                "side; use Split(fraction), a secret coin, or by='id'"}
"""Reasons, by kind of split, why it is not proved for the other relations."""


def check_split(by: str, relation: dp_accounting.NeighboringRelation) -> None:
  """Raises ValueError if the maximum of both sides is not proved for `relation`."""
  if relation not in PROVED_OF_SPLITS[by]:
    proved = ' or '.join(name for name, known in relations.NAMES.items()
                         if known in PROVED_OF_SPLITS[by])
    raise ValueError(
        f'Expected neighboring_relation {proved} with a split by {by}, got '
        f'{relations.label(relation)}: {_UNPROVED[by]}.')


@attr.s(frozen=True, slots=True, auto_attribs=True)
class ValidationDpEvent(dp_accounting.DpEvent):
  """All planned releases on validation records, beside training on other records.

  A guarantee takes the maximum over both sides of the split. Accountants compose the
  releases with everything else, as if each record were on both sides.

  Attributes:
    event: Event of one release.
    releases: Largest number of releases, fixed before the first.
    by: Kind of split, a key of `PROVED_OF_SPLITS`; '' without a split.
    split: Name of the split, which the batches of the training have too; or ''.
  """

  event: dp_accounting.DpEvent
  releases: int
  by: str = ''
  split: str = ''

  def __attrs_post_init__(self) -> None:
    _checks.integer('releases', self.releases, 1)
    _checks.choice('by', self.by, ('', *PROVED_OF_SPLITS))

  @property
  def proved_relations(self) -> tuple[dp_accounting.NeighboringRelation, ...]:
    """Neighbouring relations for which the event has an account."""
    return PROVED_OF_SPLITS.get(self.by, tuple(relations.NAMES.values()))

  @property
  def all_releases(self) -> dp_accounting.DpEvent:
    """Event of all planned releases, for a record that takes part in them."""
    return dp_accounting.SelfComposedDpEvent(self.event, self.releases)


def randomized_response_event(noise_parameter: float, num_buckets: int
                              ) -> DominatingPairDpEvent:
  """Returns the event of randomized response under replaced records.

  The mechanism returns a uniform bucket with probability `noise_parameter`, else the
  record's own bucket.

  Raises ValueError unless `noise_parameter` is in (0, 1] and `num_buckets` from 2 to
  2^53.
  """
  prob = _checks.sampling_prob(noise_parameter, 'noise_parameter')
  buckets = _checks.count('num_buckets', num_buckets, 2)
  other = prob / buckets
  own = 1 - prob + other
  rest = [(buckets - 2) * other] if buckets > 2 else []
  pair = pair_lib.DominatingPair.from_masses([own, other, *rest], [other, own, *rest])
  return DominatingPairDpEvent(pair, relations.REPLACE)


def noise_event(noise: Noise) -> dp_accounting.DpEvent:
  """Returns the event of one release with `noise`, of dp_accounting if it has one."""
  return _checks.instance(
      'noise', noise, Noise, 'such as tfcactus.Gaussian(noise_multiplier)').dp_event


def dominating_pair(noise: Noise, *, shift: int = 1) -> pair_lib.PairBounds:
  """Returns pairs that bracket the dominating pair of any noise of this library.

  They hold for all shifts of the query up to `shift`, in units of sensitivity: 1 for a
  record added or removed, 2 for a record replaced. Raises ValueError if no guarantee is
  known for the noise, or `shift` is no integer >= 1.
  """
  return noise_lib.check(noise).dominating_pair(shift)
