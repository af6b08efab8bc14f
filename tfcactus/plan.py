"""The one place where noise, clipping, sampling, steps and delta meet."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any
from typing import Callable
from typing import Optional
from typing import Sequence

import dp_accounting

from tfcactus import _checks
from tfcactus import _format
from tfcactus import accounting
from tfcactus import noise as noise_lib
from tfcactus import relations
from tfcactus.accounting import calibration
from tfcactus.adaptive_clipping import AdaptiveClipping

ACCOUNTANT = 'tfcactus PhiAccountant'
ACCOUNTINGS = ('proven', 'scalar-unproven')

UNPROVEN = (
    'NOT a privacy guarantee: the one-dimensional account of paper 000 '
    '(Alghamdi et al., 2022) applied to i.i.d. scalar noise on a clipped '
    'vector. It holds for a scalar query only; the true epsilon of the vector '
    'is larger, often many times.')


@dataclasses.dataclass(frozen=True)
class Guarantee:
  """What a number of released steps costs.

  Attributes:
    lower: No epsilon below this holds for the dominating pair accounted: of
      Gaussian and monotone scalar noise two neighbours attain it. (Under
      zero-out on samples of fixed size, and replace on Poisson samples with
      other noise, for some neighbours; `upper` is proved for all, and less
      tight.)
    estimate: The best single number for it; not a bound.
    upper: The epsilon that holds; the one to publish.
    delta: At this delta.
    steps: After this many released steps (or epochs, see `statement`).
    neighboring_relation: 'add-or-remove-one', 'replace-one', or
      'replace-special' (zero-out).
    accountant: Who computed it.
    proven: False if the number is not a guarantee at all.
    statement: What the number says, in words.
    conditions: What it holds under and nobody checks, in sentences that the
      statement ends with.
    seeded: Whether it holds only against those who do not know a seed, with
      which they could subtract the noise; the statement then says so.
  """

  lower: float
  estimate: float
  upper: float
  delta: float
  steps: int
  neighboring_relation: str
  accountant: str
  proven: bool
  statement: str
  conditions: tuple[str, ...] = ()
  seeded: bool = False

  def __str__(self) -> str:
    if self.seeded:
      unseeded = dataclasses.replace(self, seeded=False)
      return f'{unseeded}, SEEDED: not against whoever knows the seed'
    if not self.proven:
      return (f'epsilon {_format.upper(self.upper)} at delta '
              f'{_format.upper(self.delta)} by '
              f'{self.accountant}: {self.statement}')
    return (f'epsilon <= {_format.upper(self.upper)} at delta '
            f'{_format.upper(self.delta)} '
            f'({self.neighboring_relation}, {self.accountant})' +
            (', on conditions that its statement names' if self.conditions else ''))

  def given(self, *conditions: str) -> Guarantee:
    """The guarantee under conditions more, in its statement and its print.

    Args:
      *conditions: Sentences.
    """
    return dataclasses.replace(
        self, statement=' '.join((self.statement, *conditions)),
        conditions=(*self.conditions, *conditions))


class ReleasedStatistic:
  """What a plan knows a result of `tfcactus.release` by; `Release` is the one.

  Events have attributes of the same names that mean something else: the type
  tells them apart, never an attribute.

  Attributes:
    event: All that the result cost.
    seeded: Whether its noise can be repeated by whoever knows a seed.
  """

  event: dp_accounting.DpEvent
  seeded: bool


@dataclasses.dataclass(frozen=True)
class PrivacyPlan:
  """A private training run, settled before it starts.

  Attributes:
    noise: Gaussian, Laplace, SinhNormal, ScalarTable or RadialTable, in units
      of the clip norm.
    l2_norm_clip: Bound on the l2 norm of one example's whole gradient.
    num_examples: Size of the training set (public).
    sampling_prob: Probability with which Poisson sampling takes each example
      into a step.
    steps: Steps planned.
    delta: Target delta.
    dim: Length of the clipped vector; None to check it later, when the model
      is known.
    accounting: 'proven', or 'scalar-unproven' to reproduce the published
      scalar account of i.i.d. scalar noise on vectors, which is labelled as no
      guarantee wherever it is shown.
    adaptive_clipping: Moves the clip norm, which starts at l2_norm_clip; None
      keeps it. The noise is then that of the gradient and the count together.
    releases: Statistics released from the same records beside the training:
      `tfcactus.release` results, or their events. Every guarantee of the plan
      then covers them too. Kept as events, each whole.

  Raises:
    ValueError: if an argument is out of range, or the noise does not protect
      what it is put on.
  """

  noise: noise_lib.Noise
  l2_norm_clip: float
  num_examples: int
  sampling_prob: float
  steps: int
  delta: float
  dim: Optional[int] = None
  accounting: str = 'proven'
  adaptive_clipping: Optional[AdaptiveClipping] = None
  releases: Sequence[Any] = ()

  def __post_init__(self):
    set_field = functools.partial(object.__setattr__, self)
    set_field('noise', noise_lib.check(self.noise))
    set_field('l2_norm_clip',
              _checks.positive('l2_norm_clip', self.l2_norm_clip))
    set_field('num_examples',
              _checks.integer('num_examples', self.num_examples, 1))
    set_field('sampling_prob', _checks.sampling_prob(self.sampling_prob))
    set_field('steps', _checks.integer('steps', self.steps, 1))
    set_field('delta', _checks.delta(self.delta))
    if self.accounting not in ACCOUNTINGS:
      raise ValueError(
          f'Expected accounting in {ACCOUNTINGS}, got '
          f'accounting={self.accounting!r}.')
    if self.accounting == 'scalar-unproven' and self.noise.dim != 1:
      raise ValueError(
          "Expected scalar noise with accounting='scalar-unproven', got "
          f"{self.noise!r}; it has a proven account: use accounting='proven'.")
    if self.adaptive_clipping is not None:
      self._check_adaptive()
    set_field('releases', _release_events(self.releases))
    if self.dim is not None:
      set_field('dim', _checks.integer('dim', self.dim, 1))
      self.check_vector(self.dim)

  def _check_adaptive(self) -> None:
    if not isinstance(self.adaptive_clipping, AdaptiveClipping):
      raise ValueError(
          'Expected adaptive_clipping to be an AdaptiveClipping or None, got '
          f'{self.adaptive_clipping!r}.')
    if self.noise.dim == 1:
      raise ValueError(
          'Expected noise that protects a vector with adaptive_clipping, which '
          f'releases the gradient and a count together, got {self.noise!r}; use '
          'the Gaussian, or an isotropic table of one dimension more than the '
          'model has parameters.')
    # Raises if the count has too little noise.
    self.adaptive_clipping.sensitivity(
        self.noise.noise_multiplier, self.expected_batch_size)

  @property
  def release_sensitivity(self) -> float:
    """Norm of what one example adds to a release, in units of the clip norm.

    One, or more where a count is released together with the gradient.
    """
    if self.adaptive_clipping is None:
      return 1.0
    return self.adaptive_clipping.sensitivity(
        self.noise.noise_multiplier, self.expected_batch_size)

  @property
  def expected_batch_size(self) -> float:
    """sampling_prob * num_examples: the public constant to divide sums by."""
    return self.sampling_prob * self.num_examples

  @property
  def sample_size(self) -> int:
    """Examples to a batch of fixed size: sampling_prob * num_examples.

    Raises:
      ValueError: if that is not a whole number.
    """
    size = round(self.expected_batch_size)
    if not math.isclose(size, self.expected_batch_size, rel_tol=1e-9):
      raise ValueError(
          'Expected sampling_prob * num_examples to be a whole number for '
          f'batches of fixed size, got {self.expected_batch_size!r}; take '
          f'sampling_prob={max(size, 1)} / {self.num_examples}.')
    return size

  def check_vector(self, dim: int) -> None:
    """Checks that the noise protects an l2-clipped vector of length `dim`.

    With `adaptive_clipping`, that vector and one number more.

    Raises:
      ValueError: if it does not, saying what would.
    """
    dim = _checks.integer('dim', dim, 1)
    if self.dim is not None and dim != self.dim:
      raise ValueError(
          f'Expected a vector of dim={self.dim}, as the plan says, got {dim}.')
    note = ''
    if self.adaptive_clipping is not None:
      dim, note = dim + 1, ' (the clipped count is one of them)'
    if self.accounting == 'proven':
      self.noise.check_dim(dim, note)

  @property
  def step_event(self) -> dp_accounting.DpEvent:
    """The DpEvent of one Poisson-sampled step."""
    return dp_accounting.PoissonSampledDpEvent(
        self.sampling_prob, accounting.noise_event(self.noise))

  def guarantee(self, steps: Optional[int] = None,
                neighboring_relation: Any = relations.ADD_OR_REMOVE
                ) -> Guarantee:
    """The cost of `steps` released steps on Poisson-sampled batches.

    Args:
      steps: How many; default all that are planned. Zero costs nothing.
      neighboring_relation: Whom it protects: one of dp_accounting's, or
        'add-or-remove', 'zero-out' (an example replaced by one that contributes
        zero, at the same cost; nothing is assumed of num_examples) or 'replace'
        (by any other, which alone protects attributes; it costs more).

    Returns:
      Bounds on epsilon at the plan's delta.

    Raises:
      ValueError: if the relation is unknown, or the cost of `releases` is not
        known for it.
    """
    steps = self.steps if steps is None else _checks.integer('steps', steps, 0)
    return self._guarantee(
        self.step_event, steps, relations.check(neighboring_relation),
        f'{steps} noisy sums, each example taken with probability '
        f'{self.sampling_prob:.6g} per step', self._constants)

  def guarantee_fixed_size(
      self, steps: Optional[int] = None,
      neighboring_relation: Any = relations.ADD_OR_REMOVE) -> Guarantee:
    """The cost of released steps on batches of `sample_size` examples.

    Each batch is drawn without replacement, anew for each step. An example that
    enters displaces another, so that a sum changes by up to twice the clip
    norm. Where one is zeroed others are in its place in the other samples, so
    that it costs more than under Poisson sampling too.

    Args:
      steps: How many; default all that are planned. Zero costs nothing.
      neighboring_relation: As for `guarantee`.

    Returns:
      Bounds on epsilon at the plan's delta.

    Raises:
      ValueError: if `sample_size` is not a whole number, or as `guarantee`.
    """
    steps = self.steps if steps is None else _checks.integer('steps', steps, 0)
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        self.num_examples, self.sample_size, accounting.noise_event(self.noise))
    return self._guarantee(
        event, steps, relations.check(neighboring_relation),
        f'{steps} noisy sums, each over {self.sample_size} of '
        f'{self.num_examples} examples drawn without replacement',
        self._constants)

  def guarantee_each_example_once(
      self, epochs: int, neighboring_relation: Any = relations.REPLACE
  ) -> Guarantee:
    """The cost of epochs in which each example is used exactly once.

    What a shuffled `fit` does: no amplification by sampling holds. An example
    that is replaced changes one noisy sum per epoch by up to twice the clip
    norm, one that is zeroed by up to the clip norm.

    Args:
      epochs: How many passes over the data; zero costs nothing.
      neighboring_relation: 'replace' or 'zero-out', as for `guarantee`.

    Raises:
      ValueError: for add-or-remove, where all batches of a pass change, or as
        `guarantee`.
    """
    epochs = _checks.integer('epochs', epochs, 0)
    relation = relations.check(neighboring_relation)
    if relation == relations.ADD_OR_REMOVE:
      raise ValueError(
          'Expected neighboring_relation replace or zero-out for passes over all '
          'examples, got add-or-remove: an example more moves others to other '
          'batches, and no account of that is known.')
    return self._guarantee(
        accounting.noise_event(self.noise), epochs, relation,
        f'{epochs} passes in which each example was used exactly once, no '
        'amplification by sampling',
        f'num_examples={self.num_examples}, sampling_prob='
        f'{self.sampling_prob:.6g} and the sizes of the batches')

  @property
  def _constants(self) -> str:
    return (f'num_examples={self.num_examples} and sampling_prob='
            f'{self.sampling_prob:.6g}')

  def _guarantee(self, event: dp_accounting.DpEvent, count: int,
                 relation: dp_accounting.NeighboringRelation,
                 released: str, constants: str) -> Guarantee:
    accountant = accounting.PhiAccountant(relation)
    if count:
      accountant.compose(event, count)
    for release in self.releases:
      if not accountant.supports(release):
        raise ValueError(
            f'Expected releases with a known cost for {relations.label(relation)}'
            f', got {release!r}.')
      accountant.compose(release)
    statement = (f'{relations.protected(relation)}: {released}. '
                 f'{relations.public(relation, constants)}.')
    if self.releases:
      statement += (f' Covers {len(self.releases)} statistics released beside '
                    'the training.')
    bounds = accountant.epsilon_bounds(self.delta)
    proven = self.accounting == 'proven'
    return Guarantee(
        lower=bounds.lower, estimate=bounds.estimate, upper=bounds.upper,
        delta=self.delta, steps=count,
        neighboring_relation=relations.label(relation),
        accountant=ACCOUNTANT, proven=proven,
        statement=statement if proven else f'{UNPROVEN} {statement}')

  def steps_within(self, epsilon: float, *, fixed_size: bool = False,
                   neighboring_relation: Any = relations.ADD_OR_REMOVE) -> int:
    """The largest number of steps, at most `steps`, that keeps within epsilon.

    Args:
      epsilon: Budget for the upper bound, at the plan's delta.
      fixed_size: Whether batches are of fixed size; else Poisson.
      neighboring_relation: As for `guarantee`.
    """
    guarantee = functools.partial(
        self.guarantee_fixed_size if fixed_size else self.guarantee,
        neighboring_relation=neighboring_relation)
    return calibration.calibrate_steps(
        epsilon, lambda steps: guarantee(steps).upper, self.steps)


def _release_events(releases: Sequence[Any]) -> tuple[dp_accounting.DpEvent, ...]:
  """The events of releases; an event stays as it is."""
  if not isinstance(releases, (list, tuple)):
    raise ValueError(
        'Expected releases to be a list or tuple, of results of '
        f'tfcactus.release or DpEvents, got {releases!r}.')
  return tuple(map(_release_event, releases))


def _release_event(release: Any) -> dp_accounting.DpEvent:
  event = release
  if isinstance(release, ReleasedStatistic):
    if release.seeded:
      raise ValueError(
          'Expected releases drawn without a seed, got one that was: whoever '
          'knows the seed can take its noise off. Release it again with '
          'seed=None; in an experiment that claims no privacy, pass its event.')
    event = release.event
  if not isinstance(event, dp_accounting.DpEvent):
    raise ValueError(
        'Expected releases to hold results of tfcactus.release or DpEvents, got '
        f'{release!r}.')
  try:
    accounting.PhiAccountant().compose(event)
  except (dp_accounting.UnsupportedEventError, ValueError, TypeError) as error:
    raise ValueError(
        'Expected releases whose cost PhiAccountant can compose, got '
        f'{event!r}: {error}') from error
  return event


def calibrate_noise_multiplier(
    target_epsilon: float, make_noise: Callable[[float], noise_lib.Noise],
    *, tolerance: float = 1e-4,
    neighboring_relation: Any = relations.ADD_OR_REMOVE,
    **settings: Any) -> noise_lib.Noise:
  """The least noise of a family that keeps within a target epsilon.

  Args:
    target_epsilon: Budget for the upper bound.
    make_noise: Returns the family's noise for a noise multiplier.
    tolerance: Relative tolerance of the noise multiplier, on the safe side.
    neighboring_relation: As for `PrivacyPlan.guarantee`.
    **settings: Arguments of `PrivacyPlan` other than `noise`.

  Returns:
    Noise whose plan has `guarantee().upper <= target_epsilon`.

  Raises:
    ValueError: if no noise multiplier up to 1e4 reaches the target.
  """
  def cost(multiplier: float) -> float:
    plan = PrivacyPlan(noise=make_noise(multiplier), **settings)
    return plan.guarantee(neighboring_relation=neighboring_relation).upper

  return make_noise(calibration.calibrate_noise(
      target_epsilon, cost, low=1e-2, high=1e4, tolerance=tolerance))
