"""Checks of a run's components: noise, amplitude, participations, repeated noise.

A canary is an example whose clipped gradient has the clipping norm along a direction of
its own. A component check finds a fault that a membership test would hardly see.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import reprlib
from typing import NamedTuple

import numpy as np
from scipy import special

from tfcactus import _checks
from tfcactus.audit.families import Claim

_BLOCK = 1000
"""Rows of correlations at a time. Affects memory only."""

_LEAST_NOISE = 1e-9
"""Less noise, over the clipping norm, counts as this much: none divides by zero."""


class Check(NamedTuple):
  """A component check: a p-value of the claim, small if there is the named fault."""

  name: str
  p_value: float
  fault: str


@dataclasses.dataclass(frozen=True, eq=False)
class Observations:
  """Numbers that a run shows of its canaries, whose directions are orthogonal.

  Attributes:
    values: Shape (steps, canaries), the noisy sum of each step along the direction of
      each canary, in clipping norms, before any division. If noise is correlated over
      steps: what all steps show of a contribution in this step, scaled so that its
      noise has the noise multiplier.
    present: Shape (canaries,), whether a fair coin put the canary into the data; at
      least two canaries are present and two absent.
    drawn: Shape (steps, canaries), whether the batch of the step held the canary; None
      if that is not known, which leaves out the checks that need it.
    noise: Shape (steps, columns), sums of noise alone, independent over steps; by
      default the values of absent canaries.
  """

  values: np.ndarray
  present: np.ndarray
  drawn: np.ndarray | None = None
  noise: np.ndarray = None  # type: ignore[assignment]

  def __post_init__(self) -> None:
    """Converts and checks all attributes, and sets the default of `noise`."""
    values = _checks.numbers_of('values', self.values)
    if values.ndim != 2 or not values.size or not np.all(np.isfinite(values)):
      raise ValueError('Expected values to be finite, of shape (steps, canaries) and '
                       f'one step or more, got shape {values.shape}.')
    object.__setattr__(self, 'values', values)
    object.__setattr__(self, 'present', coins(self.present, values.shape[1]))
    noise = values[:, ~self.present] if self.noise is None else (
        _checks.numbers_of('noise', self.noise))
    if noise.ndim != 2 or len(noise) != len(values) or not noise.size or (
        not np.all(np.isfinite(noise))):
      raise ValueError(f'Expected noise to be finite and of shape ({len(values)}, '
                       f'columns), of one column or more, got shape {noise.shape}.')
    object.__setattr__(self, 'noise', noise)
    if self.drawn is not None:
      drawn = np.array(self.drawn, dtype=bool)
      if drawn.shape != values.shape or np.any(drawn & ~self.present):
        raise ValueError(
            f'Expected drawn of shape {values.shape}, true for present canaries only, '
            f'got shape {drawn.shape} with {int(np.sum(drawn))} draws.')
      object.__setattr__(self, 'drawn', drawn)

  @property
  def _amplitudes(self) -> np.ndarray | None:
    """The values of canaries where they were drawn, flat; None if no draw is known."""
    return None if self.drawn is None or not np.any(self.drawn) else (
        self.values[self.drawn])

  def scores(self, noise_multiplier: float, sampling_prob: float) -> np.ndarray:
    """Returns each canary's log likelihood ratio of being present, shape (canaries,).

    The sampling probability is in (0, 1]. Estimate `noise_multiplier` from other
    canaries than those that are scored: the multiplier that the program drew with may
    be wrong, and its scores would hide that.
    """
    noise_multiplier = _checks.non_negative('noise_multiplier', noise_multiplier)
    sampling_prob = _checks.sampling_prob(sampling_prob)
    # Sums log(1 - q + q e^ratio) over steps, where q is the sampling probability.
    ratio = (self.values - 0.5) / max(noise_multiplier, _LEAST_NOISE)**2
    with np.errstate(divide='ignore'):
      absent = np.log1p(-sampling_prob)
    return np.sum(np.logaddexp(absent, math.log(sampling_prob) + ratio), axis=0)

  def checks(self, claim: Claim) -> list[Check]:
    """Returns the checks of a claim; ValueError unless its noise is Gaussian.

    Amplitude and Poisson participations are checked only if `drawn` is known.
    """
    sigma = _sigma(claim)
    steps, columns = self.noise.shape
    squares = np.sum((self.noise / sigma)**2, axis=1)
    # Exactly normal for every step if the noise is as claimed, since the distribution
    # function of the chi-square law is then uniform.
    normal = special.ndtri(special.chdtr(columns, squares))
    found = [
        Check('noise', float(special.chdtr(self.noise.size, np.sum(squares))),
              'less noise than claimed'),
        Check('noise of each step', float(special.chdtrc(steps, np.sum(normal**2))),
              'noise or divisor that changes from step to step'),
        # Twice the smaller of two p-values: a union bound.
        Check('repeated noise', min(2 * min(
            _correlated(self.noise), _correlated(self.noise.T)), 1.0),
              'noise of one step or coordinate that another one repeats')]
    if (amplitudes := self._amplitudes) is not None:
      scale = max(math.sqrt(np.mean(self.noise**2) / amplitudes.size), _LEAST_NOISE)
      found.append(Check(
          'amplitude', float(special.stdtr(
              self.noise.size, (1 - np.mean(amplitudes)) / scale)),
          'a contribution above the clipping norm'))
    if self.drawn is not None and claim.poisson:
      found.append(Check('participations', self._participations(claim.sampling_prob),
                         'batches that are not the claimed Poisson samples'))
    return found

  def _participations(self, prob: float) -> float:
    """Returns the two-sided p-value of binomial participations of present canaries."""
    assert self.drawn is not None
    steps, count = self.drawn.shape[0], np.sum(self.drawn[:, self.present], axis=0)
    # A distribution function, randomised over each of its jumps, is exactly uniform.
    # Noise seeds the random numbers: the same ones in all runs would not be random.
    share = np.random.default_rng([
        *hashlib.sha256(self.noise.tobytes()).digest()]).random(count.size)
    below = np.where(
        count > 0, special.bdtr(np.maximum(count - 1, 0), steps, prob), 0.0)
    uniform = below + share * (special.bdtr(count, steps, prob) - below)
    total = np.sum(special.ndtri(uniform)**2)
    return 2 * min(float(special.chdtr(count.size, total)),
                   float(special.chdtrc(count.size, total)))

  def epsilon(self, claim: Claim, significance: float = 0.05) -> float:
    """Returns a lower bound on epsilon within the family of the claim.

    The family has the claim's steps and scheme, and any Gaussian noise, amplitude and,
    for Poisson samples, sampling probability. The bound is zero if it is not known when
    canaries were drawn, or if the amplitude may be zero.
    """
    third = _checks.delta(significance, 'significance') / 3
    sigma = _sigma(claim)
    amplitudes = self._amplitudes
    if self.drawn is None or amplitudes is None:
      return 0.0
    # Confidence limits: the most noise, the least amplitude, the least sampling.
    draws = amplitudes.size
    noise = math.sqrt(float(np.sum(self.noise**2) / special.chdtri(
        self.noise.size, 1 - third)))
    amplitude = float(
        np.mean(amplitudes) + special.ndtri(third) * noise / math.sqrt(draws))
    if amplitude <= 0:
      return 0.0
    sampled = 1.0
    if claim.poisson:
      trials = self.drawn.shape[0] * int(np.sum(self.present))
      sampled = float(special.betaincinv(draws, trials - draws + 1, third)
                      ) / claim.sampling_prob
    return claim.account(max(noise / amplitude, _LEAST_NOISE) / sigma, sampled
                         ).epsilon_bounds(claim.delta).lower


def generator(seed: int) -> np.random.Generator:
  """Returns random numbers for an audit."""
  # They differ from those of default_rng(seed), which may have drawn the coins.
  return np.random.default_rng([_checks.integer('seed', seed, 0), 0x6175646974])


def coins(present: object, canaries: int) -> np.ndarray:
  """Returns `present` as booleans; ValueError unless each side has two or more."""
  found = np.asarray(present)
  if found.shape != (canaries,) or not np.all((found == 0) | (found == 1)):
    raise ValueError(f'Expected present to be {canaries} times true or false, one for '
                     f'each canary, got {reprlib.repr(present)}.')
  found = found.astype(bool)
  if min(np.sum(found), np.sum(~found)) < 2:
    raise ValueError('Expected at least two canaries present and two absent, got '
                     f'{int(np.sum(found))} present of {canaries}.')
  return found


def _sigma(claim: Claim) -> float:
  """Returns the claimed noise multiplier; ValueError unless the noise is Gaussian."""
  if claim.noise_multiplier is None:
    raise ValueError('Expected a claim with Gaussian noise for component checks, got '
                     'another noise; audit the scores alone.')
  return claim.noise_multiplier


def _correlated(rows: np.ndarray) -> float:
  """Returns the p-value of the largest correlation of two rows of normal numbers."""
  count, size = rows.shape
  if count < 2 or size < 2:
    return 1.0
  length = np.sqrt(np.sum(rows**2, axis=1, keepdims=True))
  unit = rows / np.where(length > 0, length, 1.0)
  largest = 0.0
  for start in range(0, count, _BLOCK):
    block = np.abs(unit[start:start + _BLOCK] @ unit[start:].T)
    block[np.arange(block.shape[0]), np.arange(block.shape[0])] = 0.0
    largest = max(largest, float(np.max(block)))
  # The squared correlation of two independent rows has a beta distribution. The factor
  # is the number of pairs of rows (a union bound).
  return min(1.0, 0.5 * count * (count - 1) * float(
      special.betainc(0.5 * (size - 1), 0.5, max(1 - largest**2, 0.0))))
