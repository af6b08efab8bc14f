"""Ledgers: counts of released steps and their guarantees, for all kinds of training."""

from __future__ import annotations

import dataclasses
import functools
import sys
from typing import Any, Callable, Optional, Protocol, runtime_checkable

import dp_accounting

from tfcactus import (
  _checks,
  relations,
  sampling as sampling_lib,
)
from tfcactus.guarantee import Guarantee
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.ledger import counts
from tfcactus.keras.ledger.counts import Seeded
from tfcactus.plan import PrivacyPlan
from tfcactus.relations import Relation

_Found = tuple[Optional[Guarantee], str]
"""(guarantee, ''), or (None, reason)."""


@dataclasses.dataclass(frozen=True)
class Ledger:
  """Record of the steps released under a plan. Each guarantee is computed once.

  Attributes:
    plan: The `PrivacyPlan`.
    sampling: The code of the scheme that drew all batches, or `counts.NONE`, `UNKNOWN`
      or `MIXED`.
    steps: Noisy updates released.
    epochs: Epochs begun, for schemes that draw epochs.
    note: Why there is no epsilon, if `sampling` is the code of no scheme; or ''.
    seeded: Which randomness of these steps is reproducible.
    condition: Further assumptions of the guarantee, in sentences, or ''.
  """

  plan: PrivacyPlan = dataclasses.field(compare=False, repr=False)
  sampling: int
  steps: int
  epochs: int = 0
  note: str = ''
  seeded: Seeded = Seeded.NOTHING
  condition: str = ''
  _found: dict[tuple[dp_accounting.NeighboringRelation | None, int], _Found] = (
      dataclasses.field(default_factory=dict, compare=False, repr=False))

  @property
  def scheme(self) -> type[sampling_lib.SamplingScheme] | None:
    """The scheme of all batches; None if unknown, if there are several, or no batch."""
    return sampling_lib.of_code(self.sampling)

  @property
  def sampling_name(self) -> str:
    """The name of the sampling scheme, or 'none', 'unknown' or 'mixed'."""
    return self.scheme.name if self.scheme else _NAMES[self.sampling]

  @property
  def counts_epochs(self) -> bool:
    """Returns whether the guarantee counts epochs rather than steps."""
    return self.scheme is not None and self.scheme.draws_epochs

  def guarantees(self) -> dict[str, Guarantee]:
    """Returns {label: guarantee} for all neighbouring relations that have one."""
    found = (self.guarantee(relation)[0] for relation in relations.NAMES.values())
    return {each.neighboring_relation: each for each in found if each}

  def steps_within(self, epsilon: float) -> int | None:
    """Returns how many steps `epsilon` allows in all.

    None if the guarantee counts epochs, or the scheme of all batches is not known.
    """
    if self.scheme is None or self.counts_epochs:
      return None
    return self.plan.steps_within(epsilon, sampling=self.scheme)

  def guarantee(self, neighboring_relation: Relation | None = None,
                rows_of_one: int = 1) -> _Found:
    """Returns (guarantee of all releases, ''), or (None, reason).

    Arguments are as for `PrivacyPlan.guarantee`; None takes the first relation of the
    sampling scheme. If another relation or several rows have no account, the reason
    says so. Raises ValueError if the default arguments have none: then the plan has no
    account for its scheme at all.
    """
    relation = neighboring_relation
    if relation is not None:
      try:
        relation = relations.check(relation)
      except ValueError as error:
        return None, f'No epsilon: {error}'
    key = relation, _checks.integer('rows_of_one', rows_of_one, 1)
    if key not in self._found:
      self._found[key] = self._account(*key)
    return self._found[key]

  def _account(self, relation: dp_accounting.NeighboringRelation | None,
               rows_of_one: int) -> _Found:
    """Computes what `guarantee` returns, without keeping it."""
    scheme = self.scheme
    if self.steps == 0:
      return None, 'No step was released yet.'
    if scheme is None:
      return None, self.note or _REASONS[self.sampling]
    # Steps were released, so at least one epoch has begun.
    released = max(self.epochs, 1) if scheme.draws_epochs else self.steps
    try:
      planned = self._planned(scheme)
      guarantee = self.plan.guarantee(
          max(released, planned or 0), relation, sampling=scheme,
          rows_of_one=rows_of_one)
    except ValueError as error:
      if relation is None and rows_of_one == 1:
        raise
      return None, f'No epsilon: {error}'
    if planned is not None and released < planned:
      guarantee = dataclasses.replace(guarantee, statement=(
          f'{guarantee.statement} Of these {planned}, {released} were released; all '
          'count, since metrics that were released may decide when training ends.'))
    if planned is not None and planned < released:
      guarantee = guarantee.given(
          'This holds if nothing that was released decided that training went beyond '
          f'the {planned} planned.')
    if self.condition:
      guarantee = guarantee.given(self.condition)
    if self.seeded:
      guarantee = guarantee.seeded_by(self.seeded.words())
    return guarantee, ''

  def _planned(self, scheme: type[sampling_lib.SamplingScheme]) -> int | None:
    """Returns the most steps or epochs of the plan if all of them count, else None."""
    if not self.plan.counts_planned:
      return None
    return self.plan.steps_within(
        self.plan.target_epsilon or sys.float_info.max, sampling=scheme)


