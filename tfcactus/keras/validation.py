"""Private validation: noisy metrics on validation records, and stopping by them."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any, Callable, Optional

import numpy as np
import tensorflow as tf

from tfcactus import _checks, accounting, guarantee as guarantee_lib, noise as noise_lib
from tfcactus.keras.checks import example_losses, state_writes
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.data import data_sources, split as split_lib, units as units_lib
from tfcactus.keras.distribution import replicas
from tfcactus.keras.independence import graph_proof
from tfcactus.keras.ledger.ledger import HoldsLedger
from tfcactus.keras.ledger.model_ledger import ModelLedger
from tfcactus.keras.step import right_answers
from tfcactus.release import additive_noise

_BLOCK = 256
"""Number of records or units to read, and of rows to compute, at once."""


_Metric = tuple[str, float, Optional[Callable[[Any, Any], tf.Tensor]]]
"""Name, bound, and function of targets and outputs; None for the compiled loss."""


class PrivateValidation(keras.callbacks.Callback, guarantee_lib.ReleasedStatistic):
  """Callback that releases noisy means of metrics on validation data.

  The metrics of an epoch are one vector with one draw of noise. A coordinate sums, over
  the validation examples, a metric minus half its bound, in units of the bound. One
  example added, removed or zeroed moves m coordinates by sqrt(m) / 2 at most in l2
  norm; one replaced, by twice as much.

  The plan counts all planned releases from the start:
  `PrivacyPlan.for_training(..., releases=[validation])`. With a `Split` the guarantee
  is the maximum over its sides; without one it is the composition of training and
  validation. The guarantee counts all planned steps, so that a stop may be chosen by
  the releases. Callbacks of Keras may read the logs at no further cost.

  `logs` get `val_private_accuracy`, and so on, and the standard error of their noise as
  `val_private_accuracy_error`.

  Attributes:
    event: The privacy cost of all planned releases.
    num_examples: The public number that sums are divided by: as given, or the noisy
      number of validation examples; None before its release.
  """

  writes_logs = True
  """Tells `fit` of a `PrivateModel` to run this callback before readers of logs."""
  seeded = False

  def __init__(self, x: Any, y: Any = None, *, noise: noise_lib.Noise, releases: int,
               metrics: Sequence[Any] = ('accuracy',), every: int = 1,
               split: split_lib.Split | None = None, num_examples: int | None = None):
    """Initialises the callback.

    Args:
      x: The validation side of `Split.sides`; or examples or `UnitData`, as for
        `PoissonBatches`. The metrics of a unit are means over its rows.
      y: Targets, as for `PoissonBatches`.
      noise: In units of the vector's sensitivity: Gaussian(40) adds noise of 20 answers
        to the accuracy alone.
      releases: Largest number of releases, which are spread over the plan's steps.
      metrics: 'accuracy'; ('loss', bound), the compiled loss of an example clipped to
        [0, bound]; (name, function, bound), a function of (targets, outputs) that
        returns a number per example, clipped to [0, bound].
      every: Number of epochs from one release to the next.
      split: Takes the validation side of `x` and `y`.
      num_examples: Public estimate of the number of validation examples, or units.
        None releases their number with noise, once. The cost is that of releases + 1
        either way: a resumed run, which is given the number, keeps its plan.

    Raises:
      ValueError: if an argument is invalid, or the noise does not protect the vector.
    """
    super().__init__()
    self._data = units_lib.open_data(x, y)
    if split is not None:
      _checks.instance('split', split, split_lib.Split, 'Split(0.1) makes one')
      self._data = split.sides(self._data).validation
    side = self._data.side
    if side is not None and not side.held_out:
      raise ValueError('Expected the validation side of a split, got its training '
                       'side; use split.sides(x, y).validation.')
    self._metrics = _metrics(metrics)
    # A record adds up to 1/2 in size to each centred metric. Not rounded down.
    self._sensitivity = 0.5 * math.nextafter(
        math.sqrt(len(self._metrics)), math.inf)
    self._noise = noise_lib.check(noise)
    self._noise.check_dim(len(self._metrics))
    self._releases = _checks.integer('releases', releases, 1)
    self._every = _checks.integer('every', every, 1)
    self.num_examples = None if num_examples is None else _checks.integer(
        'num_examples', num_examples, 1)
    self.event = accounting.ValidationDpEvent(
        accounting.noise_event(self._noise), self._releases + 1,  # And the number.
        *(('', '') if side is None else (side.split.by, side.name)))

  def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
    """Checks that the plan counts this validation, and tells `fit` the logs it makes.

    Raises ValueError if not; if unit, split or workers do not fit; or if no planned
    release is left.
    """
    self._run: Callable[..., Any] | None = None
    ledger, side = _ledger(self.model), self._data.side
    if ledger is None or ledger.plan.releases.count(self.event) != 1:
      raise ValueError(
          'Expected a PrivateModel whose plan has this PrivateValidation once among '
          'its releases, got another model or plan; make the callback first, and then '
          'PrivacyPlan.for_training(..., releases=[validation]). Several metrics go '
          'into one callback.')
    if (ledger.plan.unit == 'example') == isinstance(self._data, units_lib.UnitData):
      raise ValueError(
          f'Expected validation on the unit of the plan, {ledger.plan.unit!r}, got '
          f'{type(self._data).__name__}; make both with units, or neither.')
    if replicas.workers(self.model.distribute_strategy) > 1:
      raise ValueError('Expected one worker for private validation, got several, each '
                       'of which would release metrics with noise of its own.')
    training = ledger.counter.side
    if side is not None and (training.split != side.split or (
        training.whole is not side.whole and data_sources.checksum(training.whole) !=
        data_sources.checksum(side.whole))):
      raise ValueError(
          'Expected batches and validation of the same data, divided by one split, got '
          'others, such as data in another order, which has other sides; divide once: '
          'training, validation = split.sides(x, y).')
    self._ledger, self._plan = ledger, ledger.plan
    done = ledger.record.validated.setdefault(self.event, self._allowed())
    steps = self.params.get('steps')
    # Refuses epochs so short that the planned steps would hold more than `releases`.
    if done >= self._releases or steps and (
        steps * self._every * (self._releases + 1) <= self._plan.steps):
      self._refuse_more()
    if done and self.num_examples is None:
      raise ValueError(
          'Expected num_examples, which the first part of this training released as '
          'validation.num_examples, got None; releasing it again would cost more.')
    if self.event in ledger.counter.private_logs.values():
      raise ValueError(
          'Expected one PrivateValidation of this noise and number of releases in a '
          'fit, got two, of which the plan counts one; give all metrics to one.')
    ledger.counter.private_logs |= {
        f'val_private_{name}': self.event for name, *_ in self._metrics}

  def check_epochs(self, epochs: int) -> None:
    """Raises ValueError unless so many epochs make 1 to `releases` releases."""
    if not 1 <= epochs // self._every <= self._releases:
      raise ValueError(
          f'Expected 1 to {self._releases} releases of validation in a run, got '
          f'{epochs // self._every}, after every {self._every} of {epochs} epochs; set '
          'releases=, or every=, the number of epochs between releases.')

  def _allowed(self) -> int:
    """Returns how many releases are allowed so far, in proportion to the steps."""
    # A resumed process takes this number for that of the releases made before.
    return min(self._releases, -(
        -self._ledger.released_steps * self._releases // self._plan.steps))

  def _refuse_more(self) -> None:
    """Raises ValueError for a release beyond those planned."""
    raise ValueError(
        f'Expected at most {self._releases} releases of validation, spread over the '
        f'{self._plan.steps} planned steps, got more, or earlier ones, after '
        f'{self._ledger.released_steps} steps; plan more releases, or validate less '
        'often (every=...).')

  def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
    """Releases the metrics into the logs, after every so many epochs.

    Raises ValueError beyond the releases planned, or if the logs have such a name.
    """
    logs = {} if logs is None else logs
    taken = [name for name, *_ in self._metrics if f'val_private_{name}' in logs]
    if taken:
      raise ValueError(
          f"Expected logs without 'val_private_{taken[0]}', which private validation "
          'writes, got a value that may have no noise; rename one of the metrics.')
    if (epoch + 1) % self._every:
      return
    validated = self._ledger.record.validated
    if validated[self.event] >= self._allowed():
      self._refuse_more()
    validated[self.event] += 1  # Counted before it is released.
    total, count = self._sums()
    if self.num_examples is None:
      # Padded with zeros to the metrics' length, for which the noise was checked.
      number = np.append(float(count), np.zeros(len(total) - 1))
      self.num_examples = max(1, round(float(self._noisy(number, 1.0, 1.0)[0])))
    # `total` has sums of each metric over its bound, less 1/2. `error` is one standard
    # deviation.
    noisy = self._noisy(total, self._sensitivity, right_answers.FINENESS)
    error = self._noise.noise_multiplier * self._sensitivity / self.num_examples
    for (name, bound, _), value in zip(self._metrics, noisy):
      logs[f'val_private_{name}'] = bound * (float(value) / self.num_examples + 0.5)
      logs[f'val_private_{name}_error'] = bound * error

  def forget(self) -> None:
    """Lets go of the model of the last fit."""
    self.set_model(None)
    self._run = None
    self.__dict__.pop('_ledger', None)  # Absent if no fit began.

  def _noisy(self, vector: np.ndarray, sensitivity: float, resolution: float
            ) -> np.ndarray:
    """Returns `vector`, of l2 `sensitivity`, with noise, on a grid of `resolution`."""
    return additive_noise.noisy_vector(
        vector, l2_sensitivity=sensitivity, resolution=resolution, noise=self._noise
        ).value

  def _sums(self) -> tuple[np.ndarray, int]:
    """Returns (exact sums of centred metrics, (metrics,); number of usable examples).

    With units, sums are of their means. Rows of weight zero, or with numbers that are
    not finite, are not usable.
    """
    if self._run is None:
      self._run = self._traced()
    data, total, count = self._data, np.zeros(len(self._metrics), np.int64), 0
    per_unit = getattr(data, 'examples_per_unit', 0)
    for parts in data.blocks(_BLOCK):
      if per_unit:
        parts = data_sources.each_array(
            lambda part: part.reshape(-1, *part.shape[2:]), parts)
      usable = data_sources.finite_rows(parts[:2])
      for weights in tf.nest.flatten(parts[2:]):
        usable &= np.any(weights.reshape(len(weights), -1) != 0, axis=1)
      values = np.where(usable[:, None], self._values(parts[:2]), 0)
      usable = usable.reshape(-1, per_unit or 1)
      means = values.reshape(*usable.shape, -1).sum(1) / np.maximum(
          usable.sum(1), 1)[:, None]
      # Each example's values are multiples of the grid: their sums are exact.
      total += np.rint(means / right_answers.FINENESS).astype(np.int64).sum(0)
      count += int(usable.any(1).sum())
    return total * right_answers.FINENESS, count

  def _values(self, parts: data_sources.Rows) -> np.ndarray:
    """Returns each row's centred metrics, float64 in [-1/2, 1/2], (rows, metrics)."""
    assert self._run is not None, 'It was traced.'
    rows, found = len(tf.nest.flatten(parts)[0]), []
    for places in np.split(np.arange(rows), range(self._size, rows, self._size)):
      chunk = tf.nest.map_structure(lambda part, places=places: tf.constant(
          data_sources.padded(part[places], self._size)), parts)
      found.append(np.asarray(self._run(*chunk))[:places.size])
    return np.concatenate(found)

  def _traced(self) -> Callable[..., Any]:
    """Returns `_measured` for `_size` rows: 1, unless it is proved not to mix rows."""
    run = tf.function(self._measured, autograph=False)
    for self._size in (_BLOCK, 1):
      spec = tf.nest.map_structure(
          lambda each: tf.TensorSpec([self._size, *each.shape[1:]], each.dtype),
          self._data.flat.specs[:2])
      graph = run.get_concrete_function(*spec).graph
      state_writes.check_graph(graph, 'layers', self.model.inner)
      if graph_proof.first_dependence(
          graph, graph.inputs[:len(tf.nest.flatten(spec))], graph.outputs,
          self._size) is None:
        break
    return run

  def _measured(self, x: Any, y: Any) -> tf.Tensor:
    """Returns metrics of rows over their bounds, less 1/2: (rows, metrics)."""
    y = data_sources.targets_or_none(y)
    outputs = self.model.inner(x, training=False)
    columns = []
    for _, bound, function in self._metrics:
      values = example_losses.mean_per_example(tf.cast(
          (function or self._losses)(y, outputs), tf.float64)) / bound
      # NaN counts as the bound.
      values = tf.where(tf.math.is_nan(values), tf.ones_like(values), values)
      columns.append(tf.clip_by_value(values, 0, 1) - 0.5)
    return tf.stack(columns, 1)

  def _losses(self, y: Any, outputs: Any) -> tf.Tensor:
    """Returns the compiled loss of each example, summed over outputs, (rows,)."""
    losses = self.model._output_losses  # pylint: disable=protected-access
    found = losses(losses.targets(y, outputs), outputs)
    if found is None:
      raise ValueError("Expected a compiled loss for the metric 'loss', got none.")
    found = found * losses.used_weights(tf.ones_like(found), outputs)
    return found if found.shape.rank == 1 else tf.reduce_sum(found, 1)


