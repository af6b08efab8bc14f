"""Losses of models with one or several outputs, per example.

The loss of an example is the sum over all outputs, with the loss weights of `compile`.
It is also multiplied by the example's sample weight. Sample weights of parts, such as
the tokens of a text, multiply the losses of these parts, before their mean is the
example's loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import tensorflow as tf

from tfcactus import _checks
from tfcactus.keras.checks import example_losses
from tfcactus.keras.checks.example_losses import LossFn
from tfcactus.keras.compat import precision

_Path = tuple[Any, ...]


class Term(NamedTuple):
  """The loss of one output."""

  place: int  # Index of the output in `tf.nest.flatten(outputs)`.
  path: _Path  # Keys and indices that lead to the output.
  compute: LossFn  # Returns losses per example.
  factor: float  # Its loss weight.


class Weighted(NamedTuple):
  """Targets of one output, and weights (batch, ...) of the parts of examples."""

  target: tf.Tensor
  weights: tf.Tensor


class OutputLosses:
  """Losses per example of one or several outputs.

  An example's loss is the sum over its outputs, each times its loss weight and the
  example's weight. `names` has the names of the outputs in order if these are a list,
  or is None.
  """

  def __init__(self, loss: Any, loss_weights: Any = None,
               names: Sequence[str] | None = None):
    """Takes the losses and loss weights of `compile`; ValueError for a wrong loss.

    `loss` is one loss for all outputs, or a list or dict of losses by output, in which
    some may be None or missing, or None if layers add all losses. `loss_weights` are
    numbers in such a structure; None is ones.
    """
    self.names = names
    self._losses = _mapped(example_losses.loss_per_example, loss)
    self._factors = _mapped(
        lambda value: float(_checks.real('loss_weights', value)), loss_weights)

  def terms(self, outputs: Any) -> list[Term]:
    """Returns a term per output with a loss; ValueError if losses have other keys."""
    paths = _paths(outputs)
    losses = self._conformed('loss', self._losses, outputs, broadcast=True)
    factors = self._conformed('loss_weights', self._factors, outputs, broadcast=True)
    return [Term(place, path, compute, 1.0 if factor is None else factor)
            for place, (path, compute, factor) in
            enumerate(zip(paths, losses, factors)) if compute is not None]

  def targets(self, y: Any, outputs: Any, sample_weight: Any = None) -> Any:
    """Returns targets of the outputs that have a loss; ValueError if any is missing.

    `y` has the structure of the model's outputs, or is a dict by their names. The
    result is a dense tensor if the model returns one, else a list with one tensor per
    output with a loss (a term). `Weighted` takes the place of a tensor where
    `sample_weight` has weights of parts.
    """
    found = self._conformed('y', y, outputs, broadcast=False)
    given = self._conformed('sample_weight', sample_weight, outputs, broadcast=True)
    chosen = []
    for term in self.terms(outputs):
      target, weights = found[term.place], _of_parts(given[term.place])
      if not isinstance(target, tf.Tensor):
        raise ValueError(
            f'Expected targets of the output {self._name(term)!r}, which has a loss, '
            f'to be one dense array, got {target!r}; give it, or no loss for that '
            'output.')
      chosen.append(target if weights is None else Weighted(target, weights))
    return chosen if _is_nested(outputs) or not chosen else chosen[0]

  def weights(self, sample_weight: Any, outputs: Any, rows: tf.Tensor) -> tf.Tensor:
    """Returns example weights, shape (rows,); (rows, terms) for a structure of outputs.

    `terms` counts the outputs with a loss, `rows` the examples. `sample_weight` is
    None, an array for all outputs, or arrays by output. Weights of parts are handled by
    `targets`; here they give an example the weight 1, or 0 if they are all zero. Raises
    ValueError for weights of parts if no output has a loss.
    """
    terms = self.terms(outputs)
    found = self._conformed('sample_weight', sample_weight, outputs, broadcast=True)
    columns = [_weight(found[term.place], rows) for term in terms]
    if not columns:
      if _of_parts(found[0]) is not None:
        raise ValueError(
            'Expected sample weights of shape (batch,) where layers add all losses, '
            f'got shape {found[0].shape}, which would multiply the parts of a loss.')
      return _weight(found[0], rows)
    return tf.stack(columns, 1) if _is_nested(outputs) else columns[0]

  def __call__(self, targets: Any, predictions: Any) -> tf.Tensor | None:
    """Returns losses times loss weights, in the shape of the result of `weights`.

    Returns None if no output has a loss. A loss of weight zero is returned unscaled, so
    that it can still be logged; multiply by `used_weights` to leave it out of the sum.
    """
    flat, terms = tf.nest.flatten(predictions), self.terms(predictions)
    if not terms:
      return None
    if not _is_nested(predictions):
      return _term_losses(terms[0], targets, predictions)
    losses = [_term_losses(term, target, flat[term.place])
              for term, target in zip(terms, targets)]
    return tf.stack(precision.alike(losses), 1)

  def used_weights(self, weights: tf.Tensor, outputs: Any) -> tf.Tensor:
    """Returns example weights with zeros for losses whose loss weight is zero."""
    used = [float(term.factor != 0) for term in self.terms(outputs)]
    if all(used):
      return weights
    return weights * tf.constant(used if _is_nested(outputs) else used[0],
                                 weights.dtype)

  def metric_weights(self, weights: tf.Tensor, outputs: Any, targets: Any) -> Any:
    """Returns sample weights for metrics, in the structure of `outputs`.

    `weights` are those that `weights` returns, `targets` those that `targets` returns.
    An output gets its weights of parts, if `targets` have any, else its column of
    `weights`; an output without a loss gets the column of the first that has one.
    """
    terms = self.terms(outputs)
    if not _is_nested(outputs):
      return targets.weights if isinstance(targets, Weighted) else weights
    columns = {term.place: i for i, term in enumerate(terms)}
    flat = [weights[:, columns.get(place, 0)] if columns else weights
            for place in range(len(tf.nest.flatten(outputs)))]
    for term, target in zip(terms, targets):
      if isinstance(target, Weighted):
        flat[term.place] = target.weights
    return tf.nest.pack_sequence_as(outputs, flat)

  def answered(self, output: str | int | None, targets: Any, predictions: Any
              ) -> tuple[int, int, tf.Tensor, tf.Tensor | None]:
    """Returns the target of the output with this name or index, and where it is.

    Returns (index of the output's term, its place in `tf.nest.flatten(predictions)`,
    its target, its weights of parts or None). `output` None names the only output with
    a loss, `targets` are those that `targets` returns. Raises ValueError unless
    `output` names one output with a loss of a weight other than zero.
    """
    nested = _is_nested(predictions)
    terms = [(i, term) for i, term in enumerate(self.terms(predictions)) if term.factor]
    # The name of the output of a model of one output, if known.
    only_name = () if nested or self.names is None else self.names
    found = [(i, term) for i, term in terms if output is None or (
        output in (self._name(term), term.place, *only_name))]
    if len(found) != 1:
      raise ValueError(
          'Expected noisy_accuracy to name one output that has a loss, '
          f'NoisyAccuracy(output=...), of {[self._name(term) for _, term in terms]}, '
          f'got output={output!r}.')
    i, term = found[0]
    target = targets[i] if nested else targets
    return i, term.place, *(
        target if isinstance(target, Weighted) else (target, None))

  def _name(self, term: Term) -> str:
    """Returns the name of a term's output for messages."""
    if self.names and len(term.path) == 1 and isinstance(term.path[0], int):
      return self.names[term.path[0]]
    return '/'.join(map(str, term.path)) or 'y'

  def _conformed(self, what: str, given: Any, outputs: Any, broadcast: bool
                ) -> list[Any]:
    """Returns one entry of `given` per output, in the order of `tf.nest.flatten`.

    `given` is one entry, which `broadcast` allows for all outputs, or a structure like
    `outputs`; missing entries are None. Raises ValueError, naming the argument `what`,
    if `given` has another structure, or other keys, than `outputs`.
    """
    if not _is_nested(outputs):
      return [_only(what, given)]
    if given is None or not _is_nested(given):
      count = len(tf.nest.flatten(outputs))
      if given is None or broadcast or count == 1:
        return [given] * count
      raise ValueError(_OTHER.format(what, _shown(outputs, self.names), given))
    if isinstance(given, dict) and not isinstance(outputs, dict):
      given = self._by_name(what, given, outputs)
    if isinstance(outputs, dict):
      if not isinstance(given, dict) or set(given) - set(outputs):
        raise ValueError(_OTHER.format(what, sorted(outputs), _keys(given)))
      pairs = [(given.get(key), outputs[key]) for key in sorted(outputs)]
    elif isinstance(given, dict) or len(given) != len(outputs):
      raise ValueError(_OTHER.format(what, _shown(outputs, self.names), _keys(given)))
    else:
      pairs = list(zip(given, outputs))
    return [each for part, output in pairs
            for each in self._conformed(what, part, output, broadcast)]

  def _by_name(self, what: str, given: Any, outputs: Sequence[Any]) -> Any:
    """Returns the entries of a dict by output name as a list, None where missing."""
    names = self.names or [f'output_{i + 1}' for i in range(len(outputs))]
    if len(names) != len(outputs) or set(given) - set(names):
      raise ValueError(_OTHER.format(what, list(names), _keys(given)))
    return [given.get(name) for name in names]


