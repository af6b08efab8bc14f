"""Noise learned by gradient descent on a model, the method of Sommer et al. (2021).

`tfcactus.design.Truncated` usually finds better noise, in seconds. This method is its
baseline, in TensorFlow, and serves pairs and models that have no convex program.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time

import dp_accounting
import numpy as np
from scipy import special
import tensorflow as tf

from tfcactus import _checks, _format, accounting, noise as noise_lib
from tfcactus.accounting.bounds import crossing
from tfcactus.learned import privacy_losses
from tfcactus.noise import tiling

CHECKS = 60
"""Approximate number of evaluations of the noise by the accountant."""

LEAST_ORDER = 1e-4
"""Added to the square that keeps the order lambda positive."""

STEEPNESS = 8.0
"""Slope of a sigmoid times the width of a cell; equals the paper's 500 on its grid."""

PAPER_SIGMOIDS = 10_000
BIAS = 10.0
"""Initial A for PAPER_SIGMOIDS sigmoids; A^2 scales with the number of sigmoids."""

LAYERS, CHANNEL, FILTER = 10, 100, 3
"""Convolutions, layer width and filter length of the CNN model."""

SMALLEST = 1e-300
"""Least mass of a cell, so that logarithms stay finite."""


@dataclasses.dataclass(frozen=True)
class LearnedNoise:
  """Request for truncated noise, by gradient descent on delta + weight * utility.

  The weight halves every `halving` epochs down to `least_weight`; while the noise
  exceeds the bound `utility`, the weight doubles instead. The returned table meets that
  bound. The accountant evaluates the noise about `CHECKS` times, and the table of least
  delta is the result. The training loss is never reported as a guarantee.

  Attributes:
    range: Bound on |noise|, in units of sensitivity; above one half.
    epsilon: The epsilon at which delta is minimised.
    steps: Number of releases composed.
    sampling_prob: Poisson sampling probability (DP-SGD), both directions learned at
      once; 1 for sensitivity-bounded queries.
    utility: Bound on E|Z| (norm 1) or sqrt(E Z^2) (norm 2), in units of sensitivity;
      None for no bound, so that only the weight limits the noise.
    norm: 1 or 2.
    bins: Cells per unit of sensitivity; None for about 400 on each side.
    loss: 'adp' or 'pdp' (PrivacyBuckets), or 'ma' (Extended Moments Accountant, whose
      order is learned too).
    model: 'sigmoid' (monotone) or 'cnn' (not monotone: accounted by all shifts).
    sigmoids: Number of sigmoids; None for one per cell.
    epochs: Maximum number of updates.
    learning_rate: Initial learning rate of Adam.
    decay: Factor of the learning rate in each epoch.
    weight: Initial weight of the utility.
    halving: Number of epochs in which the weight halves; 0 for a constant weight.
    least_weight: Smallest weight.
    buckets: Number 2 h of buckets; more are slower and closer.
    factor: Discretisation factor f > 1; None follows the losses.
    patience: Checks by the accountant without a better table before training stops;
      not counted before the noise has reached 98 % of the bound on utility.
    max_seconds: Time after which the next check is the last; None for no limit.
    seed: Seed of the initial parameters.
    progress: Whether to show a bar on stderr.

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
    _checks.choice('loss', self.loss, ('adp', 'pdp', 'ma'))
    _checks.choice('model', self.model, ('sigmoid', 'cnn'))
    for name, least in {'steps': 1, 'epochs': 1, 'halving': 0, 'buckets': 16,
                        'patience': 1, 'seed': 0}.items():
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
    """Trains, and returns the table of least accounted delta among those checked.

    A later table replaces an earlier one only if its delta is lower by 1e-4 of it.
    Its `info['history']` lists (epoch, the loss's own delta, the accountant's upper
    bound on delta) at each check.
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
      if self.progress:
        bar = ('=' * int(20 * done / self.epochs)).ljust(20, '.')
        print(f'\r{done}/{self.epochs} [{bar}] loss {training.last:.4g} delta '
              f'{_format.upper(delta, 4)} best {_format.upper(least, 4)}', end='',
              file=sys.stderr, flush=True)
      seconds = time.perf_counter() - begun
      if waited >= self.patience or (
          self.max_seconds is not None and seconds > self.max_seconds):
        break
    if self.progress:
      print(file=sys.stderr)
    table = kept[0]
    return noise_lib.ScalarTable(table.bins, table.log_density, table.log_tail_ratio, {
        'mechanism': 'learned', 'solver': f'{self.model} {self.loss}',
        'parameters': {name: value for name, value in dataclasses.asdict(self).items()
                       if name != 'progress'},
        'history': history, 'objective': None, 'lower_bound': None, 'gap': None,
        'statement': 'Learned by gradient descent: a local optimum at best, chosen by '
                     'the accountant among those seen in training.'},
                                 table.edge_at_zero)