class PrivateEarlyStopping(keras.callbacks.EarlyStopping):
  """Keras' EarlyStopping on a metric that is released with noise.

  The metric is a log of `PrivateValidation`, or the `noisy_accuracy` of the plan. The
  stop costs nothing beyond that release. The guarantee afterwards is that of all
  planned steps, since what was released chose the number of steps that ran.
  """

  def __init__(self, monitor: str = 'val_private_accuracy', *, patience: int = 2,
               mode: str = 'auto', restore_best_weights: bool = True, **kwargs: Any):
    """Initialises the callback; other arguments are as for EarlyStopping of Keras.

    Args:
      monitor: A log of `PrivateValidation`, or 'noisy_accuracy'.
      patience: Number of releases without improvement after which training stops.
      mode: 'max' or 'min'; 'auto' takes 'max' for the accuracy and 'min' for the loss.
      restore_best_weights: Whether to go back to the weights of the best release.

    Raises:
      ValueError: if 'auto' does not know the metric.
    """
    _checks.instance('monitor', monitor, str, 'give the name of a log')
    _checks.choice('mode', mode, ('auto', 'max', 'min'))
    _checks.integer('patience', patience, 0)
    if mode == 'auto':
      known = {'val_private_accuracy': 'max', 'val_private_loss': 'min',
               'noisy_accuracy': 'max'}
      if monitor not in known:
        raise ValueError(f"Expected mode='max' or 'min' for monitor={monitor!r}, got "
                         "'auto', which knows the accuracy and the loss only.")
      mode = known[monitor]
    super().__init__(monitor=monitor, patience=patience, mode=mode,
                     restore_best_weights=restore_best_weights, **kwargs)

  def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
    """Raises ValueError unless the monitored log is a private release of this fit."""
    ledger = _ledger(self.model)
    known = ledger.counter.private_logs if ledger else {}
    if self.monitor not in known:
      raise ValueError(
          'Expected to monitor what a PrivateValidation of this fit releases, or '
          f'noisy_accuracy of its plan, one of {sorted(known)}, got monitor='
          f'{self.monitor!r}: what fit logs of training and validation data has no '
          'noise, and a stop by it would tell of examples.')
    super().on_train_begin(logs)

  def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
    """Passes on only epochs with a release."""
    if self.monitor in (logs or {}):
      super().on_epoch_end(epoch, logs)


