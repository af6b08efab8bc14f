"""Event (no accountant) of a search: the best of a secret number of private runs.

The field calls this private selection; tuning of hyperparameters is its main use. The
proof, and its symbols f, H, Phi, alpha and beta, are in docs/soundness_accounting.md,
"The best of several runs". One constant for f'(a) / f'(b) is in Koskela, Redberg and
Wang, "Privacy Profiles for Private Selection" (ICML 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
import copy
import dataclasses
import functools
import math
from typing import Any, Union

import attr
import dp_accounting
import numpy as np
from scipy import special

from tfcactus import _checks, relations
from tfcactus._numerics import EPS
from tfcactus.accounting import event_steps, events, run_laws, views
from tfcactus.accounting.composition.composition import Composition
from tfcactus.accounting.composition.repeated import Lines, lower_lines
from tfcactus.accounting.phi import PhiAccountant
from tfcactus.pairs.dominating_pair import DominatingPair, lower_hull, PairBounds

Setting = Union[dp_accounting.DpEvent, Sequence[tuple[float, dp_accounting.DpEvent]]]
"""The event of one run, or (probability, event) for each setting a run may draw."""

SCORES = {'released': 'a function of what a run releases',
          'public': 'a function of what a run releases and of public data'}
"""Scores that the proof covers, with their meaning."""

LEAST_DELTA = 1e-11
"""Delta of a search down to which its profile is followed."""

POINTS, FEW_POINTS = 280, 70
"""Points of one run's profile in each direction: if it is one step or in closed form,
and else, as a point takes longer. Affects speed and width only."""

TUNED_POINTS = 1200
"""Points of the profile of a search. Affects speed and width only."""

NODES, MIDDLE, EDGE = 8000, 8.0, 1.35
"""Nodes in [0, 1], dense within log-odds of MIDDLE. Affects speed and width only."""

LEAST_TOP, LARGEST = 1e-6, 300.0
"""Range of the largest epsilon at which the profile of a run is computed."""

LEVELS = 10**np.arange(-0.5, -10.5, -0.5)
"""Deltas for which rankings are made. Affects lower bounds only."""

NEARLY_ALWAYS = 1.5
"""Ratio of the largest and the mean number of runs above which showing all of them is
not considered. Affects speed and width only."""

TINY = 1e-13
"""Bound on the rounding of a sum of masses, and of a value of f."""

PLACES = 60
"""Number of places in a ranking that are tried. Affects lower bounds only."""

_ROUNDOFF = 30 * run_laws.ROUNDOFF
"""Relative room for a few computed f', each within `run_laws.ROUNDOFF`, and for sums of
a few thousand non-negative terms."""

_REVERSED = {'add': 'remove', 'remove': 'add', 'replace': 'replace'}


@dataclasses.dataclass(frozen=True)
class _Profile:
  """Upper bounds on a privacy profile H(e^x), at points on both sides of x = 0."""

  x: np.ndarray  # Shape (points,), increasing and symmetric around zero.
  high: np.ndarray  # Upper bounds on H(e^x).
  call: np.ndarray  # Upper bounds on e^-x H(e^x).
  back: np.ndarray  # `high`, but H(e^-x) of the reversed direction where x < 0.

  @classmethod
  def of(cls, epsilon: np.ndarray, own: np.ndarray, reverse: np.ndarray) -> _Profile:
    """Returns the profile from upper bounds on delta at `epsilon`, which rises from 0.

    `own` are those of this direction, `reverse` those of the reversed one.
    """
    x = np.concatenate([-epsilon[:0:-1], epsilon])
    back = np.concatenate([reverse[:0:-1], own])
    # H(1/a) = 1 - 1/a + G(a)/a, where G is the profile of the reversed direction.
    high = np.exp(np.minimum(x, 0.0)) * back - np.expm1(np.minimum(x, 0.0))
    call = np.exp(-np.maximum(x, 0.0)) * back + np.expm1(np.maximum(-x, 0.0))
    return cls(x, high, call, back)

  def pair(self) -> DominatingPair:
    """Returns a pair that dominates the mechanism."""
    return views.pair_from_profile(
        np.exp(self.x), np.minimum(self.high * (1 + _ROUNDOFF), 1.0))


@attr.s(frozen=True, auto_attribs=True, eq=False)  # By identity: lists have no hash.
class SearchDpEvent(events.SteppedDpEvent):
  """The best of a secret number of private runs; all else about them stays secret.

  The runs are independent, each with fresh randomness.

  Attributes:
    runs: Law of the number of runs, such as `LogarithmicRuns(mean=10)`; the number is
      secret, except with `FixedRuns`.
    event: Event of one run, with every release that its score reads. If runs differ in
      cost, a list of (probability, event): each run draws its setting from this public
      law. Settings of one cost need no list.
    score: What decides which run is best. 'released': a function of what a run
      releases, such as a noisy accuracy that `event` counts. 'public': a function of
      that and of public data.

  Raises ValueError if the proof does not cover the score, the settings or a run.
  """

  runs: run_laws.RunLaw
  event: Setting
  score: str = attr.ib(kw_only=True)

  def __attrs_post_init__(self) -> None:
    if not isinstance(self.runs, run_laws.RunLaw):
      raise ValueError(
          'Expected runs to be a law of the number of runs, such as '
          f'LogarithmicRuns(mean=10), got {self.runs!r}.')
    if not isinstance(self.score, str) or self.score not in SCORES:
      raise ValueError(
          f'Expected score to be one of {", ".join(SCORES)}, got {self.score!r}. A '
          'score that reads private data without noise has no account: the best of '
          'fair coins, which cost nothing each, in a logarithmic number of mean ten, '
          'can cost epsilon 1.487. Count a noisy score in the event of a run and take '
          "'released', or score on public data and take 'public'.")
    if not self.proved_relations:
      raise ValueError(
          'Expected the event of a run to have a dominating pair, got '
          f'{self.event!r}; add noise, and count all of it.')
    object.__setattr__(self, 'event', _frozen(self.event))

  @property
  def settings(self) -> tuple[tuple[float, dp_accounting.DpEvent], ...]:
    """The settings that a run draws from, as (probability, event); checks them."""
    listed = self.event
    if isinstance(listed, dp_accounting.DpEvent):
      return ((1.0, listed),)
    if not isinstance(listed, (list, tuple)) or not listed or not all(
        isinstance(one, (list, tuple)) and len(one) == 2 and
        isinstance(one[1], dp_accounting.DpEvent) for one in listed):
      raise ValueError(
          'Expected event to be the event of one run, or a list of (probability, event)'
          f' that each run draws its setting from, got {listed!r}. Settings that are '
          'all tried (a grid), or chosen by earlier runs, cost all runs: compose them '
          'in a ComposedDpEvent.')
    run_laws.check_sum((_checks.sampling_prob(prob, 'probability') for prob, _ in
                        listed), 'probabilities of settings')
    return tuple((float(prob), event) for prob, event in listed)

  @property
  def proved_relations(  # type: ignore[override]
      self) -> tuple[dp_accounting.NeighboringRelation, ...]:
    """The relations under which every setting has an account."""
    return tuple(relation for relation in relations.NAMES.values() if all(
        _has_account(event, relation) for _, event in self.settings))

  @property
  def condition(self) -> str:
    """The conditions that the account assumes and cannot check, as sentences."""
    # A fixed number of runs may be public.
    secret = '' if self.runs.most == self.runs.expected else (
        ' and stays secret, as do the time taken and logs')
    return (
        'The cost is that of a search. It assumes, unchecked, that the '
        f'number of runs is drawn from {self.runs}{secret}; each run has fresh '
        'randomness, and settings drawn anew from a public law, not from a grid nor '
        f'by the results of earlier runs; {SCORES[self.score]} decides which run is '
        'best; the other runs stay secret. A search that is broken off and begun anew '
        'counts again.')

  def pair_bounds(self, relation: dp_accounting.NeighboringRelation,
                  direction: str) -> PairBounds:
    """Returns pairs that bracket the search; see `SteppedDpEvent.pair_bounds`."""
    epsilon, high, events_won = _searched(self, relation)
    other = _REVERSED[direction]
    return PairBounds(_pair_of_events(events_won[direction], events_won[other]),
                      _Profile.of(epsilon, high[direction], high[other]).pair())


def _frozen(value: Any) -> Any:
  """Returns an event, or its field, with tuples for all lists, which might change."""
  if isinstance(value, (list, tuple)):
    return tuple(map(_frozen, value))
  if not isinstance(value, dp_accounting.DpEvent) or not attr.has(type(value)):
    return value
  fields = {field.name: getattr(value, field.name)
            for field in attr.fields(type(value))}
  frozen = {name: _frozen(field) for name, field in fields.items()}
  if all(frozen[name] is field for name, field in fields.items()):
    return value
  # A copy, not a new event: a class may have a constructor of its own.
  found = copy.copy(value)
  for name, field in frozen.items():
    object.__setattr__(found, name, field)
  return found


def _has_account(event: dp_accounting.DpEvent,
                 relation: dp_accounting.NeighboringRelation) -> bool:
  """Returns whether a run has pairs that serve several rows of a person too."""
  if not PhiAccountant(relation).supports(event):
    return False
  steps = [step for step, count in event_steps.steps_of(
      event, event_steps.Sample(relation)) if count]
  # `PhiAccountant` cannot see through a search that further rows change the pair.
  return bool(steps) and None not in steps and not event_steps.change_shares(steps)


@functools.lru_cache(maxsize=8)
def _searched(search: SearchDpEvent, relation: dp_accounting.NeighboringRelation
              ) -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, np.ndarray]]:
  """Returns (epsilon, {direction: upper bounds on delta}, {direction: `_attained`})."""
  runs, settings = search.runs, search.settings
  parts = [PhiAccountant(relation).compose(event).compositions()
           for _, event in settings]
  every = [part for by_direction in parts for part in by_direction.values()]
  # One step, or a closed form: its profile takes little time.
  quick = all(sum(count for _, count in part.groups) == 1 or all(
      step.loss is not None for step, _ in part.groups) for part in every)
  x = np.linspace(0.0, max(_top(part, runs.expected) for part in every),
                  POINTS if quick else min(FEW_POINTS, POINTS))
  # A run with its setting is a mixture, whose profile is the mean of profiles. Values
  # of `own` have shape (2, points): lower and upper bounds on the delta of one run.
  own = {direction: np.sum([
      prob * _deltas(by_direction[direction], x)
      for (prob, _), by_direction in zip(settings, parts)], axis=0)
         for direction in parts[0]}
  # All runs shown, as a composition, may cost less than the best of them.
  composed = {} if len(settings) > 1 or runs.most > NEARLY_ALWAYS * runs.expected else (
      PhiAccountant(relation).compose(settings[0][1], int(runs.most)).compositions())
  uppers = {direction: _Upper.of(runs, _Profile.of(
      x, table[1], own[_REVERSED[direction]][1])) for direction, table in own.items()}
  end = min(max(upper.end() for upper in uppers.values()), max(
      (_top(part, 1.0) for part in composed.values()), default=math.inf))
  grid = np.linspace(0.0, end, TUNED_POINTS)
  high, won = {}, {}
  for direction, upper in uppers.items():
    bound = np.minimum(upper.delta(grid), 1.0)
    if composed:
      bound = _below_composition(composed[direction], grid, bound)
    # A ranking gives proved lower bounds whatever epsilon it is made for. Where a
    # composition sets `bound`, that of a smaller epsilon is the best for a delta.
    targets = np.multiply.outer([1.0, 0.97, 0.9] if composed else [1.0], grid[
        np.unique(np.searchsorted(-bound[:-1], -LEVELS))]).ravel()
    pair = _lower_pair(x, own[direction], own[_REVERSED[direction]])
    high[direction], won[direction] = bound, _attained(runs, pair, targets)
  return grid, high, won


def _lower_pair(epsilon: np.ndarray, own: np.ndarray, reverse: np.ndarray
                ) -> DominatingPair:
  """Returns a pair that a run dominates, made of (low, high) deltas at `epsilon`."""
  # `low` has lower bounds on H, `high` upper ones, both in their field `high`. They are
  # moved apart by the rounding of H, which would show in slopes between close points.
  low, high = (_Profile.of(epsilon, *tables) for tables in zip(own, reverse))
  # Slopes and heights of the lines are points (alpha, H(alpha)) of the least profile.
  lines = lower_lines(high.x, np.maximum(low.high - 8 * EPS, 0.0),
                      high.high + 8 * EPS, 0.0)
  return views.pair_from_profile(lines.slope[1:], np.clip(lines.height[1:], 0.0, 1.0))


def _top(part: Composition, runs: float) -> float:
  """Returns the epsilon up to which a run's profile matters; 1.0 if none is finite."""
  # At a delta below the mass of infinite losses, epsilon is infinite, and where most of
  # delta is such mass it may have no finite bound: larger deltas follow.
  delta = 1.001 * part.p_inf[1] + LEAST_DELTA / runs
  while delta < 1:
    epsilon = part.epsilon(delta).upper
    if epsilon < math.inf:
      return min(max(epsilon, LEAST_TOP), LARGEST)
    delta *= 10
  return 1.0


