"""The linear program's bounds against computations to sixty digits."""

import mpmath
import pytest

from tfcactus.design.solvers import bounded_problem


def exact(problem, w):
  """Returns the delta of masses w over their sum, and cost over budget less one."""
  total = mpmath.fsum(w.tolist())
  w = [mpmath.mpf(x) / total for x in w.tolist()]
  full, nothing = [x / 2 for x in w[::-1] + w], [mpmath.mpf(0)] * problem.bins
  p, q = full + nothing, nothing + full
  s, grown = mpmath.mpf(problem.sampling_prob), mpmath.exp(problem.epsilon)
  mixed = [(1 - s) * a + s * b for a, b in zip(p, q)]
  delta = max(mpmath.fsum(max(a - grown * b, 0) for a, b in zip(*pair))
              for pair in ((mixed, p), (p, mixed)))
  edges = [mpmath.mpf(i) / problem.bins for i in range(problem.cells + 1)]
  power = problem.norm + 1
  cost = mpmath.fsum(x * (b**power - a**power) * problem.bins / power
                     for x, a, b in zip(w, edges, edges[1:]))
  return delta, cost / mpmath.mpf(problem.utility)**problem.norm - 1


@pytest.mark.parametrize('bins, cells, norm, utility, epsilon, sampling_prob', [
    (3, 6, 1, 0.168, 3.06, 0.1), (5, 15, 1, 1.423, 9.05, 0.5),
    (2, 4, 1, 0.37, 9.94, 0.1), (1, 2, 2, 0.853, 17.49, 0.5),
    (4, 12, 2, 0.389, 0.43, 1.0), (4, 8, 2, 0.5, 14.0, 1.0)])
def test_bounds_contain_the_exact_delta(
    bins, cells, norm, utility, epsilon, sampling_prob):
  """Failed in the last bits when the bounds were computed in floats."""
  problem = bounded_problem.Problem(
      bins, cells, norm, utility, epsilon, 1, sampling_prob)
  found = bounded_problem.solve(problem)
  with mpmath.workdps(60):
    delta, over = exact(problem, found.w)
    # Masses beyond the budget, by rounding, are none that the lower bound is for.
    assert over <= 1e-15
    assert (found.lower_bound <= delta or over > 0) and delta <= found.delta
  assert found.delta - found.lower_bound <= 1e-4 * found.delta
