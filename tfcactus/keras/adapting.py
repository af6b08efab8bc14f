"""Private preparation: noisy statistics in place of `adapt` of Keras' layers."""

from __future__ import annotations

import collections
from collections.abc import Iterator
import dataclasses
import functools
import math
from typing import Any, Callable
import warnings

import numpy as np
import tensorflow as tf

from tfcactus import accounting, noise as noise_lib, release
from tfcactus.data_account import DataAccount
from tfcactus.keras.compat import models
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.data import datasets, units as units_lib
from tfcactus.randomness import KeyStream
from tfcactus.release import _records

_FINE = 2**30
"""Values of moments are rounded to multiples of 2^-30 half-widths: sums within a unit
are exact, whatever the order and the batches."""

_CELLS = 2**12
"""Number of cells between the bounds of a Discretization. `release.thresholds` counts
in 13 levels: all cells, each half of them, and so on down to single cells."""

_LONGEST = 256
"""Words of more bytes are not counted: NumPy pads all words to the longest."""

_NUMBERS, _TEXTS = 2**20, 2**14
"""Numbers, and texts, that are processed at a time, or one row if it has more."""

_Adapted = tuple[release.Release, Callable[[], None]]
"""A release, and a function that puts the released values into the layer."""


def adapt(layer: keras.layers.Layer, data: Any, *, noise: noise_lib.Noise,
          bounds: tuple[Any, Any] | None = None, delta: float | None = None,
          words_per_unit: int = 1, units: Any = None, seed: int | None = None,
          account: DataAccount | None = None, account_label: str = 'preparation'
          ) -> release.Release:
  """Adapts a preprocessing layer privately, in place of `layer.adapt(data)`.

  `PrivacyPlan(releases=[result])` covers the layer, in the model or before it.

  - Normalization: mean and variance of values clipped to `bounds`, by one noisy sum.
    Each unit counts once, with its mean. NaN becomes the middle of the bounds.
  - Discretization with num_bins: quantiles of values clipped to `bounds`, on a grid of
    4096 cells between them, by `tfcactus.release.thresholds` of one random value of
    each unit. NaN does not count.
  - StringLookup, IntegerLookup, TextVectorization: `tfcactus.release.vocabulary`, in
    its order, cut to max_tokens. These words do not count: empty ones, those of more
    than 256 bytes, and those that are not UTF-8 or have line breaks, NUL or U+FFFD. If
    no word is left, a warning says so, and the release counts.

  Args:
    layer: A layer that was not adapted before; changed in place.
    data: Rows, each once: an array, a list, or an iterable of batches, such as a
      batched `tf.data.Dataset` without `repeat`.
    noise: Noise in units of what one unit can change: Gaussian for Normalization,
      log-concave for the others.
    bounds: Public (low, high) for numbers, never computed from the data: each a number,
      or an array with one for each feature of a Normalization. None for vocabularies.
    delta: Largest probability that words of one unit alone enter a vocabulary; None
      for Normalization and Discretization.
    words_per_unit: Most words of a unit that count, a uniformly random choice.
    units: The id of the owner of each row of an array or list; None makes rows units.
    seed: For repeatable experiments; None draws from the system.
    account: An account that the release enters before the layer changes. Leave the
      result out of the releases of plans in the same account.
    account_label: The label of the entry.

  Returns:
    Release of (mean, variance), of the boundaries, or of a dict from words, not cut to
    max_tokens, to noisy numbers. Run cards know the layer by a digest in the event.

  Raises:
    ValueError: if an argument, or the type or shape of the data, does not fit; or the
      account covers no more.
  """
  kind, owners = _kind(layer, bounds, delta, words_per_unit), _owners(units, data)
  special = {'bounds': bounds} if delta is None else {
      'delta': delta, 'words_per_record': words_per_unit}
  return _changed(layer, kind(layer, data, owners, noise=noise, seed=seed, **special),
                  owners is not None, account, account_label)


