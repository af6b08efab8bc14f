"""Training in whole numbers: what is released, at what cost, and what is refused."""

import dataclasses
from fractions import Fraction
import json

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from tests.keras.tiny import inner, MEAN, plan_of, poisson, privatized, X, Y
from tests.representatives import representatives
import tfcactus
from tfcactus import AdaptiveClipping, NoisyAccuracy, release
from tfcactus.keras import (
  AllocatedBatches,
  Audit,
  FixedSizeBatches,
  make_run_card,
  tuning,
)
from tfcactus.keras.gradients import clipping, engine, forms
from tfcactus.keras.ledger import lineage
from tfcactus.keras.step import clip_norm, right_answers, step_noise
from tfcactus.noise import discrete_gaussian

CLIP = tf.constant(0.7, tf.float64)


def whole_plan(**changes):
  return plan_of(**{**dict(arithmetic='integer', dim=21), **changes})


def released(sums, dtype=tf.float64, sigma=1.3, seed=1):
  """Returns the release of float64 sums of sensitivity `CLIP`, and units per one."""
  sampler = step_noise.IntegerSampler(tfcactus.Gaussian(sigma), seed=seed)
  found = sampler.add_to(
      [tf.constant(part, tf.float64) for part in sums], CLIP, None,
      [dtype for _ in sums])
  return [part.numpy() for part in found], sampler.per_unit(float(CLIP))


@pytest.mark.parametrize('dtype', [tf.float64, tf.float32])
def test_releases_are_whole_numbers_of_a_unit_with_the_noise_of_the_plan(dtype):
  sums = [np.zeros([300, 400]), np.full([7], 1e3)]
  found, per_unit = released(sums, dtype)
  for part, given in zip(found, sums):
    assert part.dtype == dtype.as_numpy_dtype and part.shape == given.shape
    if dtype == tf.float64:  # Whole numbers below 2^53 survive the scaling.
      whole = np.rint(part * per_unit)
      assert np.array_equal(part, whole * (1 / per_unit))
      assert np.any(whole % 2)
  assert np.abs(found[1] - 1e3).max() < 6
  scaled = found[0].reshape(-1) / (1.3 * 0.7)
  assert stats.kstest(scaled, 'norm').pvalue > 1e-3
  # Four standard errors, which reject a scale of 1.01.
  assert abs(scaled.std() - 1) < 4 / np.sqrt(2 * scaled.size) < 0.0085
  assert abs(1.01 * scaled.std() - 1) > 4 / np.sqrt(2 * scaled.size)
  assert discrete_gaussian.SCALE / per_unit == pytest.approx(1.3 * 0.7, rel=1e-15)


def test_other_draws_of_the_sampler_are_in_units_of_sensitivity():
  sampler = step_noise.IntegerSampler(tfcactus.Gaussian(2.0), seed=1)
  assert abs(sampler.draw(40_000).numpy().std() / 2 - 1) < 0.02


def test_huge_sums_do_not_overflow():
  found, per_unit = released([np.array([1e290, -1e290])])
  np.testing.assert_allclose(found[0] * per_unit, [2.0**62, -2.0**62], rtol=1e-6)


def whole_sums(rows, order, monkeypatch):
  """Returns the whole sum, without noise, of float32 rows in physical batches of 8."""
  monkeypatch.setattr(discrete_gaussian, 'draw',
                      lambda rng, count: np.zeros(count, np.int64))
  total = tf.zeros(rows.shape[1:], tf.float64)
  for start in range(0, len(order), 8):
    part = np.zeros((8, rows.shape[1]), np.float32)
    part[:len(order[start:start + 8])] = rows[order[start:start + 8]]
    total += clipping.clip_and_sum([forms.Dense(tf.constant(part), part.shape[1:])],
                                   CLIP, tf.reduce_any(part != 0, 1))[0][0]
  sampler = step_noise.IntegerSampler(tfcactus.Gaussian(1.3))
  per_unit = sampler.per_unit(float(CLIP))
  return sampler.whole([total.numpy()], per_unit)[0], per_unit