def _deltas(part: Composition, epsilon: np.ndarray) -> np.ndarray:
  """Returns lower and upper bounds on delta, shape (2, points)."""
  bounds = [part.delta(float(one)) for one in epsilon]
  return np.array([[each.lower for each in bounds], [each.upper for each in bounds]])


def _below_composition(part: Composition, epsilon: np.ndarray, high: np.ndarray
                       ) -> np.ndarray:
  """Returns the lesser of `high` and upper bounds on the delta of `part`, all runs."""
  # A few points tell whether the composition is anywhere lower and worth its time.
  some = epsilon[::epsilon.size // 6]
  if np.all(_deltas(part, some)[1] > high[::epsilon.size // 6]):
    return high
  # Most of the points are where delta is one that people ask for.
  first, last = (min(part.epsilon(delta).upper, epsilon[-1]) for delta in (1e-3, 1e-8))
  points = np.unique(np.concatenate([
      np.linspace(first, last, POINTS), np.linspace(0.0, epsilon[-1], POINTS // 4)]))
  chords = np.interp(np.exp(epsilon), np.exp(points), _deltas(part, points)[1])
  return np.minimum(high, chords * (1 + _ROUNDOFF))


@dataclasses.dataclass(frozen=True)
class _Upper:
  """The upper bound on the delta of a search in one direction."""

  lines: Lines  # The largest of their negatives, and 0, bound Phi(y) from above.
  profile: _Profile  # Of a run.

  @classmethod
  def of(cls, runs: run_laws.RunLaw, profile: _Profile) -> _Upper:
    """Returns the bound for a law of the number of runs: two lines in y per cell."""
    log_odds = MIDDLE * np.tan(np.linspace(-EDGE, EDGE, NODES))
    a = np.unique(np.concatenate([[0.0], special.expit(log_odds), [1.0]]))
    # beta(a) >= (a - H(alpha)) / alpha, in terms of 1 - a for alpha < 1.
    beta = np.zeros(a.size)
    for x, high in zip(profile.x, profile.back):
      level = (a - high) * math.exp(-x) if x >= 0 else (
          1 - high - (1 - a) * math.exp(-x))
      np.maximum(beta, level - 4 * EPS * (1 + math.exp(-x)), out=beta)
    # In a cell f'(a) - y f'(beta(a)) is at most the larger of its values at both ends:
    # f'(a) is taken from its chord, f'(beta(a)) from the chord of the cell before. Each
    # end is a line in y. `best` and `least` are f'(a) and f'(beta(a)) at the nodes.
    # `Lines` holds the least of lines, so it gets the negatives, y f'(beta(a)) - f'(a).
    # Rounding makes f'(a) larger and f'(beta(a)) smaller: Phi is bounded from above.
    best, least = runs.derivative(a), runs.derivative(np.minimum(beta, 1.0))
    width = np.diff(a)
    rise = np.append(0.0, np.maximum(np.diff(least), 0.0) / width)
    ahead = least[:-1] + rise[:-1] * width
    a_lines = np.concatenate([best, best[1:]]) * (1 + _ROUNDOFF)
    b_lines = np.concatenate([least, ahead]) * (1 - _ROUNDOFF)
    return cls(Lines.of(b_lines, -a_lines), profile)

  def delta(self, epsilon: np.ndarray) -> np.ndarray:
    """Returns upper bounds on the search's delta at `epsilon`, both (points,)."""
    # Phi at x_j = e^-loss, and the slopes of its chords, of which `weight` has the
    # differences c_j; `call` has the means x_j H(1 / x_j).
    loss = self.profile.x[::-1]
    x, call = np.exp(-loss), self.profile.call[::-1]
    phi = np.maximum(-self.lines(np.exp(epsilon[:, None] - loss)), 0.0)
    phi = np.concatenate([np.full((epsilon.size, 1), -self.lines.height[-1]), phi], 1)
    step = np.append(x[0], x[1:] * -np.expm1(np.diff(loss)))
    slope = np.append(np.diff(phi, axis=1) / step, np.zeros((epsilon.size, 1)), axis=1)
    weight = np.maximum(np.diff(slope, axis=1), 0.0)
    return (phi[:, -1] + weight @ call) * (1 + _ROUNDOFF)

  def end(self) -> float:
    """Returns an epsilon <= LARGEST beyond which the bound hardly falls."""
    floor = 1.01 * self.delta(np.full(1, LARGEST))[0] + LEAST_DELTA
    end = self.profile.x[-1]
    while end < LARGEST and self.delta(np.full(1, end))[0] > floor:
      end *= 2
    grid = np.linspace(0.0, min(end, LARGEST), 65)[1:]
    return float(grid[np.argmax(self.delta(grid) <= floor)])


def _attained(runs: run_laws.RunLaw, pair: DominatingPair, targets: np.ndarray
              ) -> np.ndarray:
  """Returns bounds on Q- and P-masses of events about the winner, shape (2, events)."""
  # Results of runs under `pair` are ranked for each epsilon in `targets`. Q-masses are
  # bounded from above, P-masses from below.
  order = np.argsort(pair.loss)
  p, q = np.append(pair.p[order], pair.p_inf), np.append(pair.q[order], 0.0)
  # If all results are tied, the search is one run, unless it has none.
  shown = 1 - float(runs.generating(np.zeros(1))[0])
  events_won = [_best_events(shown * p, shown * q)]
  room = TINY * (1 + runs.expected)
  for target in targets:
    ranked = _ranking(runs, p, q, float(target))
    above = [np.minimum(np.cumsum(mass[ranked]), 1.0) for mass in (p, q)]
    below = [np.maximum(a - mass[ranked], 0.0) for a, mass in zip(above, (p, q))]
    jump = [np.diff(runs.generating(np.array(ends)), axis=0)[0]
            for ends in zip(below, above)]
    # f is convex: the probability of a win lies between two tangents.
    wins = np.maximum(jump[0] - room, p[ranked] * runs.derivative(
        np.maximum(below[0] - TINY, 0.0)))
    losses = np.minimum(jump[1] + room, q[ranked] * runs.derivative(
        np.minimum(above[1] + TINY, 1.0)))
    events_won.append(_best_events(wins, losses))
  return np.concatenate(events_won, axis=1)


def _best_events(p: np.ndarray, q: np.ndarray) -> np.ndarray:
  """Returns Q- and P-masses of the sets of largest p / q, shape (2, outcomes).

  Q-masses are rounded up, and P-masses down.
  """
  with np.errstate(divide='ignore', invalid='ignore'):
    order = np.argsort(np.where(p > 0, -np.log(p) + np.log(q), np.inf))
  return np.array([np.cumsum(q[order]) * (1 + _ROUNDOFF),
                   np.cumsum(p[order]) * (1 - _ROUNDOFF)])


def _pair_of_events(own: np.ndarray, reverse: np.ndarray) -> DominatingPair:
  """Returns the pair whose best tests reach these (Q-mass, P-mass), and no more."""
  # `reverse` has the reversed direction. The complement of an event is an event. The
  # convex hull of (q, miss), false positive and negative rates, is a trade-off curve.
  q, p = np.concatenate([own, 1 - reverse[::-1], [[0.0, 1.0], [0.0, 1.0]]], axis=1)
  q, miss = np.clip(q, 0.0, 1.0), 1 - np.clip(p, 0.0, 1.0)
  order = np.lexsort((miss, q))
  q, first = np.unique(q[order], return_index=True)
  miss = np.minimum.accumulate(miss[order][first])
  keep = lower_hull(q, miss)
  return views.pair_of_curve(q[keep], miss[keep])


def _ranking(runs: run_laws.RunLaw, p: np.ndarray, q: np.ndarray, epsilon: float
             ) -> np.ndarray:
  """Returns indices of results, the worst first: a ranking whose search costs much.

  `p` and `q` are masses of results in ascending order of loss. The search of any
  ranking bounds delta at `epsilon` from below; this ranking is found greedily.
  """
  # From the worst on losses fall, except that results of positive loss rank higher
  # where that gains. `table` and `slope` interpolate f'.
  sums = [np.append(0.0, np.cumsum(mass)) for mass in (p, q)]
  table = np.append(0.0, special.expit(np.arange(-36.0, 36.0, 0.04)))
  slope = runs.derivative(table)
  moved = np.arange(int(np.argmax(p > q)), p.size)[:, None]

  def gain(first: np.ndarray) -> np.ndarray:
    """Returns what each moved result adds to delta if it ranks just above `first`.

    `first`, shape (moved, places), has places in order of loss; -inf for no move up.
    """
    # Below it rank the results from `first` to itself: those of larger loss, which are
    # tried at the same places, are taken to rank higher.
    a, b = (np.interp(total[moved + 1] - total[first], table, slope) for total in sums)
    return np.where(first > moved, -np.inf, p[moved] * a - math.exp(epsilon) * (
        q[moved] * b))

  # First every `step`-th place is tried, then places near the best of these; the last
  # round has only the best.
  step = -(-p.size // PLACES)
  first = np.broadcast_to(np.arange(0, p.size, step), (moved.size, -(-p.size // step)))
  for near in (np.arange(-step, step + 1, -(-step // 6)), np.zeros(1, np.int64)):
    gains = gain(first)
    best = np.argmax(gains, axis=1)[:, None]
    first = np.clip(np.take_along_axis(first, best, 1) + near, 0, p.size - 1)
  place = -np.arange(p.size, dtype=np.float64)
  # 0.5 puts a moved result above `first`; 0.4 of its share of ranks keeps several moved
  # to one place in order of loss.
  wins = np.take_along_axis(gains, best, 1)[:, 0] > 0
  place[moved[wins, 0]] = 0.5 - first[wins, 0] + 0.4 * moved[wins, 0] / p.size
  return np.argsort(place)
