"""Noise correlated over steps in whole numbers: what is released, moved and kept."""

from fractions import Fraction
import json
import math
import zipfile

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from tests.keras.tiny import MEAN, plan_of, privatized, X, Y
from tests.representatives import representatives
import tfcactus
from tfcactus import correlated
from tfcactus.keras import Audit, CyclicBatches, make_run_card
from tfcactus.keras.data.batch_marks import Place
from tfcactus.keras.gradients import clipping
from tfcactus.keras.ledger import lineage
from tfcactus.keras.step import step_noise
from tfcactus.noise import discrete_gaussian

CLIP = tf.constant(0.7, tf.float64)
BANDED = correlated.BandedStrategy(4)
STRATEGIES = [BANDED.solve(40), correlated.BlockedStrategy(4).solve(40)]


def places(steps, start=0):
  return [Place(1, start + step, (start + step) % 40, 40) for step in range(steps)]


def released(sampler, sums, at):
  """Returns whole noisy products and releases of each step: rows of two parts each."""
  whole, found, real = [], [], type(sampler).whole
  sampler.whole = lambda *args: [whole.append(each) or each
                                 for each in real(sampler, *args)]
  for row, place in zip(sums, at):
    parts = sampler.add_to([tf.constant(row[:1], tf.float64),
                            tf.constant(row[1:, None], tf.float64)], CLIP,
                           tf.constant(place, tf.int64), [tf.float64] * 2)
    assert [part.shape for part in parts] == [(1,), (row.size - 1, 1)]
    found.append(np.concatenate([part.numpy().ravel() for part in parts]))
  del sampler.whole
  return np.stack(whole), np.stack(found)


def no_noise(monkeypatch):
  monkeypatch.setattr(discrete_gaussian, 'fine_draw',
                      lambda rng, count: np.zeros(count, np.int64))


def sampler_of(strategy, sigma=1.3, seed=1):
  return step_noise.CorrelatedIntegerSampler(tfcactus.Gaussian(sigma), strategy, seed)


@representatives('strategy', STRATEGIES)
def test_releases_are_the_inverse_of_whole_numbers_with_the_noise_of_the_plan(strategy):
  sampler, sums = sampler_of(strategy), np.ones([9, 20_000])
  whole, found = released(sampler, sums, places(9))
  assert whole.dtype == np.int64 and np.any(whole % 2)
  matrix = strategy.matrix(9)
  per_unit = sampler.per_unit(float(CLIP))
  np.testing.assert_allclose(matrix @ found * per_unit, whole, rtol=0, atol=0.01)
  noise = (whole - matrix @ sums * per_unit) / discrete_gaussian.FINE_SCALE
  assert stats.kstest(noise.ravel(), 'norm').pvalue > 1e-6
  # Four standard errors, which reject a scale of 1.01.
  room = 4 / np.sqrt(2 * noise.size)
  assert abs(noise.std() - 1) < room < abs(1.01 * noise.std() - 1)
  # Noise in what is released is correlated, and smaller in sums over steps.
  assert np.std(np.sum(found - sums, 0)) < 0.8 * 3 * 1.3 * 0.7


@representatives('strategy', STRATEGIES)
def test_without_noise_the_sums_are_released(strategy, monkeypatch):
  no_noise(monkeypatch)
  sums = np.random.default_rng(0).normal(size=(11, 30))
  whole, found = released(sampler_of(strategy), sums, places(11))
  unit = sampler_of(strategy).per_unit(float(CLIP))
  np.testing.assert_allclose(whole, strategy.matrix(11) @ sums * unit, atol=0.51)
  np.testing.assert_allclose(found, sums, rtol=0, atol=30 / unit)


@representatives('strategy', STRATEGIES)
@pytest.mark.parametrize('next_place', [
    Place(2, 5, 5, 40), Place(1, 6, 6, 40), Place(1, 5, 6, 40), Place(0, 0, 0, 0)])
def test_a_step_that_does_not_follow_begins_anew(strategy, next_place, monkeypatch):
  no_noise(monkeypatch)
  sampler, sums = sampler_of(strategy), np.ones([6, 3])
  released(sampler, sums[:5], places(5))
  found, _ = released(sampler, sums[5:], [next_place])
  again, _ = released(sampler_of(strategy), sums[5:], places(1))
  np.testing.assert_array_equal(found, again)
  # A step that follows has sums of those before.
  released(sampler, sums[:5], places(5))
  found, _ = released(sampler, sums[5:], places(1, 5))
  assert np.all(found != again)
  # A sum of another size, and a step after one that failed, begin anew too.
  other, _ = released(sampler, np.ones([1, 4]), places(1, 6))
  assert np.all(other == again[0, 0])
  monkeypatch.setattr(discrete_gaussian, 'fine_draw', lambda *_: 1 / 0)
  with pytest.raises(Exception, match='division by zero'):
    released(sampler, np.ones([1, 4]), places(1, 7))
  no_noise(monkeypatch)
  after, _ = released(sampler, np.ones([1, 4]), places(1, 8))
  np.testing.assert_array_equal(after, other)