def recent_ledgers(plan: PrivacyPlan) -> Callable[..., Ledger]:
  """Returns a constructor of a plan's ledgers, in which equal ones are one object."""
  # Guarantees are then computed once. Callers alternate between two ledgers: what was
  # released, and one step ahead.
  return functools.lru_cache(maxsize=4)(functools.partial(Ledger, plan))


class TrainingLedger(Protocol):
  """Interface by which callbacks and run cards ask a private training for its steps."""

  plan: PrivacyPlan  # The plan of the training.
  no_run_card: str  # Why no run card can be written, or ''.

  @property
  def released_steps(self) -> int:
    """The number of noisy updates that were released."""

  @property
  def clip_norm(self) -> float | None:
    """The clipping norm of the next step if it is adaptive, else None."""

  def ledger(self, ahead: int = 0) -> Ledger:
    """Returns what was released so far, and in `ahead` more steps on current data."""


@runtime_checkable
class HoldsLedger(Protocol):
  """A private model, or an optimizer that makes training private."""

  def training_ledger(self, model: keras.Model, plan: PrivacyPlan | None,
                      batches: Any) -> TrainingLedger:
    """Returns the ledger of a `fit` of `model` that is about to begin.

    `plan` and `batches` are those that the caller expects, or None. Raises ValueError
    if the plan of the training is another one, or unknown.
    """


def check_same_plan(plan: PrivacyPlan, trained: PrivacyPlan | None,
                    l2_norm_clip: float, noise_digest: str) -> None:
  """Raises ValueError, naming the field, if `plan` is not the plan of the training.

  `trained` is that plan; None if only the training's clipping norm and noise are known.
  Fields outside of `_PLAN_FIELDS` may differ: `target_epsilon` costs nothing.
  """
  pairs = {'l2_norm_clip': (plan.l2_norm_clip, l2_norm_clip),
           'noise': (plan.noise.digest, noise_digest)}
  if trained is not None:
    pairs.update({name: (getattr(plan, name, None), getattr(trained, name, None))
                  for name in _PLAN_FIELDS})
  for name, (given, found) in pairs.items():
    if given != found:
      raise ValueError(f'Expected the plan of this training, with {name}={found!r}, '
                       f'got a plan with {name}={given!r}.')


_PLAN_FIELDS = ('num_examples', 'sampling_prob', 'steps', 'delta', 'dim',
                'accounting', 'adaptive_clipping', 'releases', 'correlation', 'unit',
                'arithmetic', 'noisy_accuracy')

_NAMES = {counts.NONE: 'none', counts.UNKNOWN: 'unknown', counts.MIXED: 'mixed'}

_REMEDY = (' Train a fresh model on batches of one kind, such as PoissonBatches, or '
           'CyclicBatches under correlated noise, to have one.')

_REASONS = {
    counts.NONE: 'No epsilon: steps were released, but nothing recorded how '
                 'their batches were chosen.' + _REMEDY,
    counts.UNKNOWN: 'No epsilon: batches came from a source whose sampling '
                    'is unknown, and epsilon depends on it.' + _REMEDY,
    counts.MIXED: 'No epsilon: some steps chose their batches in one way and '
                  'some in another (Poisson samples, random allocation, samples '
                  'of fixed size, passes over all examples, or these by groups), '
                  'and no account of them together is kept.' + _REMEDY,
}
