"""What was released from a model's variables, whoever trained them."""

from __future__ import annotations

import hashlib
import threading
from typing import Any
from typing import Dict
from typing import Iterable
from typing import List
from typing import NamedTuple

import tensorflow as tf

from tfcactus.keras.compat import training
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.ledger import weight_watch
from tfcactus.sampling import schemes
from tfcactus.sampling.schemes import Sampling
from tfcactus.sampling.schemes import Seeded

_ATTRIBUTE = '_tfcactus_trainers'

OTHER_PLANS = -1
"""In place of a plan's number: steps were released under several plans."""


def remember(variables: Iterable[tf.Variable], trainer: Any) -> None:
  """Records on each variable that `trainer` counts releases from it.

  On the variables, since a model is easily wrapped in another one. A copy made
  of the values alone (get_weights, a file of the wrapped model) forgets.
  """
  for variable in variables:
    seen = trainers([variable])
    if not any(other is trainer for other in seen):
      setattr(variable, _ATTRIBUTE, seen + [trainer])


def trainers(variables: Iterable[tf.Variable]) -> List[Any]:
  """Returns who counts releases from any of the variables, each one once."""
  found = {}
  for variable in variables:
    found.update((id(t), t) for t in getattr(variable, _ATTRIBUTE, ()))
  return list(found.values())


def plan_number(plan: Any) -> int:
  """A positive int64 that stands for what a step of the plan costs."""
  text = repr((plan.noise.digest, plan.sampling_prob, plan.num_examples,
               plan.l2_norm_clip, plan.adaptive_clipping))
  return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], 'big') + 1


class Record:
  """Counters of one set of variables, shared by all `PrivateModel`s of them.

  Keras tracks the variables, so that they are saved with the weights, only
  where a `PrivateModel` holds them as attributes. A checkpoint assigns what it
  holds to them, whenever it likes. What this process knows to be released is
  kept beside them, where no checkpoint reaches, and they never count less.

  Attributes:
    counters: int64 variables by name.
    weights: A `Watch` over the weights.
    changed: Whether steps were taken from weights, or saved, that something
      else than a step had changed.
  """

  NAMES = ('released_steps', 'epochs_begun', 'sampling', 'plan_number',
           'seeded_parts')

  def __init__(self, plan: Any):
    self._known = dict.fromkeys(self.NAMES, 0)
    self._known['plan_number'] = plan_number(plan)
    with tf.init_scope():
      self.counters = {name: training.counter(value, name)
                       for name, value in self._known.items()}
    self._lock = threading.RLock()
    self.weights = weight_watch.Watch()
    self.changed = False

  @property
  def released_steps(self) -> int:
    """How many noisy updates were released."""
    return max(int(self.counters['released_steps']),
               self._known['released_steps'])

  def catch_up(self, **account: int) -> Dict[str, int]:
    """Counts at least what was known, whatever was restored since.

    Args:
      **account: Counters, by name, of another account of the same plan, which
        counts as known too.

    Returns:
      All counters, by name.
    """
    with self._lock:
      found = {name: int(v) for name, v in self.counters.items()}
      self._known = _merged(self._known, found)
      if account:
        self._known = _merged(self._known, {**self._known, **account})
      for name, value in self._known.items():
        self.counters[name].assign(value)
      return dict(self._known)

  def step(self, found: Dict[str, int], weights: int, left: int,
           kind: Sampling, passes: int, seeded: Seeded) -> Dict[str, int]:
    """Counts a step, before it is taken; what runs it assigns the counters.

    Args:
      found: What the counters are, as a checkpoint may have left them.
      weights: Digest of the weights it begins from.
      left: Digest of those that the step before left.
      kind: How its batch was chosen.
      passes: How many passes over the data begin with it.
      seeded: What of its randomness can be repeated.

    Returns:
      What the counters are to be.
    """
    with self._lock:
      total = _merged(self._known, found)
      self.changed = not self.weights.step(weights, left) or self.changed
      kind = Sampling.UNKNOWN if self.changed else kind
      total['released_steps'] += 1
      total['epochs_begun'] += passes
      total['sampling'] = int(schemes.combine(total['sampling'], kind))
      total['seeded_parts'] |= int(seeded)
      self._known = total
      return dict(total)

  def keep(self, model: keras.Model) -> None:
    """Remembers the weights, which a method of a private model has set."""
    with self._lock:
      self.weights.keep(model)

  def knows(self, model: keras.Model) -> bool:
    """Whether nothing but steps has changed the weights, then and now."""
    with self._lock:
      return not self.changed and self.weights.knows(model)

  def look(self, model: keras.Model) -> None:
    """Owns up, for good, to weights that something else has changed.

    To be called where they go on to somewhere: another step, a file.
    """
    self.changed = not self.knows(model)
    if self.changed:
      # With the weights: whoever loads them is to know.
      self.catch_up(sampling=int(Sampling.UNKNOWN))

  def note(self, model: keras.Model, plan: Any) -> str:
    """Why the counters, caught up, are not all to account for, or ''."""
    number = int(self.counters['plan_number'])
    if self.released_steps and number != plan_number(plan):
      return _OTHER_PLAN
    if any(other is not self and other.released_steps
           for other in trainers(model.weights)):
      return _OTHER_TRAINER
    return '' if self.knows(model) else _CHANGED