def _ledger(model: keras.Model) -> ModelLedger | None:
  """Returns the ledger of a `PrivateModel`, None for another model."""
  found = model.training_ledger(model, None, None) if isinstance(
      model, HoldsLedger) else None
  return found if isinstance(found, ModelLedger) else None


def _metrics(given: Sequence[Any]) -> tuple[_Metric, ...]:
  """Returns the metrics that a user names; ValueError if unknown, none or equal."""
  found: list[_Metric] = []
  for each in [given] if isinstance(given, str) else _checks.items(
      'metrics', given, "'accuracy', ('loss', bound) and (name, function, bound)"):
    if each == 'accuracy':
      each = ('accuracy', right_answers.accuracy, 1.0)
    elif isinstance(each, tuple) and len(each) == 2 and each[0] == 'loss':
      each = ('loss', None, each[1])
    elif not (isinstance(each, tuple) and len(each) == 3 and callable(each[1]) and
              isinstance(each[0], str)):
      raise ValueError("Expected metrics of 'accuracy', ('loss', bound) and (name, "
                       f'function, bound), got {each!r}.')
    name, function, bound = each
    found.append((name, _checks.positive(f'the bound of {name}', bound), function))
  if not found or len({name for name, *_ in found}) < len(found):
    raise ValueError(f'Expected metrics of different names, got {given!r}.')
  return tuple(found)
