"""Events beside those of dp_accounting: table noise, pairs, sampling schemes."""

from __future__ import annotations

import abc

import attr
import dp_accounting

from tfcactus import _checks
from tfcactus import noise as noise_lib
from tfcactus.pairs import dominating_pair as pair_lib


@attr.s(frozen=True, slots=True, auto_attribs=True, repr=False)
class NoiseTableDpEvent(dp_accounting.DpEvent):
  """Noise of a frozen law, added to a query of sensitivity one.

  Two events are equal when their laws draw the same noise.

  Attributes:
    noise: The ScalarTable, RadialTable or SinhNormal that was sampled.
  """

  noise: noise_lib.Noise

  def __attrs_post_init__(self) -> None:
    if not hasattr(self.noise, 'digest'):
      raise ValueError(f'Expected noise of tfcactus, got {self.noise!r}.')

  def __repr__(self) -> str:
    return (f'NoiseTableDpEvent({self.noise.name}, dim={self.noise.dim}, '
            f'digest={self.noise.digest})')


@attr.s(frozen=True, slots=True, auto_attribs=True, repr=False, eq=False)
class DominatingPairDpEvent(dp_accounting.DpEvent):
  """A release known by its dominating pair only, such as a discrete mechanism.

  Attributes:
    pair: Dominates the release; for an added record if the relation is add or
      remove, for a restored one if it is zero-out (REPLACE_SPECIAL).
    neighboring_relation: The relation the pair is for.

  Raises:
    ValueError: if the pair is not one of two distributions.
  """

  pair: pair_lib.DominatingPair
  neighboring_relation: dp_accounting.NeighboringRelation = (
      dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)

  def __attrs_post_init__(self) -> None:
    if not isinstance(self.pair, pair_lib.DominatingPair):
      raise ValueError(
          f'Expected pair to be a DominatingPair, got {self.pair!r}.')
    self.pair.check()
    if not isinstance(
        self.neighboring_relation, dp_accounting.NeighboringRelation):
      raise ValueError(
          'Expected neighboring_relation to be a NeighboringRelation of '
          f'dp_accounting, got {self.neighboring_relation!r}.')

  def __repr__(self) -> str:
    return (f'DominatingPairDpEvent({self.pair.loss.size} atoms, '
            f'{self.neighboring_relation.name})')


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


def randomized_response_event(noise_parameter: float, num_buckets: int
                              ) -> DominatingPairDpEvent:
  """Randomised response: with probability noise_parameter a uniform bucket.

  Args:
    noise_parameter: In (0, 1].
    num_buckets: At least 2.

  Returns:
    The event, for records that are replaced.
  """
  prob = _checks.sampling_prob(noise_parameter, 'noise_parameter')
  buckets = _checks.integer('num_buckets', num_buckets, 2)
  other = prob / buckets
  own = 1 - prob + other
  rest = [(buckets - 2) * other] if buckets > 2 else []
  pair = pair_lib.DominatingPair.from_masses(
      [own, other, *rest], [other, own, *rest])
  return DominatingPairDpEvent(
      pair, dp_accounting.NeighboringRelation.REPLACE_ONE)


def noise_event(noise: noise_lib.Noise) -> dp_accounting.DpEvent:
  """The event of one release with `noise`, in dp_accounting's own words if any.

  Args:
    noise: Any noise of this library.
  """
  if isinstance(noise, noise_lib.Gaussian):
    return dp_accounting.GaussianDpEvent(noise.noise_multiplier)
  if isinstance(noise, noise_lib.Laplace):
    return dp_accounting.LaplaceDpEvent(noise.scale)
  return NoiseTableDpEvent(noise)
