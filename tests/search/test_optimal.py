"""The search for the noise of least epsilon."""

from __future__ import annotations

import math

import pytest

import tfcactus
from tfcactus import design
from tfcactus.search import optimal


def epsilon(noise, **settings):
  return tfcactus.PrivacyPlan(noise=noise, l2_norm_clip=1.0, num_examples=1,
                              **settings).guarantee().upper


def test_scalar_choice_is_no_worse_than_anything_tried():
  settings = dict(delta=1e-5, sampling_prob=0.01, steps=500)
  lines = []
  found = optimal.optimal_noise(variance=0.25, bins=20, progress=lines.append,
                                **settings)
  assert found.epsilon == min(c.epsilon for c in found.candidates)
  assert len(lines) == len(found.candidates)
  assert found.noise.noise_multiplier == pytest.approx(0.5, rel=1e-6)
  for noise in (tfcactus.Gaussian(0.5), tfcactus.Laplace(0.5 / math.sqrt(2)),
                design.Monotone(0.25, bins=20).solve(),
                design.Monotone(0.25, bins=20, objective='chi2').solve()):
    assert found.epsilon <= epsilon(noise, **settings) * (1 + 1e-12)
  assert found.epsilon < 0.6 * epsilon(tfcactus.Gaussian(0.5), **settings)
  assert 'below' in found.certified and 'tried' in found.searched


def test_vector_choice_is_isotropic_and_beats_the_gaussian():
  settings = dict(delta=1e-5, sampling_prob=0.01, steps=500)
  found = optimal.optimal_noise(noise_multiplier=0.5, dim=3, bins=12, **settings)
  assert found.noise.dim == 3 and found.label.startswith('isotropic')
  assert found.epsilon < epsilon(tfcactus.Gaussian(0.5), **settings)


def test_many_dimensions_get_the_gaussian():
  found = optimal.optimal_noise(noise_multiplier=1.3, dim=26010, delta=1e-5,
                                sampling_prob=0.01, steps=10)
  assert found.label == 'gaussian'


PLANS = [dict(sampling_prob=250 / 60_000, steps=3600, delta=1e-5),
         dict(sampling_prob=0.01, steps=10, delta=1e-8),
         dict(sampling_prob=1.0, steps=1, delta=1e-5)]


@pytest.mark.parametrize('sigma', [0.3, 0.8, 1.0, 2.0])
@pytest.mark.slow
def test_default_shells_cost_little_in_any_plan(sigma):
  # Shells of width w add w^2 m / 12 to the variance of a loss twice: the same as
  # noise narrower by that share.
  share = max(dim / design.Isotropic(dim, sigma)._bins(sigma)**2 / 12
              for dim in (2, 50, 51, 2000, 26_010))
  plans = [*PLANS, dict(sampling_prob=1e-3, steps=1, delta=1e-9),
           dict(sampling_prob=1e-3, steps=100, delta=1e-8),
           dict(sampling_prob=1e-4, steps=1000, delta=1e-7),
           dict(sampling_prob=1.0, steps=1000, delta=1e-6)]
  for settings in plans:
    wide, narrow = (epsilon(tfcactus.Gaussian(s), **settings)
                    for s in (sigma, sigma / (1 + share)))
    assert narrow <= 1.002 * wide


# There the Gaussian is optimal: what do the shells cost?
@pytest.mark.parametrize('dim, sigma, objective', [
    pytest.param(1000, 1.3, 'kl', marks=pytest.mark.slow),
    pytest.param(2000, 0.3, 'chi2', marks=pytest.mark.slow),
    pytest.param(26_010, 1.3, 'kl', marks=pytest.mark.slow),
    pytest.param(26_010, 0.5, 'chi2', marks=pytest.mark.slow),
    pytest.param(100_000, 1.0, 'chi2', marks=pytest.mark.slow),
    pytest.param(1_000_000, 1.0, 'kl', marks=pytest.mark.slow)])
def test_large_dimensions_cost_less_than_a_fifth_of_a_percent(
    dim, sigma, objective):
  table = design.Isotropic(dim, sigma, objective=objective).solve()
  assert table.monotone and table.info['gap'] < 1e-9
  assert table.noise_multiplier == pytest.approx(sigma, rel=1e-9)
  for settings in PLANS:
    assert epsilon(table, **settings) <= 1.002 * epsilon(
        tfcactus.Gaussian(sigma), **settings)


@pytest.mark.parametrize('change, words', [
    (dict(variance=1.0), 'exactly one'),
    (dict(noise_multiplier=None), 'exactly one'),
    (dict(noise_multiplier=-1.0), 'noise_multiplier'),
    (dict(delta=0.0), 'delta'), (dict(sampling_prob=1.5), 'sampling_prob'),
    (dict(steps=0), 'steps'), (dict(dim=0), 'dim'), (dict(bins=0), 'bins'),
    (dict(bins=-3), 'bins'), (dict(bins=2.5), 'bins')])
def test_bad_requests(change, words):
  request = dict(noise_multiplier=1.0, delta=1e-5, sampling_prob=0.1, steps=3)
  with pytest.raises(ValueError, match=words):
    optimal.optimal_noise(**{**request, **change})


@pytest.mark.more
def test_a_few_releases_gain_from_epsilons_own_gradient():
  settings = dict(delta=1e-5, sampling_prob=1.0, steps=1)
  found = optimal.optimal_noise(variance=1.0, bins=20, **settings)
  assert found.label.endswith('refined')
  # The accountant's own bound says so, for a table that meets the request.
  assert found.epsilon == pytest.approx(epsilon(found.noise, **settings))
  costs = {c.label: c.epsilon for c in found.candidates}
  assert found.epsilon < 0.995 * costs[found.label.split(',')[0]]
  assert found.noise.monotone
  assert found.noise.noise_multiplier <= 1 + 1e-9
  assert 'descent' in found.searched and 'nothing on its grid' not in (
      found.certified)
  with pytest.raises(ValueError, match='certificate'):
    design.verify(found.noise)


@pytest.mark.more
def test_many_steps_keep_the_certified_design():
  found = optimal.optimal_noise(variance=0.25, bins=20, delta=1e-5,
                                sampling_prob=0.01, steps=5000)
  assert not any('refined' in c.label for c in found.candidates)
  assert 'nothing on its grid' in found.certified