def _changed(layer: keras.layers.Layer, adapted: _Adapted, of_units: bool,
             account: DataAccount | None, label: str) -> release.Release:
  """Enters a release in an account if given, changes the layer, returns the release."""
  released, change = adapted
  if account is not None:
    if released.seeded:
      raise ValueError('Expected no seed with an account, got one: whoever knows it '
                       'knows the noise.')
    if not isinstance(account, DataAccount):
      raise ValueError(f'Expected account to be a DataAccount, got {account!r}.')
    # First, so that a refusal leaves the layer as it was. There is no digest of it yet.
    event = accounting.AdaptedDpEvent([released.event], '', of_units)
    account.spend(event, label=label, unit=account.unit)
  change()
  records = 'records that are all rows of an owner, ' if of_units else ''
  return dataclasses.replace(
      released, event=accounting.AdaptedDpEvent(
          [released.event], models.preparation(layer), of_units),
      mechanism=f'{type(layer).__name__} of {records}{released.mechanism}')


def _kind(layer: keras.layers.Layer, bounds: Any, delta: Any, words_per_unit: int
          ) -> Callable[..., _Adapted]:
  """Returns `_moments`, `_bins` or `_vocabulary`; ValueError for other arguments."""
  kinds: dict[type, Callable[..., _Adapted]] = {
      keras.layers.Normalization: _moments, keras.layers.Discretization: _bins,
      keras.layers.StringLookup: _vocabulary, keras.layers.IntegerLookup: _vocabulary,
      keras.layers.TextVectorization: _vocabulary}
  found = [function for kind, function in kinds.items() if isinstance(layer, kind)]
  if not found:
    raise ValueError(
        f'Expected a {", ".join(kind.__name__ for kind in kinds)}, got '
        f'{type(layer).__name__}; publish what it needs by tfcactus.release.')
  numeric = found[0] is not _vocabulary
  if numeric != (bounds is not None) or numeric != (delta is None) or (
      numeric and words_per_unit != 1):
    raise ValueError(
        'Expected public bounds=(low, high), alone, for Normalization and '
        'Discretization; delta, and words_per_unit, for vocabularies; got '
        f'bounds={bounds!r}, delta={delta!r} and words_per_unit={words_per_unit!r} for '
        f'{type(layer).__name__}.')
  return found[0]


def _owners(units: Any, data: Any) -> np.ndarray | None:
  """Returns the number of each row's owner, from zero; None if `units` is None."""
  if units is None:
    return None
  if not hasattr(data, 'shape') and not isinstance(data, (list, tuple)):
    raise ValueError('Expected an array or a list of rows with units, got '
                     f'{type(data).__name__}, whose order may be another one than that '
                     'of units; collect rows and ids in one pass over it.')
  rows = len(units) if isinstance(units, (list, tuple)) else np.size(units)
  return np.unique(units_lib.checked_ids(units, rows), return_inverse=True)[1]


