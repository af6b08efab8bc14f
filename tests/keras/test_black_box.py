"""Attacks by losses: what they find, what they do not, and which splits they refuse."""

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from tests.keras.tiny import inner, NONE, plan_of, privatized, X, Y
import tfcactus
from tfcactus import keras as private
from tfcactus.keras import black_box


def by_loss(factor=1.0):
  """Returns a model whose loss of a record (x, 0) is x."""
  model = tf.keras.Sequential([
      tf.keras.layers.Input((1,)), tf.keras.layers.Rescaling(factor)])
  model.compile('sgd', lambda y, out: tf.reduce_sum(out - y, -1))
  return model


def records(losses):
  return np.asarray(losses, np.float32)[:, None], np.zeros((len(losses), 1), np.float32)


def attacked(members, others, **options):
  return private.black_box_audit(
      by_loss(), records(members), records(others), by_fair_coins=True, **options)


def test_an_attack_on_a_model_that_remembers():
  rng = np.random.default_rng(0)
  found = attacked(rng.normal(-4, size=1500), rng.normal(size=1500))
  assert found.area == pytest.approx(stats.norm.cdf(4 / 2**0.5), abs=0.01)
  assert {each.name.split(' (')[0] for each in found.bounds.findings} == {'One run'}
  assert all(each.epsilon > 1 for each in found.bounds.findings)
  assert all(a[1].lower <= a[0] <= a[1].upper for a in found.rates.values())
  said = str(found)
  assert 'False positive rate' not in said and 'between' in said
  assert 'One run (Steinke' in said and 'No claim was tried' in said


def test_losses_that_are_infinite_under_both_models_have_a_score():
  members, others = [np.inf, *range(100)], [np.inf, *range(200, 300)]
  found = attacked(members, others, reference=by_loss())
  assert found.area == 0.5


@pytest.mark.more
def test_nothing_is_found_where_nothing_leaks():
  rng = np.random.default_rng(1)
  found = [attacked(*rng.normal(size=(2, 200))) for _ in range(20)]
  bounds = np.array([[each.epsilon for each in one.bounds.findings] for one in found])
  # TensorFlow Privacy's attacks report a positive epsilon in 97 of 100 such draws.
  assert np.sum(np.any(bounds > 0, axis=1)) <= stats.binom.ppf(0.999, 20, 0.1)
  assert abs(np.mean([one.area for one in found]) - 0.5) < 0.03


@pytest.mark.parametrize('ties', [False, True])
def test_intervals_cover_the_true_rate(ties):
  """Against the normal distribution function, which the interval does not know."""
  rng, missed = np.random.default_rng(2), 0
  change = np.round if ties else (lambda value: value)
  for _ in range(300):
    members = np.sort(change(rng.normal(1, size=400)))
    others = np.sort(change(rng.normal(size=400)))
    interval = black_box._interval(members, others, 0.1, 0.05)
    cut = stats.norm.isf(0.1)
    if ties:  # Randomised between the two thresholds around.
      low, high = (stats.norm.sf(np.array([1.5, 0.5]) - shift) for shift in (0, 1))
      true = high[0] + (0.1 - low[0]) / (low[1] - low[0]) * (high[1] - high[0])
    else:
      true = stats.norm.sf(cut - 1)
    missed += not interval.lower <= true <= interval.upper
  assert missed <= stats.binom.ppf(0.999, 300, 0.05)
  assert black_box._interval(members, others, 1e-3, 0.05).lower == 0
  assert ties or interval.upper - interval.lower < 0.6


def test_a_reference_is_subtracted():
  rng = np.random.default_rng(3)
  hard, gain = rng.normal(scale=30, size=1000), np.repeat([-1.0, 0.0], 500)
  x = np.stack([hard + gain, hard], 1).astype(np.float32)
  y = np.zeros((1000, 1), np.float32)

  def model(column):
    made = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(
        1, use_bias=False)])
    made.set_weights([np.eye(2, dtype=np.float32)[:, column:column + 1]])
    return made

  loss = lambda y, out: tf.reduce_sum(out - y, -1)
  alone, both = (private.black_box_audit(
      model(0), (x[:500], y[:500]), (x[500:], y[500:]), reference, loss=loss,
      by_fair_coins=True) for reference in (None, model(1)))
  assert alone.area < 0.6 and both.area > 0.99


def test_private_models_and_pictures(tmp_path):
  model = privatized()
  found = private.black_box_audit(
      model, (X[:20], Y[:20]), (X[20:], Y[20:]), by_fair_coins=True)
  losses = NONE(Y, model(X)).numpy()
  assert found.area == pytest.approx(np.mean(
      losses[:20, None] < losses[None, 20:]), abs=1e-6)
  found.picture(tmp_path / 'roc.png')
  assert (tmp_path / 'roc.png').stat().st_size > 1000