def _accounted(table: noise_lib.ScalarTable, request: LearnedNoise) -> float:
  """Returns the accountant's upper bound on the delta of all steps at the epsilon."""
  event = accounting.noise_event(table)
  if request.sampling_prob < 1:
    event = dp_accounting.PoissonSampledDpEvent(request.sampling_prob, event)
  return accounting.PhiAccountant().compose(event, request.steps).get_delta(
      request.epsilon)


class Training:
  """Parameters, moments of Adam and schedule of one run.

  Attributes:
    last: The learned delta before the last update: no guarantee.
    wide: Whether the noise has reached 98 % of the bound on utility, or has no bound.
  """

  def __init__(self, request: LearnedNoise):
    """Initialises the model from the seed, and the weight, as `request` says."""
    self._request = request
    self._bins, self._cells = tiling.check_range(request.range, request.bins)
    self._cost = tiling.cell_cost(self._cells, self._bins, request.norm)
    rng = np.random.default_rng(request.seed)
    if request.model == 'sigmoid':
      self._model: tf.Module = SigmoidModel(
          self._cells, self._bins, request.sigmoids or self._cells, rng)
    else:
      self._model = ConvolutionModel(self._cells, rng)
    self._root_order = tf.Variable(3.0, dtype=tf.float64)
    self._variables = [*self._model.trainable_variables, *(
        [self._root_order] if request.loss == 'ma' else [])]
    self._moments = [(tf.Variable(tf.zeros_like(v)), tf.Variable(tf.zeros_like(v)))
                     for v in self._variables]
    self._epoch = tf.Variable(0.0, dtype=tf.float64)
    self._weight = tf.Variable(request.weight, dtype=tf.float64)
    self.last = float('nan')
    self.wide = request.utility is None

  def run(self, epochs: int) -> None:
    """Makes `epochs` updates."""
    self.last = float(self._many(
        tf.constant(epochs), tf.constant(self._width(), tf.float64)))

  @tf.function
  def _many(self, epochs: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """Makes updates with this bucket width; returns the last delta."""
    delta = tf.constant(0.0, tf.float64)
    for _ in tf.range(epochs):
      delta = self._update(width)
    return delta

  def _update(self, width: tf.Tensor) -> tf.Tensor:
    """Updates parameters and weight; returns the learned delta before the update."""
    with tf.GradientTape() as tape:
      w = tf.nn.softmax(self._model())
      utility = tf.reduce_sum(w * self._cost)**(1 / self._request.norm)
      delta = self._delta(w, width)
      loss = delta + self._weight * utility / (self._request.utility or 1.0)
    gradients = tape.gradient(loss, self._variables)
    self._epoch.assign_add(1.0)
    self._adam(gradients)
    # In `halving` updates the weight halves, or doubles if utility exceeds its bound.
    if self._request.halving:
      rate = tf.constant(2.0**(-1 / self._request.halving), tf.float64)
      if self._request.utility is not None:
        rate = tf.where(utility > self._request.utility, 1 / rate, rate)
      self._weight.assign(tf.maximum(self._weight * rate, self._request.least_weight))
    return delta

  def _adam(self, gradients: list[tf.Tensor]) -> None:
    """Makes an update of Adam (Kingma and Ba, 2015)."""
    step = self._epoch  # Counts from one.
    rate = self._request.learning_rate * self._request.decay**step
    rate *= tf.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    for v, g, (mean, square) in zip(self._variables, gradients, self._moments):
      mean.assign(0.9 * mean + 0.1 * g)
      square.assign(0.999 * square + 0.001 * g * g)
      v.assign_sub(rate * mean / (tf.sqrt(square) + 1e-8))

  def _delta(self, w: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
    """Returns the differentiable delta, the larger of both directions."""
    # `w` are masses of |noise| outwards from zero, of sum one; `width` is a bucket's.
    ask = self._request
    full = 0.5 * tf.concat([w[::-1], w], 0)
    pairs = privacy_losses.outcome_pairs(full, self._bins, ask.sampling_prob)
    if ask.loss == 'ma':
      order = self._root_order**2 + LEAST_ORDER
      deltas = [privacy_losses.moments_delta(
          pair, order, ask.epsilon, ask.steps) for pair in pairs]
    else:
      deltas = [privacy_losses.buckets_delta(
          pair, ask.epsilon, ask.steps, width, ask.buckets // 2,
          probabilistic=ask.loss == 'pdp') for pair in pairs]
    return tf.reduce_max(tf.stack(deltas))

  def _width(self) -> float:
    """Returns the width of a bucket of privacy losses: log `factor`, if given."""
    # By default the buckets cover losses up to 2 epsilon, and up to the mean plus eight
    # standard deviations of the composed loss.
    ask = self._request
    if ask.factor is not None:
      return float(np.log(ask.factor))
    w = tf.nn.softmax(self._model()).numpy()
    full = tf.constant(0.5 * np.concatenate([w[::-1], w]))
    reach = 2 * ask.epsilon + 1e-6
    for pair in privacy_losses.outcome_pairs(full, self._bins, ask.sampling_prob):
      p, q = (mass.numpy() for mass in pair)
      both = (p > 0) & (q > 0)
      p, loss = p[both], np.log(p[both] / q[both])
      mean = float(p @ loss)
      spread = max(float(p @ loss**2 - mean**2), 0.0)**0.5
      reach = max(reach, ask.steps * abs(mean) + 8 * spread * ask.steps**0.5)
    return reach / (ask.buckets // 2)

  def table(self) -> noise_lib.ScalarTable:
    """Returns the current noise, narrowed to meet the bound on utility; sets `wide`."""
    log_mass = self._model().numpy()
    target, norm = self._request.utility, self._request.norm
    self.wide |= target is not None and bool(
        special.softmax(log_mass) @ self._cost >= (0.98 * target)**norm)
    if self._request.model == 'sigmoid':  # Monotone but for rounding.
      log_mass = np.minimum.accumulate(log_mass)
    w = np.maximum(special.softmax(log_mass) if target is None else
                   _narrowed(log_mass, self._cost, target**norm), SMALLEST)
    return noise_lib.ScalarTable.from_cell_masses(
        self._bins, 0.5 * np.concatenate([w[::-1], w]))


def _narrowed(log_mass: np.ndarray, cost: np.ndarray, budget: float) -> np.ndarray:
  """Returns softmax(log_mass - a cost) for the least a >= 0 of cost within `budget`."""
  def inside(a: float) -> bool:
    """Returns whether the cost at `a` is within the budget."""
    return bool(special.softmax(log_mass - a * cost) @ cost <= budget)

  a = 0.0 if inside(0.0) else crossing(inside, 0.0, 1.0 / budget)[1]
  return special.softmax(log_mass - a * cost)


class SigmoidModel(tf.Module):
  """Masses in proportion to A^2 + sum_j B_j^2 sigmoid(C (x - F_j)): equation (4)."""

  def __init__(self, cells: int, bins: int, sigmoids: int, rng: np.random.Generator):
    """Initialises A, B and F for `cells` of width 1 / `bins` on each side of zero."""
    super().__init__(name='sigmoid_model')
    reach = cells / bins
    # The cells left of zero, which the rising sigmoids are for; the right half mirrors.
    self._x = tf.constant(-(np.arange(cells) + 0.5) / bins)[:, None]
    self._slope = STEEPNESS * bins
    self.bias = tf.Variable(BIAS * (sigmoids / PAPER_SIGMOIDS)**0.5, dtype=tf.float64)
    self.height = tf.Variable(rng.random(sigmoids))
    self.place = tf.Variable(np.linspace(-reach, 0.0, sigmoids))

  def __call__(self) -> tf.Tensor:
    """Returns unnormalised log masses outwards from zero; float64, shape (cells,)."""
    steps = tf.sigmoid(self._slope * (self._x - self.place[None, :]))
    rise = tf.linalg.matvec(steps, self.height**2)
    return tf.math.log(self.bias**2 + rise + SMALLEST)


class ConvolutionModel(tf.Module):
  """Linear layer, ten convolutions, linear layer (Appendix B): not monotone."""

  def __init__(self, cells: int, rng: np.random.Generator):
    """Initialises random linear layers, and filters near the identity."""
    super().__init__(name='cnn_model')

    def normal(*shape: int) -> tf.Variable:
      """Returns a variable of normal numbers of variance 1 / shape[-1]."""
      return tf.Variable(rng.standard_normal(shape) / np.sqrt(shape[-1]))

    self._x = tf.constant((np.arange(cells) + 0.5) / cells)
    self.inward, self.shift = normal(CHANNEL, cells), normal(CHANNEL)
    centre = np.zeros((LAYERS, FILTER))
    centre[:, FILTER // 2] = 1.0
    self.filters = tf.Variable(centre + 0.1 * rng.standard_normal(centre.shape))
    self.outward, self.level = normal(cells, CHANNEL), normal(cells)

  def __call__(self) -> tf.Tensor:
    """Returns unnormalised log masses outwards from zero; float64, shape (cells,)."""
    layer = tf.linalg.matvec(self.inward, self._x) + self.shift
    pad = FILTER // 2
    for i in range(LAYERS):
      wide = tf.pad(layer, [[pad, pad]])
      layer = tf.add_n([self.filters[i, j] * wide[j:j + CHANNEL]
                        for j in range(FILTER)])
    return tf.linalg.matvec(self.outward, layer) + self.level
