"""Fixtures of the Keras tests: a plan of predictable cost, and steps without gradients.
"""

import contextlib
import dataclasses
import itertools
import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import pytest
import tensorflow as tf
from tensorflow.python.autograph.core import config
from tensorflow.python.framework import ops
from tensorflow.python.util import tf_contextlib

from tfcactus import noise as noise_lib, relations
from tfcactus.keras.drop_in import operation_gradients
from tfcactus.keras.gradients import engine
from tfcactus.sampling import FixedSizeSampling, OnePassSampling, PoissonSampling

# Two devices for tests of strategies. TensorFlow takes the setting only before any use.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices('CPU')[0],
    [tf.config.LogicalDeviceConfiguration()] * 2)

# Grappler takes a sixth of a first `fit`. AutoGraph takes seconds to translate the
# library below a `tf.function` of a test, once in each process, though no condition or
# loop of it needs that. TensorFlow decorates a context manager anew for each operation
# of a graph, which takes a thirtieth. `tests/matrix.py` runs the newest TensorFlow with
# all three.
if 'WITH_GRAPPLER' not in os.environ:
  tf.config.optimizer.set_experimental_options({'disable_meta_optimizer': True})
  config.CONVERSION_RULES = (
      config.DoNotConvert('tfcactus'), *config.CONVERSION_RULES)
  tf_contextlib.contextmanager = contextlib.contextmanager


@pytest.fixture(scope='module', autouse=True)
def forgotten_graphs():
  """Lets go of the graphs of a file's tests, which TensorFlow keeps for good.

  `tf.custom_gradient`, which Keras' optimizers use, and `tf.numpy_function` enter
  functions into lists of the process. With thousands of graphs, memory grows by
  gigabytes, and garbage collections take seconds.
  """
  gradients = ops.gradient_registry._registry
  graph, functions = ops.get_default_graph(), '_py_funcs_used_in_graph'
  before, count = set(gradients), len(getattr(graph, functions, ()))
  yield
  del getattr(graph, functions, [])[count:]
  for name in set(gradients) - before:
    if name.startswith('CustomGradient'):
      del gradients[name]


@dataclasses.dataclass(frozen=True)
class FakeGuarantee:
  """Stands in for a `Guarantee`."""

  upper: float
  steps: int
  lower: float = 0.0
  estimate: float = 0.0
  delta: float = 1e-5
  neighboring_relation: str = 'add-or-remove-one'
  accountant: str = 'fake'
  proven: bool = True
  statement: str = 'A fake statement.'
  seeded: bool = False

  def given(self, *conditions):
    return dataclasses.replace(
        self, statement=' '.join((self.statement, *conditions)))

  def seeded_by(self, what):
    return dataclasses.replace(
        self, seeded=True, statement=f'{self.statement} SEEDED ({what}).')


@dataclasses.dataclass(frozen=True)
class FakePlan:
  """Stands in for a `PrivacyPlan`.

  Epsilon is steps / 100 for Poisson samples, steps / 50 for samples of fixed size, and
  5 for each pass over all examples.
  """

  noise: object
  l2_norm_clip: float
  num_examples: int
  sampling_prob: float
  delta: float = 1e-5
  proven: bool = True
  releases: tuple = ()
  adaptive_clipping: object = None
  strategy: object = None
  correlation: object = None
  groups: int = 1
  steps: int = 10**6
  target_epsilon: object = None
  unit: str = 'example'
  arithmetic: str = 'float'
  noisy_accuracy: object = None
  counts_planned: bool = False
  release_sensitivity: float = 1.0

  @property
  def expected_batch_size(self):
    return self.sampling_prob * self.num_examples

  def check_drop_in(self):
    pass

  def check_vector(self, dim):
    if self.proven and self.noise.dim not in (None, dim):
      raise ValueError(f'Expected dim={self.noise.dim}, got {dim}.')

  def guarantee(self, steps=None, neighboring_relation=None, *,
                sampling=PoissonSampling, rows_of_one=1):
    relation = sampling.check_relation(neighboring_relation)
    cost = {PoissonSampling: steps / 100, FixedSizeSampling: steps / 50,
            OnePassSampling: 5.0 * steps}[sampling]
    if sampling is PoissonSampling and relation == relations.REPLACE:
      cost *= 2
    cost *= rows_of_one
    return FakeGuarantee(cost, steps, proven=self.proven,
                         neighboring_relation=relations.label(relation))

  def steps_within(self, epsilon, *, sampling=PoissonSampling):
    return int(epsilon * (50 if sampling is FixedSizeSampling else 100) + 1e-9)


@pytest.fixture
def make_plan():
  """Returns a function that makes a `FakePlan`, with tiny noise by default."""

  def make(noise=None, l2_norm_clip=1.0, num_examples=40, sampling_prob=0.25,
           **kwargs):
    return FakePlan(noise or noise_lib.Gaussian(1e-9), l2_norm_clip,
                    num_examples, sampling_prob, **kwargs)

  return make


_CLIPPED_SUMS = engine.Engine.run, operation_gradients.clipped_sums
# Seeds of operations, so that models draw different numbers under one global seed.
_SEEDS = itertools.count()


def _replace_sums(monkeypatch, sum_like):
  """Makes private steps and drop-in optimizers take sums from `sum_like`.

  `sum_like` is a function (shape) -> tensor. A step without gradients is traced in
  a third of the time.
  """
  def sums_like(variables):
    return [tf.cast(sum_like(variable.shape), tf.float64) for variable in variables]

  def run(self, x, targets, weights, l2_norm_clip, numbers=None):
    predictions = self._model(x, training=True)
    nothing = tf.zeros(tf.shape(weights)[:1])
    return engine.BatchResult(
        sums_like(self._model.trainable_variables), tf.zeros([], tf.float64),
        predictions,
        [None for _ in tf.nest.flatten(predictions)], nothing, nothing, targets,
        weights)

  monkeypatch.setattr(engine.Engine, 'run', run)
  monkeypatch.setattr(operation_gradients, 'clipped_sums', lambda _, variables, *rest: (
      sums_like(variables), tf.constant(True)))


@pytest.fixture
def random_sums(monkeypatch):
  """Replaces clipped sums of gradients by random numbers, for tests of what is counted.
  """
  _replace_sums(monkeypatch, lambda shape: tf.random.normal(shape, seed=next(_SEEDS)))


@pytest.fixture
def zero_sums(monkeypatch):
  """Replaces clipped sums of gradients by zeros, for tests of noise."""
  _replace_sums(monkeypatch, tf.zeros)


@pytest.fixture
def clipped_sums(monkeypatch, random_sums):
  """Restores clipped sums for one test in a file that uses `random_sums`."""
  run, drop_in = _CLIPPED_SUMS
  monkeypatch.setattr(engine.Engine, 'run', run)
  monkeypatch.setattr(operation_gradients, 'clipped_sums', drop_in)


@pytest.fixture
def radial():
  """Returns a radial table in three dimensions with a fat tail."""
  return noise_lib.RadialTable.normalized(
      3, 0.25, 0.25, [-0.8 * i for i in range(12)], -1.0)


@pytest.fixture
def scalar():
  """Returns a scalar table that is not monotone, with two tails of 5 %."""
  return noise_lib.ScalarTable.normalized(
      4, [0.0, 0.4, 0.2, -0.3, -0.5, -0.9, -1.2, -1.6], -0.3)
