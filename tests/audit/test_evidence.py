"""Audits of whole runs: labels, verdicts, and the pilot that keeps a fault visible."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from tests.audit.test_components import CLAIM, PLAN, simulated
from tfcactus import audit
from tfcactus.audit import evidence, families


def by_name(found):
  return {finding.name: finding for finding in found.findings}


def test_audit_of_an_honest_run():
  found = audit.audit_run(simulated(np.random.default_rng(0), 1000), CLAIM)
  truth = PLAN.guarantee().lower
  assert not found.refuted
  assert all(finding.assumes for finding in found.findings)
  bounds = {finding.name: finding.epsilon for finding in found.findings
            if finding.epsilon is not None}
  assert len(bounds) == 7 and max(bounds.values()) < truth
  assert bounds['Components'] > 0.85 * truth
  assert bounds["Claim's family"] > bounds['Counts (Clopper-Pearson)'] > 0
  assert bounds['One run (f-DP, Gaussian family)'] > bounds[
      'One run (Steinke, Nasr and Jagielski)']
  assert 'not refuted, which does not prove it' in str(found)
  assert found.as_dict()['findings'][0]['name'] == 'Check of noise'


def test_halved_noise_is_found_by_the_test_of_the_claim_with_a_pilot_only():
  rng, found, hidden = np.random.default_rng(1), 0, 0
  cut = CLAIM.curve()
  for _ in range(5):
    seen = simulated(rng, 2000, 'noise halved')
    pilot = evidence._pilot(seen.present, 0.2, 0)
    sigma = np.sqrt(np.mean(seen.values[:, pilot & ~seen.present]**2))
    for scale in (sigma, CLAIM.noise_multiplier):
      alarm = seen.scores(scale, CLAIM.sampling_prob)[~pilot] > 0
      coins = seen.present[~pilot]
      refuted = audit.Errors(
          int(np.sum(~coins)), int(np.sum(coins)), int(np.sum(alarm & ~coins)),
          int(np.sum(~alarm & coins))).refutes(cut)
      found, hidden = found + (refuted and scale == sigma), hidden + (
          refuted and scale != sigma)
  assert found == 5 and hidden == 0


@pytest.mark.more
def test_true_claims_are_seldom_refuted_by_scores(monkeypatch):
  monkeypatch.setattr(families, 'gaussian_mu', lambda refutes: 0.0)  # It takes long.
  rng, refuted = np.random.default_rng(2), 0
  claim = audit.Claim(lambda noise, sampled: None, 1e-5)
  object.__setattr__(claim, 'curve', lambda noise=1.0: audit.gaussian_curve(1.0))
  for _ in range(100):
    coins = rng.random(400) < 0.5
    scores = rng.normal(size=400) + coins
    found = by_name(audit.audit_scores(scores, coins, claim=claim))
    refuted += found['Claim, by its trade-off curve'].p_value <= 0.05
    assert found['Counts (Clopper-Pearson)'].epsilon < 4.4  # The truth at delta 1e-5.
  assert refuted <= stats.binom.ppf(0.999, 100, 0.05)


def test_scores_without_a_claim():
  rng = np.random.default_rng(3)
  coins = rng.random(1000) < 0.5
  found = audit.audit_scores(rng.normal(size=1000) + 3 * coins, coins, delta=1e-5)
  assert not found.refuted and 'No claim was tried' in str(found)
  assert by_name(found)['Counts (Clopper-Pearson)'].epsilon > 1.5
  least = audit.audit_scores(
      rng.normal(size=1000), coins, delta=1e-5, guesses=50).findings
  assert max(finding.epsilon for finding in least) < 0.5


@pytest.mark.parametrize('first', [0, 1])
def test_equal_scores_of_a_sorted_list_tell_nothing(first):
  coins = np.repeat([first, 1 - first], 500)
  for scores in (np.zeros(1000), np.random.default_rng(4).random(1000) < 0.9):
    found = audit.audit_scores(scores, coins, delta=1e-5, guesses=700)
    assert max(finding.epsilon for finding in found.findings) == 0


def test_one_finding_does_not_refute_alone():
  """The p-values share the significance."""
  two = (audit.Finding('a', 'b', p_value=0.03), audit.Finding('c', 'd', p_value=0.9))
  found = audit.Audit(two, 1e-5)
  assert not found.refuted
  assert dataclasses.replace(found, findings=two[:1]).refuted
  assert 'REFUTED' in str(dataclasses.replace(found, findings=two[:1]))


def test_bounds_are_told_at_their_own_delta():
  """At a larger delta a lower bound would be too large, at a smaller one a claim."""
  found = audit.Audit((audit.Finding('a', 'b', epsilon=1.0),), 1.23456789e-5)
  assert 'Bounds are at delta 1.23456789e-05, each' in str(found)


@pytest.mark.parametrize('claimed', [None, 2.0])
def test_a_picture_needs_no_p_values(tmp_path, claimed):
  pytest.importorskip('matplotlib')
  found = audit.Audit((audit.Finding('a', 'b', epsilon=1.0),), 1e-5, claimed=claimed)
  found.picture(tmp_path / 'a.png')
  assert (tmp_path / 'a.png').read_bytes()[1:4] == b'PNG'


def test_pilot_differs_from_coins_of_the_same_seed():
  coins = np.random.default_rng(0).random(500) < 0.5
  pilot = evidence._pilot(coins, 0.2, 0)
  assert 70 < np.sum(pilot) < 130 and 0.3 < np.mean(coins[pilot]) < 0.7


@pytest.mark.parametrize('settings, said', [
    ({}, 'delta or a claim'), ({'delta': 0.0}, 'delta'),
    ({'delta': 1e-5, 'pilot': 0.9999}, 'take more canaries'),
    ({'delta': 1e-5, 'significance': 1.0}, 'significance'),
    ({'delta': 1e-5, 'guesses': 100}, 'guesses'),
    ({'delta': 1e-5, 'guesses': 10.0}, 'guesses'),
    ({'delta': 1e-5, 'seed': -1}, 'seed')])
def test_bad_arguments_are_refused(settings, said):
  coins = np.arange(60) % 2
  with pytest.raises(ValueError, match=said):
    audit.audit_scores(np.arange(60.0), coins, **settings)


def test_noise_that_is_not_gaussian_has_no_component_checks():
  with pytest.raises(ValueError, match='Gaussian'):
    simulated(np.random.default_rng(0), 50).checks(
        dataclasses.replace(CLAIM, noise_multiplier=None))