def random_strategy(rng):
  """Returns a strategy of 2 to 16 bands, entries of both signs among them."""
  bands = int(rng.integers(2, 17))
  kind = rng.integers(4)
  if kind == 0:
    return correlated.BandedStrategy(bands).solve(40)
  if kind == 1:
    return correlated.BlockedStrategy(bands).solve(40)
  signs = rng.choice([-1.0, 1.0], bands)
  if kind == 2:
    return correlated.BlockedBidiagonal(signs[1:] * rng.uniform(0.2, 1.5, bands - 1))
  wanted = np.append(3.0, signs[1:] * rng.uniform(0, 2 / bands, bands - 1))
  return correlated.BandedToeplitz(
      wanted / np.linalg.norm(wanted) * (1 - 2.0**-40))


def test_an_example_moves_its_rows_by_no_more_than_is_accounted(monkeypatch):
  """Its two steps are `bands` apart; squares of whole numbers are added exactly."""
  no_noise(monkeypatch)
  rng, nearest = np.random.default_rng(3), 0.0
  for trial in range(40):
    strategy, dim = random_strategy(rng), int(rng.integers(2, 30))
    bands = strategy.bands
    sigma = float(np.exp(rng.uniform(-3, 2))) if trial % 4 else 2.0**60
    per_draw = Fraction(discrete_gaussian.FINE_SCALE) / Fraction(sigma)
    sums = rng.normal(size=(4 * bands, dim)) * 0.7 * 10.0**rng.integers(0, 6)
    if trial % 2:  # Products that nearly cancel, next to half-way numbers.
      unit, rows = sampler_of(strategy, sigma).per_unit(0.7), strategy.rows()
      half = rng.integers(-9, 9, sums.shape) + 0.5 + rng.uniform(-1e-9, 1e-9)
      sums = np.stack([rows.next((row / unit).copy) for row in half])
    first = int(rng.integers(0, bands))
    with_it, moves = sums.copy(), (first + bands, first + 2 * bands)
    for step in moves:
      more = rng.choice([-1.0, 1.0], dim) * rng.uniform(0.3 if trial % 3 else 1, 1, dim)
      with_it[step] += more * (0.7 * (1 - 7.8e-6) / np.linalg.norm(more))
    a, _ = released(sampler_of(strategy, sigma), sums, places(4 * bands))
    b, _ = released(sampler_of(strategy, sigma), with_it, places(4 * bands))
    moved = [sum(int(x)**2 for x in row) for row in b - a]
    # Rows before, and those that no column of these steps reaches, stay.
    assert not any(moved[:moves[0]]) and not any(moved[moves[1] + bands:])
    for step in moves:
      squared = sum(moved[step:step + bands])
      bound = float(per_draw) + math.sqrt(bands * dim)
      assert math.isqrt(squared) <= bound
      assert Fraction(squared) <= Fraction(bound)**2 * (1 + Fraction(1, 2**50))
      accounted = tfcactus.arithmetic.accounted(plan_of(
          noise=tfcactus.Gaussian(sigma), arithmetic='integer', dim=dim,
          num_examples=400, sampling_prob=1 / (2 * bands), correlation=strategy,
          steps=2 * bands), tfcactus.Gaussian(sigma))
      assert math.sqrt(squared) <= (
          discrete_gaussian.FINE_SCALE / accounted.noise_multiplier)
      if trial % 4:
        nearest = max(nearest, math.sqrt(squared) / float(per_draw))
  assert nearest > 1 - 2e-5  # The bound is met: nothing less would do.


def test_all_roundings_of_a_block_may_go_one_way(monkeypatch):
  no_noise(monkeypatch)
  strategy, sigma = STRATEGIES[0], 2.0**40
  sampler, rows = sampler_of(strategy, sigma), strategy.rows()
  unit = sampler.per_unit(0.7)
  half = np.full([4, 10], 0.5 - 2.0**-30) / unit
  sums = np.stack([rows.next(row.copy) for row in half])
  with_it = sums.copy()
  with_it[0] += 2.0**-24 / unit
  a, _ = released(sampler, sums, places(4))
  b, _ = released(sampler_of(strategy, sigma), with_it, places(4))
  np.testing.assert_array_equal(b - a, np.ones([4, 10]))


def whole_plan(strategy=BANDED, **changes):
  return plan_of(**{**dict(
      arithmetic='integer', dim=21, sampling_prob=1 / 8, steps=24,
      correlation=strategy), **changes})


