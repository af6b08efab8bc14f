"""Releases in whole numbers: sensitivity, leak, law, cost, and what is refused."""

import dataclasses
from fractions import Fraction
import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from scipy import stats

from tests.noise.tables import bounded_scalar, gaussian_scalar, wavy_scalar
from tests.release import test_audit
from tests.representatives import representatives
import tfcactus
from tfcactus import accounting, noise, release
from tfcactus.accounting import event_configs
from tfcactus.noise import discrete_gaussian, floored_table, library, rounded_laplace
from tfcactus.release import noise_sources, whole_numbers

LAWS = [noise.Gaussian(2.0), noise.Laplace(2.0)]
TABLES = {'tail': gaussian_scalar(0.7), 'cactus': library.get('cactus-budget0.5'),
          'bounded': bounded_scalar(0.7, cells=40)}


SCALES = {noise.Gaussian: discrete_gaussian.SCALE, noise.Laplace: rounded_laplace.SCALE}


def scaled(law, scale=1.0, step=1.0, coordinates=1, rounding=1.0):
  return whole_numbers.scaled(law, scale, step, coordinates, rounding)


@pytest.mark.parametrize('unit', [0.125, 2.0**31 / 3, 5.0, 2.0**-30])
def test_steps_are_scaled_exactly_and_rounded_once(unit):
  unit = math.floor(math.frexp(unit)[0] * 2**20) * math.ldexp(
      1, math.frexp(unit)[1] - 20)
  rng = np.random.default_rng(0)
  most = min(2.0**62 / unit, 2.0**62)
  steps = np.rint(rng.uniform(-1, 1, 300) * np.exp(
      rng.uniform(0, math.log(most), 300))).astype(np.int64)
  steps[:4] = 0, 1, -1, int(most * (1 - 2.0**-20))
  for given, found in zip(steps.tolist(), whole_numbers.rounded(steps, unit).tolist()):
    assert abs(given * Fraction(unit) - found) <= Fraction(1, 2) + Fraction(1, 2**50)
  if unit > 1:
    with pytest.raises(ValueError, match='2\\^30 standard deviations'):
      whole_numbers.rounded(np.array([int(1.01 * most)]), unit)


@pytest.mark.parametrize('law', LAWS)
@pytest.mark.parametrize('sensitivity, resolution', [
    (1.0, 1.0), (3.7, 2.0**-40), (1e-3, 2.0**-12), (0.9, None)])
def test_rounding_keeps_to_the_sensitivity_that_is_accounted_for(
    law, sensitivity, resolution):
  rng = np.random.default_rng(1)
  for size in (0.5, 1.0, 100.0):
    own = dataclasses.replace(law, **{
        dataclasses.fields(law)[0].name: size})
    for dim, norm, rounding in ((1, 1, 1.0), (9, 2, 3.0), (9, 1, 9.0)):
      value = rng.normal(size=dim) * 40
      step = resolution or noise_sources.step_below(sensitivity, 20)
      whole = np.rint(value / step).astype(np.int64)
      moved = rng.normal(size=dim)
      moved = np.trunc(moved * sensitivity / np.linalg.norm(moved, norm) / step
                      ).astype(np.int64)
      made = scaled(own, sensitivity, step, dim, rounding)
      change = np.linalg.norm(
          (whole_numbers.rounded(whole + moved, made.unit) -
           whole_numbers.rounded(whole, made.unit)).astype(float), norm)
      allowed = Fraction(SCALES[type(own)]) / Fraction(size)
      assert change <= allowed
      # So for all values: the scaled sensitivity, and what rounding adds.
      assert (Fraction(made.unit) * Fraction(sensitivity) / Fraction(step) +
              Fraction(rounding) <= allowed)
      assert 1 <= made.larger < 1 + 2.0**-18 + 2 * rounding * size / 2**31


@pytest.mark.parametrize('law', TABLES.values(), ids=TABLES)
@pytest.mark.parametrize('sensitivity, resolution', [
    (1.0, 1.0), (3.7, 2.0**-40), (2.0**-12, 2.0**-12), (5.0, 1.0), (0.9, None)])
