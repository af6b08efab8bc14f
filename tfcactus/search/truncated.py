"""Design of truncated noise, with an account of its delta.

A design minimises its own estimate of the composed delta. The reported delta comes
from the accountant, which reads the frozen table.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import dp_accounting

from tfcactus import _checks, accounting, design, noise as noise_lib
from tfcactus.design.truncated import CERTIFIED_GAP


@dataclasses.dataclass(frozen=True)
class TruncatedNoise:
  """A bounded noise table and its account.

  Attributes:
    noise: The table; its `info` says how it was found.
    delta: Bounds on delta at `epsilon`, the larger of adding and removing one
      record. The full shift is accounted if the density never increases with |z|,
      else the envelope of all smaller shifts. Publish `delta.upper`.
    epsilon: The epsilon at which delta was evaluated.
    steps: Number of releases composed.
    sampling_prob: Poisson sampling probability of a release.
    utility: E|Z| (norm 1) or sqrt(E Z^2) (norm 2) of the table.
    omega: Probability that any release distinguishes the neighbours with
      certainty; part of delta.
    method: How the noise was found.
    certified: Whether no table of the same grid within the utility that never
      increases with |z| has a delta smaller by more than one part in 10^4, at
      this epsilon, number of steps and sampling (proved).
    statement: What was proved, in words.
    seconds: Wall time of the design.
  """

  noise: noise_lib.ScalarTable
  delta: accounting.Bounds
  epsilon: float
  steps: int
  sampling_prob: float
  utility: float
  omega: float
  method: str
  certified: bool
  statement: str
  seconds: float


def truncated_noise(range: float, *, utility: float,  # pylint: disable=redefined-builtin
                    epsilon: float, steps: int = 1, sampling_prob: float = 1.0,
                    norm: int = 2, bins: int | None = None,
                    method: str = 'direct', **options: Any) -> TruncatedNoise:
  """Designs bounded noise for a scalar query and accounts for it.

  Args:
    range: Bound on |noise|, in units of sensitivity; above one half.
    utility: Bound on E|Z| (norm 1) or sqrt(E Z^2) (norm 2).
    epsilon: The epsilon at which delta is minimised.
    steps: Number of releases composed.
    sampling_prob: Poisson sampling probability of a release.
    norm: 1 or 2.
    bins: Cells per unit of sensitivity; None for about 400 on each side.
    method: 'direct', 'lp' or 'ma'; see `tfcactus.design.Truncated`.
    **options: Further arguments of `tfcactus.design.Truncated`.

  Raises:
    ValueError: if an argument is out of range.
    SolverError: if a program with a global optimum was not proved to be at it.
  """
  request = design.Truncated(
      range, utility, epsilon, steps=steps, sampling_prob=sampling_prob,
      norm=norm, bins=bins, method=method, **options)
  begun = time.perf_counter()
  table = request.solve()
  return account(table, epsilon=epsilon, steps=steps,
                 sampling_prob=sampling_prob, norm=norm, method=method,
                 seconds=time.perf_counter() - begun)


def account(noise: noise_lib.ScalarTable, *, epsilon: float, steps: int = 1,
            sampling_prob: float = 1.0, norm: int = 2, method: str = 'given',
            seconds: float = 0.0) -> TruncatedNoise:
  """Accounts for the delta of a bounded table.

  Args:
    noise: A scalar table without a tail.
    epsilon: The epsilon at which delta is evaluated.
    steps: Number of releases composed.
    sampling_prob: Poisson sampling probability of a release.
    norm: 1 or 2.
    method: How the table was found.
    seconds: Wall time of the design.
  """
  if not isinstance(noise, noise_lib.ScalarTable):
    raise ValueError(f'Expected noise to be a ScalarTable, got {noise!r}.')
  epsilon = _checks.non_negative('epsilon', epsilon)
  sampling_prob = _checks.sampling_prob(sampling_prob)
  event = accounting.noise_event(noise)
  if sampling_prob < 1:
    event = dp_accounting.PoissonSampledDpEvent(sampling_prob, event)
  accountant = accounting.PhiAccountant()
  accountant.compose(event, steps)
  omega = max(part.p_inf[1] for part in accountant.compositions().values())
  info = noise.info
  return TruncatedNoise(
      noise, accountant.delta_bounds(epsilon), epsilon, steps, sampling_prob,
      noise.moment(norm)**(1 / norm), max(omega, 0.0), method,
      _is_certified(noise, epsilon=epsilon, steps=steps,
                    sampling_prob=sampling_prob, norm=norm),
      str(info.get('statement', 'Nothing is known of how it was found.')),
      seconds)


def _is_certified(noise: noise_lib.ScalarTable, **asked: Any) -> bool:
  """Returns whether the table's proof is about the arguments and closed its gap."""
  info = noise.info
  told, gap = info.get('parameters') or {}, info.get('gap')
  return (info.get('solver') == 'linear program' and noise.monotone and
          gap is not None and gap <= CERTIFIED_GAP and
          all(told.get(name) == value for name, value in asked.items()))
