"""Audits of one run: evidence from canaries, each labelled by what it assumes."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import numpy as np

from tfcactus import _checks, _format
from tfcactus.audit import components, families as families_lib, pictures
from tfcactus.audit.components import Observations
from tfcactus.audit.counts import Errors, OneRun
from tfcactus.audit.families import Claim

PILOT = 0.2
"""Share of the canaries that choose a test, and on which it is not tried."""

SIGNIFICANCE = 0.05
"""Probability that one piece of evidence is wrong."""

_SHARES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02)
"""Shares of canaries to guess, of which the pilot chooses one."""

_INDEPENDENT = 'scores of different canaries are independent given the coins'
_FAMILY = (
    'an extrapolation inside this family: no canary sees an event as rare as delta')


@dataclasses.dataclass(frozen=True)
class Finding:
  """One piece of evidence.

  Attributes:
    name: What was tried.
    assumes: What it assumes, in words.
    epsilon: A lower bound on epsilon, or None.
    p_value: The p-value of the claim, or None.
  """

  name: str
  assumes: str
  epsilon: float | None = None
  p_value: float | None = None


@dataclasses.dataclass(frozen=True)
class Audit:
  """Evidence from one run. It can refute a claim and never proves one.

  Attributes:
    findings: The evidence; each bound on epsilon is wrong with probability at most
      `significance`.
    delta: Delta of the bounds on epsilon.
    significance: Probability that one bound is wrong, or that a true claim is refuted.
    claimed: Upper bound on epsilon by the claim; None if it was not computed, as by
      `audit_scores`.
    note: What else limits the evidence, in sentences.
  """

  findings: tuple[Finding, ...]
  delta: float
  significance: float = SIGNIFICANCE
  claimed: float | None = None
  note: str = ''

  @property
  def refuted(self) -> bool:
    """Whether the findings refute the claim, with error at most `significance`."""
    # Bonferroni: the smallest p-value, times the number of p-values.
    tried = [found.p_value for found in self.findings if found.p_value is not None]
    return bool(tried) and min(tried) * len(tried) <= self.significance

  def as_dict(self) -> dict[str, Any]:
    """Returns the audit, ready for JSON."""
    return {'refuted': self.refuted, **dataclasses.asdict(self)}

  def __str__(self) -> str:
    lines = []
    for found in self.findings:
      value = (f'p-value {_format.upper(found.p_value, 3)}' if found.p_value is not None
               else f'epsilon >= {_format.lower(found.epsilon or 0.0, 4)}')
      lines.append(f'{found.name}: {value}. Assumes that {found.assumes}.')
    claim = 'The claim is' if self.claimed is None else (
        f'The claim, epsilon <= {_format.upper(self.claimed, 4)}, is')
    return '\n'.join((
        *lines, f'Bounds are at delta {self.delta!r}, each wrong with '
        f'probability at most {_format.upper(self.significance)}.',
        *filter(None, [self.note]),
        f'{claim} REFUTED.' if self.refuted else
        f'{claim} not refuted, which does not prove it.'
        if any(found.p_value is not None for found in self.findings) else
        'No claim was tried.'))

  def picture(self, path: str) -> None:
    """Writes a picture of the bounds on epsilon, and of p-values if any, to a file.

    The extension of `path` sets the format. Raises ImportError without matplotlib.
    """
    bounds, p_values = (
        {found.name: getattr(found, kind) for found in reversed(self.findings)
         if getattr(found, kind) is not None} for kind in ('epsilon', 'p_value'))
    left, *others = np.atleast_1d(pictures.axes(1 + bool(p_values), 13))
    left.barh(list(bounds), np.maximum(list(bounds.values()), 1e-12))
    left.set(xlabel=f'lower bounds on epsilon at delta {self.delta!r}')
    if self.claimed is not None:
      left.axvline(self.claimed, color='C3', label='claimed')
      left.legend()
    for right in others:
      right.barh(list(p_values), np.maximum(list(p_values.values()), 1e-12))
      right.axvline(self.significance / len(p_values), color='C3', label='limit')
      right.legend()
      right.set(xlabel='p-values of the claim', xscale='log')
    left.figure.savefig(path, dpi=120)


def audit_scores(scores: object, present: object, *, delta: float | None = None,
                 claim: Claim | None = None, guesses: int | None = None,
                 significance: float = SIGNIFICANCE, pilot: float = PILOT,
                 seed: int = 0, independent: bool = True) -> Audit:
  """Returns the evidence in one score for each canary of a training run.

  A random part of the canaries, the pilot, chooses a threshold, and how many canaries
  to guess. The others are the evidence.

  Args:
    scores: Shape (canaries,), larger for canaries that seem to be in the data.
    present: Shape (canaries,), whether a fair coin put the canary into the data.
    delta: Delta of the bounds on epsilon; default the claim's.
    claim: A claim to refute, such as `Claim.of_plan(plan)`.
    guesses: Number of canaries guessed for the one-run bounds, fixed before scores were
      seen; by default the pilot chooses.
    significance: Probability that one bound is wrong.
    pilot: Share of the canaries in the pilot.
    seed: Seed of the random choice of the pilot.
    independent: Whether scores of different canaries are independent given the coins;
      False, as for losses of one model, leaves out what needs that.

  Raises:
    ValueError: if an argument is out of range, or no delta is given.
  """
  if isinstance(scores, np.ndarray) and scores.dtype.kind == 'b':
    scores = scores.astype(np.float64)  # Answers of a test that says yes or no.
  values = _checks.vector('scores', scores)
  coins = components.coins(present, values.size)
  return _audit(values, coins, _pilot(coins, pilot, seed), None, delta, claim, guesses,
                significance, independent=independent)


def audit_run(seen: Observations, claim: Claim, *, guesses: int | None = None,
              significance: float = SIGNIFICANCE, pilot: float = PILOT, seed: int = 0,
              families: bool = True) -> Audit:
  """Returns the evidence in the noisy sums of a run, with component checks.

  The absent canaries of a pilot give the noise multiplier at which the other canaries
  are scored by their likelihood ratio. Other arguments are as for `audit_scores`.

  Args:
    seen: The observations.
    claim: The claim to refute, with Gaussian noise.
    families: Whether to bound epsilon by scores within the claim's family too, which
      takes many accounts of the run, slow ones for random allocation.

  Raises:
    ValueError: if an argument is out of range, or the claim's noise is not Gaussian.
  """
  _checks.instance('seen', seen, Observations, 'PrivateModel.audit() makes them')
  _checks.instance('claim', claim, Claim, 'such as Claim.of_plan(plan)')
  chosen = _pilot(seen.present, pilot, seed)
  sigma = float(np.sqrt(np.mean(seen.values[:, chosen & ~seen.present]**2)))
  found = _audit(seen.scores(sigma, claim.sampling_prob), seen.present, chosen, 0.0,
                 None, claim, guesses, significance, families)
  checked = [Finding(
      f'Check of {check.name}', f'noise is Gaussian; finds {check.fault}',
      p_value=check.p_value) for check in seen.checks(claim)]
  if seen.drawn is not None and claim.independent:
    checked.append(Finding(
        'Components', 'noise is Gaussian and amplitude and rate are constant; '
        + _FAMILY, seen.epsilon(claim, significance)))
  return dataclasses.replace(
      found, findings=(*checked, *found.findings),
      claimed=claim.account(1.0, 1.0).epsilon_bounds(claim.delta).upper)


def _pilot(present: np.ndarray, share: float, seed: int) -> np.ndarray:
  """Returns the pilot's mask; ValueError unless it and the rest have both sides."""
  share = _checks.delta(share, 'pilot')
  chosen = components.generator(seed).random(present.size) < share
  if not all(np.any(part & side) for part in (chosen, ~chosen)
             for side in (present, ~present)):
    raise ValueError(
        f'Expected canaries enough for a pilot of a share of {share:g}, present and '
        f'absent ones, and for a test, got {present.size}; take more canaries.')
  return chosen