def test_a_change_by_the_sensitivity_moves_a_table_by_its_cells(
    law, sensitivity, resolution):
  rng = np.random.default_rng(4)
  step = resolution or noise_sources.step_below(sensitivity, 20)
  made = scaled(law, sensitivity, step)
  cells = law.bins * 2**floored_table.cell_bits(law)
  most = math.floor(sensitivity / step)
  whole = rng.integers(-2**30, 2**30, 1000)
  change = whole_numbers.rounded(whole + most, made.unit) - (
      whole_numbers.rounded(whole, made.unit))
  if most * step == sensitivity == step:
    assert np.all(change == cells) and made.unit == cells
    assert 1 <= made.larger < 1 + 2.0**-37
  else:
    assert np.all(change <= cells)
    assert Fraction(made.unit) * Fraction(sensitivity) / Fraction(step) + 1 <= cells
    assert 1 <= made.larger < 1 + 2.0**-17


def profile_at(law, shift):
  """Returns the profile of a law as a function of epsilon, to 300 bits."""
  if isinstance(law, noise.Laplace):
    return lambda epsilon: 1 - mpmath.exp(min(epsilon - shift / law.scale, 0) / 2)
  if isinstance(law, noise.Gaussian):
    mu = mpmath.mpf(shift) / law.noise_multiplier
    return lambda epsilon: mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * (
        mpmath.ncdf(-mu / 2 - epsilon / mu))
  half = [mpmath.exp(mpmath.mpf(each)) for each in law.half_density.tolist()]
  line = half[:0:-1] + half[:1] * (1 + law.edge_at_zero) + half[1:]
  total = mpmath.fsum(line)

  def profile(epsilon):
    """Returns the largest profile of all shifts by whole cells."""
    alpha, found = mpmath.exp(epsilon), mpmath.mpf(0)
    for cells in [shift * law.bins] if law.monotone else range(1, shift * law.bins + 1):
      other = [mpmath.mpf(0)] * cells + line[:-cells]
      found = max(found, mpmath.fsum(
          max(p - alpha * q, 0) for p, q in zip(line, other)) / total)
    return found

  return profile


@pytest.mark.parametrize('law', [
    noise.Gaussian(0.6), noise.Gaussian(3.0), noise.Laplace(0.2), noise.Laplace(4.0),
    *(make(bins=3, cells=12) for make in (gaussian_scalar, bounded_scalar, wavy_scalar))
], ids=lambda law: law.kind)
@pytest.mark.parametrize('coordinates', [1, 2**20])
def test_the_leak_covers_all_that_is_within_the_distance(law, coordinates):
  event = whole_numbers.cost(law, coordinates)
  with mpmath.workprec(300):
    for shift in (1, 2, 3):
      far = shift * mpmath.mpf(event.distance)
      found, least, tight = event.leak(shift), mpmath.mpf(1), False
      profile = profile_at(law, shift)
      losses = np.arange(0, 60, 0.25)
      if isinstance(law, noise.ScalarTable):  # Its bounds are least above its losses.
        own = law.dominating_pair(shift).upper.loss
        losses = np.union1d(losses[::8], np.unique(own[own > 0])[-12:] + 1e-9)
      for epsilon in losses:
        own = profile(mpmath.mpf(epsilon))
        least = min(least, own + far * (1 + mpmath.exp(epsilon)))
        # Masses of tables are cut at 1e-30 here.
        assert least <= found + (1 - found) * own + mpmath.mpf(10)**-29
        tight |= least > found / 30 + (1 - found / 30) * own
      assert tight  # A thirtieth of the leak would not do.
      assert found < 1e-9 or shift > 2


@pytest.mark.parametrize('rows', [2, 3])
def test_several_rows_of_a_person_have_an_exact_account(rows):
  # The leak of one row, composed, would be larger by e^epsilon of one row.
  made = release.histogram([1, 2], num_bins=2**22, noise=noise.Gaussian(0.5),
                           arithmetic='integer')
  for relation in (tfcactus.relations.ADD_OR_REMOVE, tfcactus.relations.ZERO_OUT):
    whole, floats = (accounting.PhiAccountant(relation, rows_of_one=rows).compose(
        event).get_epsilon(1e-5) for event in (made.event, made.event.event))
    assert floats * (1 - 1e-9) <= whole <= floats * (1 + 1e-5)


def test_noise_that_is_too_small_for_its_distance_has_no_account():
  event = accounting.DistanceDpEvent(dp_accounting.GaussianDpEvent(0.5), 1e-20)
  assert event.leak(1) < 1e-6 and event.leak(10) >= 1
  for relation, rows in ((tfcactus.relations.REPLACE, 5),
                         (tfcactus.relations.ADD_OR_REMOVE, 10)):
    assert accounting.PhiAccountant(relation, rows_of_one=rows).compose(
        event).get_epsilon(1e-5) == math.inf
  tiny = accounting.DistanceDpEvent(dp_accounting.GaussianDpEvent(0.05), 1e-20)
  assert tiny.leak(1) >= 1
  assert accounting.PhiAccountant().compose(tiny).get_epsilon(1e-5) == math.inf


