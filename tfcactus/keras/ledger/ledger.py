"""What was released so far, and what that costs: one protocol for all training."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any
from typing import Deque
from typing import Dict
from typing import Optional
from typing import Protocol
from typing import runtime_checkable
from typing import Tuple
from typing import Type

import dp_accounting

from tfcactus import relations
from tfcactus import sampling as sampling_lib
from tfcactus.guarantee import Guarantee
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.ledger import counts
from tfcactus.keras.ledger.counts import Seeded
from tfcactus.plan import PrivacyPlan
from tfcactus.relations import Relation

_Found = Tuple[Optional[Guarantee], str]


@dataclasses.dataclass(frozen=True)
class Ledger:
  """What was released by a plan. Each of its guarantees is computed once.

  Attributes:
    plan: The `PrivacyPlan`.
    sampling: The code of the scheme that chose all batches, or `counts.NONE`,
      `UNKNOWN` or `MIXED`.
    steps: Noisy updates released.
    epochs: Epochs begun, of schemes that draw epochs.
    note: Why the sampling is unknown, if it is.
    seeded: What of the randomness of these steps can be repeated.
    condition: What the guarantee rests on besides, in sentences, or ''.
  """

  plan: PrivacyPlan = dataclasses.field(compare=False, repr=False)
  sampling: int
  steps: int
  epochs: int = 0
  note: str = ''
  seeded: Seeded = Seeded.NOTHING
  condition: str = ''
  _found: Dict[Optional[dp_accounting.NeighboringRelation], _Found] = (
      dataclasses.field(default_factory=dict, compare=False, repr=False))

  @property
  def scheme(self) -> Optional[Type[sampling_lib.SamplingScheme]]:
    """The scheme that chose all batches, or None."""
    return sampling_lib.of_code(self.sampling)

  @property
  def sampling_name(self) -> str:
    """The sampling in a word."""
    return self.scheme.name if self.scheme else _NAMES[self.sampling]

  @property
  def counts_epochs(self) -> bool:
    """Whether the guarantee is for epochs, each of which costs as a whole."""
    return self.scheme is not None and self.scheme.draws_epochs

  def guarantees(self) -> Dict[str, Guarantee]:
    """The guarantees of all neighbouring relations that have one, by label."""
    found = (self.guarantee(relation)[0] for relation in relations.NAMES.values())
    return {guarantee.neighboring_relation: guarantee
            for guarantee in found if guarantee is not None}

  def steps_within(self, epsilon: float) -> Optional[int]:
    """How many such steps a budget allows; None if it counts no steps."""
    if self.scheme is None or self.counts_epochs:
      return None
    return self.plan.steps_within(epsilon, sampling=self.scheme)

  def guarantee(self, neighboring_relation: Optional[Relation] = None) -> _Found:
    """The guarantee of everything released, or None and the reason in words.

    Args:
      neighboring_relation: Whom it protects, as for `PrivacyPlan.guarantee`; None
        for the sampling scheme's first.

    Returns:
      (Guarantee, '') or (None, reason).

    Raises:
      ValueError: if the plan has no account of such batches at all.
    """
    relation = neighboring_relation
    if relation is not None:
      try:
        relation = relations.check(relation)
      except ValueError as error:
        return None, f'No epsilon: {error}'
    if relation not in self._found:
      self._found[relation] = self._account(relation)
    return self._found[relation]

  def _account(self, relation: Optional[dp_accounting.NeighboringRelation]
              ) -> _Found:
    scheme = self.scheme
    if self.steps == 0:
      return None, 'No step was released yet.'
    if scheme is None:
      return None, self.note or _REASONS[self.sampling]
    count = max(self.epochs, 1) if scheme.draws_epochs else self.steps
    try:
      guarantee = self.plan.guarantee(count, relation, sampling=scheme)
    except ValueError as error:
      if relation is None:
        raise
      return None, f'No epsilon: {error}'
    if self.condition:
      guarantee = guarantee.given(self.condition)
    if self.seeded:
      guarantee = guarantee.seeded_by(self.seeded.words())
    return guarantee, ''


class RecentLedgers:
  """Gives equal ledgers of one plan as one, with the guarantees it has found."""

  def __init__(self) -> None:
    # What was released and that with a step more are asked for in turn.
    self._recent: Deque[Ledger] = collections.deque(maxlen=4)

  def same(self, ledger: Ledger) -> Ledger:
    """The ledger, or an equal one that was given before."""
    for recent in self._recent:
      if recent == ledger and recent.plan is ledger.plan:
        return recent
    self._recent.append(ledger)
    return ledger


class TrainingLedger(Protocol):
  """What callbacks and run cards ask of training, whoever makes it private.

  Attributes:
    plan: The `PrivacyPlan` that is trained by.
    no_run_card: Why no run card can be written, or ''.
  """

  plan: PrivacyPlan
  no_run_card: str

  @property
  def released_steps(self) -> int:
    """How many noisy updates were released."""

  @property
  def clip_norm(self) -> Optional[float]:
    """The clip norm of the next step, if it moves."""

  def ledger(self, ahead: int = 0) -> Ledger:
    """What was released so far.

    Args:
      ahead: How many steps more are counted, on what is being trained on.
    """


@runtime_checkable
class HoldsLedger(Protocol):
  """A private model, or an optimizer that makes training private."""

  def training_ledger(self, model: keras.Model, plan: Optional[PrivacyPlan],
                      batches: Any) -> TrainingLedger:
    """Opens the ledger of a training that begins.

    Args:
      model: What `fit` was called of.
      plan: The plan that is said to be trained by, or None.
      batches: Those that are said to be trained on, or None.

    Raises:
      ValueError: if it is not trained by that plan, or there is none.
    """


def check_same_plan(plan: PrivacyPlan, trained: Optional[PrivacyPlan],
                    l2_norm_clip: float, noise_digest: str) -> None:
  """Refuses a plan that is not the one trained by.

  Args:
    plan: The plan given.
    trained: The plan trained by, as far as it is known.
    l2_norm_clip: The clip norm trained by.
    noise_digest: The digest of the noise trained by.

  Raises:
    ValueError: naming what differs.
  """
  _check_same('l2_norm_clip', plan.l2_norm_clip, l2_norm_clip)
  _check_same('noise', plan.noise.digest, noise_digest)
  if trained is not None:
    for name in _PLAN_FIELDS:
      _check_same(name, getattr(plan, name, None), getattr(trained, name, None))


def _check_same(name: str, planned: object, trained: object) -> None:
  if planned != trained:
    raise ValueError(
        f'Expected the plan that is trained by, with {name}={trained!r}, got a '
        f'plan with {name}={planned!r}.')


_PLAN_FIELDS = ('num_examples', 'sampling_prob', 'steps', 'delta', 'dim',
                'accounting', 'adaptive_clipping', 'releases', 'correlation')

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