_OTHER = ('Expected {} for the outputs {} of the model, in a list of that length or '
          'a dict by those names, got {}.')


def _is_nested(structure: Any) -> bool:
  """Returns whether outputs, or an argument, are a structure and not one entry."""
  return isinstance(structure, (list, tuple, dict))


def _mapped(function: Callable[[Any], Any], structure: Any) -> Any:
  """Applies `function` to each leaf but None of nested lists, tuples and dicts."""
  if isinstance(structure, dict):
    return {key: _mapped(function, value) for key, value in structure.items()}
  if isinstance(structure, (list, tuple)):
    return [_mapped(function, value) for value in structure]
  return None if structure is None else function(structure)


def _paths(outputs: Any) -> list[_Path]:
  """Returns the path of each output, in the order of `tf.nest.flatten`."""
  if not _is_nested(outputs):
    return [()]
  parts = ([(key, outputs[key]) for key in sorted(outputs)] if
           isinstance(outputs, dict) else list(enumerate(outputs)))
  return [(key, *path) for key, part in parts for path in _paths(part)]


def _only(what: str, given: Any) -> Any:
  """Returns the only entry of `given`, or None; ValueError for several entries."""
  while _is_nested(given):
    if not given:
      return None
    if len(given) > 1:
      raise ValueError(
          f'Expected one {what} for the one output of the model, got {_keys(given)}.')
    given = list(given.values() if isinstance(given, dict) else given)[0]
  return given


