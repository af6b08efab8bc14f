"""What the replicas of a strategy do together: one noise, one count, one sum.

A private step runs on each replica, over its share of a batch. The noise of the step
is added to the share of the first, and all are added up: no sum without noise exists
but inside that addition. Without a strategy there is one replica, and nothing to add.
"""

from __future__ import annotations

import contextlib
from typing import Any
from typing import Callable
from typing import ContextManager
from typing import List
from typing import NamedTuple
from typing import Optional
from typing import Sequence

import numpy as np
import tensorflow as tf

from tfcactus.keras import precision


class Shares(NamedTuple):
  """Which parts of a batch the replicas of this process take.

  Attributes:
    total: Parts that a batch is split into.
    first: The first one taken here.
    here: How many are taken in this process, one after the other.
  """

  total: int = 1
  first: int = 0
  here: int = 1

  def of(self, index: np.ndarray) -> List[np.ndarray]:
    """The examples of a batch that are taken here, a part for each replica."""
    return np.array_split(index, self.total)[self.first:self.first + self.here]


WHOLE = Shares()
"""Of one replica."""


def number(strategy: Any = None) -> int:
  """Replicas in sync, of all processes; one without a strategy."""
  strategy = strategy or tf.distribute.get_strategy()
  return int(strategy.num_replicas_in_sync)


def workers(strategy: Any = None) -> int:
  """Processes that train one model together."""
  resolver = _resolver(strategy)
  spec = resolver.cluster_spec().as_dict() if resolver else {}
  return max(1, sum(len(spec.get(kind, ())) for kind in ('chief', 'worker')))


def worker(strategy: Any = None) -> int:
  """Which of the `workers` this process is; 0 is the chief, which keeps the journal."""
  resolver = _resolver(strategy)
  if resolver is None or workers(strategy) == 1:
    return 0
  spec = resolver.cluster_spec().as_dict()
  return int(resolver.task_id) + (
      len(spec.get('chief', ())) if resolver.task_type == 'worker' else 0)


def _resolver(strategy: Any) -> Any:
  strategy = strategy or tf.distribute.get_strategy()
  if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
    return None
  return strategy.cluster_resolver


def shares(strategy: Any = None) -> Shares:
  """The parts of a batch that the replicas of this process take."""
  here = number(strategy) // workers(strategy)
  return Shares(number(strategy), worker(strategy) * here, here)


def scope(strategy: Any) -> ContextManager[Any]:
  """The scope of a strategy of several replicas; nothing for one of one."""
  return strategy.scope() if number(strategy) > 1 else contextlib.nullcontext()


def is_first(of_worker: bool = False) -> bool:
  """Whether this replica is the one that adds the noise of all.

  Args:
    of_worker: Whether the one that adds its worker's share of it.
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


def widened(sums: Sequence[tf.Tensor]) -> List[tf.Tensor]:
  """What noise is added to on one replica before all are `summed`: float64.

  A sum of rounded numbers would show bits of the others' shares below those of the
  noise. Of one replica as it is.
  """
  return list(sums) if number() == 1 else [tf.cast(each, tf.float64) for each in sums]


def summed(shares: Sequence[tf.Tensor], like: Sequence[Any],
           scale: Optional[tf.Tensor] = None) -> List[tf.Tensor]:
  """Returns the sums over all replicas, the same bits on each.

  Args:
    shares: Those of this replica, float64 where there are several. Of one replica
      they are returned as they are.
    like: Tensors or variables of the dtypes to round to, once.
    scale: float64, that of the noise: sums are rounded to its `precision.grid` first.
      None for no grid.
  """
  if number() == 1:
    return list(shares)
  totals = tf.distribute.get_replica_context().all_reduce(
      tf.distribute.ReduceOp.SUM, list(shares))
  return [tf.cast(total, each.dtype) if scale is None else
          precision.released(total, scale, each.dtype)
          for total, each in zip(totals, like)]


def gathered(tensor: tf.Tensor) -> tf.Tensor:
  """The rows of all replicas, one after the other; to be called on each."""
  return tf.distribute.get_replica_context().all_gather(tensor, axis=0)


def once(function: Callable[..., Any], *values: tf.Tensor) -> Any:
  """What `function` returns, called once in each process and given to all replicas.

  Args:
    function: Takes for each value the list of what the replicas here hold. Variables
      that it assigns are assigned on all of them.
    *values: Tensors of this replica.
  """
  if number() == 1:
    return function(*([value] for value in values))

  def merged(strategy: tf.distribute.Strategy, *held: Any) -> Any:
    return function(*(list(strategy.experimental_local_results(value))
                      for value in held))

  return tf.distribute.get_replica_context().merge_call(merged, args=values)


def distributed(dataset: tf.data.Dataset, strategy: Any) -> Any:
  """A dataset whose elements go to the replicas of this process in turn.

  Args:
    dataset: One element for each replica of a step, and so on without end.
    strategy: Of several replicas.
  """
  return strategy.distribute_datasets_from_function(lambda _: dataset)
