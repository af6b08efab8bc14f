"""Replicas of a distribution strategy: one noise, one count, one sum per step.

A private step runs on each replica over its share of a batch. One replica (or with
`split_noise` one of each worker) adds noise to its share before all shares are summed:
with several replicas, the sum without noise is never computed. Without a strategy there
is one replica. Strategies under which noise is not shown to be right are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf

_SUPPORTED = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy,
              tf.distribute.OneDeviceStrategy)
"""Strategies that are supported with any number of replicas."""

_REASONS = {
    'ParameterServer': 'its workers send gradients at times of their own, so that no '
                       'step has a sum to which noise is added once',
    'TPU': 'it compiles all replicas at once by XLA, and noise is drawn outside of XLA',
    'CentralStorage': 'it keeps one copy of the variables, and updates of it by this '
                      'library are not tested'}
"""Why strategies are refused, by the beginnings of their names."""

_NEVER = ('ParameterServer', 'TPU')
"""Beginnings of the names of strategies that are refused even with one replica."""

_REMEDY = ('Use tf.distribute.MirroredStrategy for the devices of one machine, or '
           'MultiWorkerMirroredStrategy for several machines.')


class Shares(NamedTuple):
  """The parts of a batch that the replicas of this process take.

  Attributes:
    total: Number of parts of a batch.
    first: Index of the first part of this process.
    here: Number of consecutive parts of this process.
  """

  total: int = 1
  first: int = 0
  here: int = 1

  def of(self, index: np.ndarray) -> list[np.ndarray]:
    """Returns the parts of `index`, a batch's examples, for this process's replicas."""
    return np.array_split(index, self.total)[self.first:self.first + self.here]


WHOLE = Shares()
"""Share of a single replica."""


def number(strategy: Any = None) -> int:
  """Returns the number of replicas of all processes; 1 without a strategy."""
  strategy = strategy or tf.distribute.get_strategy()
  return int(strategy.num_replicas_in_sync)


def workers(strategy: Any = None) -> int:
  """Returns how many processes train one model: 1 except under MultiWorkerMirrored."""
  resolver = _resolver(strategy)
  spec = resolver.cluster_spec().as_dict() if resolver else {}
  return max(1, sum(len(spec.get(kind, ())) for kind in ('chief', 'worker')))


def worker(strategy: Any = None) -> int:
  """Returns the index of this process; 0 is the chief, which keeps the journal."""
  resolver = _resolver(strategy)
  if resolver is None or workers(strategy) == 1:
    return 0
  spec = resolver.cluster_spec().as_dict()
  return int(resolver.task_id) + (
      len(spec.get('chief', ())) if resolver.task_type == 'worker' else 0)


def _resolver(strategy: Any) -> Any:
  """Returns the cluster resolver of a MultiWorkerMirroredStrategy, else None."""
  strategy = strategy or tf.distribute.get_strategy()
  if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
    return None
  return strategy.cluster_resolver


def shares(strategy: Any = None) -> Shares:
  """Returns the parts of a batch that the replicas of this process take."""
  here = number(strategy) // workers(strategy)
  return Shares(number(strategy), worker(strategy) * here, here)


def scope(strategy: Any) -> contextlib.AbstractContextManager[Any]:
  """Returns the scope of a strategy of several replicas, else an empty context."""
  return strategy.scope() if number(strategy) > 1 else contextlib.nullcontext()


def is_first(of_worker: bool = False) -> bool:
  """Returns whether this replica adds noise: whether it is the first of all.

  With `of_worker`, returns whether it is the first of this worker. Raises ValueError
  outside of `strategy.run`, if there are several replicas.
  """
  if number() == 1:
    return True
  context = tf.distribute.get_replica_context()
  index = None if context is None else (
      tf.get_static_value(context.replica_id_in_sync_group))
  if index is None:
    raise ValueError(
        'Expected a private step inside strategy.run, got one outside of it, or of a '
        'strategy that traces all replicas at once; train by fit.')
  return int(index) % (shares().here if of_worker else number()) == 0


def summed(parts: Sequence[tf.Tensor], like: Sequence[Any],
           rounded: Callable[..., tf.Tensor] = tf.cast) -> list[tf.Tensor]:
  """Returns the sums of each of `parts` over all replicas, bit-identical on each.

  Parts are float64. Sums are rounded once, to the dtypes of `like`, by
  `rounded(total, dtype=...)`. With one replica `parts` are returned unchanged.
  """
  if number() == 1:
    return list(parts)
  totals = tf.distribute.get_replica_context().all_reduce(
      tf.distribute.ReduceOp.SUM, list(parts))
  return [rounded(total, dtype=each.dtype) for total, each in zip(totals, like)]


def gathered(tensor: tf.Tensor) -> tf.Tensor:
  """Returns the rows of all replicas in order; each replica has to call it."""
  return tf.distribute.get_replica_context().all_gather(tensor, axis=0)


def if_same(digest: int, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """Returns `values`; the step fails, on all replicas, unless digests are the same.

  `digest`, below 2^63, is of the bits of gradients that `place_test` saw.
  """
  digests = gathered(tf.constant([digest], tf.int64))
  with tf.control_dependencies([
      tf.debugging.assert_equal(digests, digests[0], _OTHER_BITS)]):
    return [tf.identity(each) for each in values]


def once(function: Callable[..., Any], *values: tf.Tensor) -> Any:
  """Calls `function` once in each process and returns its result on all replicas.

  `function` takes, for each value, the list of the values on this process's replicas.
  Variables that it assigns are assigned on all of these replicas.
  """
  if number() == 1:
    return function(*([value] for value in values))

  # AutoGraph would turn `int(digest)`, of 64 bits, into a cast to int32.
  @tf.autograph.experimental.do_not_convert
  def merged(strategy: tf.distribute.Strategy, *per_replica: Any) -> Any:
    """Calls `function`; each of `per_replica` has a value for each replica."""
    return function(*(list(strategy.experimental_local_results(value))
                      for value in per_replica))

  return tf.distribute.get_replica_context().merge_call(merged, args=values)


def check_devices(variables: Sequence[tf.Variable] = ()) -> None:
  """Raises ValueError for strategies under which noise is not shown to be added once.

  Checks the strategy of the current scope and those of a model's `variables`. If any of
  these strategies has several replicas, `variables` have to belong to the scope.
  Refuses variables of DTensor too.
  """
  current = tf.distribute.get_strategy()
  _check_supported(current)
  for variable in variables:
    if type(variable).__name__ == 'DVariable':
      raise ValueError(
          'Expected variables of a tf.distribute strategy or of none, got those of '
          'DTensor: its layouts spread one example over devices, and gradients per '
          f'example are not taken there. {_REMEDY}')
    spread = isinstance(variable, tf.distribute.DistributedValues)
    holder = variable.distribute_strategy if spread else None
    if holder is not None:
      _check_supported(holder)
    if holder is current:
      continue
    if current.num_replicas_in_sync > 1:
      raise ValueError(
          f'Expected a model made in the scope of the {type(current).__name__} that it '
          'is trained by, got one with variables '
          f'{"of another strategy" if spread else "on one device"}. {_SCOPE}')
    if holder is not None and holder.num_replicas_in_sync > 1:
      raise ValueError(
          'Expected privatize(...) and compile(...) in the scope that the model was '
          f'made in, of a {type(holder).__name__} of num_replicas_in_sync='
          f'{holder.num_replicas_in_sync}, got them outside of it. {_SCOPE}')


def check_alike() -> None:
  """Raises ValueError if the replicas of this process run on unlike devices.

  Which replica computes an example's gradient depends on the other examples, so that
  all have to compute the same bits.
  """
  if number() == 1:
    return
  devices = [tf.DeviceSpec.from_string(device)
             for device in tf.distribute.get_strategy().extended.worker_devices]
  types = {device.device_type for device in devices}
  # Numbers of devices count logical devices: the visible GPUs in order, unless a GPU is
  # split. Then all visible GPUs have to be alike.
  gpus = tf.config.get_visible_devices('GPU')
  if len(gpus) == len(tf.config.list_logical_devices('GPU')):
    gpus = [gpus[device.device_index] for device in devices
            if device.device_type == 'GPU']
  models = {str(tf.config.experimental.get_device_details(device)) for device in gpus}
  if len(types) > 1 or 'GPU' in types and len(models) > 1:
    raise ValueError(
        "Expected replicas on devices of one kind with arithmetic='integer', whose "
        'kernels compute the same bits, got several kinds: '
        f'{", ".join(sorted(types | models))}. Name devices of one kind to the '
        'strategy, hide other GPUs by CUDA_VISIBLE_DEVICES, or take '
        "arithmetic='float'.")


def _check_supported(strategy: tf.distribute.Strategy) -> None:
  """Raises ValueError for a strategy that is not supported.

  With one replica, only strategies whose names begin as `_NEVER` says are refused.
  """
  name = type(strategy).__name__
  if isinstance(strategy, _SUPPORTED) or (
      strategy.num_replicas_in_sync == 1 and not name.startswith(_NEVER)):
    return
  reason = next((why for kind, why in _REASONS.items() if name.startswith(kind)),
                'this library does not know how its replicas add up')
  raise ValueError(
      f'Expected MirroredStrategy or MultiWorkerMirroredStrategy, got {name} of '
      f'num_replicas_in_sync={strategy.num_replicas_in_sync}: {reason}. {_REMEDY}')


_OTHER_BITS = (
    "Expected with arithmetic='integer' the same bits of gradients of random rows on "
    'all machines, got others: which machine computes the gradient of an example '
    'depends on the other examples. Use machines of one kind with the same TensorFlow, '
    "give all the same physical_batch_size, or take arithmetic='float'.")

_SCOPE = ('Write with strategy.scope(): model = privatize(make_model(), plan); '
          'model.compile(...).')
