"""An oracle for what private models' ledgers count, and random lives of such models.

The oracle follows values. Step k of a life adds a number to entry k of the kernel of
one dense layer, which begins at zero, and to those entries on which this step depends.
So the nonzero entries of the kernel and of an optimizer's moments are the steps from
which they were computed, whatever has saved, loaded, copied or averaged them since.

A life is a list of tuples (name of a method of `Life`, arguments). `shortest` shortens
a life that has a fault. A new process is emulated: all objects are dropped, and what
the library keeps of them. Weights given to a model without steps are public by
assumption, so lives change no such weights behind the ledger's back.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import copy
import pathlib
import pickle
import tempfile
from typing import Any, NamedTuple
import warnings

import numpy as np
import tensorflow as tf

from tests.keras.tiny import NONE, plan_of
from tfcactus import keras as private
from tfcactus.keras import training_logs
from tfcactus.keras.compat import optimizers
from tfcactus.keras.compat.versions import keras, KERAS_3
from tfcactus.keras.data import batch_marks
from tfcactus.keras.ledger import counts, journal, lineage
from tfcactus.keras.step import private_step

_SHAPE = (8, 16)
"""Shape of the layer's kernel: a life has at most as many steps as entries."""

_X = np.random.default_rng(0).normal(size=(8, _SHAPE[0])).astype(np.float32)
_Y = np.arange(8) % 3

_SHARE = 0.37
"""By how much a step moves each entry on which it depends."""

PLANS = {'one': {}, 'two': {'l2_norm_clip': 2.0}}

OPTIMIZERS = {
    'sgd': lambda: keras.optimizers.SGD(0.1),
    'momentum': lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    'adam': lambda: keras.optimizers.Adam(0.1),
    'averages': lambda: keras.optimizers.SGD(
        0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=None)}

BATCHES = {
    'poisson': lambda steps: private.PoissonBatches(_X, _Y, 0.5, steps_per_epoch=steps),
    'seeded': lambda steps: private.PoissonBatches(
        _X, _Y, 0.5, steps_per_epoch=steps, seed=1),
    'allocated': lambda steps: private.AllocatedBatches(_X, _Y, num_batches=2)}

CALLBACKS = ('', 'crash', 'stop', 'backup', 'crash backup')

FILES = {'keras': '.keras', 'h5': '.weights.h5', 'old': '.h5', 'weights': '',
         'checkpoint': '', 'saved': '', 'inner': '', 'plain': '.weights.h5',
         'moments': ''}
"""{kind: suffix}. 'inner', 'plain' and 'moments' hold no counts."""

if KERAS_3:
  del FILES['old'], FILES['weights'], FILES['saved']


class _Step(NamedTuple):
  """What is known of a step: its plan, and how its batch was drawn."""

  plan: int  # `lineage.plan_number`; 0 for a step without privacy.
  sampling: int = batch_marks.UNKNOWN
  epoch: tuple[int, int] = 0, 0  # The feed's number, and that of the pass in it.
  seeded: bool = False


class Oracle:
  """Numbers all steps of a life, and finds those from which values were computed."""

  def __init__(self) -> None:
    """Initialises the oracle with no steps."""
    self.steps: list[_Step] = []
    self._marks: Any = None  # Of the batch of the current step.

  @contextlib.contextmanager
  def watching(self) -> Iterator[None]:
    """Replaces what private steps compute by `gradient`, in the block."""

    def take(marks: Any, keys: Any) -> Any:
      self._marks = marks
      return taken(marks, keys)

    def run(step: Any, *_: Any) -> Any:
      marks, self._marks = self._marks, None
      made = _Step(lineage.plan_number(step._plan)) if marks is None else _Step(
          lineage.plan_number(step._plan), marks.sampling,
          (marks.number, getattr(marks, '_last_pass', 0)), marks.seeded)
      kernel, *others = step._model.trainable_variables
      return [self.gradient(kernel, made), *map(tf.zeros_like, others)], None, None

    def check(step: Any) -> None:
      step.outputs = tf.TensorSpec((None, _SHAPE[1]))
      step.rows, step.randomness = len(_X), 'host'

    taken = batch_marks.Marks.take
    with contextlib.ExitStack() as stack:
      for place, name, new in (
          (batch_marks.Marks, 'take', take), (private_step.Step, 'run', run),
          (private_step.Step, 'check', check),
          (training_logs, 'update', lambda *_: {'loss': tf.constant(1.0)})):
        stack.callback(setattr, place, name, getattr(place, name))
        setattr(place, name, new)
      yield

  def gradient(self, kernel: Any, step: _Step) -> tf.Tensor:
    """Returns the gradient of the next step, which depends on all in `kernel`."""
    found = _SHARE * (np.asarray(kernel).ravel() != 0)
    found[len(self.steps)] += 1
    self.steps.append(step)
    return tf.constant(found.reshape(_SHAPE), tf.float32)

  def found(self, model: Any, moments: bool = True) -> list[_Step]:
    """Returns the steps on which weights, and maybe moments, depend."""
    if not model.inner.built:
      return []
    state = optimizers.state(optimizers.bare_optimizer(model)) if moments else []
    values = map(np.asarray, [model.inner.weights[0], *state])
    return [self.steps[k] for k in sorted({
        k for each in values if each.shape == _SHAPE for k in np.flatnonzero(each)})]

  def fault(self, model: Any, moments: bool = True) -> str:
    """Returns what the ledger of `model` says too little of, or ''."""
    steps, ledger = self.found(model, moments), model.ledger()
    kinds = {(each.plan, each.sampling) for each in steps}
    # A model that counts no steps has no epsilon, but the next step would give it one.
    if not steps or ledger.scheme is None and (ledger.steps or ledger.note):
      return ''
    if ledger.scheme and kinds != {(lineage.plan_number(ledger.plan), ledger.sampling)}:
      return f'(plan, sampling) of {kinds}, has the epsilon of {ledger}'
    epochs = len({each.epoch for each in steps})
    if ledger.counts_epochs and ledger.epochs < epochs:
      return f'{epochs} epochs, counts {ledger.epochs}'
    if ledger.steps < len(steps):
      return f'{len(steps)} steps, counts {ledger.steps}'
    if any(each.seeded for each in steps) and (
        counts.Seeded.BATCHES not in ledger.seeded):
      return 'seeded batches, of which the ledger does not tell'
    return ''


