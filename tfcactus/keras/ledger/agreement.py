"""Agreement of the workers of a distributed `fit`, before it and before each step.

TensorFlow sums the contributions of all workers. The sum is one private release only if
all workers train on the same batch of one scheme and count it once. So workers exchange
messages, and differing messages raise.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import tensorflow as tf

from tfcactus.keras.compat.versions import keras
from tfcactus.keras.data.base import SampledBatches
from tfcactus.keras.distribution import replicas
from tfcactus.keras.ledger.counts import Counts, Record

_ROOM = 16384
"""Length of a worker's message in bytes: JSON, padded with zeros to one shape."""


def begin(model: keras.Model, batches: Any, record: Record, plan_number: int) -> Counts:
  """Agrees with all workers on a `fit` of `batches`; returns the counts of past steps.

  Every worker has to call this function. The counts merge those of all workers.
  `plan_number` is from `lineage.plan_number`. If each worker holds all examples and
  there is no seed, all workers draw the same batches from a key that the chief sends.

  Raises ValueError, naming the difference, if workers differ in plan, weights or
  batches, or if their examples do not fit together; also if a single worker holds only
  a part of the examples, or if Keras would deal out the batches of several workers.
  """
  strategy, known = model.distribute_strategy, record.merge_counts()
  if replicas.workers(strategy) == 1:
    part_of = getattr(batches, 'part_of', None)
    if part_of is not None and part_of != batches.size:
      raise ValueError(
          f'Expected all part_of={part_of} examples with one worker, got a part of '
          f'{batches.size}; part_of is for workers of a MultiWorkerMirroredStrategy.')
    return known
  if not isinstance(batches, SampledBatches):
    # Keras would deal out the examples. The other workers learn of this and raise.
    _exchanged(strategy, {'batches': type(batches).__name__, 'dealt': True})
    raise ValueError(_DEALT.format(type(batches).__name__))
  secret = os.urandom(32).hex() if replicas.worker(strategy) == 0 else ''
  messages = _exchanged(strategy, {
      'plan': plan_number, 'batches': type(batches).__name__,
      'scheme': repr(batches.scheme), 'steps_per_epoch': batches.steps_per_epoch,
      'seeded': batches.seeded, 'part_of': batches.part_of,
      'split_noise': model.split_noise,
      'examples_per_unit': batches.examples_per_unit,
      'weights': int(record.digest(model.inner)) if model.inner.built else 0,
      'size': batches.size, 'data': batches.fingerprint(), 'known': known._asdict(),
      'segment': record.segment, 'secret': secret})
  for each in messages:
    if 'dealt' in each:
      raise ValueError(_DEALT.format(each['batches']))
  for name, words in _SAME.items():
    values = [each[name] for each in messages]
    if any(value != values[0] for value in values):
      raise ValueError(
          f'Expected all workers to begin with the same {words}, got '
          f'{", ".join(map(repr, values))} (by worker). Run the same program on each.')
  _check_data(batches, messages)
  if batches.part_of is None and not batches.seeded:
    batches.share(bytes.fromhex(messages[0]['secret']))
  for each in messages:
    known = known.merged(Counts.of_json(each['known']))
  # Workers count the same steps.
  record.segment = messages[0]['segment']
  return known


_DEALT = (
    'Expected fit(PoissonBatches(...)), or other batches of tfcactus.keras, on each of '
    'several workers, got {}: Keras would have each worker choose batches of its own, '
    'and an example could be in one step several times.')


_SAME = {
    'plan': 'plan', 'batches': 'kind of batches', 'scheme': 'sampling scheme',
    **{name: name for name in ('steps_per_epoch', 'seeded', 'part_of', 'split_noise',
                               'examples_per_unit')},
    'weights': 'weights (load the same file on each)'}
"""{field of a message: its name in errors}, for fields in which workers agree."""


def _check_data(batches: SampledBatches, messages: list[dict[str, Any]]) -> None:
  """Raises ValueError unless workers have the same data, or parts that add up to it."""
  sizes = [each['size'] for each in messages]
  checksums = [each['data'] for each in messages]
  if batches.part_of is None:
    if len(set(zip(sizes, checksums))) > 1:
      raise ValueError(
          'Expected the same examples in the same order on all workers, of which each '
          f'takes its share of a batch, got others (of lengths {sizes}). Give all of '
          'them to each worker; or each its own part, PoissonBatches(part, ..., '
          'part_of=number of all).')
  elif sum(sizes) != batches.part_of:
    raise ValueError(
        f'Expected parts that make up part_of={batches.part_of} examples, got parts of '
        f'{sizes}, which are {sum(sizes)}.')
  elif len(set(checksums)) < len(checksums):
    raise ValueError(
        'Expected another part of the examples on each worker, got the same on '
        'several: an example in two parts would count twice. Split them by the '
        "worker's number, such as x[worker::workers].")


def _exchanged(strategy: tf.distribute.Strategy, message: dict[str, Any]
              ) -> list[dict[str, Any]]:
  """Sends `message` to all workers; returns all messages, in order of workers."""
  data = np.frombuffer(json.dumps(message).encode(), np.uint8)
  if data.size > _ROOM:
    raise ValueError(f'Expected a message of at most {_ROOM} bytes, got {data.size}.')
  padded = np.pad(data, (0, _ROOM - data.size)).astype(np.int32)[None]

  @tf.function(autograph=False)
  def gather() -> Any:
    """Returns the messages of all replicas, shape (replicas, `_ROOM`), on each."""
    return strategy.run(lambda: replicas.gathered(tf.constant(padded)))

  rows = strategy.experimental_local_results(gather())[0].numpy()
  # Each replica has a row; the replicas of one worker have equal rows.
  per_worker = replicas.number(strategy) // replicas.workers(strategy)
  return [json.loads(bytes(row[row > 0].astype(np.uint8)))
          for row in rows[::per_worker]]


class StepAgreement:
  """Agreement of workers to take a step only if all count the step in the same way."""

  def __init__(self) -> None:
    # This worker's counting error, raised once all workers know of it.
    self.failure: BaseException | None = None

  def confirmed(self, own: tf.Tensor) -> tf.Tensor:
    """Returns `own`, this worker's numbers; the step fails if workers' numbers differ.

    `own` is int64, (n,). If its first number is zero on any worker, as that worker
    could not count the step, the step fails on all workers.
    """
    return tf.ensure_shape(tf.numpy_function(
        self._confirm, [own, replicas.gathered(own[None])], tf.int64), own.shape)

  def _confirm(self, own: np.ndarray, of_all: np.ndarray) -> np.ndarray:
    """Returns `own`, (n,); RuntimeError if rows `of_all` differ or begin with zero."""
    failure, self.failure = self.failure, None
    if failure is not None:  # TensorFlow drops the messages of some error types.
      raise RuntimeError(
          f'Expected to count this step, got {failure} No worker has released anything '
          'of it.') from failure
    if not of_all[:, 0].all():
      raise RuntimeError(
          'Expected every worker to count this step, got another that could not; see '
          'its own error. No worker has released anything of the step.')
    if (of_all != own).any():
      raise RuntimeError(
          'Expected all workers to train on the same batch, chosen in the same way, '
          'and to count it likewise, got others; nothing of the step was released. '
          'Run the same program on each, and train by fit alone.')
    return own
