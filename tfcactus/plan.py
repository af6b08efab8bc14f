"""Privacy plans: noise, clipping, sampling, steps and delta of a training run."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import re
from typing import Any, Callable
import warnings

import dp_accounting

from tfcactus import (
  _checks,
  _format,
  accounting,
  arithmetic as arithmetic_lib,
  correlated,
  guarantee as guarantee_lib,
  noise as noise_lib,
  relations,
  sampling as sampling_lib,
  step_counts,
)
from tfcactus.accounting import calibration
from tfcactus.correlated import workload
from tfcactus.guarantee import Guarantee, ReleasedStatistic
from tfcactus.relations import Relation
from tfcactus.sampling import OnePassSampling, PoissonSampling, SamplingScheme
from tfcactus.sampling.base import whole_batches
from tfcactus.step_counts import AdaptiveClipping, NoisyAccuracy


@dataclasses.dataclass(frozen=True)
class PrivacyPlan:
  """A private training run, settled before it starts.

  Attributes:
    noise: Gaussian, Laplace, SinhNormal, ScalarTable or RadialTable, in units of the
      clipping norm.
    l2_norm_clip: Clipping norm: bound on the l2 norm of a per-example gradient, from
      1e-30 to 1e30.
    num_examples: Size of the training set (public).
    sampling_prob: Probability that an example is in a Poisson batch (sampling rate);
      with other sampling schemes, about one over the number of batches in an epoch.
    steps: Planned number of steps.
    delta: Target delta; 1 / num_examples or more makes a warning.
    dim: Length of the clipped vector; None checks it once the model is known.
    accounting: 'proven'; or 'scalar-unproven', which accounts for i.i.d. scalar noise
      on vectors as if on one number, over all shifts (the paper on the cactus used the
      moments accountant of the full shift). It is labelled as no guarantee everywhere.
    adaptive_clipping: Adapts the clipping norm, starting at l2_norm_clip; None keeps
      it. `noise` then protects the gradient and the count as one vector.
    releases: Statistics of the same records released beside the training:
      `tfcactus.release` results or events, kept as events. Every guarantee of the plan
      covers each of them in full.
    correlation: Correlation of noise over steps (DP-FTRL): a request of
      `tfcactus.correlated`, such as BandedStrategy(bands=16), solved for `steps`, or a
      strategy; None for independent noise. Batches are then `CyclicBatches`, and
      sampling_prob is one over their number in an epoch.
    target_epsilon: `fit` of a `PrivateModel` stops before epsilon of its batches
      passes this; None for no limit. Such a stop costs nothing.
    unit: Whom the guarantee protects: 'example', one row; or another word, such as
      'user': the owner of any number of rows (user-level privacy). num_examples, batch
      sizes and sampling_prob then count units, and batches are made with `units`.
    arithmetic: 'float'; or 'integer', which adds noise in whole numbers and counts all
      rounding. Epsilon is smallest if `dim`, the number of weights, is given.
    noisy_accuracy: Releases the accuracy on the training data with noise, as a part of
      each step; None does not. `noise` protects gradient and count as one vector.

  Raises:
    ValueError: if an argument is out of range or does not go with another one, or the
      noise does not protect the clipped vector.
  """

  noise: noise_lib.Noise
  l2_norm_clip: float
  num_examples: int
  sampling_prob: float
  steps: int
  delta: float
  dim: int | None = None
  accounting: str = 'proven'
  adaptive_clipping: AdaptiveClipping | None = None
  releases: Sequence[ReleasedStatistic | dp_accounting.DpEvent] = ()
  correlation: correlated.AnyCorrelation = None
  target_epsilon: float | None = None
  unit: str = 'example'
  arithmetic: str = 'float'
  noisy_accuracy: NoisyAccuracy | None = None

  def __post_init__(self):
    """Checks and converts the fields; solves a correlation that is a request."""
    set_field = functools.partial(object.__setattr__, self)
    set_field('noise', noise_lib.check(self.noise))
    set_field('l2_norm_clip', _checks.clip_norm(self.l2_norm_clip))
    set_field('num_examples', _checks.count('num_examples', self.num_examples))
    set_field('sampling_prob', _checks.sampling_prob(self.sampling_prob))
    set_field('steps', _checks.count('steps', self.steps))
    set_field('delta', _checks.delta(self.delta))
    if self.target_epsilon is not None:
      set_field('target_epsilon',
                _checks.positive('target_epsilon', self.target_epsilon))
    if not (isinstance(self.unit, str) and re.fullmatch('[a-z]+( [a-z]+)*', self.unit)):
      raise ValueError(
          "Expected unit to be 'example' or a word for the owner of several rows in "
          f"small letters, such as 'user', got unit={self.unit!r}.")
    if self.delta * self.num_examples >= 1:
      warnings.warn(relations.in_units(
          f'Expected delta far below one over the number of examples, got '
          f'delta={self.delta!r} for {self.num_examples} examples: it allows a '
          'mechanism that publishes one example as it is, whatever epsilon is. Take '
          f'delta={0.1 / self.num_examples:.1g} or less.', self.unit), stacklevel=1)
    _checks.choice('accounting', self.accounting, ('proven', 'scalar-unproven'))
    if self.accounting == 'scalar-unproven' and self.noise.dim != 1:
      raise ValueError(
          "Expected scalar noise with accounting='scalar-unproven', got "
          f"{self.noise!r}; it has a proven account: use accounting='proven'.")
    is_correlated = correlated.check(self.correlation) is not None
    step_counts.check(self, is_correlated)
    set_field('releases', guarantee_lib.release_events(self.releases, self.unit))
    if is_correlated:
      set_field('correlation', self._solved())
    if self.dim is not None:
      set_field('dim', _checks.integer('dim', self.dim, 1))
      self.check_vector(self.dim)
    arithmetic_lib.check(self)

  @classmethod
  def for_training(cls, *, batch_size: int, epochs: int, delta: float,
                   l2_norm_clip: float, num_examples: int | None = None,
                   num_units: int | None = None,
                   noise: noise_lib.Noise | None = None,
                   target_epsilon: float | None = None,
                   target_advantage: float | None = None,
                   target_tpr: tuple[float, float] | None = None,
                   sampling: type[SamplingScheme] | None = None,
                   correlation: correlated.AnyCorrelation | str = None,
                   **settings: Any) -> PrivacyPlan:
    """Returns a plan from the terms of `fit`: a batch size and epochs.

    Train on `PoissonBatches(x, y, batch_size=...)`; with RandomAllocationSampling on
    `AllocatedBatches`; with a correlation on `CyclicBatches(x, y, plan=plan)`. Other
    arguments are those of `PrivacyPlan`. A target chooses the least Gaussian noise that
    keeps it under the default relation of `guarantee`. The plan's target_epsilon is the
    given one, or what another target costs; None with `noise`.

    Args:
      batch_size: Expected batch size, of units if there is a `unit`; sizes vary.
      epochs: Number of epochs; an epoch uses each example once on average.
      num_examples: Size of the training set.
      num_units: Number of units, instead of num_examples, with a `unit`.
      noise: The noise; or None with one target.
      target_epsilon: Largest epsilon at `delta`.
      target_advantage: Largest advantage of a membership attack (true minus false
        positive rate).
      target_tpr: Pair (true positive rate, false positive rate) such as (0.05, 0.01):
        the most that a membership attack of that false positive rate may reach.
      sampling: Sampling scheme from `tfcactus.sampling` for which noise, sampling_prob
        and steps are chosen, by default that of `guarantee`; the plan does not keep it,
        so give another one to `guarantee` too.
      correlation: As the attribute; or 'auto', with a target, for the number of bands
        of least total error: one band, independent noise, if more do not help.
      **settings: The other attributes but sampling_prob and steps.

    Raises:
      ValueError: if an argument is out of range, or not one of noise and targets given.
    """
    unit = settings.get('unit', 'example')
    size, other = (num_examples, num_units) if unit == 'example' else (
        num_units, num_examples)
    if size is None or other is not None:
      raise ValueError(
          "Expected num_examples with unit='example', or num_units with another unit, "
          f'got {unit=}, {num_examples=} and {num_units=}.')
    return cls._for_training(
        dict(target_epsilon=target_epsilon, target_tpr=target_tpr,
             target_advantage=target_advantage), noise, correlation, size, batch_size,
        epochs, sampling, delta=delta, l2_norm_clip=l2_norm_clip, **settings)

  @classmethod
  def _for_training(cls, targets: dict[str, Any], noise: noise_lib.Noise | None,
                    correlation: correlated.AnyCorrelation | str, size: int,
                    batch_size: int, epochs: int, sampling: type[SamplingScheme] | None,
                    **settings: Any) -> PrivacyPlan:
    """Returns the plan of `for_training` for `size` examples or units.

    `targets` has None for each target that is not given.
    """
    for name in {'sampling_prob', 'steps'} & set(settings):
      raise ValueError(f'Expected no {name}, which follows from batch_size and epochs, '
                       f'got {name}={settings[name]!r}; make a PrivacyPlan instead.')
    if isinstance(correlation, str) and (
        correlation != 'auto' or noise is not None or
        [*targets.values()] == [None] * len(targets)):
      raise ValueError(
          "Expected correlation='auto' with a target, such as target_epsilon, and no "
          'noise, which depends on the number of bands, or a request such as '
          f'tfcactus.correlated.BandedStrategy(bands=16), got {correlation!r}.')
    if isinstance(correlation, str):
      batches = 1 / PoissonSampling.prob_of_batch_size(batch_size, size)
      return workload.least_error(
          workload.numbers_of_bands(batches), lambda bands: cls._for_training(
              targets, None, correlated.BandedStrategy(bands), size, batch_size, epochs,
              sampling, **settings))[0]
    bands = getattr(correlated.check(correlation), 'bands', None)
    kind, groups = sampling_lib.suitable(sampling, bands), bands or 1
    scheme = kind.of_batch_size(batch_size, size, groups)
    numbers = dict(
        settings, num_examples=scheme.num_examples,
        sampling_prob=kind.prob_of_batch_size(batch_size, size, groups),
        steps=_checks.integer('epochs', epochs, 1) * scheme.batches_per_epoch,
        correlation=correlation)
    plan = cls(noise=_noise_within(noise, targets, kind, numbers),
               target_epsilon=targets['target_epsilon'], **numbers)
    if noise is not None or targets['target_epsilon'] is not None:
      return plan
    # Rounded up: the last bits must not stop `fit` a step early.
    return dataclasses.replace(plan, target_epsilon=float(_format.upper(
        plan.guarantee(sampling=kind).upper)))

  def _solved(self) -> correlated.Strategy:
    """Returns the correlation as a strategy; ValueError if not proved for this plan."""
    if not isinstance(self.noise, noise_lib.Gaussian):
      raise ValueError(
          'Expected Gaussian noise with a correlation, sums of which are Gaussian '
          f'again and of no other noise of their own kind, got {self.noise!r}.')
    if self.adaptive_clipping is not None:
      raise ValueError(
          'Expected no adaptive_clipping with a correlation: where the clip norm '
          'moves, noise of one step does not cancel that of another; keep one of them.')
    strategy = correlated.solved(self.correlation, self.steps)
    whole_batches(self)  # Checked: groups take turns over the batches of an epoch.
    return strategy

  @property
  def release_sensitivity(self) -> float:
    """Bound on the norm of an example's (gradient, weighted counts), in clip norms."""
    return step_counts.sensitivity(self)

  @property
  def counts_planned(self) -> bool:
    """Whether epsilon counts all planned steps, as metrics may stop training early."""
    return self.noisy_accuracy is not None or bool(
        guarantee_lib.validations(self.releases))

  @property
  def strategy(self) -> correlated.Strategy | None:
    """The strategy that `correlation` was solved to; None for independent noise."""
    assert not isinstance(self.correlation, correlated.Correlation), 'It was solved.'
    return self.correlation

  @property
  def groups(self) -> int:
    """Groups of examples that steps use in turn: the bands of the noise, or one."""
    return 1 if self.strategy is None else self.strategy.bands

  @property
  def expected_batch_size(self) -> float:
    """sampling_prob * num_examples: the public constant that divides sums."""
    return self.sampling_prob * self.num_examples

  def check_vector(self, dim: int) -> None:
    """Raises ValueError unless the plan covers clipped vectors of `dim`, and counts."""
    dim = _checks.integer('dim', dim, 1)
    if self.dim is not None and dim != self.dim:
      raise ValueError(
          f'Expected a vector of dim={self.dim}, as the plan says, got {dim}.')
    arithmetic_lib.check_dim(self, dim)
    counts, note = step_counts.beside(self)
    if self.accounting == 'proven':
      self.noise.check_dim(dim + counts, note)

  def check_independent(self) -> None:
    """Raises ValueError if the plan's noise is correlated over several steps."""
    if self.groups > 1:
      raise ValueError(
          'Expected a plan without a correlation, got noise correlated over '
          f'{self.groups} steps, which only privatize(model, plan) and '
          'fit(CyclicBatches(x, y, plan=plan)) draw.')

  def check_drop_in(self) -> None:
    """Raises ValueError if only a `PrivateModel` can train by the plan."""
    self.check_independent()
    arithmetic_lib.check_float(
        self, 'a drop-in optimizer', 'nothing tests there that the bits of a gradient '
        'are the same at every place in the batch')
    step_counts.check_none(self, 'a drop-in optimizer or query')
    if guarantee_lib.validations(self.releases):
      raise ValueError(
          'Expected a plan without private validation, got one with; only '
          'privatize(model, plan) keeps training and validation records apart.')
    if self.unit != 'example':
      raise ValueError(
          f"Expected a plan of unit='example', got unit={self.unit!r}, whose rows only "
          'privatize(model, plan) clips together.')

  @property
  def step_event(self) -> dp_accounting.DpEvent:
    """The DpEvent of one Poisson-sampled step.

    Raises:
      ValueError: with noise correlated over several steps, arithmetic='integer', or
        accounting='scalar-unproven': no event has that cost.
    """
    self.check_independent()
    if self.accounting != 'proven':
      raise ValueError(
          "Expected a plan of accounting='proven' with an event, got accounting="
          f'{self.accounting!r}: accountants would take its epsilon for a guarantee.')
    arithmetic_lib.check_float(self, 'an event', arithmetic_lib.NO_DISTANCE)
    return PoissonSampling.of_plan(self).event(accounting.noise_event(self.noise))

  def guarantee(self, steps: int | None = None,
                neighboring_relation: Relation | None = None, *,
                sampling: type[SamplingScheme] | None = None,
                rows_of_one: int = 1) -> Guarantee:
    """Returns the guarantee of `steps` released steps, and of `releases`.

    Args:
      steps: Number of steps; default all planned. Zero steps cost nothing. For a scheme
        that draws epochs (`RandomAllocationSampling`, `OnePassSampling`, and cyclic
        ones) the number of epochs, by default as many as all planned steps take.
      neighboring_relation: One of dp_accounting's, or 'add-or-remove', 'zero-out' (an
        example replaced by one that contributes zero; num_examples stays as it is) or
        'replace' (by any other example, which alone protects attributes; it costs
        more). By default the scheme's first (add-or-remove, or replace for passes over
        all examples) of those that have a proof for all validations in `releases`.
      sampling: Sampling scheme from `tfcactus.sampling`: `PoissonSampling` by default,
        with a correlation `CyclicAllocationSampling`.
      rows_of_one: Largest number k of rows (examples) of one person: the guarantee then
        covers all of them together (group privacy). It is exact for Poisson samples
        with rows added, removed or zeroed (with sampling_prob=1 also replaced), and for
        samples of fixed size with rows added or removed, if it is for all `releases`
        too; else the power curve of the whole run is applied k times.

    Returns:
      Bounds on epsilon at the plan's delta.

    Raises:
      ValueError: if the scheme does not fit the plan, has no account for the relation,
        the cost of `releases` is not known for the relation, or rows_of_one is not in
        [1, num_examples], above 1,000, above one with a `unit`, or without an account.
    """
    return self._guarantee(
        self.noise, steps, neighboring_relation, sampling, rows_of_one)

  def _guarantee(self, noise: noise_lib.Noise, steps: int | None,
                 neighboring_relation: Relation | None,
                 sampling: type[SamplingScheme] | None, rows_of_one: int = 1
                 ) -> Guarantee:
    """Returns the guarantee of the plan with another noise."""
    rows = _checks.integer('rows_of_one', rows_of_one, 1)
    if rows > 1 and self.unit != 'example':
      raise ValueError(
          f'Expected rows_of_one=1 with unit={self.unit!r}, got rows_of_one={rows}: '
          f'the guarantee is for all rows of a {self.unit} already.')
    if rows > self.num_examples:
      raise ValueError(
          f'Expected rows_of_one of at most num_examples={self.num_examples}, got '
          f'rows_of_one={rows}: nobody has more rows than there are.')
    if isinstance(steps, (str, dp_accounting.NeighboringRelation)):
      raise ValueError(f'Expected steps to be an integer, got steps={steps!r}; give a '
                       'relation by name, as in guarantee(neighboring_relation=...).')
    scheme = self._scheme(sampling)
    count = self._draws(scheme) if steps is None else _checks.count('steps', steps, 0)
    relation = scheme.check_relation(guarantee_lib.default_relation(
        neighboring_relation, scheme.relations, self.releases))
    data, beside = guarantee_lib.words_beside(self.releases)
    correlation = '' if self.strategy is None else self.strategy.statement
    found = guarantee_lib.guarantee(
        scheme.event(accounting.noise_event(arithmetic_lib.accounted(self, noise))),
        count, self.delta, relation,
        statement=relations.in_units(
            f'{relations.protected(relation, data=data, rows=rows)}: '
            f'{scheme.released(count)}. '
            f'{relations.public(relation, scheme.constants(self))}.{correlation}'
            f'{arithmetic_lib.statement(self)}{step_counts.statement(self)}{beside}'
            f'{self._allocation_instead(scheme, noise, count) if rows == 1 else ""}',
            self.unit),
        releases=self.releases, proven=self.accounting == 'proven',
        rows_of_one=rows, sampled_alike=scheme.rows_alike,
        distance=arithmetic_lib.distance(self, scheme.most_steps(count)))
    # The units of these events were checked before.
    checked = accounting.AdaptedDpEvent, accounting.ValidationDpEvent
    if self.unit == 'example' or all(isinstance(x, checked) for x in self.releases):
      return found
    return found.given(
        'This holds if the sensitivity of each statistic released beside the training '
        f'is for all rows of a {self.unit} together.')

  def _allocation_instead(self, scheme: SamplingScheme, noise: noise_lib.Noise,
                          count: int) -> str:
    """Returns a sentence on the epsilon of random allocation in the scheme's place."""
    # '' unless passes over several batches, in any order, are counted in floats,
    # without releases beside them, and Gaussian noise has a multiplier of at most 5:
    # more takes seconds to account.
    if not (isinstance(scheme, OnePassSampling) and count and
            self.arithmetic == 'float' and not self.releases and
            scheme.batches_per_epoch > 1 and 0 < (noise.gaussian_std or 0) <= 5):
      return ''
    event = dp_accounting.SelfComposedDpEvent(accounting.RandomAllocationDpEvent(
        scheme.batches_per_epoch, accounting.noise_event(noise)), count)
    epsilon = accounting.PhiAccountant().compose(event).get_epsilon(self.delta)
    return (f' AllocatedBatches of {scheme.batches_per_epoch} batches use each example '
            f'once an epoch too, for epsilon <= {_format.upper(epsilon)} with one '
            'added or removed.')

  def _scheme(self, sampling: type[SamplingScheme] | None) -> SamplingScheme:
    """Returns the sampling scheme, by default the plan's."""
    return sampling_lib.suitable(
        sampling, None if self.strategy is None else self.groups).of_plan(self)

  def _draws(self, scheme: SamplingScheme) -> int:
    """Returns how many draws (steps or epochs) all planned steps take, rounded up."""
    return -(-self.steps // (scheme.batches_per_epoch if scheme.draws_epochs else 1))

  def steps_within(self, epsilon: float, *,
                   neighboring_relation: Relation | None = None,
                   sampling: type[SamplingScheme] | None = None) -> int:
    """Returns the largest number of steps, at most `steps`, within a budget of epsilon.

    Counts epochs if the scheme draws epochs. Returns 0 with a warning if `releases`
    alone cost more.

    Args:
      epsilon: Budget for the upper bound, at the plan's delta.
      neighboring_relation: As for `guarantee`.
      sampling: As for `guarantee`.
    """
    cost = lambda steps: self.guarantee(
        steps, neighboring_relation, sampling=sampling).upper
    found = calibration.calibrate_steps(
        epsilon, cost, self._draws(self._scheme(sampling)))
    if not found and (least := cost(0)) > epsilon:
      warnings.warn(
          f'Expected epsilon of at least {_format.upper(least)}, the cost of the '
          f'releases beside the training, got {epsilon!r}, which allows no step and '
          'not these releases.', stacklevel=2)
    return found


def _noise_within(noise: noise_lib.Noise | None, targets: dict[str, Any],
                  sampling: type[SamplingScheme], numbers: dict[str, Any]
                 ) -> noise_lib.Noise:
  """Returns `noise`, or the least Gaussian noise within the one target of `targets`."""
  given = {name: value for name, value in targets.items() if value is not None}
  if len(given) + (noise is not None) != 1:
    raise ValueError(f'Expected either noise or one of {", ".join(targets)}, got '
                     f'noise={noise!r} and {given or "no target"}.')
  for name, value in given.items():  # One target, or none.
    target, cost = guarantee_lib.TARGETS[name](value)
    noise = _least_noise(target, cost, noise_lib.Gaussian, name, sampling=sampling,
                         **numbers)
  return noise  # type: ignore[return-value]


def calibrate_noise_multiplier(
    target_epsilon: float, make_noise: Callable[[float], noise_lib.Noise],
    *, tolerance: float = 1e-4,
    neighboring_relation: Relation | None = None,
    sampling: type[SamplingScheme] | None = None,
    **settings: Any) -> noise_lib.Noise:
  """Returns the least noise of a family that keeps within a target epsilon.

  Args:
    target_epsilon: Budget for the upper bound.
    make_noise: Returns the family's noise for a noise multiplier.
    tolerance: Relative tolerance of the noise multiplier, on the safe side.
    neighboring_relation: As for `PrivacyPlan.guarantee`.
    sampling: As for `PrivacyPlan.guarantee`.
    **settings: Arguments of `PrivacyPlan` other than `noise`.

  Returns:
    Noise whose plan has `guarantee().upper <= target_epsilon` for this relation and
    sampling; no noise multiplier below 0.01 is tried.

  Raises:
    ValueError: if no noise multiplier up to 1e4 reaches the target, or an argument is
      out of range.
  """
  return _least_noise(
      target_epsilon, lambda found: found.upper, make_noise, 'target_epsilon',
      tolerance, neighboring_relation, sampling, **settings)


def _least_noise(target: float, cost: Callable[[Guarantee], float],
                 make_noise: Callable[[float], noise_lib.Noise], name: str,
                 tolerance: float = 1e-4, neighboring_relation: Relation | None = None,
                 sampling: type[SamplingScheme] | None = None, **settings: Any
                ) -> noise_lib.Noise:
  """Returns the least noise whose `cost(guarantee)` is at most `target`."""
  _checks.function('make_noise', make_noise, 'such as tfcactus.Gaussian')
  plan = PrivacyPlan(noise=make_noise(0.5), **settings)  # Any size: replaced below.
  noise = make_noise(calibration.calibrate_noise(
      target, lambda multiplier: cost(plan._guarantee(
          make_noise(multiplier), None, neighboring_relation, sampling)), low=1e-2,
      high=1e4, tolerance=tolerance, target_name=name))
  return dataclasses.replace(plan, noise=noise).noise  # The plan checks it.
