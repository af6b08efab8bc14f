"""Request for noise learned by gradient descent, the method of Sommer et al. (2021).

`tfcactus.design.Truncated` finds better noise in seconds. This method is its baseline,
in TensorFlow, and serves pairs and models that have no convex program.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time

import dp_accounting

from tfcactus import _checks, _format, accounting, noise as noise_lib
from tfcactus.learned.training import Training
from tfcactus.noise import tiling

LOSSES = ('adp', 'pdp', 'ma')
MODELS = ('sigmoid', 'cnn')

CHECKS = 60
"""Approximate number of evaluations of the noise by the accountant."""

@dataclasses.dataclass(frozen=True)
class LearnedNoise:
  """Request for truncated noise, by gradient descent on delta + weight * utility.

  The weight halves every `halving` epochs down to `least_weight`. If `utility` is
  given, the weight multiplies the used share of that bound, doubles instead while the
  noise exceeds the bound, and the returned table meets the bound. The accountant
  evaluates the noise regularly, and the table of least delta is the result. The
  training loss is never reported as a guarantee.

  Attributes:
    range: Bound on |noise|, in units of sensitivity; above one half.
    epsilon: The epsilon at which delta is minimised.
    steps: Number of releases composed.
    sampling_prob: Poisson sampling probability (DP-SGD), both directions learned at
      once; 1 for sensitivity-bounded queries.
    utility: Bound on E|Z| (norm 1) or sqrt(E Z^2) (norm 2), or None for the result
      of the weight alone.
    norm: 1 or 2.
    bins: Cells per unit of sensitivity; None for about 400 on each side.
    loss: 'adp' or 'pdp' (PrivacyBuckets), or 'ma' (Extended Moments
      Accountant, whose order is learned too).
    model: 'sigmoid' (monotone) or 'cnn' (not monotone, so accounted by the
      envelope of all shifts).
    sigmoids: Number of sigmoids; None for one per cell.
    epochs: Maximum number of updates.
    learning_rate: Initial learning rate of Adam.
    decay: Factor of the learning rate in each epoch.
    weight: Initial weight of the utility.
    halving: Epochs in which the weight halves; 0 for a constant weight.
    least_weight: Smallest weight.
    buckets: Number 2 h of buckets; more are slower and closer.
    factor: Discretisation factor f > 1; None follows the losses.
    patience: Checks by the accountant without a better table before training
      stops; not counted before the noise has been as wide as the utility.
    max_seconds: Maximum training time; None for no limit.
    seed: Seed of the initial parameters.
    progress: Whether to show a bar on stderr.

  Raises:
    ValueError: if an argument is out of range.

  Source: Sommer et al., "Learning Numeric Optimal Differentially Private
  Truncated Additive Mechanisms" (2021), sections 3.2 to 3.4 and Appendix B.
  """

  range: float
  epsilon: float
  steps: int = 1
  sampling_prob: float = 1.0
  utility: float | None = None
  norm: int = 2
  bins: int | None = None
  loss: str = 'adp'
  model: str = 'sigmoid'
  sigmoids: int | None = None
  epochs: int = 15_000
  learning_rate: float = 0.01
  decay: float = 0.9998
  weight: float = 0.5
  halving: int = 500
  least_weight: float = 1e-7
  buckets: int = 4096
  factor: float | None = None
  patience: int = 12
  max_seconds: float | None = None
  seed: int = 0
  progress: bool = True

  def __post_init__(self) -> None:
    bins, cells = tiling.check_range(self.range, self.bins)
    norm = tiling.check_norm(self.norm)
    if self.utility is not None:
      tiling.check_utility(self.utility, cells, bins, norm)
    _checks.non_negative('epsilon', self.epsilon)
    _checks.sampling_prob(self.sampling_prob)
    for name, choices in (('loss', LOSSES), ('model', MODELS)):
      if getattr(self, name) not in choices:
        raise ValueError(
            f'Expected {name} in {choices}, got {name}={getattr(self, name)!r}.')
    for name, least in (('steps', 1), ('epochs', 1), ('halving', 0),
                        ('buckets', 16), ('patience', 1), ('seed', 0)):
      _checks.integer(name, getattr(self, name), least)
    for name in ('learning_rate', 'decay', 'weight', 'least_weight'):
      _checks.positive(name, getattr(self, name))
    if self.sigmoids is not None:
      _checks.integer('sigmoids', self.sigmoids, 1)
    if self.max_seconds is not None:
      _checks.positive('max_seconds', self.max_seconds)
    if self.factor is not None and _checks.real('factor', self.factor) <= 1:
      raise ValueError(f'Expected factor > 1, got factor={self.factor!r}.')

  def solve(self) -> noise_lib.ScalarTable:
    """Trains, and returns the table of least delta that was seen.

    Its `info['history']` lists (epoch, loss l of the paper, delta by the
    accountant) at each check.
    """
    training = Training(self)
    begun, waited, least = time.perf_counter(), 0, math.inf
    history: list[tuple[int, float, float]] = []
    kept: list[noise_lib.ScalarTable] = []
    block = max(self.epochs // CHECKS, 1)
    for begin in range(0, self.epochs, block):
      done = min(begin + block, self.epochs)
      training.run(done - begin)
      table = training.table()
      delta = _accounted(table, self)
      history.append((done, training.last, delta))
      if not kept or delta < least * (1 - 1e-4):
        least, kept, waited = delta, [table], 0
      elif training.wide:
        waited += 1
      self._show(done, training, delta, least)
      seconds = time.perf_counter() - begun
      if waited >= self.patience or (
          self.max_seconds is not None and seconds > self.max_seconds):
        break
    if self.progress:
      print(file=sys.stderr)
    return _described(kept[0], self, history)

  def _show(self, done: int, training: Training, delta: float, best: float
            ) -> None:
    if self.progress:
      share = done / self.epochs
      bar = ('=' * int(20 * share)).ljust(20, '.')
      print(f'\r{done}/{self.epochs} [{bar}] loss {training.last:.4g} '
            f'delta {_format.upper(delta, 4)} best {best:.4g}', end='', file=sys.stderr,
            flush=True)


def _accounted(table: noise_lib.ScalarTable, request: LearnedNoise) -> float:
  """Returns the accountant's upper bound on delta."""
  event = accounting.noise_event(table)
  if request.sampling_prob < 1:
    event = dp_accounting.PoissonSampledDpEvent(request.sampling_prob, event)
  return accounting.PhiAccountant().compose(event, request.steps).get_delta(
      request.epsilon)


def _described(table: noise_lib.ScalarTable, request: LearnedNoise,
               history: list[tuple[int, float, float]]) -> noise_lib.ScalarTable:
  """Returns the table with `info` on its origin."""
  info = {
      'mechanism': 'learned', 'solver': f'{request.model} {request.loss}',
      'parameters': {
          field.name: getattr(request, field.name)
          for field in dataclasses.fields(request) if field.name != 'progress'},
      'history': history, 'objective': None, 'lower_bound': None, 'gap': None,
      'statement': 'Learned by gradient descent: a local optimum at best, '
                   'chosen by the accountant among those seen in training.'}
  return noise_lib.ScalarTable(
      table.bins, table.log_density, table.log_tail_ratio, info,
      table.edge_at_zero)
