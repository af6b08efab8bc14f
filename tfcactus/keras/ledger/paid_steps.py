"""Takes the steps of a training from a `DataAccount` before they are released."""

from __future__ import annotations

import os
from typing import Union

import dp_accounting

from tfcactus import _checks, accounting, arithmetic, sampling as sampling_lib
from tfcactus.data_account import book, DataAccount
from tfcactus.keras.data.batch_marks import Marks, Taken
from tfcactus.keras.distribution import replicas
from tfcactus.keras.ledger.counts import Counts, Record
from tfcactus.noise.table_file import PathLike
from tfcactus.plan import PrivacyPlan

BLOCK = 32
"""Number of steps taken at a time; epochs are taken one by one. A killed run loses at
most so many."""

OTHERS = (
    'Expected every step of a model with an account to be one of fit, on batches of '
    'one kind and on weights that nothing else changed, got others; nothing of the '
    'step was released.')

Account = Union[DataAccount, PathLike]
"""An account, or its path, which is opened by the first `fit`."""


class PaidSteps:
  """The slot of an account from which one model takes its steps, or epochs.

  A slot is a number of releases that an account reserves under a `label`. The first
  `fit` reserves the plan's steps, unless there is a slot, and enters each of the plan's
  releases. A resumed run goes on with what is left in the slot.
  """

  def __init__(self, account: Account, label: str, plan: PrivacyPlan, seeded: bool):
    """Initialises; ValueError if noise is `seeded`, or no account can hold the plan."""
    if seeded or plan.accounting != 'proven':
      raise ValueError(
          'Expected a plan with a proven accounting, and no seed, with account, got '
          f'accounting={plan.accounting!r} and seeded={seeded}.')
    arithmetic.check_float(plan, 'account=', arithmetic.NO_DISTANCE)
    self._account = account if isinstance(account, DataAccount) else None
    self.path = account.path if isinstance(account, DataAccount) else (
        os.path.abspath(_checks.path('account', account)))
    self.label, self._plan = label, plan
    self._event: dp_accounting.DpEvent | None = None
    # Steps or epochs: `_held` of those spent are not released, `_left` are not spent.
    self._sampling, self._held, self._left, self._by_epochs = 0, 0, 0, False
    self._waiting = list(plan.releases)

  def begin(self, marks: Marks, record: Record) -> None:
    """Makes the slot for a `fit` on batches with `marks`, or finds it.

    Enters the plan's releases in the account. Spends steps or epochs that `record` has
    counted and the slot has not, and all its unpaid ones: others may share the slot.
    Raises ValueError if the batches have no account, the slot is used up or for another
    event, or too little is left of the account.
    """
    kind = sampling_lib.of_code(marks.sampling)
    if kind is None or marks.seeded or replicas.workers() > 1:
      raise ValueError(
          'Expected batches of tfcactus.keras without a seed, on one worker, with '
          'account, got others, whose cost the account could not hold; use '
          'fit(PoissonBatches(x, y, batch_size=...)).')
    self._account = self._account or DataAccount(self.path)
    kind.check_relation(self._account.relation)
    scheme, unit = kind.of_plan(self._plan), self._plan.unit
    event = scheme.event(accounting.noise_event(self._plan.noise))
    # What was spent for another event does not pay for this one.
    self._held = self._held if event == self._event else 0
    self._event, self._sampling, self._by_epochs = event, kind.code, kind.draws_epochs
    if self.label not in self._account.slots:
      count = -(-self._plan.steps // (
          scheme.batches_per_epoch if kind.draws_epochs else 1))
      self._account.reserve(event, count, label=self.label, unit=unit)
    self._check_slot(self._account.slots[self.label])
    known = record.merge_counts()
    self.pay(record)
    slot = self._account.slots[self.label]
    if not self._left + self._held:
      raise ValueError(
          f'Expected the slot {self.label!r} of the account to have releases left, '
          f'got {slot.used} used of {slot.count}; a new run has another '
          'account_label.')
    label = f'{self.label}, beside steps'
    # Only a training that has paid steps may have entered its releases before.
    entered = [entry['what'] for entry in self._account.entries
               if known != known.unpaid and 'what' in entry and entry['label'] == label]
    while self._waiting:
      if (what := repr(self._waiting[0])) in entered:
        entered.remove(what)
      else:
        self._account.spend(self._waiting[0], label=label, unit=unit)
      self._waiting.pop(0)

  def pay(self, record: Record) -> Counts:
    """Spends what `record` counts and the slot does not; returns the counts."""
    assert self._account is not None, 'It was begun.'
    known, (used, _) = record.merge_counts(), self._in_slot(self._account)
    released, unpaid = (each.epochs_begun if self._by_epochs else each.released_steps
                        for each in (known, known.unpaid))
    # A journal counts more, or steps were taken without account, in any process.
    if (owed := max(released - used, unpaid)) > 0:
      self._account.spend(self._event, owed, label=self.label, unit=self._plan.unit)
    _, self._left = self._in_slot(self._account)
    return record.pay()

  def _check_slot(self, slot: book.Slot) -> None:
    """Raises ValueError unless the slot is for the event of the steps."""
    assert self._event is not None, 'It was begun.'
    if not slot.is_for(book.flat(self._event, 1)[0]):
      raise ValueError(
          f'Expected account_label of a slot for {self._event!r}, as the plan and the '
          f'batches need, got {self.label!r}, a slot for {slot.event!r}; choose '
          'another account_label.')

  def take(self, taken: Taken) -> None:
    """Takes a step on a batch before the step is released.

    Raises ValueError if the slot has no step left, or is for batches of another kind.
    """
    if self._event is None or self._account is None or (
        taken.sampling != self._sampling):
      raise ValueError(OTHERS)
    wanted = taken.epochs if self._by_epochs else 1
    if wanted > self._held:
      block = max(wanted, min(1 if self._by_epochs else BLOCK, self._left))
      self._account.spend(self._event, block, label=self.label, unit=self._plan.unit)
      self._held, (_, self._left) = self._held + block, self._in_slot(self._account)
    self._held -= wanted

  def _in_slot(self, account: DataAccount) -> tuple[int, int]:
    """Returns (used, left): how many steps, or epochs, of the slot."""
    assert self._event is not None, 'It was begun.'
    # The account counts single events, of which a step or epoch has `each`.
    slot, each = account.slots[self.label], book.flat(self._event, 1)[1]
    return slot.used // each, (slot.count - slot.used) // each

  def stops(self, after_step: bool) -> bool:
    """Returns whether the slot is used up, `after_step` or else after an epoch."""
    if after_step and self._by_epochs:  # The steps of the slot's last epoch may run.
      return False
    return self._held + self._left == 0
