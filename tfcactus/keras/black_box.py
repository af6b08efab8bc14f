"""Membership inference by a model's losses on records in and out of the data."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from scipy import special
import tensorflow as tf

from tfcactus import _format, accounting, audit as audit_lib
from tfcactus.audit import evidence, pictures
from tfcactus.keras.checks import output_losses
from tfcactus.keras.compat.versions import keras
from tfcactus.keras.data import data_sources, units
from tfcactus.randomness import KeyStream

FALSE_POSITIVES = (1e-3, 1e-2, 1e-1)
"""False positive rates at which an attack is described."""

_BATCH = 256  # Records whose losses are computed at once.
_UNLIKELY = 1e-6
"""Probability below which sizes of a split are not those of fair coins."""


@dataclasses.dataclass(frozen=True, eq=False)
class BlackBoxAudit:
  """Results of an attack that tells members by a threshold on the loss.

  Attributes:
    false_positive: Shape (points,), the share of records held out that each threshold
      takes for members, ascending.
    true_positive: Shape (points,), the share of records held in.
    area: Area under this curve: 1/2 for guessing.
    rates: {false positive rate: (true positive rate found, its interval)}. The interval
      is for further records and this model: another training has other rates.
    bounds: Bounds on epsilon that hold although all records trained one model.
  """

  false_positive: np.ndarray
  true_positive: np.ndarray
  area: float
  rates: dict[float, tuple[float, audit_lib.Interval]]
  bounds: evidence.Audit

  def __str__(self) -> str:
    """Returns area, rates with their intervals, and bounds in words."""
    return '\n'.join((f'Area under the curve: {self.area:.3f}.', *(
        f'True positive rate at false positive rate {rate:g}: {found:.3g}, between '
        f'{_format.lower(interval.lower, 3)} and {_format.upper(interval.upper, 3)}.'
        for rate, (found, interval) in self.rates.items()), str(self.bounds)))

  def picture(self, path: str) -> None:
    """Writes a picture of the ROC curve; ImportError if matplotlib is missing."""
    axis = pictures.axes(1, 6)
    axis.loglog(self.false_positive, self.true_positive, label='by the loss')
    axis.loglog(self.false_positive, self.false_positive, '--', color='grey',
                label='guessing')
    for rate, (_, interval) in self.rates.items():
      axis.plot([rate, rate], np.maximum(interval, 1e-5), color='C1')
    axis.set(xlabel='false positive rate', ylabel='true positive rate',
             title=f'area under the curve {self.area:.3f}')
    axis.grid(alpha=0.3)
    axis.legend()
    axis.figure.savefig(path, dpi=120)


def black_box_audit(model: keras.Model, held_in: Any, held_out: Any,
                    reference: keras.Model | None = None, *,
                    by_fair_coins: bool = False, loss: Any = None, delta: float = 1e-5,
                    significance: float = evidence.SIGNIFICANCE) -> BlackBoxAudit:
  """Attacks any Keras model by the losses of records; needs nothing of its training.

  Split the records before training, each by a coin of its own, and train on those held
  in: `coins = np.random.default_rng().random(len(x)) < 0.5`. Or take the sides of a
  `Split` by coin, of any fraction.

  Args:
    model: A trained model.
    held_in: Records (x, y) that were in the training data; or the training side of a
      `Split`: coins leave out records of its larger side. Weights are not used.
    held_out: Records (x, y) that were not; or the validation side.
    reference: A model that was trained on none of the records, such as on public ones.
      Its losses are subtracted, which makes the attack stronger.
    by_fair_coins: True, which states that a fair coin of its own put each record into
      `held_in` or `held_out`, and that none was left out. Not needed for sides of a
      `Split`. In other splits, such as by date, more than membership differs.
    loss: A loss, as for `compile`; by default the one that the model was compiled with.
      Losses of several outputs are added up without loss_weights.
    delta: Delta of the bounds on epsilon.
    significance: Largest probability that one bound or interval is wrong.

  Raises:
    ValueError: if an argument is invalid, the split was not by fair coins, or losses
      are not numbers.
  """
  releases: tuple[Any, ...] = ()
  if any(getattr(each, 'side', None) for each in (held_in, held_out)):
    held_in, held_out = _of_split(held_in, held_out)
    releases = getattr(getattr(model, 'plan', None), 'releases', ())
  elif by_fair_coins is not True:
    raise ValueError(
        'Expected by_fair_coins=True, which states that each record was held in or out '
        f'by a coin of its own, got {by_fair_coins!r}; without that no bound holds. '
        'Split by np.random.default_rng().random(len(x)) < 0.5 before training, or '
        'pass the sides of a Split.')
  scores = _scores(model, reference, loss, held_in, held_out)
  present = np.repeat([True, False], [len(each) for each in scores])
  bounds = audit_lib.audit_scores(
      np.concatenate(scores), present, delta=delta, significance=significance,
      independent=False)
  if any(isinstance(each, accounting.ValidationDpEvent) for each in releases):
    bounds = dataclasses.replace(bounds, note=(
        'Records held out took part in private validation. Bounds are for training and '
        'validation together, between which a coin moves a record.'))
  return _described(np.sort(scores[0]), np.sort(scores[1]), bounds)


def _scores(model: keras.Model, reference: keras.Model | None, loss: Any, held_in: Any,
            held_out: Any) -> list[np.ndarray]:
  """Returns scores of `held_in` and `held_out`, larger for likely members."""
  loss = getattr(model, 'loss', None) if loss is None else loss
  if loss is None:
    raise ValueError(
        'Expected a compiled model, or loss=, such as '
        "loss='sparse_categorical_crossentropy', got neither.")
  scores: list[np.ndarray] = []
  for name, records in (('held_in', held_in), ('held_out', held_out)):
    if not isinstance(records, (tuple, list)) or len(records) != 2:
      raise ValueError(f'Expected {name} to be (x, y), got {type(records).__name__}.')
    data = data_sources.open_data(*records)
    score = -_losses(model, data, loss)
    if reference is not None:
      score += _losses(reference, data, loss)
    scores.append(score)
  fewer, total = min(map(len, scores)), sum(map(len, scores))
  if 2 * special.bdtr(fewer, total, 0.5) < _UNLIKELY:  # A binomial test.
    raise ValueError(
        'Expected about as many records in held_in as in held_out, as fair coins '
        f'give, got {len(scores[0])} and {len(scores[1])}.')
  return scores


def _of_split(held_in: Any, held_out: Any) -> tuple[data_sources.Rows, ...]:
  """Returns (x, y) of each side, of random records that fair coins put there."""
  one, other = (getattr(each, 'side', None) for each in (held_in, held_out))
  if (not one or not other or one.held_out or not other.held_out or
      (one.split, one.name) != (other.split, other.name) or one.split.by != 'coin' or
      isinstance(held_in, units.UnitData)):
    raise ValueError(
        "Expected the training and the validation side of one Split by='coin', of "
        'records without units, got others; divide once: '
        'training, validation = Split(0.5).sides(x, y).')
  # The larger side keeps a record with probability `share` < 1, the smaller one all
  # (share >= 1): a record that is kept was on either side with probability 1/2.
  odds = one.split.fraction / (1 - one.split.fraction)
  return tuple(
      each.rows(np.flatnonzero(KeyStream().below(share, each.num_examples)))[:2]
      for each, share in ((held_in, odds), (held_out, 1 / odds)))


def _described(members: np.ndarray, others: np.ndarray, bounds: evidence.Audit
              ) -> BlackBoxAudit:
  """Returns the audit, with the ROC curve of thresholds on the sorted scores."""
  cuts = np.unique(np.concatenate([members, others]))[::-1]
  true, false = (np.append(0.0, 1 - np.searchsorted(each, cuts) / each.size)
                 for each in (members, others))
  area = float(np.sum(np.diff(false) * 0.5 * (true[1:] + true[:-1])))
  return BlackBoxAudit(false, true, area, {
      rate: (float(np.max(true[false <= rate])),
             _interval(members, others, rate, bounds.significance))
      for rate in FALSE_POSITIVES}, bounds)


def _interval(members: np.ndarray, others: np.ndarray, rate: float,
              significance: float) -> audit_lib.Interval:
  """Returns an interval for the true positive rate at a false positive `rate`.

  `members` and `others` (records not in the training data) are scores, ascending.
  """
  # The false positive rate above the k-th largest score of n others has the law
  # Beta(k, n - k + 1), or is smaller if scores are equal. Each side of the interval
  # takes a quarter of `significance` for its threshold, and one for the members beyond:
  # one end of a `clopper_pearson` interval, whose significance is for both ends.
  n, part = others.size, 0.25 * significance
  k = np.arange(1, n + 1)
  reached = special.betainc(k, n - k + 1, rate)  # P(rate above the k-th <= `rate`).
  # Ranks k of thresholds whose false positive rate is at most, and more than, `rate`,
  # each but for a probability of `part`. The tightest of them bound the true positive
  # rate: from below with scores equal to the threshold left out, from above with them.
  at_most, above = k[reached >= 1 - part], k[reached <= part]
  lower, upper = 0.0, 1.0
  if at_most.size:
    count = int(np.sum(members > others[n - at_most[-1]]))
    lower = audit_lib.clopper_pearson(
        count, members.size, significance=2 * part).lower
  if above.size:
    count = int(np.sum(members >= others[n - above[0]]))
    upper = audit_lib.clopper_pearson(
        count, members.size, significance=2 * part).upper
  return audit_lib.Interval(lower, upper)


def _losses(model: keras.Model, data: data_sources.ExampleData, loss: Any
           ) -> np.ndarray:
  """Returns each record's loss, summed over outputs, (n,); ValueError for NaN."""
  losses = output_losses.OutputLosses(
      loss, names=getattr(model, 'output_names', None))
  found = []
  for rows in data.blocks(_BATCH):
    x, y = tf.nest.map_structure(tf.convert_to_tensor, rows[:2])
    outputs = model(x, training=False)
    targets = losses.targets(data_sources.targets_or_none(y), outputs)
    values = tf.cast(losses(targets, outputs), tf.float64)
    found.append(tf.reshape(values, [tf.shape(values)[0], -1]).numpy().sum(1))
  values = np.concatenate(found)
  if np.any(np.isnan(values)):
    raise ValueError(
        'Expected records whose losses are numbers, got '
        f'{int(np.sum(np.isnan(values)))} of {values.size} that are not.')
  return np.clip(values, -1e300, 1e300)  # So that differences of losses are finite.
