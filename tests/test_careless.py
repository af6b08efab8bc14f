"""What a careless user types is refused by name, not in Python's words."""

import re

import numpy as np
import pytest

import tfcactus
from tfcactus import accounting, audit, relations, release, search

PLAN = tfcactus.PrivacyPlan(
    noise=tfcactus.Gaussian(2.0), l2_norm_clip=1.0, num_examples=100,
    sampling_prob=0.1, steps=5, delta=1e-5)
SEARCH = accounting.SearchDpEvent(
    accounting.LogarithmicRuns(mean=3), PLAN.step_event, score='released')
SEEN = audit.Observations(np.zeros((5, 400)), np.arange(400) % 2 == 0)
ERRORS = audit.Errors(10, 10, 1, 1)


def found(**changes):
  """Asks for the guarantee of a search."""
  return tfcactus.search_guarantee(**{
      'search': SEARCH, 'delta': 1e-5, 'neighboring_relation': 'replace', **changes})


@pytest.mark.parametrize('call, words', [
    (lambda: tfcactus.load(None), 'path to be a path, got path=None'),
    (lambda: tfcactus.DataAccount(3, epsilon=1.0, delta=1e-5), 'got path=3'),
    (lambda: tfcactus.DataAccount('x', epsilon='1', delta=1e-5), "got epsilon='1'"),
    (lambda: accounting.noise_event(1.1), 'noise to be a Noise, got noise=1.1'),
    (lambda: relations.check(np.ones(2)), 'neighboring_relation ADD_OR_REMOVE_ONE'),
    (lambda: tfcactus.calibrate_noise_multiplier(1.0, 2.0), 'got make_noise=2.0'),
    (lambda: found(releases=None), 'releases to be a list of DpEvents'),
    (lambda: found(validation='x'), 'validation to be a ValidationDpEvent'),
    (lambda: accounting.SearchDpEvent(SEARCH.runs, SEARCH.event, score=[]), 'score'),
    (lambda: tfcactus.optimal_noise(
        delta=1e-5, sampling_prob=0.1, steps=3, noise_multiplier=1.0, progress=True),
     'progress to be a function, got progress=True'),
    (lambda: release.best_sinh_normal(1.0, 1e-5, None), 'error to be a function'),
    (lambda: release.vocabulary(None, noise=PLAN.noise, delta=1e-5), 'got words=None'),
    (lambda: release.noise_for_error('gaussian', 1.0, beta=0.1, count=10**400),
     'count <= 9007199254740992'),
    (lambda: audit.Claim.of_plan(None), 'plan to be a PrivacyPlan'),
    (lambda: audit.audit_run(None, audit.Claim.of_plan(PLAN)), 'seen to be a'),
    (lambda: audit.audit_run(SEEN, None), 'claim to be a Claim'),
    (lambda: audit.audit_scores(range(400), SEEN.present, claim='x'), "claim='x'"),
    (lambda: SEEN.scores(None, 0.1), 'noise_multiplier to be a number'),
    (lambda: SEEN.scores(1.0, 0.0), 'sampling_prob in (0, 1]'),
    (lambda: ERRORS.refutes(None), 'curve to be a function'),
    (lambda: ERRORS.p_value(audit.gaussian_curve(1.0), None), 'enough to be a number'),
    (lambda: audit.OneRun(10, 5, 3).refutes(None), 'curve to be a function'),
    (lambda: audit.gaussian_curve(None), 'mu to be a number'),
    (lambda: audit.gaussian_epsilon('1', 1e-5), "got mu='1'"),
    (lambda: audit.gaussian_mu(None), 'refutes to be a function'),
    (lambda: audit.gaussian_mu(ERRORS.refutes, tolerance=0), 'tolerance > 0'),
    (lambda: search.least_utility(2, delta=0.3, epsilon=0.5, steps=0), 'steps >= 1'),
    (lambda: search.truncated_noise(2, utility=0.8, epsilon=0.5, steps=10**400),
     'steps <= 9007199254740992')])
def test_other_arguments_than_were_asked_for_are_named(
    call, words, tmp_path, monkeypatch):
  """Failed with TypeErrors, AttributeErrors and OverflowErrors of Python."""
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match=f'Expected .*{re.escape(words)}'):
    call()