def test_an_example_moves_whole_sums_by_no_more_than_is_accounted(monkeypatch):
  rng = np.random.default_rng(0)
  for trial in range(15):
    dim = int(rng.integers(1, 40))
    rows = rng.normal(size=(rng.integers(2, 60), dim)) * np.exp(
        rng.uniform(-6, 6, size=(1, 1)))
    if trial % 3 == 0:  # Others cancel each other.
      rows[1::2] = -rows[:-1:2][:len(rows[1::2])]
    rows = rows.astype(np.float32)
    with_it, unit = whole_sums(rows, np.arange(len(rows)), monkeypatch)
    without, _ = whole_sums(rows, rng.permutation(np.arange(1, len(rows))), monkeypatch)
    moved = np.sqrt(float(np.sum((with_it - without).astype(float)**2)))
    assert moved <= 0.7 * unit + np.sqrt(dim)


COUNTS = dict(adaptive_clipping=AdaptiveClipping(clipped_count_stddev=2.0),
              noisy_accuracy=NoisyAccuracy(1.1))


def whole_vector(plan, rows, answers, order, monkeypatch):
  """Returns the whole sum and counts of rows, without noise, and the sensitivity.

  `answers` are the shares of right answers less 1/2.
  """
  total, halves = tf.zeros(rows.shape[1:], tf.float64), tf.zeros([], tf.float64)
  for start in range(0, len(order), 8):
    part = np.zeros((8, rows.shape[1]), np.float32)
    part[:len(order[start:start + 8])] = rows[order[start:start + 8]]
    (more,), unclipped = clipping.clip_and_sum(
        [forms.Dense(tf.constant(part), part.shape[1:])],
        tf.constant(plan.l2_norm_clip, tf.float64), tf.reduce_any(part != 0, 1))
    total, halves = total + more, halves + unclipped
  monkeypatch.setattr(right_answers, 'count', lambda *_: tf.constant(sum(
      np.round(answers[order] / right_answers.FINENESS)) * right_answers.FINENESS))
  vector, scale = clip_norm.ClipNorm(plan).to_release(engine.BatchResult(
      [total], halves, *[None] * 6))
  sampler = step_noise.IntegerSampler(plan.noise, seed=1)
  monkeypatch.setattr(discrete_gaussian, 'draw',
                      lambda rng, count: np.zeros(count, np.int64))
  whole = sampler.whole([part.numpy() for part in vector],
                        sampler.per_unit(float(scale)))
  assert all(part.dtype == np.int64 for part in whole)
  return [int(entry) for part in whole for entry in np.ravel(part)]


def test_an_example_moves_sum_and_counts_by_no_more_than_is_accounted(monkeypatch):
  rng, nearest = np.random.default_rng(0), 0
  for trial in range(24):
    dim, count = int(rng.integers(1, 40)), int(rng.integers(2, 60))
    rows = rng.normal(size=(count, dim))
    rows *= np.exp(rng.uniform(-6, 6)) / np.linalg.norm(rows, axis=1, keepdims=True)
    if trial % 3 == 0:  # Others cancel each other.
      rows[1::2] = -rows[:-1:2][:len(rows[1::2])]
    if trial % 4 == 0:  # All are next to the clipping norm.
      rows *= 0.7 / np.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows.astype(np.float32)
    answers = rng.choice([-0.5, 0.5, 1 / 6, 0.1], count)
    answers[0] = rng.choice([-0.5, 0.5])
    plan = whole_plan(noise=tfcactus.Gaussian(float(np.exp(rng.uniform(-6, 0.5)))),
                      dim=dim, l2_norm_clip=0.7, **COUNTS)
    with_it = whole_vector(plan, rows, answers, np.arange(count), monkeypatch)
    without = whole_vector(plan, rows, answers, rng.permutation(
        np.arange(1, count)), monkeypatch)
    moved = sum((a - b)**2 for a, b in zip(with_it, without))**0.5
    per_draw = discrete_gaussian.SCALE / plan.noise.noise_multiplier
    assert moved <= per_draw + np.sqrt(dim + 2)
    assert moved <= discrete_gaussian.SCALE / tfcactus.arithmetic.accounted(
        plan, plan.noise).noise_multiplier
    nearest = max(nearest, moved / per_draw)
  assert nearest > 1 - 2e-5  # The bound is met: nothing less would do.