def _keys(given: Any) -> Any:
  """Returns what a message says of an argument: its keys, its length, or itself."""
  if isinstance(given, dict):
    return sorted(map(str, given))
  return f'{len(given)} in a {type(given).__name__}' if _is_nested(given) else given


def _shown(outputs: Any, names: Sequence[str] | None) -> Any:
  """Returns what a message says of the outputs: their names, or their paths."""
  if names and len(names) == len(outputs):
    return list(names)
  return ['/'.join(map(str, path)) for path in _paths(outputs)]


def _term_losses(term: Term, target: Any, prediction: tf.Tensor) -> tf.Tensor:
  """Returns the losses of one output, (batch,), times its loss weight unless zero."""
  weights = None
  if isinstance(target, Weighted):
    target, weights = target
  losses = term.compute(target, prediction, weights)
  return losses if term.factor in (0.0, 1.0) else (
      losses * tf.constant(term.factor, losses.dtype))


def _weight(weight: Any, num_rows: tf.Tensor) -> tf.Tensor:
  """Returns example weights, float32 or float64, (num_rows,); for None they are 1.

  For weights of parts they are 1, or 0 if all weights of an example's parts are zero.
  """
  if weight is None:
    return tf.ones(tf.reshape(num_rows, [1]))
  parts = _of_parts(weight)
  if parts is not None:
    return tf.cast(tf.reduce_any(
        tf.not_equal(parts, 0), list(range(1, parts.shape.rank))), tf.float32)
  kept = weight.dtype if weight.dtype == tf.float64 else tf.float32
  return tf.reshape(tf.cast(weight, kept), tf.reshape(num_rows, [1]))


def _of_parts(weight: Any) -> tf.Tensor | None:
  """Returns weights of parts, without last axes of 1; None for weights per example."""
  if weight is None or weight.shape.rank is None:
    return None
  while weight.shape.rank > 1 and weight.shape[-1] == 1:
    weight = weight[..., 0]
  return weight if weight.shape.rank > 1 else None