def _audit(scores: np.ndarray, present: np.ndarray, pilot: np.ndarray,
           threshold: float | None, delta: float | None, claim: Claim | None,
           guesses: int | None, significance: float, families: bool = True,
           independent: bool = True) -> Audit:
  """Returns the evidence in scores outside of the pilot.

  The pilot sets `threshold` and `guesses` if they are None, the claim `delta`.
  """
  if claim is not None:
    _checks.instance('claim', claim, Claim, 'such as Claim.of_plan(plan)')
    independent = independent and claim.independent
    delta = claim.delta if delta is None else delta
  if delta is None:
    raise ValueError('Expected delta or a claim, got neither.')
  delta = _checks.delta(delta)
  significance = _checks.delta(significance, 'significance')
  if threshold is None:
    threshold = _threshold(scores[pilot], present[pilot])
  left, coins = scores[~pilot], present[~pilot]
  if guesses is None:
    guesses = _guesses(scores[pilot], present[pilot], left.size, delta, significance)
  guesses = _checks.integer('guesses', guesses, 1, left.size)
  alarm = left > threshold
  errors = Errors(int(np.sum(~coins)), int(np.sum(coins)),
                  int(np.sum(alarm & ~coins)), int(np.sum(~alarm & coins)))
  run = OneRun(left.size, guesses, _correct(left, coins, guesses))
  found = []
  if independent:
    if claim is not None:
      found = _of_claim(claim, errors, run, significance, families)
    found += [
        Finding('Counts (Clopper-Pearson)', _INDEPENDENT,
                errors.epsilon(delta, significance)),
        _in_family('Gaussian family', errors.refutes, delta, significance,
                   _INDEPENDENT + ', and the run is mu-GDP; ' + _FAMILY)]
  return Audit((
      *found, Finding('One run (Steinke, Nasr and Jagielski)',
                      'coins are fair and independent',
                      run.epsilon(delta, significance)),
      _in_family('One run (f-DP, Gaussian family)', run.refutes, delta, significance,
                 'coins are fair and independent, and the run is mu-GDP; ' + _FAMILY)),
               delta, significance)