@pytest.mark.parametrize('examples', [3, 40, 60_000, 6_000_000])
def test_rounding_moves_a_count_by_no_more_than_its_weight_has_room_for(examples):
  rng = np.random.default_rng(1)
  for _ in range(30):
    stddev = float(np.exp(rng.uniform(0.2, 4)))
    plan = whole_plan(num_examples=examples, delta=1e-9, adaptive_clipping=(
        AdaptiveClipping(clipped_count_stddev=stddev)), noise=tfcactus.Gaussian(
            float(stddev * rng.uniform(0.01, 1.99))), l2_norm_clip=rng.uniform(0.1, 9))
    norm, sampler = clip_norm.ClipNorm(plan), step_noise.IntegerSampler(plan.noise)
    count = rng.integers(-examples, examples, 20) / 2
    count[:2] = examples / 2, -examples / 2 - 0.5
    scaled = []
    for each in (count, count + 0.5):
      vector, scale = norm.to_release(engine.BatchResult(
          [], tf.constant(each), *[None] * 6))
      scaled.append(vector[-1].numpy() * sampler.per_unit(float(scale)))
    for without, with_it in zip(*scaled):
      # A count that moves by 1/2 moves by half the weight, to twelve roundings.
      assert Fraction(with_it) - Fraction(without) <= Fraction(
          discrete_gaussian.SCALE) / Fraction(2 * stddev) * (1 + Fraction(12, 2**53))


def test_a_step_draws_once_for_weights_and_counts_by_the_norm_of_that_step(
    monkeypatch):
  plan, drawn, seen, draw = whole_plan(**COUNTS), [], [], discrete_gaussian.draw
  monkeypatch.setattr(discrete_gaussian, 'draw', lambda rng, count: drawn.append(
      count) or draw(rng, count))
  private = privatized(plan, seed=4)
  norm, update = private._step.norm, private._step.norm.update_from
  norm.update_from = lambda noisy: tf.numpy_function(
      lambda *parts: seen.append(parts) or np.int64(0), [norm.value(), *noisy[-2:]],
      tf.int64) is None or update(noisy)
  private.fit(poisson(seed=3), epochs=2, verbose=0)
  assert sum(drawn) == 8 * (21 + 2) and drawn.count(1) == 8 * 2
  # Each count is a whole number of the unit of the norm that clipped its step.
  clips, *counts = np.array(seen).T
  assert len(set(clips)) == 8 and clips[0] == 1
  for i, stddev in enumerate((2.0, 1.1)):
    per_unit = discrete_gaussian.SCALE / (clips * plan.release_sensitivity)
    whole = counts[i] * per_unit
    np.testing.assert_allclose(whole, np.rint(whole), rtol=0, atol=1e-5)
    assert np.any(np.rint(whole) % 2)
    assert norm._weights[i] == pytest.approx(
        plan.release_sensitivity / stddev, rel=1e-13)
  moved = clips[:-1] * np.exp(-0.2 * (np.clip(
      counts[0] / (clips * norm._weights[0]) / 10 + 0.5, 0, 1) - 0.5)[:-1])
  np.testing.assert_allclose(clips[1:], moved, rtol=1e-14)
  assert private.guarantee().upper == plan.guarantee(100).upper  # All that may run.


