"""One training run: the loss, its schedule, and the table that it reaches."""

from __future__ import annotations

import functools
from typing import Callable, TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tfcactus import noise as noise_lib
from tfcactus.learned import models, privacy_losses
from tfcactus.noise import tiling

if TYPE_CHECKING:
  from tfcactus.learned.learned_noise import LearnedNoise

LEAST_ORDER = 1e-4
"""Added to the square that keeps the order lambda positive."""


class Training:
  """Parameters, optimizer and schedule of one run.

  Attributes:
    last: The learned delta at the last update: no guarantee.
    wide: Whether the noise has been as wide as the utility.
  """

  def __init__(self, request: LearnedNoise):
    self._request = request
    self._bins, self._cells = tiling.check_range(request.range, request.bins)
    self._cost = tiling.cell_cost(self._cells, self._bins, request.norm)
    rng = np.random.default_rng(request.seed)
    if request.model == 'sigmoid':
      self._model: tf.Module = models.SigmoidModel(
          self._cells, self._bins, request.sigmoids or self._cells, rng)
    else:
      self._model = models.ConvolutionModel(self._cells, rng)
    self._root_order = tf.Variable(3.0, dtype=tf.float64)
    variables = list(self._model.trainable_variables) + (
        [self._root_order] if request.loss == 'ma' else [])
    self._adam = models.Adam(variables, request.learning_rate, request.decay)
    self._variables = variables
    self._epoch = tf.Variable(0.0, dtype=tf.float64)
    self._weight = tf.Variable(request.weight, dtype=tf.float64)
    self.last = float('nan')
    self.wide = request.utility is None

  def run(self, epochs: int) -> None:
    """Trains for `epochs` epochs."""
    self.last = float(self._many(
        tf.constant(epochs), tf.constant(self._width(), tf.float64)))

  @functools.cached_property
  def _many(self) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    @tf.function
    def many(epochs: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
      delta = tf.constant(0.0, tf.float64)
      for _ in tf.range(epochs):
        delta = self._update(width)
      return delta
    return many

  def _update(self, width: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
      w = tf.nn.softmax(self._model())
      utility = tf.reduce_sum(w * self._cost)**(1 / self._request.norm)
      delta = self._delta(w, width)
      loss = delta + self._weight * utility / (self._request.utility or 1.0)
    gradients = tape.gradient(loss, self._variables)
    self._epoch.assign_add(1.0)
    self._adam.apply(gradients, self._epoch)
    if self._request.halving:
      rate = tf.constant(2.0**(-1 / self._request.halving), tf.float64)
      if self._request.utility is not None:
        rate = tf.where(utility > self._request.utility, 1 / rate, rate)
      self._weight.assign(tf.maximum(self._weight * rate,
                                     self._request.least_weight))
    return delta

  def _delta(self, w: tf.Tensor, width: tf.Tensor) -> tf.Tensor:
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
    """Returns log `factor`; by default buckets cover the likely loss and 2 epsilon."""
    if self._request.factor is not None:
      return float(np.log(self._request.factor))
    w = tf.nn.softmax(self._model()).numpy()
    full = 0.5 * np.concatenate([w[::-1], w])
    reach = 2 * self._request.epsilon + 1e-6
    for p, q in privacy_losses.outcome_pairs(
        tf.constant(full), self._bins, self._request.sampling_prob):
      p, q = p.numpy(), q.numpy()
      both = (p > 0) & (q > 0)
      p, loss = p[both], np.log(p[both] / q[both])
      mean = float(p @ loss)
      spread = float(p @ loss**2 - mean**2)**0.5 if p @ loss**2 > mean**2 else 0
      reach = max(reach, self._request.steps * abs(mean) + 8 * spread *
                  self._request.steps**0.5)
    return reach / (self._request.buckets // 2)

  def table(self) -> noise_lib.ScalarTable:
    """Returns the current noise, narrowed to meet the bound on utility."""
    log_mass = self._model().numpy()
    w = _softmax(log_mass)
    target = self._request.utility
    self.wide |= target is not None and bool(
        w @ self._cost >= (0.98 * target)**self._request.norm)
    if self._request.model == 'sigmoid':
      log_mass = np.minimum.accumulate(log_mass)
    w = _softmax(log_mass)
    if target is not None:
      w = _narrowed(log_mass, self._cost, target**self._request.norm)
    w = np.maximum(w, models.SMALLEST)
    return noise_lib.ScalarTable.from_cell_masses(
        self._bins, 0.5 * np.concatenate([w[::-1], w]))


def _softmax(log_mass: np.ndarray) -> np.ndarray:
  w = np.exp(log_mass - np.max(log_mass))
  return w / np.sum(w)


def _narrowed(log_mass: np.ndarray, cost: np.ndarray, budget: float
              ) -> np.ndarray:
  """Tilts the masses towards zero until their cost is within the budget."""
  w = _softmax(log_mass)
  low, high = 0.0, 1.0 / budget
  if w @ cost <= budget:
    return w
  while _softmax(log_mass - high * cost) @ cost > budget:
    high *= 2
  for _ in range(80):
    middle = 0.5 * (low + high)
    inside = _softmax(log_mass - middle * cost) @ cost <= budget
    low, high = (low, middle) if inside else (middle, high)
  return _softmax(log_mass - high * cost)