def test_the_leak_of_a_histogram_does_not_grow_with_its_bins():
  # Counts that no record of a person is in have one law on both neighbours.
  made = [release.histogram([], num_bins=bins, noise=noise.Gaussian(0.5),
                            arithmetic='integer').event for bins in (1, 2**18)]
  assert made[0] == made[1]
  vector = release.noisy_vector(np.zeros(2**18), noise=noise.Gaussian(0.5),
                                l1_sensitivity=1.0, arithmetic='integer').event
  assert vector.distance > 2**17 * made[0].distance


@pytest.mark.parametrize('event, distance, words', [
    (accounting.ThresholdDpEvent(0.1), 1e-9, 'one release with noise'),
    (dp_accounting.GaussianDpEvent(0.0), 1e-9, 'no noise at all'),
    (dp_accounting.GaussianDpEvent(1.0), 0.0, 'distance')])
def test_a_distance_is_from_noise(event, distance, words):
  with pytest.raises(ValueError, match=words):
    accounting.DistanceDpEvent(event, distance)


def test_samples_of_noise_in_whole_numbers_are_refused():
  event = whole_numbers.cost(noise.Gaussian(1.0), 1)
  with pytest.raises(dp_accounting.UnsupportedEventError, match='no proof for samples'):
    accounting.PhiAccountant().compose(
        dp_accounting.PoissonSampledDpEvent(0.1, event))


@pytest.mark.parametrize('law', [*LAWS, *TABLES.values()])
def test_values_carry_the_noise_and_are_whole(law):
  draws = np.array([release.noisy_value(
      17, sensitivity=3, noise=law, resolution=1, arithmetic='integer', seed=i).value
                    for i in range(600)])
  assert isinstance(release.noisy_value(
      17, sensitivity=3, noise=law, resolution=1, arithmetic='integer').value, int)
  centred = (draws - 17 + np.random.default_rng(0).random(600) - 0.5) / 3
  assert stats.kstest(centred, law.cdf).pvalue > 1e-4
  assert stats.kstest(1.9 * centred, law.cdf).pvalue < 1e-4


def test_every_release_by_additive_noise_takes_the_mode():
  rows = np.random.default_rng(2).normal(size=(500, 3))
  law = noise.Gaussian(0.5)
  mode = dict(noise=law, arithmetic='integer')
  for found, true in (
      (release.noisy_sum(rows, l2_norm_clip=9.0, **mode), rows.sum(0)),
      (release.noisy_sum(rows[:, 0], l2_norm_clip=9.0, **mode), rows[:, 0].sum()),
      (release.noisy_vector(rows[0], l2_sensitivity=1.0, **mode), rows[0]),
      (release.noisy_vector(rows[0], l1_sensitivity=1.0, **mode), rows[0]),
      (release.noisy_value(1e4, sensitivity=1.0, **mode), 1e4),
      (release.histogram([0, 2, 2], num_bins=3, **mode), [1, 0, 2])):
    assert np.max(np.abs(found.value - np.asarray(true))) <= found.error(1e-9)
    assert 'in whole numbers' in found.mechanism
    assert isinstance(found.event, accounting.DistanceDpEvent)
    assert found.event.event == accounting.noise_event(law)
    assert 0 < found.event.leak(1) < found.event.leak(2) < 1e-9
  counts = release.histogram([0, 2, 2], num_bins=3, **mode).value
  assert counts.dtype == np.int64


@pytest.mark.parametrize('relation', [
    tfcactus.relations.ADD_OR_REMOVE, tfcactus.relations.REPLACE])
@pytest.mark.parametrize('law', [*LAWS, TABLES['tail'], TABLES['cactus']])
def test_the_mode_costs_what_the_noise_costs(law, relation):
  whole, floats = (release.noisy_sum(
      [1, 1], l2_norm_clip=3.0, noise=law, arithmetic=arithmetic
      ).guarantee(1e-6, relation) for arithmetic in ('integer', 'float'))
  assert floats.upper <= whole.upper * (1 + 1e-12)
  assert whole.upper <= floats.upper * (1 + 1e-5)