@pytest.mark.more
def test_the_noise_of_counts_has_the_law_of_the_plan():
  sampler = step_noise.IntegerSampler(tfcactus.Gaussian(1.3), seed=7)
  parts = sampler.whole([np.float64(0)] * 25_000, 1.0)
  assert parts[0].shape == ()
  scaled = np.array(parts) / discrete_gaussian.SCALE
  assert stats.kstest(scaled, 'norm').pvalue > 1e-3
  # Three standard errors, which reject a scale of 1.02.
  room = 3 / np.sqrt(2 * scaled.size)
  assert abs(scaled.std() - 1) < room and abs(1.02 * scaled.std() - 1) > room


def test_counts_beside_sums_are_on_the_card():
  plan = whole_plan(**COUNTS)
  private = privatized(plan)
  logs = private.fit(poisson(), verbose=0).history
  assert 'noisy_accuracy' in logs and private.guarantee().upper == plan.guarantee(
      100).upper
  card = make_run_card(private)
  assert 'weights and counts' in card['statement'] and card['mode'] == 'integer'
  assert card['adaptive_clipping']['clipped_count_stddev'] == 2.0
  floats = dataclasses.replace(plan, arithmetic='float').guarantee(4)
  assert floats.upper < plan.guarantee(4).upper < floats.upper * (1 + 1e-7)


def test_training_is_accounted_for_as_the_plan_says_and_the_card_names_the_mode():
  plan = whole_plan()
  private = privatized(plan)
  private.fit(poisson(), epochs=2, verbose=0)
  guarantee = private.guarantee()
  assert guarantee == plan.guarantee(8)
  floats = dataclasses.replace(plan, arithmetic='float').guarantee(8)
  assert floats.upper < guarantee.upper < floats.upper * (1 + 1e-7)
  card = json.loads(json.dumps(make_run_card(private)))
  assert card['mode'] == 'integer' and 'whole numbers' in card['sums']
  assert "arithmetic='integer'" in card['statement']
  assert not any('which is float64' in each for each in card['not_covered'])
  beside = dataclasses.replace(plan, releases=[
      tfcactus.accounting.noise_event(tfcactus.Gaussian(9.0))])
  lines = make_run_card(privatized(beside))['not_covered']
  assert any('noise of releases_beside' in each for each in lines)
  whole = dataclasses.replace(plan, releases=[release.histogram(
      [1, 2], num_bins=3, noise=tfcactus.Gaussian(9.0), arithmetic='integer')])
  lines = make_run_card(privatized(whole))['not_covered']
  assert not any('noise of releases_beside' in each for each in lines)


@representatives('options', [
    dict(clipping='per_layer'), dict(clipping='automatic'),
    dict(engine='vectorized'), dict(augmentation_multiplicity=2)])
def test_kinds_of_steps_train(options):
  private = privatized(whole_plan(), **options)
  private.fit(poisson(), verbose=0)
  assert private.guarantee() == whole_plan().guarantee(4)


@representatives('batches', [
    lambda: AllocatedBatches(X, Y, 4), lambda: FixedSizeBatches(X, Y, 10)])
@pytest.mark.more
def test_other_batches_train(batches):
  private = privatized(whole_plan())
  private.fit(batches(), verbose=0)
  found, plan = private.guarantee(), whole_plan()
  assert found.upper == plan.guarantee(
      found.steps, sampling=private._ledger.ledger().scheme).upper


def test_a_saved_model_keeps_the_mode(tmp_path):
  private = privatized(whole_plan(), loss=MEAN)
  private.fit(poisson(), verbose=0)
  private.save(tmp_path / 'model.keras')
  loaded = tf.keras.models.load_model(tmp_path / 'model.keras')
  assert loaded.plan == private.plan and loaded.plan.arithmetic == 'integer'
  assert loaded.guarantee() == private.guarantee()


def test_steps_of_the_two_modes_are_told_apart():
  plans = whole_plan(), whole_plan(dim=None), plan_of(dim=21)
  assert len({lineage.plan_number(plan) for plan in plans}) == 3


@pytest.mark.parametrize('options, words', [
    (dict(audit=Audit(canaries=100)), 'integer.* and audit=, .*Leave dim out'),
    (dict(account='budget'), "arithmetic='float' with account=.*not hold how far")])
