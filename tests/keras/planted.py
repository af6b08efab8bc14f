"""Runs of private training with canaries, and faults to plant in the library itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from tests.keras.tiny import NONE
import tfcactus
from tfcactus import audit, correlated, keras as private, sampling
from tfcactus.keras.gradients import clipping, engine
from tfcactus.keras.step import canaries as canaries_lib, clip_norm
from tfcactus.randomness import KeyStream

SIGMA, PROB = 1.465, 0.05
EXAMPLES = 100
X = np.random.default_rng(0).normal(size=(EXAMPLES, 4)).astype(np.float32)
Y = np.arange(EXAMPLES) % 2

SCHEMES = {'poisson': sampling.PoissonSampling,
           'allocated': sampling.RandomAllocationSampling,
           'cyclic, correlated': sampling.CyclicAllocationSampling}


class Runs:
  """Repeated runs of one traced training, each with new coins, noise and batches.

  The ledger adds up all runs. A claim is that of one of them.
  """

  def __init__(self, canaries: int, steps: int = 300, sigma: float = SIGMA,
               scheme: str = 'poisson', arithmetic: str = 'float'):
    """Privatizes and compiles the model."""
    self._scheme = scheme
    self._audit = private.Audit(canaries)
    self._steps = steps
    self.plan = tfcactus.PrivacyPlan(
        noise=tfcactus.Gaussian(sigma), l2_norm_clip=0.7, num_examples=EXAMPLES,
        sampling_prob=PROB, steps=steps, delta=1e-5, arithmetic=arithmetic,
        correlation=correlated.BandedStrategy(4) if 'cyclic' in scheme else None)
    self.claim = audit.Claim.of_plan(self.plan, SCHEMES[scheme])
    self.model = private.privatize(tf.keras.Sequential([
        tf.keras.layers.Input((4,)), tf.keras.layers.Dense(2)]), self.plan,
                                   audit=self._audit)
    self.model.compile('sgd', NONE)

  def seen(self) -> audit.Observations:
    """Trains for all steps; returns what they showed."""
    canaries = self.model._step.canaries
    fresh = canaries_lib.Canaries(self._audit, self.plan)
    # The traced step keeps its object, so that the coins change in place.
    canaries.present, canaries._steps = fresh.present, []
    made: Any = {
        'poisson': lambda: private.PoissonBatches(X, Y, PROB),
        'allocated': lambda: private.AllocatedBatches(X, Y, round(1 / PROB)),
        'cyclic, correlated': lambda: private.CyclicBatches(X, Y, plan=self.plan)}
    batches = made[self._scheme]()
    self.model.fit(batches, epochs=self._steps // batches.steps_per_epoch, verbose=0)
    return canaries.seen()


@contextlib.contextmanager
def planted(fault: str | None) -> Iterator[None]:
  """Plants a fault of `FAULTS` while the context is open; None plants none."""
  with contextlib.ExitStack() as stack:
    if fault is not None:
      stack.enter_context(FAULTS[fault][1]())
    yield


def _noise(change: Callable[..., np.ndarray]) -> Any:
  """Changes draws of noise: `change` takes draw, number of the draw, and memory."""
  true, memory, number = tfcactus.Gaussian.sample_vector, {}, [0]

  def drawn(self: Any, rng: Any, size: int) -> np.ndarray:
    number[0] += 1
    return change(true(self, rng, size), number[0] - 1, memory)

  return mock.patch.object(tfcactus.Gaussian, 'sample_vector', drawn)


def _of_epoch_again(noise: np.ndarray, number: int, memory: Any) -> np.ndarray:
  place = number % round(1 / PROB)
  if number // round(1 / PROB) % 2 == 0:
    memory[place] = noise.copy()
  return memory[place]


def _of_step_again(noise: np.ndarray, number: int, memory: Any) -> np.ndarray:
  if number % 100 == 17:
    memory[0] = noise.copy()
  return memory[0] if number % 100 == 20 else noise


def _of_layer_again(noise: np.ndarray, number: int, memory: Any) -> np.ndarray:
  half = (noise.size - 10) // 2  # The model has ten weights.
  noise[-half:] = noise[-2 * half:-half]
  return noise


def _clip(change: Callable[..., Any]) -> Any:
  """Replaces the function that sums clipped gradients."""
  true = clipping.clip_and_sum
  return mock.patch.object(engine.clipping_lib, 'clip_and_sum', lambda *args: change(
      true, *args))


def _per_layer(true: Any, gradients: Any, norm: Any, takes_part: Any, kind: str,
               groups: Any, scales: Any = None) -> Any:
  del kind
  return true(gradients, norm * len(set(groups))**0.5, takes_part, 'per_layer', groups,
              scales)


def _longer(by: float) -> Any:
  return _clip(lambda true, gradients, norm, *rest: true(gradients, by * norm, *rest))


def _by_drawn_size() -> Any:
  """Divides sums and their noise by the number of examples drawn."""
  true = clip_norm.ClipNorm.to_release

  def release(self: Any, batch: Any, *others: Any) -> Any:
    sums, scale = true(self, batch, *others)
    drawn = tf.reduce_sum(tf.cast(batch.weights != 0, tf.float64))
    factor = EXAMPLES * PROB / tf.maximum(drawn, 1.0)
    return [each * factor for each in sums], scale * factor

  return mock.patch.object(clip_norm.ClipNorm, 'to_release', release)


def _shuffled() -> Any:
  """Deals all examples out over the batches of an epoch, by one permutation."""

  def drawer(self: Any, stream: KeyStream) -> Callable[[], list[np.ndarray]]:
    left: list[np.ndarray] = []

    def draw() -> list[np.ndarray]:
      if not left:
        left.extend(np.array_split(
            stream.permutation(self.num_examples), round(1 / PROB)))
      return [left.pop()]
    return draw

  return mock.patch.object(sampling.PoissonSampling, 'drawer', drawer)


def _doubled() -> Any:
  return mock.patch.object(
      sampling.PoissonSampling, 'draw', lambda self, stream: [
          np.flatnonzero(stream.below(2 * self.sampling_prob, self.num_examples))])


FAULTS: dict[str, tuple[str, Callable[[], Any]]] = {
    'noise halved': ('noise', lambda: _noise(lambda noise, *_: 0.5 * noise)),
    'noise 3 % low': ('noise', lambda: _noise(lambda noise, *_: 0.97 * noise)),
    'clip off': ('amplitude', lambda: _longer(1e6)),
    'clipped to 1.2 C': ('amplitude', lambda: _longer(1.2)),
    'per-layer clipping counted as flat': ('amplitude', lambda: _clip(_per_layer)),
    'shuffled batches counted as Poisson': ('participations', _shuffled),
    'noise of an epoch again': ('repeated noise', lambda: _noise(_of_epoch_again)),
    'noise of a step again': ('repeated noise', lambda: _noise(_of_step_again)),
    'noise of a layer again': ('repeated noise', lambda: _noise(_of_layer_again)),
    'divided by the drawn size': ('noise of each step', _by_drawn_size),
    'rate doubled': ('participations', _doubled)}
"""By the fault, the check that finds it, and what plants it."""