@pytest.mark.parametrize('fraction', [0.1, 0.5, 0.8])
def test_sides_of_a_split_are_kept_as_fair_coins_would_put_them(fraction, monkeypatch):
  x = np.arange(4000, dtype=np.float32)[:, None]
  sides = private.Split(fraction).sides(x, np.zeros((4000, 1), np.float32))
  seen = []

  def minus_inputs(model, data, loss):
    seen.append(data.rows(np.arange(data.num_examples))[0][:, 0])
    return -seen[-1].astype(float)

  monkeypatch.setattr(black_box, '_losses', minus_inputs)
  found = private.black_box_audit(by_loss(), *sides)
  every = [set(each.rows(np.arange(each.num_examples))[0][:, 0]) for each in sides]
  assert all(set(part) <= side for part, side in zip(seen, every))
  kept, less = sum(map(len, seen)), min(fraction, 1 - fraction)
  assert abs(kept - 8000 * less) < 5 * (4000 * less) ** 0.5 * 2
  # Six standard errors.
  assert abs(len(seen[0]) - kept / 2) < 6 * 0.5 * kept**0.5
  # Neither side has more early or late records than the other.
  assert abs(found.area - 0.5) < 6 * (1 / 3 / kept) ** 0.5
  assert not found.bounds.note


def test_records_that_took_part_in_private_validation_are_named():
  sides = private.Split(0.5, key=bytes(32)).sides(X, Y)
  validation = private.PrivateValidation(
      sides.validation, noise=tfcactus.Gaussian(20.0), releases=1)
  model = privatized(plan_of(
      num_examples=sides.training.num_examples, releases=[validation]))
  found = private.black_box_audit(model, *sides)
  assert 'took part in private validation' in str(found)


def test_sides_that_no_coin_made_are_refused():
  model, coin = by_loss(), private.Split(0.5)
  by_place = private.Split(by='position', rule=lambda place: place % 2 == 0)
  users = private.Split(0.5, key=bytes(32)).sides(
      X, Y, units=np.arange(40) // 2, examples_per_unit=2)
  one, other = coin.sides(X, Y), private.Split(0.5).sides(X, Y)
  for pair in (by_place.sides(X, Y), users, one[::-1], (one.training, other.validation),
               (one.training, (X, Y)), (one.training, one.training)):
    with pytest.raises(ValueError, match='one Split by=.coin., of records'):
      private.black_box_audit(model, *pair)


@pytest.mark.parametrize('change, said', [
    ({'by_fair_coins': False}, 'by a coin of its own'),
    ({'by_fair_coins': 1}, 'by a coin of its own'),
    ({'held_out': (X[:2], Y[:2])}, 'as fair coins give, got 39 and 2'),
    ({'held_out': X}, r'held_out to be \(x, y\)'),
    ({'held_out': (X, np.append(Y, 0))}, '40 examples in x and 41 in y'),
    ({'held_in': (X[:0], Y[:0])}, 'same length of at least one'),
    ({'held_in': (X * np.nan, Y)}, 'whose losses are numbers, got 40 of 40'),
    ({'model': inner()}, 'Expected a compiled model, or loss=')])
def test_splits_and_records_that_prove_nothing_are_refused(change, said):
  given = {'model': privatized(), 'held_in': (X[1:], Y[1:]), 'held_out': (X, Y),
           'by_fair_coins': True, **change}
  with pytest.raises(ValueError, match=said):
    private.black_box_audit(**given)


class _Triples:
  """Stands in for a source of (x, y, weight)."""

  def __init__(self, losses):
    self._parts = (*records(losses), np.full(len(losses), 0.5))

  def __len__(self):
    return len(self._parts[0])

  def __getitem__(self, i):
    return tuple(part[i] for part in self._parts)


def test_weights_of_a_source_are_not_used():
  sides = np.random.default_rng(5).normal(size=(2, 60))
  found = private.black_box_audit(
      by_loss(), *((_Triples(losses), None) for losses in sides), by_fair_coins=True)
  assert str(found) == str(attacked(*sides))


def test_records_without_targets_are_refused_by_a_loss_of_targets():
  data = [(records(losses)[0], None) for losses in
          np.random.default_rng(6).normal(size=(2, 60))]
  with pytest.raises(ValueError, match='targets'):
    private.black_box_audit(by_loss(), *data, by_fair_coins=True)


def test_a_reference_takes_the_loss_of_the_model():
  sides, reference = np.random.default_rng(7).normal(size=(2, 60)), by_loss(0.0)
  found = attacked(*sides, reference=reference)
  plain = tf.keras.Sequential(reference.layers)
  assert str(found) == str(attacked(*sides, reference=plain))