def test_options_without_a_proof_are_refused(options, words):
  with pytest.raises(ValueError, match=words):
    privatized(whole_plan(), **options)


@pytest.mark.more
def test_canaries_are_whole_numbers_at_any_place_and_the_claim_is_the_guarantee(
    monkeypatch):
  monkeypatch.setattr(discrete_gaussian, 'draw',
                      lambda rng, count: np.zeros(count, np.int64))
  plan = whole_plan(dim=None)
  private = privatized(plan, audit=Audit(canaries=100), physical_batch_size=8)
  private.fit(poisson(), epochs=2, verbose=0)
  per_unit = step_noise.IntegerSampler(plan.noise).per_unit(1.0)
  found, drawn = [], 0
  for averages, numbers, _ in private.canaries._steps:
    sums = averages * plan.expected_batch_size
    assert sums.dtype == np.float64 and not np.any(np.delete(sums, numbers, 1))
    found += list(sums[:, numbers].ravel())
    drawn += numbers.size
  # Drawn into other places of other batches, beside other examples.
  assert drawn > 50 and len(set(found)) == 1
  whole = found[0] * per_unit
  assert abs(whole - np.rint(whole)) < 1e-5
  assert (1 - 1.01e-5) * per_unit / 2**0.5 < whole <= per_unit / 2**0.5 + 0.5
  monkeypatch.undo()
  private = privatized(plan, audit=Audit(canaries=100))
  private.fit(poisson(), epochs=2, verbose=0)
  claim = private.audit(families=False).claimed
  assert claim == private.guarantee().upper == plan.guarantee(8).upper
  assert claim > dataclasses.replace(plan, arithmetic='float').guarantee(8).upper


def test_private_searches_are_refused():
  with pytest.raises(ValueError, match="arithmetic='float' with a private search"):
    tuning._event(whole_plan(), {})


@pytest.mark.parametrize('sampler', [
    step_noise.IntegerSampler, step_noise.NoiseSampler])
@pytest.mark.parametrize('flags', [None, '--tf_xla_auto_jit=2'])
def test_xla_is_refused(flags, sampler, monkeypatch):
  def add_noise():
    sampler(tfcactus.Gaussian(1.0), seed=1).add_to(
        [tf.zeros(3, tf.float64)], CLIP, None, [tf.float32])

  if flags:  # Known too late here to have an effect.
    monkeypatch.setenv('TF_XLA_FLAGS', flags)
  else:
    tf.config.optimizer.set_jit('autoclustering')
  try:
    with pytest.raises((ValueError, tf.errors.OpError), match='Expected no XLA'):
      add_noise()
  finally:
    tf.config.optimizer.set_jit('')
    monkeypatch.delenv('TF_XLA_FLAGS', raising=False)
  add_noise()


def test_sums_whose_rounding_the_margin_does_not_cover_are_refused():
  clipping.check_roundings(1_200_000, 256)
  with pytest.raises(ValueError, match='Give physical_batch_size=1095') as error:
    clipping.check_roundings(1_200_000, 1_000_000)
  assert 'not enough' not in str(error.value)
  # N (n + N / n + 2 + replicas), as the message says, just within and beyond 3.4e10.
  clipping.check_roundings(99_999, 339_996)
  with pytest.raises(ValueError, match=r'\(n \+ N / n \+ 2 \+ 1 replicas\) up to '
                     r'3.4e\+10 .*\) \+ 1, got n=339997 for N=100000:'):
    clipping.check_roundings(99_999, 339_997)
  with pytest.raises(ValueError, match='No n meets this'):
    clipping.check_roundings(10**8, 256)
  private = privatized(whole_plan(), inner(), physical_batch_size=8)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(clipping, 'MOST_ROUNDINGS', 10.0)
    with pytest.raises(ValueError, match='physical batch size n'):
      private.fit(poisson(), verbose=0)
