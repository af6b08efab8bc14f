"""Trains one model of tests/keras/zoo without and with privacy, in one process."""

from __future__ import annotations

import re
import statistics
import time
from typing import Any, Callable

from benchmarks import _processes

BATCH, EXAMPLES = 128, 640
_SECONDS = 0.6
"""CPU seconds that plain training takes in a round, unless one step takes longer."""

_REFUSALS = (ValueError, TypeError, NotImplementedError)


def topics() -> tuple[int, dict[str, str]]:
  """Returns the major version of Keras, and the models for it with their topics."""
  from tests.keras import zoo
  from tests.keras.zoo import oracle
  return oracle.version(), {name: entry.topic() for name, entry in zoo.ZOO.items()
                            if not entry.missing()}


def route(summary: str) -> str:
  """Returns the way to per-example gradients, in short, from a privacy_summary."""
  *lines, _ = summary.splitlines()
  if lines and lines[-1].startswith('The whole model is vectorised'):
    return 'whole model vectorised: ' + lines[-1].partition(': ')[2].rstrip('.')
  kinds = sorted({line.split('(')[1].split(')')[0] for line in lines
                  if '  vectorised' in line})
  return 'vectorised: ' + ', '.join(kinds) if kinds else 'batched'


def _case(entry: Any) -> Any:
  """Returns a new model of the zoo with its data and loss, after seeding Keras."""
  import tensorflow as tf

  from tests.keras.zoo.base import Size
  tf.keras.utils.set_random_seed(1)
  if entry.policy == 'float64':
    tf.keras.backend.set_floatx('float64')
  tf.keras.mixed_precision.set_global_policy(entry.policy or 'float32')
  return entry.make(Size(EXAMPLES, real=True))


def _batches(case: Any) -> Any:
  """Returns an endless dataset of batches of fixed size."""
  import tensorflow as tf
  parts = (case.x, case.y) if case.sample_weight is None else (
      case.x, case.y, case.sample_weight)
  # Lists would be stacked into one array.
  parts = tuple(tuple(part) if isinstance(part, list) else part for part in parts)
  return tf.data.Dataset.from_tensor_slices(parts).batch(
      BATCH, drop_remainder=True).cache().repeat().prefetch(1)


def _fit(model: Any, batches: Any) -> Callable[[int], float]:
  """Returns a function that trains n + 1 steps, and returns CPU seconds per step.

  The first step and the start of `fit` are not timed: training calls `fit` once.
  """

  def run(steps: int) -> float:
    ends: list[float] = []
    model.fit(batches, steps_per_epoch=steps + 1, verbose=0,
              callbacks=[_processes.step_clock(ends)])
    return (ends[-1] - ends[0]) / steps

  return run


def _plain(case: Any) -> Callable[[int], float]:
  """Returns the function of `_fit` for training without privacy."""
  import tensorflow as tf
  case.model.compile(tf.keras.optimizers.SGD(0.01), case.loss, **_weights(case))
  return _fit(case.model, _batches(case))


def _weights(case: Any) -> dict[str, Any]:
  """Returns the arguments of `compile`: loss weights, and no XLA in either training."""
  more = {} if case.loss_weights is None else {'loss_weights': case.loss_weights}
  return {'jit_compile': False, **more}


def _private(case: Any) -> tuple[Any, Callable[[int], float], bool]:
  """Returns a private model, its function of `_fit`, and whether batches are Poisson.

  Batches have a fixed size if `PoissonBatches` does not accept the data.
  """
  import tensorflow as tf

  import tfcactus
  from tfcactus import keras as private
  plan = tfcactus.PrivacyPlan(
      noise=tfcactus.Gaussian(1.0), l2_norm_clip=1.0, num_examples=EXAMPLES,
      sampling_prob=BATCH / EXAMPLES, steps=1000, delta=1e-5)
  model = private.privatize(case.model, plan)
  model.compile(tf.keras.optimizers.SGD(0.01), case.loss, **_weights(case))
  try:
    if case.sample_weight is not None:
      raise ValueError('Poisson batches have weights of their own.')
    batches = private.PoissonBatches(
        case.x, case.y, sampling_prob=plan.sampling_prob)
    poisson = True
  except (ValueError, TypeError):
    batches, poisson = _batches(case), False
  return model, _fit(model, batches), poisson


def _steps(plain: Callable[[int], float]) -> int:
  """Returns the number of steps in a round, at least one."""
  one = plain(1)
  if one < 0.2:
    one = plain(9)
  return max(1, round(_SECONDS / max(one, 1e-3)))


def _words(error: Exception) -> str:
  """Returns the message of an error, without the traceback that Keras adds."""
  return re.split(r'\b\w+Error: ', str(error))[-1].strip()


def _refusal(case: Any) -> str:
  """Returns the message with which a model is refused, or '' if it is trained."""
  try:
    _private(case)[1](1)
  except _REFUSALS as error:
    return _words(error)
  return ''


def measure(name: str, rounds: int) -> dict[str, Any]:
  """Returns the cost of a model, why it is refused, or its known defect.

  Plain and private training alternate for `rounds` rounds.
  """
  import keras
  import tensorflow as tf

  from tests.keras import zoo
  entry = zoo.ZOO[name]
  about = {'keras': f'{keras.__version__} on TensorFlow {tf.__version__}'}
  version = int(keras.__version__[0])
  if entry.wrong[version]:
    return {**about, 'wrong': entry.wrong[version]}
  if entry.refused[version]:  # Plain Keras may not train it either.
    words = _refusal(_case(entry))
    if words:
      return {**about, 'refused': words}
  plain_case, case = _case(entry), _case(entry)
  plain = _plain(plain_case)
  start = time.process_time()
  plain(1)  # Two steps: the first one is traced.
  first = {'plain': time.process_time() - start}
  steps = _steps(plain)
  plain(steps)
  before = _processes.peak_megabytes()
  try:
    start = time.process_time()
    model, private, poisson = _private(case)
    private(1)
    first['private'] = time.process_time() - start
  except _REFUSALS as error:
    return {**about, 'refused': _words(error)}
  private(1)
  times = [(plain(steps), private(steps)) for _ in range(rounds)]
  return {
      **about, 'route': route(model.privacy_summary()), 'poisson': poisson,
      'physical_batch_size': model.physical_batch_size, 'steps': steps,
      'plain_ms': 1e3 * statistics.median(a for a, _ in times),
      'private_ms': 1e3 * statistics.median(b for _, b in times),
      'slowdown': statistics.median(b / a for a, b in times),
      'first_step_s': first, 'first_step': first['private'] / first['plain'],
      'memory_above_plain_mb': _processes.peak_megabytes() - before}