@representatives('strategy', [BANDED, correlated.BlockedStrategy(4)])
def test_training_releases_what_whole_numbers_say(strategy, tmp_path):
  plan, weights, whole = whole_plan(strategy), [], []
  private = privatized(plan, None, tf.keras.optimizers.SGD(plan.expected_batch_size),
                       MEAN)
  sampler = private._step._sampler
  assert type(sampler) is step_noise.CorrelatedIntegerSampler
  real = sampler.whole
  sampler.whole = lambda *args: [whole.append(each) or each for each in real(*args)]
  keep = lambda *_, **__: weights.append(np.concatenate([
      each.ravel() for each in private.inner.get_weights()]))
  private.fit(CyclicBatches(X, Y, plan=plan), epochs=3, verbose=0,
              callbacks=[tf.keras.callbacks.LambdaCallback(
                  on_train_begin=keep, on_train_batch_end=keep)])
  released_sums = -np.diff(np.stack(weights), axis=0)
  assert len(whole) == 24 and all(each.dtype == np.int64 for each in whole)
  expected = np.linalg.solve(plan.strategy.matrix(24), np.stack(whole).astype(float))
  np.testing.assert_allclose(
      released_sums, expected / sampler.per_unit(1.0), rtol=1e-5, atol=1e-5)
  found = private.guarantee()
  floats = plan_of(**{**plan.__dict__, 'arithmetic': 'float'}).guarantee(3)
  assert found == plan.guarantee(3)
  assert floats.upper < found.upper < floats.upper * (1 + 1e-7)
  card = json.loads(json.dumps(make_run_card(private)))
  assert card['mode'] == 'integer' and card['correlation']['bands'] == 4
  assert 'multiplied by the matrix of the correlation and rounded' in card['sums']
  assert 'multiplied by the matrix of the correlation, and' in card['statement']
  # Sums of gradients are kept for later steps, and never saved.
  kept = sampler._product._kept if 'Banded' in str(strategy) else [
      sampler._product.next(np.ones(21))]
  private.save(tmp_path / 'model.keras')
  with zipfile.ZipFile(tmp_path / 'model.keras') as file:
    everything = b''.join(map(file.read, file.namelist()))
  for row in kept:
    for dtype in (np.float32, np.float64):
      assert row.astype(dtype)[:4].tobytes() not in everything
  loaded = tf.keras.models.load_model(tmp_path / 'model.keras')
  assert loaded.plan == plan and loaded.guarantee() == found


@pytest.mark.more
def test_a_seed_repeats_a_run_and_journals_know_the_plan(tmp_path):
  plan, ends = whole_plan(), []
  for _ in range(2):
    tf.keras.utils.set_random_seed(1)
    private = privatized(plan, seed=3)
    private.fit(CyclicBatches(X, Y, plan=plan, seed=4), epochs=2, verbose=0)
    ends.append(private.inner.get_weights()[0])
  np.testing.assert_array_equal(*ends)
  path = tmp_path / 'journal'
  privatized(plan, journal=path).fit(CyclicBatches(X, Y, plan=plan), verbose=0)
  assert privatized(plan, journal=path).guarantee() == plan.guarantee(1)
  others = (whole_plan(correlated.BlockedStrategy(4)), whole_plan(dim=None),
            whole_plan(arithmetic='float', dim=None), whole_plan(None))
  for other in others:
    with pytest.raises(ValueError, match='journal of another'):
      privatized(other, journal=path)
  assert len({lineage.plan_number(each) for each in (plan, *others)}) == 5


@pytest.mark.more
def test_an_audit_of_correlated_whole_numbers_does_not_refute_epsilon():
  plan = whole_plan(dim=None)
  private = privatized(plan, audit=Audit(canaries=100))
  private.fit(CyclicBatches(X, Y, plan=plan), epochs=3, verbose=0)
  assert private.guarantee() == plan.guarantee(3)
  assert private._step._sampler._rows._kept.shape == (3, 21 + 200)
  found = private.audit(significance=1e-7, families=False)
  assert found.findings and not found.refuted


def test_draws_alone_are_the_correlated_noise():
  sampler, strategy = sampler_of(STRATEGIES[0], 2.0), STRATEGIES[0]
  noise = np.stack([sampler.draw(20_000, tf.constant(place, tf.int64)).numpy()
                    for place in places(6)])
  white = strategy.matrix(6) @ noise / 2
  assert abs(white.std() - 1) < 5 / np.sqrt(2 * white.size)
  assert np.corrcoef(noise)[3, 4] < -0.3
  assert np.std(sampler.draw(20_000)) > 1.9  # Without a place it begins anew.


def test_one_band_is_independent_noise():
  plan = whole_plan(correlated.BandedStrategy(1))
  assert type(step_noise.sampler(plan, 1)) is step_noise.IntegerSampler
  with pytest.raises(ValueError, match="arithmetic=integer, whose .*randomness='host'"):
    step_noise.sampler(whole_plan(), 1, 'device')


def test_roundings_of_products_are_covered_or_refused():
  clipping.check_roundings(1_200_000, 256, 16)
  clipping.check_roundings(2_700_000, 2700, 1)
  with pytest.raises(ValueError, match=r'4 \* 3000 bands\) up to .*No n meets this'):
    clipping.check_roundings(2_700_000, 2700, 3000)
  plan = whole_plan()
  private = privatized(plan, physical_batch_size=8)
  with pytest.MonkeyPatch.context() as patch:
    # 41 (8 + 41 / 8 + 3 + 16) with the products, 41 (8 + 41 / 8 + 3) without.
    patch.setattr(clipping, 'MOST_ROUNDINGS', 700.0)
    clipping.check_roundings(40, 8)
    with pytest.raises(ValueError, match='4 bands'):
      private.fit(CyclicBatches(X, Y, plan=plan), verbose=0)