def find_record(model: keras.Model, plan: Any) -> Record:
  """Returns the record of the model's variables, a new one if there is none.

  Raises:
    ValueError: if steps were released from them that the plan does not cover.
  """
  record = None
  known = trainers(model.weights if model.built else ())
  optimizer = getattr(model, 'optimizer', None)
  if hasattr(optimizer, 'released_steps'):  # Of a model that was loaded.
    known.append(optimizer)
  for trainer in known:
    if trainer.released_steps:
      _check_same(trainer, record, model, plan)
      record = trainer
  return Record(plan) if record is None else record


def _check_same(trainer: Any, record: Any, model: keras.Model,
                plan: Any) -> None:
  """Refuses variables whose releases no one ledger of `plan` can count."""
  if (record is not None or not isinstance(trainer, Record) or
      int(trainer.counters['plan_number']) != plan_number(plan)):
    raise ValueError(
        f'Expected a model that was not trained privately by another plan, got '
        f'{model.name!r}, from which {trainer.released_steps} steps were '
        'released already, and one epsilon for all of them is not known. '
        'Go on with the model and plan that it was trained by; or start from a '
        'copy, keras.models.clone_model and set_weights, and add its epsilon '
        'and delta to those of the first training.')


def _merged(one: Dict[str, int], other: Dict[str, int]) -> Dict[str, int]:
  """Counters that count no less than either."""
  number = one['plan_number']
  if other['released_steps'] and other['plan_number'] != number:
    number = OTHER_PLANS if one['released_steps'] else other['plan_number']
  return {
      'released_steps': max(one['released_steps'], other['released_steps']),
      'epochs_begun': max(one['epochs_begun'], other['epochs_begun']),
      'sampling': int(schemes.combine(one['sampling'], other['sampling'])),
      'plan_number': number,
      'seeded_parts': one['seeded_parts'] | other['seeded_parts']}


class DropInSteps(NamedTuple):
  """What drop-in optimizers released from a model.

  Attributes:
    steps: By all of them.
    problem: Why no one account covers them, or ''.
    seeded: What of their randomness can be repeated.
  """

  steps: int
  problem: str
  seeded: Seeded


def drop_in_steps(optimizer: Any, model: keras.Model) -> DropInSteps:
  """Steps of all optimizers the model was trained by, and what is wrong.

  Args:
    optimizer: The one it is compiled with.
    model: The model.
  """
  earlier = [t for t in trainers(model.trainable_variables)
             if t is not optimizer and t.released_steps]
  steps = optimizer.released_steps + sum(t.released_steps for t in earlier)
  problem, seeded = '', optimizer.seeded
  for trainer in earlier:
    if isinstance(trainer, Record) or (
        trainer.noise.digest, trainer.l2_norm_clip) != (
            optimizer.noise.digest, optimizer.l2_norm_clip):
      problem = problem or (
          f'No epsilon: {trainer.released_steps} earlier steps were released '
          'from this model by another plan, and one epsilon for all of them is '
          'not known. Add the epsilon and delta of both trainings by hand, or '
          'train a fresh model.')
    elif not trainer.sound:
      problem = problem or (
          'No epsilon: under an earlier optimizer a gradient was not finite, '
          'beyond the sensitivity accounted for. Train a fresh model.')
    else:
      seeded = seeded or trainer.seeded
  return DropInSteps(steps, problem, Seeded.NOISE if seeded else Seeded.NOTHING)


_OTHER_PLAN = (
    'No epsilon: steps were released under a plan with another noise, clip '
    'norm, sampling_prob or num_examples than this one. Build the model with '
    'the plan that it was trained by, or train a fresh one.')

_OTHER_TRAINER = (
    'No epsilon: steps were released from the same variables by another '
    'optimizer or private model, and one epsilon for all of them is not known. '
    'Train a fresh model with fit(PoissonBatches(x, y, sampling_prob)).')

_CHANGED = (
    'No epsilon: the weights changed outside of the steps of fit, as by a '
    'callback or by training the wrapped model, so that they may have been '
    'trained without privacy. Train a fresh model, and change weights by '
    'methods of the private model alone (set_weights, load_weights).')