def test_tables_are_released_in_whole_numbers():
  law, mode = TABLES['cactus'], dict(arithmetic='integer')
  found = release.noisy_sum(np.full(50, 0.25), l2_norm_clip=1.0, noise=law, **mode)
  assert abs(found.value - 12.5) <= found.error(1e-9)
  assert (found.value * 2.0**30).is_integer()
  counts = release.histogram([0, 2, 2], num_bins=3, noise=TABLES['tail'], **mode)
  assert counts.value.dtype == np.int64
  assert np.max(np.abs(counts.value - [1, 0, 2])) <= counts.error(1e-9)
  event = found.event
  assert event_configs.event_from(event_configs.event_config(event)) == event
  with pytest.raises(ValueError, match='log-concave'):
    release.histogram([0], num_bins=3, noise=law, **mode)


def test_the_grid_grows_with_the_noise():
  settings = dict(sensitivity=2.0**20, noise=noise.Gaussian(1e5), resolution=2.0**-30)
  with pytest.raises(ValueError, match='2\\^46 steps'):
    release.noisy_value(0.0, **settings)
  found = [release.noisy_value(0.0, **settings, arithmetic='integer', seed=i).value
           for i in range(300)]
  assert stats.kstest(np.array(found) / (1e5 * 2.0**20), 'norm').pvalue > 1e-4


@representatives('law', list(test_audit.LAWS)[:2])
def test_an_audit_of_counts_finds_the_claim_and_half_the_noise(law):
  def draw(own, which, runs, seed):
    made = scaled(own, coordinates=runs)
    return whole_numbers.released(
        np.full(runs, which, np.int64), own, made.unit, noise_sources.generator(seed))

  test_audit.check(draw, accounting.noise_event, test_audit.LAWS[law])


def test_a_plan_takes_releases_of_the_mode():
  made = release.histogram([1, 2], num_bins=4, noise=noise.Gaussian(9.0),
                           arithmetic='integer')
  settings = dict(noise=tfcactus.Gaussian(1.3), l2_norm_clip=1.0, num_examples=1000,
                  sampling_prob=0.05, steps=40, delta=1e-5)
  beside = tfcactus.PrivacyPlan(**settings, releases=[made])
  floats = tfcactus.PrivacyPlan(
      **settings, releases=[dp_accounting.GaussianDpEvent(9.0)])
  assert floats.guarantee().upper * (1 - 1e-12) <= beside.guarantee().upper <= (
      floats.guarantee().upper * (1 + 1e-6))
  event = made.event
  assert event_configs.event_from(event_configs.event_config(event)) == event
  assert beside.guarantee(rows_of_one=2).upper > beside.guarantee().upper


@pytest.mark.parametrize('settings, words', [
    (dict(noise=gaussian_scalar(2.0, tail_ratio=0.9999)), 'at most 2\\^16 cells'),
    (dict(noise=noise.SinhNormal(2.0, 3.0)), 'Gaussian or Laplace noise or a scalar'),
    (dict(noise=noise.Gaussian(1e-3)), 'noise large enough'),
    (dict(noise=noise.Gaussian(1e9)), 'at most 0.0336 times the size'),
    (dict(noise=noise.Gaussian(1e5), sensitivity=2.0**40), 'below 2\\^55 steps'),
    (dict(noise=noise.Gaussian(1.0), value=2**40), '2\\^30 standard deviations'),
    *((dict(noise=noise.Gaussian(1.0), value=0, sensitivity=2.0**-900,
            resolution=2.0**exponent), 'at most 2\\^30 sensitivities')
      for exponent in (70, 120, 200)),
    (dict(noise=noise.Gaussian(1.0), arithmetic='int'), 'Expected arithmetic in')])
def test_what_has_no_proof_is_refused(settings, words):
  with pytest.raises(ValueError, match=words):
    release.noisy_value(**{**dict(
        value=1, sensitivity=1, resolution=1, arithmetic='integer'), **settings})


def test_calibration_names_the_arithmetic_that_a_family_does_not_have():
  with pytest.raises(ValueError, match="take arithmetic='float'"):
    release.noise_for_epsilon(
        'sinh-normal', 1.0, 1e-6, bend=3.0, arithmetic='integer')


def test_an_error_has_room_for_rounding_to_few_whole_numbers():
  law = noise.Gaussian(3e7)  # 71 whole numbers of a sensitivity.
  made = release.histogram([], num_bins=1, noise=law, arithmetic='integer')
  unit = scaled(law).unit
  assert made.error(0.5) * unit >= (
      2.0**31 + 2**10) * noise.Gaussian(1.0).max_error(1, 0.5) + 0.5 * unit + 1
