"""Component checks: honest runs pass, and each planted fault is found."""

import math

import numpy as np
import pytest
from scipy import stats

from tests.representatives import representatives
import tfcactus
from tfcactus import audit
from tfcactus.sampling import RandomAllocationSampling

SIGMA, PROB, STEPS = 1.465, 0.05, 300
PLAN = tfcactus.PrivacyPlan(
    noise=tfcactus.Gaussian(SIGMA), l2_norm_clip=1.0, num_examples=4000,
    sampling_prob=PROB, steps=STEPS, delta=1e-5)
CLAIM = audit.Claim.of_plan(PLAN)

# By the fault, the check that the design names for it.
FAULTS = {
    'noise 3 % low': 'noise', 'noise halved': 'noise', 'clip off': 'amplitude',
    'clipped to 1.2 C': 'amplitude', 'per-layer clipping counted as flat': 'amplitude',
    'shuffled batches': 'participations', 'rate doubled': 'participations',
    'noise of an epoch again': 'repeated noise',
    'noise of a step again': 'repeated noise',
    'noise of a layer again': 'repeated noise',
    'divided by the drawn size': 'noise of each step'}

AMPLITUDES = {'clip off': 3.0, 'clipped to 1.2 C': 1.2,
              'per-layer clipping counted as flat': 2**0.5}


