"""One-run bounds: reference numbers, an exact sum, and guesses of honest runs."""

import numpy as np
import pytest
from scipy import special, stats

from tests.representatives import representatives
from tfcactus import audit

# canaries, guesses, correct, delta: epsilon of Steinke et al., of f-DP in the Gaussian
# family, both at significance 0.05, computed by other programs.
REFERENCE = [
    (1000, 100, 80, 1e-5, 0.9553179, 1.4022144),
    (5000, 500, 480, 1e-5, 2.7830198, 4.0626752),
    (5000, 5000, 2900, 1e-5, 0.2750310, 0.4809461),
    (100, 100, 100, 1e-5, 3.4902155, 8.2161830),
    (2000, 200, 150, 1e-3, 0.0, 0.7651650),
    (1000, 500, 300, 0.0, 0.2516842, None)]


@representatives('canaries, guesses, correct, delta, steinke, gaussian', REFERENCE, 3)
def test_reference_numbers(canaries, guesses, correct, delta, steinke, gaussian):
  run = audit.OneRun(canaries, guesses, correct)
  assert run.epsilon(delta) == pytest.approx(steinke, abs=1e-5)
  if gaussian is not None:
    mu = audit.gaussian_mu(run.refutes, tolerance=1e-5)
    assert audit.gaussian_epsilon(mu, delta) == pytest.approx(gaussian, abs=1e-4)


def test_significance_is_respected():
  run = audit.OneRun(5000, 5000, 3600)
  assert run.epsilon(1e-6, 0.01) == pytest.approx(0.87093, abs=1e-4)
  mu = audit.gaussian_mu(lambda curve: run.refutes(curve, 0.01),
                         tolerance=1e-5)
  assert audit.gaussian_epsilon(mu, 1e-6) == pytest.approx(1.40026, abs=1e-4)


def test_p_value_by_the_sum_of_theorem_5_2():
  right = special.expit(1.0)
  tail = lambda k: stats.binom.sf(k - 1, 100, right)
  most = max((tail(80 - i) - tail(80)) / i for i in range(1, 81))
  assert audit.OneRun(1000, 100, 80).p_value(1.0, 1e-5) == pytest.approx(
      tail(80) + 2000 * 1e-5 * most, rel=1e-9)


def test_guesses_under_pure_differential_privacy_are_seldom_refuted():
  """Randomised response at epsilon 1 attains the pure bound."""
  correct = np.random.default_rng(0).binomial(500, special.expit(1.0), 400)
  refuted = sum(audit.OneRun(500, 500, int(right)).p_value(1.0, 0.0) <= 0.05
                for right in correct)
  assert 0.01 * 400 < refuted <= stats.binom.ppf(0.999, 400, 0.05)


def test_all_right_under_a_gaussian_is_refuted_and_none_right_is_not():
  assert audit.OneRun(100, 100, 100).refutes(audit.gaussian_curve(1.0))
  assert not audit.OneRun(100, 100, 0).refutes(audit.gaussian_curve(0.0))
  assert audit.OneRun(100, 100, 0).epsilon(1e-5) == 0


@pytest.mark.parametrize('numbers', [(0, 1, 1), (10, 11, 1), (10, 5, 6), (10, 0, 0)])
def test_counts_that_cannot_be_are_refused(numbers):
  with pytest.raises(ValueError, match='Expected'):
    audit.OneRun(*numbers)
