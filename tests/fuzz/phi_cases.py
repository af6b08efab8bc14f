"""Random settings for the accountant, each with an oracle of its own.

A case is made from a seed. `check` compares the accountant's bounds on epsilon and on
delta with the oracle, and returns violations, widths and times.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Callable

import dp_accounting
import numpy as np

from tests.fuzz import phi_oracles as oracles
import tfcactus
from tfcactus import accounting

REPLACE = dp_accounting.NeighboringRelation.REPLACE_ONE


@dataclasses.dataclass(frozen=True)
class Case:
  """A composition of releases with an oracle.

  Attributes:
    name: Its settings in words.
    accountant: An accountant that has composed the releases.
    delta: The target delta.
    truth: Function epsilon -> (lower, upper), the oracle's bounds on delta.
  """

  name: str
  accountant: accounting.PhiAccountant
  delta: float
  truth: Callable[[float], tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Outcome:
  """Result of comparing an accountant with an oracle.

  Attributes:
    name: Name of the case.
    wrong: Bounds that do not hold, in words.
    width: Width of the bounds on epsilon, relative where epsilon is above one.
    seconds: CPU time of the bounds on epsilon and on delta together.
    vacuous: Whether the oracle's own bounds were far apart.
  """

  name: str
  wrong: tuple[str, ...]
  width: float
  seconds: float
  vacuous: bool


def check(case: Case) -> Outcome:
  """Compares the accountant with the oracle."""
  start = time.process_time()
  bounds = case.accountant.epsilon_bounds(case.delta)
  at = bounds.estimate if math.isfinite(bounds.estimate) else 1.0
  found = case.accountant.delta_bounds(at)
  seconds = time.process_time() - start
  wrong = []
  if not bounds.lower <= bounds.estimate <= bounds.upper:
    wrong.append(f'epsilon bounds out of order: {bounds}')
  if math.isfinite(bounds.upper) and case.truth(bounds.upper)[0] > case.delta:
    wrong.append(f'epsilon <= {bounds.upper!r} at delta {case.delta!r}, where '
                 f'delta is {case.truth(bounds.upper)}')
  if 0 < bounds.lower < math.inf and case.truth(bounds.lower)[1] < case.delta:
    wrong.append(f'epsilon >= {bounds.lower!r} at delta {case.delta!r}, where '
                 f'delta is {case.truth(bounds.lower)}')
  low, high = case.truth(at)
  if low > found.upper or high < found.lower:
    wrong.append(f'delta at {at!r} is in {found}, but in {(low, high)}')
  width = (bounds.upper - bounds.lower) / max(bounds.upper, 1.0) if (
      math.isfinite(bounds.upper)) else math.inf
  return Outcome(case.name, tuple(wrong), float(width), seconds,
                 bool(high - low > 1e-2 * high + 1e-15))


def few_gaussians(seed: int, most: int = 2) -> Case:
  """One or two steps (or `most`), mixed or not, against quadrature."""
  rng = np.random.default_rng([1, seed])
  kinds = [_gaussian(rng) for _ in range(int(rng.integers(1, most + 1)))]
  if rng.random() < 0.5:
    kinds = [kinds[0]] * len(kinds)
  return _of_gaussians([(kind, 1) for kind in kinds], _delta(rng), rng)


def many_gaussians(seed: int, most: float = 1e7) -> Case:
  """Up to ten million steps of up to three kinds, by discretisation."""
  rng = np.random.default_rng([2, seed])
  parts = []
  for _ in range(int(rng.choice([1, 1, 2, 3]))):
    sigma, prob = _gaussian(rng)
    # As many as keep epsilon within reach: mu^2 = k q^2 (e^(1/sigma^2) - 1).
    cost = prob * prob * math.expm1(min(sigma**-2, 500))
    limit = min(most, max(4.0, 100 / cost, 3 / prob))
    parts.append(((sigma, prob), int(10**rng.uniform(0, math.log10(limit)))))
  return _of_gaussians(parts, _delta(rng), rng)


def fixed_size(seed: int) -> Case:
  """One or two steps on samples of fixed size: the pair of twice the shift."""
  rng = np.random.default_rng([3, seed])
  total = int(10**rng.uniform(0.5, 6))
  size = int(rng.integers(1, total + 1))
  sigma, steps = 10**rng.uniform(-0.5, 1.5), int(rng.integers(1, 3))
  direction = str(rng.choice(['add', 'remove']))
  accountant = accounting.PhiAccountant(direction=direction).compose(
      dp_accounting.SampledWithoutReplacementDpEvent(
          total, size, dp_accounting.GaussianDpEvent(sigma)), steps)
  step = oracles.Gaussian(sigma / 2, size / total, direction == 'remove')
  return Case(
      f'fixed size {size} of {total}, sigma {sigma:.4g}, {steps} steps, {direction}',
      accountant, _delta(rng), _by_quadrature([step] * steps))


def replaced(seed: int) -> Case:
  """Unsampled Gaussians under the replace relation: sensitivity two."""
  rng = np.random.default_rng([4, seed])
  sigma, steps = 10**rng.uniform(-1, 2.3), int(10**rng.uniform(0, 5))
  accountant = accounting.PhiAccountant(REPLACE).compose(
      dp_accounting.GaussianDpEvent(sigma), steps)
  one = oracles.Gaussian(sigma / (2 * math.sqrt(steps)), 1.0, True)
  return Case(f'replace, sigma {sigma:.4g}, {steps} steps', accountant,
              _delta(rng), _by_quadrature([one]))


def laplace(seed: int) -> Case:
  """One or two Laplace releases, sampled or not."""
  rng = np.random.default_rng([5, seed])
  steps = int(rng.integers(1, 3))
  kinds = [(10**rng.uniform(-0.7, 1.5), _prob(rng)) for _ in range(steps)]
  direction = str(rng.choice(['add', 'remove']))
  accountant = accounting.PhiAccountant(direction=direction)
  for scale, prob in kinds:
    accountant.compose(_sampled(dp_accounting.LaplaceDpEvent(scale), prob))
  laws = [oracles.Laplace(scale, prob, direction == 'remove')
          for scale, prob in kinds]

  def truth(epsilon):
    value = float(laws[0].delta(epsilon)) if steps == 1 else (
        oracles.laplace_two(*laws, epsilon))
    # The closed form of one loses relative digits where it is tiny.
    return value * (1 - 1e-7) - 1e-15, value * (1 + 1e-7) + 1e-15

  return Case(f'Laplace {_shown(kinds)}, {direction}', accountant, _delta(rng),
              truth)


def discrete(seed: int) -> Case:
  """Random discrete pairs, zeros among them, by enumeration of all outcomes."""
  rng = np.random.default_rng([6, seed])
  size, steps = int(rng.integers(2, 6)), int(rng.integers(1, 8))
  p, q = rng.dirichlet(np.full(size, 10**rng.uniform(-0.5, 1.5)), 2)
  if rng.random() < 0.3:
    (p if rng.random() < 0.5 else q)[int(rng.integers(size))] = 0.0
    p, q = p / p.sum(), q / q.sum()
  if size == 2 and rng.random() < 0.5:  # Randomised response.
    keep = rng.uniform(0.5, 0.999)
    p, q = np.array([keep, 1 - keep]), np.array([1 - keep, keep])
    steps = int(10**rng.uniform(0, 2.5))
  prob, direction = _prob(rng), str(rng.choice(['add', 'remove']))
  pair = accounting.DominatingPair.from_masses(p, q)
  event = accounting.DominatingPairDpEvent(
      pair, dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
  accountant = accounting.PhiAccountant(direction=direction).compose(
      _sampled(event, prob), steps)
  atoms = oracles.Atoms(p, q).sampled(prob, direction == 'remove')

  def truth(epsilon):
    value = atoms.delta(epsilon, steps)
    return value * (1 - 1e-9) - 1e-14, value * (1 + 1e-9) + 1e-14

  return Case(f'{size} atoms, q {prob:.4g}, {steps} steps, {direction}, seed {seed}',
              accountant, _delta(rng), truth)


def table(seed: int) -> Case:
  """Random monotone scalar tables: masses from the arrays, all shifts of one."""
  rng = np.random.default_rng([7, seed])
  bins, cells = int(rng.integers(1, 5)), int(rng.integers(3, 30))
  heights = np.cumsum(-rng.exponential(10**rng.uniform(-2, 0.3), cells))
  if rng.random() < 0.15:
    heights = np.where(rng.random(cells) < 0.3, heights[0], heights)
    heights = np.minimum.accumulate(heights)
  ratio = -math.inf if rng.random() < 0.2 else -10**rng.uniform(-1.5, 0.5)
  noise = tfcactus.ScalarTable.normalized(bins, heights, ratio)
  steps, prob = int(rng.integers(1, 3)), _prob(rng)
  direction = str(rng.choice(['add', 'remove']))
  accountant = accounting.PhiAccountant(direction=direction).compose(
      _sampled(accounting.NoiseTableDpEvent(noise), prob), steps)
  pairs = [_shifted(noise, shift).sampled(prob, direction == 'remove')
           for shift in range(1, bins + 1)]

  def truth(epsilon):
    value = max(pair.delta(epsilon) for pair in pairs) if steps == 1 else (
        pairs[-1].delta_of_pairs(pairs[-1], epsilon))
    return value * (1 - 1e-9) - 1e-13, value * (1 + 1e-9) + 1e-13

  return Case(f'table of {cells} cells, {bins} to one, q {prob:.4g}, {steps} steps, '
              f'{direction}, seed {seed}', accountant, _delta(rng), truth)


FAMILIES = (few_gaussians, many_gaussians, fixed_size, replaced, laplace,
            discrete, table)


def _shifted(noise: tfcactus.ScalarTable, shift: int) -> oracles.Atoms:
  """Masses of all cells up to where tails hold 1e-17, and of them shifted."""
  density, ratio = noise.log_density, noise.log_tail_ratio
  tail = 0 if ratio == -math.inf else int(math.ceil(45 / -ratio))
  beyond = density[-1] + ratio * np.arange(1, tail + 1) if tail else []
  half = np.concatenate([density, beyond])
  mirror = half if noise.edge_at_zero else half[1:]
  mass = np.exp(np.concatenate([mirror[::-1], half]))
  mass /= mass.sum()
  rest = np.zeros(shift)
  return oracles.Atoms(np.concatenate([mass, rest]), np.concatenate([rest, mass]))


def _of_gaussians(parts, delta, rng) -> Case:
  direction = str(rng.choice(['add', 'remove']))
  accountant = accounting.PhiAccountant(direction=direction)
  for (sigma, prob), count in parts:
    accountant.compose(_sampled(dp_accounting.GaussianDpEvent(sigma), prob), count)
  steps = [(oracles.Gaussian(sigma, prob, direction == 'remove'), count)
           for (sigma, prob), count in parts]
  total = sum(count for _, count in parts)
  if total <= 3:
    truth = _by_quadrature([step for step, n in steps for _ in range(n)])
  else:
    truth = oracles.Groups(tuple(steps)).delta
  shown = _shown((*kind, count) for kind, count in parts)
  return Case(f'Gaussians {shown}, {direction}, delta {delta:.4g}', accountant,
              delta, truth)


def _by_quadrature(steps):
  def truth(epsilon):
    value, error = oracles.refined(steps, epsilon)
    return value - error - 1e-25, value + error + 1e-25
  return truth


def _gaussian(rng) -> tuple[float, float]:
  """(sigma, prob): sigma from .05 to 200, prob from 1e-7 to one."""
  usual = rng.random() < 0.6
  return (10**(rng.uniform(-0.5, 0.7) if usual else rng.uniform(-1.3, 2.3)),
          _prob(rng))


def _prob(rng) -> float:
  kind = rng.random()
  if kind < 0.1:
    return 1.0
  return float(10**rng.uniform(-7, 0) if kind < 0.5 else rng.uniform(1e-3, 0.6))


def _delta(rng) -> float:
  """Returns a random delta from 1e-15 to .99."""
  return float(10**rng.uniform(-15, -0.01) if rng.random() < 0.6 else
               rng.uniform(0.01, 0.99))


def _sampled(event, prob):
  return event if prob == 1 else dp_accounting.PoissonSampledDpEvent(prob, event)


def _shown(kinds) -> str:
  return ' '.join('(' + ', '.join(f'{x:.4g}' for x in kind) + ')' for kind in kinds)