def _read(data: Any, owners: np.ndarray | None, array: Callable[[object], np.ndarray],
          block: int = _NUMBERS) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields (rows made by `array`, `block` values at most; numbers of their owners).

  A row of more values is yielded alone. `owners` is for data of one array; None makes
  each row its own owner. Raises ValueError for another number of owners than rows.
  """
  start = 0
  if isinstance(data, tf.data.Dataset):
    datasets.check_once(data)
  for batch in _records.batches(data, array):
    owner = np.arange(start, start + len(batch)) if owners is None else owners
    if len(owner) != len(batch):
      raise ValueError('Expected units to hold the id of the owner of each row, got '
                       f'{len(owner)} ids for {len(batch)} rows.')
    rows = max(1, block // max(1, math.prod(batch.shape[1:])))
    for first in range(0, len(batch), rows):
      yield batch[first:first + rows], owner[first:first + rows]
    start += len(batch)


def _array(batch: Any, kinds: str, words: str, each: Callable[[Any], Any], dtype: Any
           ) -> np.ndarray:
  """Returns a batch as `dtype`, or as objects; ValueError for other NumPy kinds.

  `each` converts single values where NumPy cannot. `words` names the kinds in errors.
  """
  _records.check_one_array(batch)
  if isinstance(batch, (tf.RaggedTensor, tf.SparseTensor)):
    raise ValueError('Expected dense data, got a ragged or sparse tensor; fill it up, '
                     "as in dataset.map(lambda x: x.to_tensor('')).")
  try:
    # NumPy's common type of a list would depend on each person's values.
    array = np.asarray(batch, object if isinstance(batch, (list, tuple)) else None)
  except ValueError as error:
    raise ValueError(f'Expected rows of one shape, got others: {error}.') from None
  if array.dtype.kind == 'O' and 2 * sum(isinstance(value, (
      list, tuple, np.ndarray)) for value in array.ravel()) > array.size:
    # Rows of different shapes make an array of lists, whose numbers would all be lost.
    # Fewer lists than that count as values that are no numbers or texts.
    raise ValueError('Expected rows of one shape, got others.')
  if array.ndim == 0 or array.dtype.kind not in kinds + 'O':
    raise ValueError(f'Expected rows of {words}, got an array of shape {array.shape} '
                     f'and type {array.dtype}.')
  # Large words of uint64 would wrap to negative ones.
  if dtype is not object and np.can_cast(
      array.dtype, dtype, 'safe' if array.dtype.kind == 'u' else 'same_kind'):
    with np.errstate(all='ignore'):  # A warning would tell of values.
      return array.astype(dtype)
  made = np.empty(array.size, np.float64 if dtype == np.float64 else object)
  made[:] = [each(value) for value in array.ravel().tolist()]
  return made.reshape(array.shape)


def _number(value: Any) -> float:
  """Returns float(value); NaN where that fails, as for 'red' or 10**400."""
  try:
    return float(value)
  except (TypeError, ValueError, OverflowError):
    return math.nan


def _text(value: Any) -> bytes:
  """Returns a text in UTF-8; empty for a value that is no text."""
  if isinstance(value, str):
    return value.encode('utf-8', 'replace')
  return bytes(value) if isinstance(value, bytes) else b''


def _integer(value: Any) -> int | None:
  """Returns a whole number of 64 bits as an int, None for any other value."""
  # pandas turns integers with missing values into floats.
  value = int(value) if isinstance(value, float) and value.is_integer() else value
  known = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
  return int(value) if known and -2**63 <= value < 2**63 else None


_numbers = functools.partial(
    _array, kinds='biuf', words='numbers', each=_number, dtype=np.float64)
_texts = functools.partial(_array, kinds='SU', words='texts', each=_text, dtype=object)
_integers = functools.partial(
    _array, kinds='iuf', words='integers', each=_integer, dtype=np.int64)


def _words(layer: keras.layers.Layer, data: Any, owners: np.ndarray | None,
           reserved: set[Any]) -> Iterator[tuple[set[Any], int]]:
  """Yields the set of each row's words, less reserved ones, and its owner's number."""
  array = _integers if isinstance(layer, keras.layers.IntegerLookup) else _texts
  # A function of the user's own might mix the rows of a batch.
  block = 1 if models.splits_by_function(layer) else _TEXTS
  for part, owner in _read(data, owners, array, block):
    part = part.reshape(len(part), -1)
    words = models.tokens(layer, part) if isinstance(
        layer, keras.layers.TextVectorization) else part.tolist()
    for own, each in zip(words, owner.tolist()):
      yield {_readable(word) for word in own} - reserved, each


def _readable(word: Any) -> Any:
  """Returns UTF-8 as text; None if it does not count, as `adapt` says.

  An integer or None, the words of an IntegerLookup, is returned as it is.
  """
  if not isinstance(word, bytes):
    return word
  text = word.decode('utf-8', 'replace') if len(word) <= _LONGEST else ''
  one_line = text.splitlines() == [text]  # False for the empty text.
  return text if one_line and not set(text) & {'\0', '\ufffd'} else None


def _vocabulary(layer: keras.layers.Layer, data: Any, owners: np.ndarray | None,
                **settings: Any) -> _Adapted:
  """Returns (release of the vocabulary, function that puts it into the layer).

  Raises ValueError if the layer has a vocabulary, or is of 'tf_idf'.
  """
  lookup = models.lookup(layer)
  if lookup.output_mode == 'tf_idf' or models.has_vocabulary(layer):
    raise ValueError(
        'Expected a new layer, without a vocabulary, of another output_mode than '
        "'tf_idf', whose document frequencies no release covers, got output_mode="
        f'{lookup.output_mode!r} and {layer.vocabulary_size()} tokens.')
  rows = _words(layer, data, owners, {lookup.mask_token, lookup.oov_token, None})
  sets: Any = (words for words, _ in rows)
  if owners is not None:
    grouped: dict[int, set[Any]] = collections.defaultdict(set)
    for words, owner in rows:
      grouped[owner] |= words
    sets = grouped.values()
  found = release.vocabulary(sets, **settings)
  chosen = list(found.value)
  if lookup.max_tokens is not None:
    # Tokens of a new layer are those of its mask and of unknown words.
    chosen = chosen[:max(0, lookup.max_tokens - layer.vocabulary_size())]

  def change() -> None:
    """Sets the vocabulary, or warns that there is none."""
    if chosen:
      layer.set_vocabulary(chosen)
    else:
      warnings.warn(
          f'Expected words for {layer.name}, got none that enough units hold; the '
          'layer stays without a vocabulary, and the release counts all the same. Use '
          'more units, or less noise.', stacklevel=4)
  return found, change


def _limits(bounds: Any, shape: tuple[int, ...]) -> list[np.ndarray]:
  """Returns [low, high], float64 of `shape`; ValueError unless low < high in 1e18."""
  try:
    low, high = found = [
        np.broadcast_to(np.asarray(each, np.float64), shape) for each in bounds]
    if np.all((-1e18 <= low) & (low < high) & (high <= 1e18)):
      return found  # Their squares are finite in float32.
  except (TypeError, ValueError):
    pass
  raise ValueError(
      'Expected bounds=(low, high), each a number or an array that fits the shape '
      f'{shape}, with low < high within 1e18, got bounds={bounds!r}.')


def _bins(layer: keras.layers.Layer, data: Any, owners: np.ndarray | None, *,
          bounds: Any, noise: Any, seed: int | None) -> _Adapted:
  """Releases noisy quantiles, the num_bins - 1 boundaries of a Discretization."""
  low, high = (float(each) for each in _limits(bounds, ()))
  models.check_bins(layer)
  cells, owners_of = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
  for part, owner in _read(data, owners, _numbers):
    flat = part.reshape(len(part), -1)
    known = ~np.isnan(flat)
    place = (np.clip(flat[known], low, high) - low) / (high - low) * _CELLS
    cells.append(np.minimum(place.astype(np.int64), _CELLS - 1))
    owners_of.append(np.broadcast_to(owner[:, np.newaxis], flat.shape)[known])
  cell, owner = np.concatenate(cells), np.concatenate(owners_of)
  # The value with the smallest random word is a uniform choice of a unit's values.
  order = np.lexsort((KeyStream(seed, 'values of units').words(owner.size), owner))
  first = np.diff(owner[order], prepend=-1) > 0
  counts = release.thresholds(
      cell[order][first], num_values=_CELLS, noise=noise, seed=seed)
  # Quantiles: upper edges of the cells in which cumulative counts, made monotone, reach
  # equally spaced ranks.
  cumulative = np.maximum.accumulate(counts.value)
  ranks = max(cumulative[-1], 1) * np.arange(1, layer.num_bins) / layer.num_bins
  place = np.minimum(np.searchsorted(cumulative, ranks), _CELLS - 1) + 1
  found = (low + (high - low) * place / _CELLS).astype(np.float32)
  return dataclasses.replace(counts, value=found), functools.partial(
      models.set_bins, layer, found.tolist())


def _moments(layer: keras.layers.Layer, data: Any, owners: np.ndarray | None, *,
             bounds: Any, noise: noise_lib.Noise, seed: int | None) -> _Adapted:
  """Releases mean and variance of a Normalization, by a noisy sum."""
  if layer.input_mean is not None:
    raise ValueError('Expected a Normalization to adapt, got one with a mean and '
                     'variance; leave them out.')
  shape = np.shape(layer.mean) if layer.built else (None, *_row_shape(data))
  axes = sorted(axis % len(shape) for axis in layer.axis)
  if 0 in axes:
    raise ValueError(f'Expected an axis of features, got axis={layer.axis!r}, the axis '
                     'of rows; give rows of shape (n, 1), or take axis=None.')
  if not layer.built:
    layer.build(shape)
  low, high = _limits(bounds, tuple(layer.adapt_mean.shape))
  dim, half, clip = low.size, (high - low) / 2, math.sqrt(low.size + 1)
  rows = _read(data, owners, _numbers)
  sums = release.noisy_sum(
      _contributions(rows, owners, axes, len(shape), low, high),
      l2_norm_clip=clip, noise=noise, dim=2 * dim + 1, seed=seed)
  count = max(float(sums.value[0]), 1.0)
  first, rest = np.clip(sums.value[1:] / count, -1, 1).reshape(2, *low.shape)
  # Means of u and 1 - u^2, so that u has the variance 1 - rest - first^2. `least`,
  # three deviations of a mean's noise, keeps it positive, and normalised inputs modest.
  least = min(3 * clip * noise.noise_multiplier / count, 1.0)
  mean = low + half * (1 + first)
  variance = half**2 * np.clip(1 - np.maximum(rest, 0) - first**2, least, 1)

  def change() -> None:
    """Puts mean and variance into the layer."""
    for variable, value in (
        (layer.adapt_mean, mean), (layer.adapt_variance, variance)):
      variable.assign(tf.cast(value, variable.dtype))
    layer.finalize_state()

  # 2^-28 covers the rounding by `_FINE`, and 2 the errors of a sum and of the count.
  # The other term of the maximum is there for `least`, which is three times as large.
  return dataclasses.replace(
      sums, value=(mean, variance), mechanism=f'moments by {sums.mechanism}',
      error_kind='largest error of a mean of clipped values, in half-widths of the '
      'bounds (of a variance: three times that, in their squares)',
      error_bound=lambda beta: clip * 2**-28 + max(
          2 * sums.error(beta), clip * noise.noise_multiplier) / count), change


def _row_shape(data: Any) -> tuple[int | None, ...]:
  """Returns the shape of a row, without a pass over batches; ValueError if unknown."""
  _records.check_batched(data)
  shape = getattr(getattr(data, 'element_spec', data), 'shape', None)
  if shape is None and isinstance(data, (list, tuple)):
    shape = np.shape(_numbers(data))
  if shape is None or getattr(shape, 'rank', 0) is None:
    raise ValueError('Expected data whose shape is known, or a layer that was built, '
                     'as by layer.build((None, 4)) for rows of four features, got '
                     f'{type(data).__name__} and a layer that was not built.')
  return tuple(shape)[1:]


def _contributions(rows: Iterator[tuple[np.ndarray, np.ndarray]],
                   owners: np.ndarray | None, axes: list[int], ndim: int,
                   low: np.ndarray, high: np.ndarray) -> Iterator[np.ndarray]:
  """Yields (1, means of u, means of 1 - u^2) of units, shape (units, 2 dim + 1).

  u are a unit's values, clipped to [low, high] and scaled to [-1, 1], by feature (along
  `axes`). Without `owners` rows are units. A unit without values yields zeros.
  """
  # A unit's norm is at most sqrt(dim + 1), since u^2 + (1 - u^2)^2 <= 1.
  dim, shape, half = low.size, (1, *low.shape, 1), (high - low) / 2
  units = 0 if owners is None else owners.max(initial=-1) + 1
  totals = np.zeros((units, 2 * dim + 1), np.int64)  # Number of values, and sums.
  for part, owner in rows:
    if part.ndim != ndim or tuple(part.shape[axis] for axis in axes) != low.shape:
      raise ValueError('Expected rows of the shape that the layer was built for, got '
                       f'rows of shape {part.shape[1:]}.')
    values = np.moveaxis(part, axes, range(1, len(axes) + 1)).reshape(
        len(part), *low.shape, -1)
    u = np.clip(values, low.reshape(shape), high.reshape(shape)) - (
        low + half).reshape(shape)
    u = np.clip(np.nan_to_num(u / half.reshape(shape)), -1, 1)
    sums = np.concatenate([np.full((len(part), 1), u.shape[-1] * _FINE)] + [
        np.rint(each * _FINE).astype(np.int64).sum(-1).reshape(len(part), dim)
        for each in (u, 1 - u**2)], 1)
    if owners is None:
      yield sums / np.maximum(sums[:, :1], 1)
    else:
      np.add.at(totals, owner, sums)
  if owners is not None:
    yield totals / np.maximum(totals[:, :1], 1)
