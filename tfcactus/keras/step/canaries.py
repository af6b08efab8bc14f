"""Canaries of a training run: drawn, clipped, summed and noised with its examples.

Each canary is in the data by a fair, secret coin. Those in the data are drawn by a
scheme of the same kind and rate as the examples. A canary adds nothing along the
model's weights; its gradient along the shadow weights (`gradients.shadow`) is known.
The noisy averages along the shadow weights are kept here; the optimizer does not get
them. Neither the model nor the guarantee changes (docs/soundness_step.md, "Canaries").
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tfcactus import _checks, audit as audit_lib, correlated
from tfcactus.audit import evidence
from tfcactus.keras.data.batch_marks import Place
from tfcactus.keras.gradients import shadow
from tfcactus.noise import Gaussian
from tfcactus.plan import PrivacyPlan
from tfcactus.randomness import KeyStream
from tfcactus.sampling import SamplingScheme

_FEWEST = 100
"""Fewest canaries. `audit.evidence` chooses tests by a fifth of them, the pilot: of a
smaller pilot, all or none could well be in the data."""


@dataclasses.dataclass(frozen=True)
class Audit:
  """An audit of a training run, for `privatize(model, plan, audit=Audit())`.

  Attributes:
    canaries: Number of canaries, at least 100. Three hundred show most faults;
      thousands give sharper bounds on epsilon.
  """

  canaries: int = 300

  def __post_init__(self) -> None:
    """Raises ValueError for fewer than 100 canaries."""
    _checks.integer('canaries', self.canaries, _FEWEST)


class Canaries:
  """The canaries of one run, and what the run showed of them.

  Attributes:
    count: Number of canaries.
    present: Shape (count,), whether a canary is in the data: secret while it trains.
  """

  def __init__(self, audit: Audit, plan: PrivacyPlan):
    """Tosses the coins."""
    self.count = audit.canaries
    self.present = KeyStream().below(0.5, self.count)
    self._plan = plan
    self._steps: list[tuple[np.ndarray, np.ndarray, Place | None]] = []
    self._last: tuple[Any, evidence.Audit | None] = ((), None)

  @property
  def steps(self) -> int:
    """Number of steps kept."""
    return len(self._steps)

  def keep(self, averages: list[tf.Tensor], numbers: tf.Tensor, place: tf.Tensor
          ) -> None:
    """Keeps a step's noisy averages along the shadow weights when the step runs.

    `averages` has a tensor of shape (canaries, 1) for each shadow layer. `numbers` has
    the canary of each row, from one, or zero; `place` is as for `NoiseSampler.draw`.
    """
    def kept(averages: np.ndarray, numbers: np.ndarray, place: np.ndarray) -> np.int64:
      """Keeps (averages, indices from zero of the canaries drawn, place)."""
      self._steps.append((averages[:, :, 0], np.unique(numbers[numbers > 0]) - 1,
                          Place.of(place)))
      return np.int64(0)

    tf.numpy_function(kept, [tf.stack(averages), numbers, place], tf.int64)

  def audit(self, sampling: type[SamplingScheme] | None, draws: int, steps: int,
            significance: float, families: bool) -> evidence.Audit:
    """Returns the evidence on the claim of `draws` draws; keeps it for run cards.

    A draw of the scheme is a step, or an epoch. `steps` counts all steps, those without
    canaries too. Other arguments are as for `Claim.of_plan` and `audit_run`.
    """
    key = len(self._steps), sampling, draws, steps, significance, families
    kept_key, result = self._last
    if result is None or kept_key != key:
      independent = sampling is None or sampling.independent
      note = '' if independent else (
          'Canaries are not drawn independently of each other, so that only bounds of '
          'one run hold. The claim is that of zero-out. ')
      if len(self._steps) < steps:
        note += (f'Canaries were in {len(self._steps)} of {steps} steps: no fault of '
                 'the others is seen, and epsilons of components and of the claim\'s '
                 'family take them to be alike.')
      result = dataclasses.replace(evidence.audit_run(
          self.seen(), evidence.Claim.of_plan(
              self._plan, sampling, draws, None if independent else 'zero-out'),
          significance=significance, families=families), note=note.rstrip())
      self._last = key, result
    return result

  def seen(self) -> audit_lib.Observations:
    """Returns what all steps so far showed; ValueError before the first."""
    steps = list(self._steps)
    if not steps:
      raise ValueError('Expected an audit after training by fit, got no step yet.')
    plan = self._plan
    # Sums in units of the clipping norm, shape (steps, layers, canaries).
    sums = np.stack([averages for averages, _, _ in steps]) * (
        plan.expected_batch_size / plan.l2_norm_clip)
    drawn = np.zeros((len(steps), self.count), bool)
    for row, (_, numbers, _) in zip(drawn, steps):
      row[numbers] = True
    # A canary's gradient has equal entries in its two coordinates. `along` is its sum
    # in that direction; `across`, in the orthogonal direction (1, -1), has noise alone.
    along, across = ((sums[:, 0] + sign * sums[:, 1]) / shadow.LAYERS**0.5
                     for sign in (1, -1))
    # Noise alone: both coordinates of each absent canary, and `across` of present ones.
    noise = np.concatenate([
        *np.moveaxis(sums[:, :, ~self.present], 1, 0), across[:, self.present]], 1)
    strategy = plan.strategy
    if strategy is not None and strategy.bands > 1:
      # The strategy begins anew at each step that does not follow the step before.
      places = [place for _, _, place in steps]
      starts = [0, *(i for i, (before, place) in enumerate(zip(places, places[1:]), 1)
                     if place is None or not place.follows(before)), len(steps)]
      along, noise = (np.concatenate([
          whitened(strategy, part[first:last], filtered)
          for first, last in zip(starts, starts[1:])])
                      for part, filtered in ((along, True), (noise, False)))
    return audit_lib.Observations(along, self.present, drawn, noise)


def whitened(strategy: correlated.Strategy, sums: np.ndarray, filtered: bool
            ) -> np.ndarray:
  """Returns C times the sums of consecutive steps, (steps, n): its noise is white.

  C is the strategy's matrix: the noise of the sums is C^-1 z, for white noise z. If
  `filtered`, returns the matched filter of a contribution in each step t instead: row t
  is column t of C, scaled to norm one, times (C times the sums).
  """
  steps = len(sums)
  columns = [strategy.column(step, steps)[:strategy.bands] for step in range(steps)]
  white = np.zeros_like(sums)
  for step, column in enumerate(columns):
    white[step:step + column.size] += column[:, None] * sums[step]
  return white if not filtered else np.stack([
      column / np.linalg.norm(column) @ white[step:step + column.size]
      for step, column in enumerate(columns)])


def of_run(audit: Audit | None, plan: PrivacyPlan, **others: Any) -> Canaries | None:
  """Returns the canaries of `audit`, None for None.

  Raises ValueError unless the run can be audited. `others` are the settings of the run
  beside its plan, by name.
  """
  if audit is None:
    return None
  if not isinstance(audit, Audit):
    raise ValueError(
        f'Expected audit=tfcactus.keras.Audit(canaries=300), got {audit!r}.')
  if not isinstance(plan.noise, Gaussian):
    raise ValueError(
        'Expected a plan of Gaussian noise with audit=, whose coordinates are '
        f'independent and whose law the checks know, got {plan.noise!r}; plant '
        'canaries of your own and pass their scores to tfcactus.audit.audit_scores.')
  if plan.adaptive_clipping is not None:
    raise ValueError(
        'Expected a plan without adaptive_clipping with audit=, got '
        f'{plan.adaptive_clipping!r}: canaries would count as clipped examples and '
        'move the norm.')
  if plan.noisy_accuracy is not None:
    raise ValueError(
        'Expected a plan without noisy_accuracy with audit=, got '
        f'{plan.noisy_accuracy!r}: canaries give no answers, so that they would show '
        'the noise of the gradient alone, which is more than that of the plan.')
  for name, value in others.items():
    if value != _PLAIN[name][0]:
      raise ValueError(
          f'Expected {name}={_PLAIN[name][0]!r} with audit=, got {name}={value!r}: '
          f'{_PLAIN[name][1]}.')
  return Canaries(audit, plan)


_PLAIN = {
    'clipping': ('flat', 'canaries would take a share of the clipping norm, or be '
                         'clipped below it'),
    'seed': (None, 'whoever knows the seed can subtract the noise, and an audit with '
                   'repeated noise says nothing of another run'),
    'local_steps': (None, 'a canary has no weights that local steps could move'),
    'replicas': (1, 'an audit keeps the sums of one process and one replica')}
"""For each setting of a run, the value that an audit needs, and why."""
