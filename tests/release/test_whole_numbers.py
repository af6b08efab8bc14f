"""Releases in whole numbers: sensitivity, leak, law, cost, and what is refused."""

import dataclasses
from fractions import Fraction
import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from scipy import stats

from tests.noise.tables import gaussian_scalar
from tests.release import test_audit
from tests.representatives import representatives
import tfcactus
from tfcactus import accounting, noise, release
from tfcactus.accounting import event_configs
from tfcactus.release import noise_sources, whole_numbers

LAWS = [noise.Gaussian(2.0), noise.Laplace(2.0)]


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
      allowed = Fraction(whole_numbers._LAWS[type(own)].scale) / Fraction(size)
      assert change <= allowed
      # So for all values: the scaled sensitivity, and what rounding adds.
      assert (Fraction(made.unit) * Fraction(sensitivity) / Fraction(step) +
              Fraction(rounding) <= allowed)
      assert 1 <= made.larger < 1 + 2.0**-18 + 2 * rounding * size / 2**31


@pytest.mark.parametrize('law', [
    noise.Gaussian(0.6), noise.Gaussian(3.0), noise.Laplace(0.2), noise.Laplace(4.0)])
@pytest.mark.parametrize('coordinates', [1, 2**20])
def test_the_leak_covers_all_that_is_within_the_distance(law, coordinates):
  own = whole_numbers._LAWS[type(law)]
  size, far = own.size(law), mpmath.mpf(own.distance) * coordinates
  found = whole_numbers.leak(own, 1 / size, coordinates)

  def profile(epsilon, shift):
    if isinstance(law, noise.Laplace):
      return 1 - mpmath.exp(min(epsilon - shift, 0) / 2)
    return mpmath.ncdf(shift / 2 - epsilon / shift) - mpmath.exp(epsilon) * (
        mpmath.ncdf(-shift / 2 - epsilon / shift))

  with mpmath.workprec(300):
    for shift in (mpmath.mpf(1) / size, mpmath.mpf(2) / size):
      least = mpmath.mpf(1)  # Profiles fall.
      for epsilon in np.arange(0, 60, 0.25):
        own_profile = profile(mpmath.mpf(epsilon), shift)
        least = min(least, own_profile + far * (1 + mpmath.exp(epsilon)))
        assert least <= found + (1 - found) * own_profile
  assert found < 1e-9


@pytest.mark.parametrize('law', LAWS)
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
    inside, leak = found.event.events
    assert inside == accounting.noise_event(law) and 0 < leak.delta < 1e-9
    assert isinstance(leak, accounting.DistanceDpEvent)
  counts = release.histogram([0, 2, 2], num_bins=3, **mode).value
  assert counts.dtype == np.int64


@pytest.mark.parametrize('relation', [
    tfcactus.relations.ADD_OR_REMOVE, tfcactus.relations.REPLACE])
@pytest.mark.parametrize('law', LAWS)
def test_the_mode_costs_what_the_noise_costs(law, relation):
  whole, floats = (release.histogram(
      [1, 1], num_bins=3, noise=law, arithmetic=arithmetic).guarantee(1e-6, relation)
                   for arithmetic in ('integer', 'float'))
  assert floats.upper <= whole.upper * (1 + 1e-12)
  assert whole.upper <= floats.upper * (1 + 1e-5)


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
  # Several rows of one person: no exact account, so that of the power curve.
  assert beside.guarantee(rows_of_one=2).upper > beside.guarantee().upper


@pytest.mark.parametrize('settings, words', [
    (dict(noise=gaussian_scalar(2.0)), 'Gaussian or Laplace noise'),
    (dict(noise=noise.SinhNormal(2.0, 3.0)), 'Gaussian or Laplace noise'),
    (dict(noise=noise.Gaussian(1e-3)), 'noise large enough'),
    (dict(noise=noise.Gaussian(1e9)), 'noise of at most 3.36e\\+07'),
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


def test_an_error_has_room_for_rounding_to_few_whole_numbers():
  law = noise.Gaussian(3e7)  # 71 whole numbers of a sensitivity.
  made = release.histogram([], num_bins=1, noise=law, arithmetic='integer')
  unit = scaled(law).unit
  assert made.error(0.5) * unit >= (
      2.0**31 + 2**10) * noise.Gaussian(1.0).max_error(1, 0.5) + 0.5 * unit + 1