class _Crash(Exception):
  """Ends a `fit`, as if the process were killed."""


class _CrashAfterTwo(keras.callbacks.Callback):
  """Raises `_Crash` after the second step."""

  _left = 2

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    """Raises if two steps were made."""
    self._left -= 1
    if not self._left:
      raise _Crash()


class Life:
  """Private models m, n, files f, and lists v of weights, by their names."""

  def __init__(self, folder: pathlib.Path):
    """Begins a life that keeps its files in `folder`."""
    self.oracle = Oracle()
    self.models: dict[str, Any] = {}
    self.values: dict[str, Any] = {}
    self._folder = folder
    self._kinds: dict[str, str] = {}  # Of files.

  def new(self, m: str, optimizer: str = 'adam', plan: str = 'one', start: int = 0,
          journal: str = '', built: bool = True) -> None:
    """Makes a model, compiled unless `optimizer` is ''; `start` is that of biases."""
    layer = keras.layers.Dense(
        _SHAPE[1], kernel_initializer='zeros',
        bias_initializer=keras.initializers.Constant(start + 1.0))
    self.models[m] = private.privatize(
        keras.Sequential([keras.layers.Input(_SHAPE[:1]), layer] if built else [layer]),
        _plan(plan), journal=self._folder / journal if journal else None)
    if optimizer:
      self.compile(m, optimizer)

  def again(self, m: str, n: str, optimizer: str = 'adam', plan: str = 'one') -> None:
    """Makes model n of the inner model of m."""
    self.models[n] = private.privatize(self.models[m].inner, _plan(plan))
    self.compile(n, optimizer)

  def copied(self, m: str, n: str, how: str = 'deepcopy') -> None:
    """Makes model n a copy of m."""
    self.models[n] = copy.deepcopy(self.models[m]) if how == 'deepcopy' else (
        pickle.loads(pickle.dumps(self.models[m])))

  def compile(self, m: str, optimizer: str) -> None:
    """Compiles a model with a new optimizer."""
    self.models[m].compile(OPTIMIZERS[optimizer](), NONE, run_eagerly=True)

  def compile_with(self, m: str, n: str) -> None:
    """Compiles model m with the optimizer of n."""
    self.models[m].compile(self.models[n].optimizer, NONE, run_eagerly=True)

  def fit(self, m: str, steps: int = 2, epochs: int = 1, batches: str = 'poisson',
          callbacks: str = '') -> None:
    """Trains a model; `steps` are those of an epoch, for Poisson samples."""
    made: list[Any] = []
    if 'crash' in callbacks:
      made.append(_CrashAfterTwo())
    if 'stop' in callbacks:
      made.append(keras.callbacks.EarlyStopping(
          'loss', patience=1, restore_best_weights=True))
    if 'backup' in callbacks:
      made.append(keras.callbacks.BackupAndRestore(str(self._folder / 'backup')))
    x = ({'x': _X, 'y': _Y, 'batch_size': 4} if batches == 'arrays' else
         {'x': BATCHES[batches](steps)})
    with contextlib.suppress(_Crash):
      self.models[m].fit(**x, epochs=epochs, verbose=0, callbacks=made)

  def one(self, m: str) -> None:
    """Takes a step on a batch that no `fit` drew."""
    self.models[m].train_on_batch(_X, _Y)

  def save(self, m: str, f: str, kind: str = 'keras') -> None:
    """Writes a file, see `FILES`."""
    model, self._kinds[f] = self.models[m], kind
    path = self._path(f)
    if kind == 'keras':
      model.save(path)
    elif kind == 'saved':
      tf.saved_model.save(model, path)
    elif kind == 'plain':
      model.inner.save_weights(path)
    elif kind in ('h5', 'old', 'weights'):
      model.save_weights(path)
    else:
      tf.train.Checkpoint(part=_part(model, kind)).write(path)

  def _path(self, f: str) -> str:
    """Returns the path of a file."""
    return str(self._folder / f) + FILES[self._kinds[f]]

  def load(self, f: str, m: str) -> None:
    """Makes a model of a .keras file."""
    self.models[m] = keras.models.load_model(self._path(f))

  def load_weights(self, m: str, f: str) -> None:
    """Loads a file of any kind into a model."""
    model, kind, path = self.models[m], self._kinds[f], self._path(f)
    if kind in ('inner', 'plain', 'moments') and not model.released_steps:
      return
    if kind == 'plain':
      model.inner.load_weights(path)
    elif kind in ('keras', 'h5', 'old', 'weights'):
      model.load_weights(path)
    elif kind == 'saved':
      model.load_weights(f'{path}/variables/variables')
    else:
      tf.train.Checkpoint(part=_part(model, kind)).restore(path)

  def get(self, m: str, v: str) -> None:
    """Keeps the weights of a model, with the counters."""
    self.values[v] = self.models[m].get_weights()

  def set(self, m: str, v: str) -> None:
    """Sets weights and counters."""
    self.models[m].set_weights(self.values[v])

  def mean(self, m: str, n: str, v: str) -> None:
    """Sets weights of m to the mean of those of n and v, and keeps the counters."""
    rows = zip(*(each.get_weights() for each in (self.models[m], self.models[n])),
               self.values[v])
    self.models[m].set_weights([
        own if own.dtype.kind == 'i' else (one + other) / 2
        for own, one, other in rows])

  def plain(self, m: str) -> None:
    """Trains the wrapped model without privacy."""
    kernel = self.models[m].inner.weights[0]
    if self.models[m].released_steps:
      kernel.assign_sub(0.1 * self.oracle.gradient(kernel, _Step(0)))

  def assign(self, m: str, n: str) -> None:
    """Copies weights between wrapped models."""
    if self.models[m].released_steps:
      self.models[m].inner.set_weights(self.models[n].inner.get_weights())

  def moments(self, m: str, n: str) -> None:
    """Copies moments of the optimizer of n into that of m."""
    pairs = zip(*(optimizers.state(self.models[each].optimizer) for each in (m, n)))
    for own, other in pairs if self.models[m].released_steps else ():
      if own.shape == other.shape:
        own.assign(other)

  def process(self) -> None:
    """Ends the process: only files are left."""
    for each in list(journal._open.values()):
      each.close()
    self.models.clear()
    self.values.clear()
    counts._records.clear()

  def do(self, name: str, *args: Any) -> str:
    """Calls a method; returns '' or why it was refused."""
    try:
      with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        getattr(self, name)(*args)
    except Exception as error:  # pylint: disable=broad-except
      return f'{type(error).__name__}: {error}'
    return ''

  def faults(self) -> list[str]:
    """Returns what ledgers say too little of, now or after a step more."""
    found = []
    for name, model in self.models.items():
      # Moments on which the weights do not depend yet enter the next ones.
      if self.oracle.fault(model) and not self.do('fit', name, 1):
        fault = self.oracle.fault(model, moments=False)
        if fault:
          found.append(f'{name}: {fault}')
    return found


def _plan(name: str) -> Any:
  """Returns a plan for the eight examples."""
  return plan_of(num_examples=8, sampling_prob=0.5, **PLANS[name])


def _part(model: Any, kind: str) -> Any:
  """Returns the part of a model that a checkpoint of this kind holds."""
  return {'checkpoint': model, 'inner': model.inner, 'moments': model.optimizer}[kind]


def lived(life: list[tuple[Any, ...]]) -> tuple[list[str], Life, list[str]]:
  """Returns faults at the end of a life, the life, and what of each part was refused.

  A `('look',)` in the life looks for faults before its end, which costs the ledgers.
  """
  with tempfile.TemporaryDirectory() as folder:
    made, refused = Life(pathlib.Path(folder)), []
    with made.oracle.watching():
      made.process()
      for name, *args in life:
        if name == 'look':
          if faults := made.faults():
            return faults, made, refused
        else:
          refused.append(made.do(name, *args))
      return made.faults(), made, refused


def shortest(life: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
  """Returns a life with a fault without all parts that the fault does not need."""
  for k in reversed(range(len(life))):
    shorter = life[:k] + life[k + 1:]
    if k < len(life) and lived(shorter)[0]:
      return shortest(shorter)
  return life