def simulated(rng, canaries, fault=None):
  """Returns the observations of a run of DP-SGD with unlike canaries, and a fault."""
  present = rng.random(canaries) < 0.5
  prob = 2 * PROB if fault == 'rate doubled' else PROB
  drawn = rng.random((STEPS, canaries)) < prob
  if fault == 'shuffled batches':
    batches = round(1 / PROB)
    # One permutation for all batches of an epoch.
    for first in range(0, STEPS, batches):
      dealt = rng.permutation(np.arange(canaries) % batches)
      drawn[first:first + batches] = dealt == np.arange(batches)[:, None]
  drawn &= present
  noise = SIGMA * rng.standard_normal((STEPS, canaries))
  noise *= {'noise 3 % low': 0.97, 'noise halved': 0.5}.get(fault, 1.0)
  if fault == 'noise of an epoch again':
    noise[STEPS // 2:] = noise[:STEPS // 2]
  if fault == 'noise of a step again':
    noise[17] = noise[200]
  if fault == 'noise of a layer again':
    noise[:, canaries // 2:] = noise[:, :canaries // 2]
  values = AMPLITUDES.get(fault, 1.0) * drawn + noise
  if fault == 'divided by the drawn size':
    size = np.sum(drawn, axis=1) + rng.binomial(2000, PROB, STEPS)
    values *= (np.mean(size) / size)[:, None]
  return audit.Observations(values, present, drawn)


@representatives('fault', FAULTS, 2)
def test_planted_faults_are_found(fault):
  """In at least 19 of 20 runs with 2,000 canaries at epsilon 3."""
  rng, found = np.random.default_rng(0), 0
  for _ in range(20):
    checks = {check.name: check for check in simulated(rng, 2000, fault).checks(CLAIM)}
    # Six pieces of evidence share the significance.
    found += checks[FAULTS[fault]].p_value * 6 <= 0.05
  assert found >= 19


def test_honest_runs_are_seldom_refuted():
  rng, p_values = np.random.default_rng(1), []
  for _ in range(200):
    p_values.append([check.p_value for check in simulated(rng, 200).checks(CLAIM)])
  refuted = np.min(p_values, axis=1) * 5 <= 0.05
  assert np.sum(refuted) <= stats.binom.ppf(0.999, 200, 0.05)
  each = np.sum(np.array(p_values) <= 0.05, axis=0)
  assert np.all(each <= stats.binom.ppf(0.9999, 200, 0.05))
  # All but the bound on the largest correlation are uniform.
  for name, column in zip('noise steps repeated amplitude draws'.split(),
                          np.transpose(p_values)):
    assert name == 'repeated' or stats.kstest(column, 'uniform').pvalue > 1e-4, name


@pytest.mark.parametrize('steps, count', [(1, 14), (20, 3)])
def test_the_check_of_participations_has_its_level_where_canaries_are_few(steps, count):
  """With the same random numbers in all runs, a quarter of the p-values was <= 0.05."""
  rng, prob, found = np.random.default_rng(6), 0.3 / steps, []
  present = np.arange(2 * count) < count
  for _ in range(2000):
    drawn = (rng.random((steps, 2 * count)) < prob) & present
    seen = audit.Observations(rng.normal(size=drawn.shape) + drawn, present, drawn)
    found.append(seen._participations(prob))
  assert found[-1] == seen._participations(prob)  # The p-value of a run stays.
  for level in (0.05, 0.3):
    spread = math.sqrt(level * (1 - level) / 2000)
    assert abs(np.mean(np.array(found) <= level) - level) < 4 * spread


def test_epsilon_of_components_is_below_the_truth_and_near_it():
  rng = np.random.default_rng(2)
  truth = PLAN.guarantee().lower
  bounds = [simulated(rng, 300).epsilon(CLAIM) for _ in range(60)]
  assert np.sum(np.array(bounds) > truth) <= stats.binom.ppf(0.999, 60, 0.05)
  assert np.median(bounds) > 0.8 * truth
  assert simulated(rng, 300, 'noise halved').epsilon(CLAIM) > 2 * truth
  assert simulated(rng, 300, 'rate doubled').epsilon(CLAIM) > 1.3 * truth


def test_what_is_not_known_is_left_out():
  seen = simulated(np.random.default_rng(3), 50)
  blind = audit.Observations(seen.values, seen.present)
  assert [check.name for check in blind.checks(CLAIM)] == [
      'noise', 'noise of each step', 'repeated noise']
  assert blind.epsilon(CLAIM) == 0
  allocated = audit.Claim.of_plan(PLAN, RandomAllocationSampling)
  assert 'participations' not in [check.name for check in seen.checks(allocated)]


def test_scores_are_log_likelihood_ratios():
  values = np.array([[0.3, -1.0, 0.0, 2.0], [1.2, 0.4, 0.1, 0.3]])
  seen = audit.Observations(values, [1, 0, 1, 0])
  mixed = 0.2 * stats.norm.pdf(values, 1, 1.5) + 0.8 * stats.norm.pdf(values, 0, 1.5)
  np.testing.assert_allclose(seen.scores(1.5, 0.2), np.sum(np.log(
      mixed / stats.norm.pdf(values, 0, 1.5)), axis=0), rtol=1e-12)
  np.testing.assert_allclose(
      seen.scores(1.5, 1.0), np.sum((values - 0.5) / 1.5**2, axis=0))


def test_observations_stay_when_the_arrays_that_they_were_made_of_change():
  values, present, drawn = np.ones((1, 4)), np.array([True, True, False, False]), (
      np.array([[True, False, False, False]]))
  seen = audit.Observations(values, present, drawn, values.copy())
  for array in (values, present, drawn):
    array[:] = False
  assert np.all(seen.values) and np.any(seen.present) and np.any(seen.drawn)


@pytest.mark.parametrize('values, present, drawn, said', [
    (np.zeros(3), [1, 0, 1], None, 'shape'),
    (np.full((2, 4), np.inf), [1, 0, 1, 0], None, 'finite'),
    (np.zeros((2, 4)), [1, 0, 1], None, '4 times true or false'),
    (np.zeros((2, 4)), [1, 0, 2, 0], None, '4 times true or false'),
    (np.zeros((2, 4)), [1, 1, 1, 0], None, 'at least two'),
    (np.zeros((2, 4)), [1, 1, 0, 0], np.ones((2, 4), bool), 'present canaries only')])
def test_bad_observations_are_refused(values, present, drawn, said):
  with pytest.raises(ValueError, match=said):
    audit.Observations(values, present, drawn)


def test_a_run_without_noise_is_refuted():
  rng = np.random.default_rng(0)
  present = rng.random(200) < 0.5
  drawn = (rng.random((100, 200)) < PROB) & present
  seen = audit.Observations(drawn * 1.0, present, drawn)
  found = audit.audit_run(seen, CLAIM, families=False)
  assert found.refuted
  for each in found.findings:
    assert each.p_value is None or 0 <= each.p_value <= 1
  assert max(each.epsilon or 0 for each in found.findings) > 1


@pytest.mark.parametrize('values, noise, words', [
    (np.zeros((0, 4)), None, 'one step or more'),
    (np.zeros((3, 4)), np.zeros((3, 0)), 'one column or more')])
def test_no_steps_or_no_noise_are_refused(values, noise, words):
  with pytest.raises(ValueError, match=words):
    audit.Observations(values, np.array([1, 1, 0, 0]), noise=noise)