def _of_claim(claim: Claim, errors: Errors, run: OneRun, significance: float,
              in_family: bool) -> list[Finding]:
  """Returns the test of the claim itself, and epsilons within its family."""
  found = [Finding('Claim, by its trade-off curve', _INDEPENDENT,
                   p_value=errors.p_value(claim.curve()))]
  if claim.noise_multiplier is None or not in_family:
    return found
  family = 'the run is as claimed but for its noise multiplier; ' + _FAMILY
  return [*found, *(
      Finding(name, f'{assumes}, and {family}', claim.epsilon(
          functools.partial(refutes, significance=significance)))
      for name, assumes, refutes in (
          ("Claim's family", _INDEPENDENT, errors.refutes),
          ("One run (f-DP, claim's family)", 'coins are fair and independent',
           run.refutes)))]


def _in_family(name: str, refutes: Callable[..., bool], delta: float,
               significance: float, assumes: str) -> Finding:
  """Returns the finding of the epsilon within the Gaussian family."""
  mu = families_lib.gaussian_mu(functools.partial(refutes, significance=significance))
  return Finding(name, assumes, families_lib.gaussian_epsilon(mu, delta))


def _threshold(scores: np.ndarray, present: np.ndarray) -> float:
  """Returns the threshold with the smallest sum of both error rates on these scores."""
  order = np.sort(scores)
  middle = 0.5 * (order[1:] + order[:-1])
  misses = np.searchsorted(np.sort(scores[present]), middle, side='right')
  alarms = np.sum(~present) - np.searchsorted(
      np.sort(scores[~present]), middle, side='right')
  return float(middle[np.argmin(misses / np.sum(present) + alarms / np.sum(~present))])


def _correct(scores: np.ndarray, present: np.ndarray, guesses: int) -> int:
  """Counts right guesses: half 'absent', by the least scores, the others 'present'."""
  # Equal scores are ordered at random: by place, a list sorted by its coins would have
  # its coins guessed.
  order = np.lexsort((components.generator(0).random(scores.size), scores))
  return int(np.sum(~present[order[:guesses // 2]])) + int(
      np.sum(present[order[scores.size - (guesses - guesses // 2):]]))


def _guesses(scores: np.ndarray, present: np.ndarray, canaries: int, delta: float,
             significance: float) -> int:
  """Returns how many of `canaries` to guess: the share of the pilot's largest bound."""
  def expected(share: float) -> float:
    """Returns the bound for a share of guesses, right as often as in the pilot."""
    tried = max(round(share * scores.size), 2)
    count = max(round(share * canaries), 1)
    right = (_correct(scores, present, tried) + 0.5) / (tried + 1)
    return OneRun(canaries, count, int(right * count)).epsilon(delta, significance)

  return max(round(max(_SHARES, key=expected) * canaries), 1)
