"""Search for the noise of least epsilon for a training plan.

A design minimises a convex divergence, with a certificate. The search chooses the
divergence for the plan by the accountant's upper bound on epsilon.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, NamedTuple

from tfcactus import _checks, _format, design, noise as noise_lib, plan
from tfcactus.guarantee import Guarantee
from tfcactus.search import epsilon_descent

_SCALAR_BINS = 100
"""Cells per unit of sensitivity of scalar designs."""

_LARGEST_DIM = 1000
"""Above this dimension quantisation on shells costs more than a design gains."""

# Renyi orders tried first, number of orders tried between them, and the largest one.
_FIRST_ORDERS = (2.0, 4.0, 8.0, 16.0)
_REFINEMENTS = 4
_LARGEST_ORDER = 64.0

_WORTH = 1e-4
"""Minimum relative gain of a refined, uncertified density over a certified one."""

_DESCENTS, _SHORTEST = 12, 0.01
"""Most steps of the descent of epsilon, and the length at which it gives up."""


class Candidate(NamedTuple):
  """Noise that the search tried.

  Attributes:
    label: The noise, with its objective.
    epsilon: The accountant's upper bound; inf if no design was certified or accounted.
  """

  label: str
  epsilon: float


@dataclasses.dataclass(frozen=True)
class OptimalNoise:
  """The best noise found, its guarantee, and the candidates it was chosen from.

  Attributes:
    noise: The noise.
    label: Kind and objective of the noise.
    guarantee: The guarantee of the plan with this noise, with bounds.
    candidates: All noise tried, in increasing order of epsilon.
    certified: What is proved about the choice.
    searched: What is searched and not proved about the choice.
  """

  noise: noise_lib.Noise
  label: str
  guarantee: Guarantee
  candidates: tuple[Candidate, ...]
  certified: str
  searched: str

  @property
  def epsilon(self) -> float:
    """The upper bound on epsilon: the one to publish."""
    return self.guarantee.upper


def optimal_noise(*, delta: float, sampling_prob: float, steps: int,
                  noise_multiplier: float | None = None,
                  variance: float | None = None, dim: int = 1,
                  bins: int | None = None,
                  progress: Callable[[str], None] = lambda line: None
                  ) -> OptimalNoise:
  """Searches for the noise of least epsilon at a given noise multiplier.

  Args:
    delta: Target delta.
    sampling_prob: Poisson sampling probability of a step; 1 for full releases.
    steps: Number of planned steps.
    noise_multiplier: Standard deviation of a coordinate over sensitivity.
    variance: Square of the noise multiplier; exactly one of the two is given.
    dim: Length of the clipped vector; 1 for a scalar query.
    bins: Cells or shells per unit of sensitivity; None chooses.
    progress: Receives one line for each candidate.

  Returns:
    The best of the Gaussian, the Laplace (dim 1), the cactus (dim 1) and the monotone
    or isotropic designs for KL, chi-square and Renyi orders, by the accountant's upper
    bound; the Gaussian if dim is above 1000, where nothing else is tried. If a monotone
    design (dim 1) is the best, the gradient of epsilon refines it. This gains 1 to 2 %
    for one to three full releases, 0.1 % for ten, and less than 0.01 % for hundreds,
    where the certified design is returned.

  Raises:
    ValueError: if an argument is out of range.

  Source: the designs of Alghamdi et al. (ISIT 2022, ISIT 2023), with the objectives of
  `tfcactus.design.solvers.divergence`.
  """
  if (noise_multiplier is None) == (variance is None):
    raise ValueError(
        'Expected exactly one of noise_multiplier and variance, got '
        f'noise_multiplier={noise_multiplier!r} and variance={variance!r}.')
  sigma = (_checks.positive('noise_multiplier', noise_multiplier)
           if variance is None else
           math.sqrt(_checks.positive('variance', variance)))
  dim = _checks.count('dim', dim)
  settings = {
      'l2_norm_clip': 1.0, 'num_examples': 1,
      'sampling_prob': _checks.sampling_prob(sampling_prob),
      'steps': _checks.count('steps', steps),
      'delta': _checks.delta(delta), 'dim': dim}
  if bins is not None:
    bins = _checks.count('bins', bins)
  search = _Search(settings, sigma, dim, bins, progress)
  search.run()
  return search.result()


class _Search:
  """Tries noise of one variance for a plan.

  `settings` are arguments of `PrivacyPlan` other than the noise. `sigma` is the
  standard deviation of a coordinate over the sensitivity. `bins` is the number of cells
  per sensitivity, None for defaults. `_tried` maps labels to (upper bound on epsilon,
  noise, guarantee).
  """

  def __init__(self, settings: dict[str, Any], sigma: float, dim: int,
               bins: int | None, progress: Callable[[str], None]):
    self._settings, self._sigma, self._dim = settings, sigma, dim
    self._bins = bins or (_SCALAR_BINS if dim == 1 else None)
    self._progress = _checks.function('progress', progress, 'such as print')
    self._tried: dict[str, tuple[float, Any, Any]] = {}

  def run(self) -> None:
    """Tries closed forms and designs, then Renyi orders, then descends from the best.

    Above `_LARGEST_DIM` it tries the Gaussian only.
    """
    self._try('gaussian', lambda: noise_lib.Gaussian(self._sigma))
    if self._dim > _LARGEST_DIM:
      return
    if self._dim == 1:
      self._try('laplace', lambda: noise_lib.Laplace(self._sigma / math.sqrt(2)))
      self._try('cactus kl', lambda: design.Cactus(
          self._sigma**2, bins=self._bins).solve())
    for objective in ('kl', 'chi2'):
      self._design(objective)
    costs = {order: self._order(order) for order in _FIRST_ORDERS[:2]}  # Epsilons.
    for order in _FIRST_ORDERS[2:]:
      # An order is tried only if the highest so far, half of it, is the best.
      if min(costs, key=costs.__getitem__) < order / 2:
        break
      costs[order] = self._order(order)
    for _ in range(_REFINEMENTS):
      best = min(costs, key=costs.__getitem__)
      above = [o for o in costs if o > best] or [min(2 * best, _LARGEST_ORDER)]
      below = [o for o in costs if o < best] or [1.0]
      up, down = best * min(above), best * max(below)
      # The wider gap on a logarithmic scale is halved.
      order = math.sqrt(up if min(above) / best > best / max(below) else down)
      order = float(f'{order:.3g}')
      if order in costs:
        break
      costs[order] = self._order(order)
    self._refine()

  def _refine(self) -> None:
    """Descends along the gradient of epsilon from the best monotone design."""
    # After many steps, the design of the best Renyi order is nearly optimal. After few,
    # epsilon is no function of one Renyi divergence, and the descent reduces it.
    label, (start, noise, best) = min(self._tried.items(), key=lambda item: item[1][0])
    if not label.startswith('monotone') or start == 0:
      return
    epsilon, length = start, 1.0
    for _ in range(_DESCENTS):
      slope = epsilon_descent.epsilon_gradient(
          noise, sampling_prob=self._settings['sampling_prob'],
          steps=self._settings['steps'], epsilon=epsilon)
      before = epsilon
      while length >= _SHORTEST:
        try:
          moved = epsilon_descent.step(noise, slope, length)
          guarantee = self._guarantee(moved)
        except (design.SolverError, ValueError):
          guarantee = None
        if guarantee is not None and guarantee.upper < epsilon:
          noise, epsilon, best = moved, guarantee.upper, guarantee
          break
        length /= 3  # The step failed, or did not lower epsilon.
      if epsilon > before * (1 - 0.1 * _WORTH):
        break  # Further steps would hardly reach `_WORTH`.
      length = min(2 * length, 4.0)
    if epsilon <= start * (1 - _WORTH):
      refined = f'{label}, refined'
      self._tried[refined] = (epsilon, noise, best)
      self._progress(f'{refined}: epsilon <= {_format.upper(epsilon)}')

  def _order(self, order: float) -> float:
    """Tries the design for a Renyi order; returns its epsilon."""
    rate = self._settings['sampling_prob']
    return self._design(f'renyi:{order:g}' + (f'@{rate!r}' if rate < 1 else ''))

  def _design(self, objective: str) -> float:
    """Tries the monotone or isotropic design for an objective; returns its epsilon."""
    if self._dim == 1:
      return self._try(f'monotone {objective}', lambda: design.Monotone(
          self._sigma**2, bins=self._bins, objective=objective).solve())
    return self._try(f'isotropic {objective}', lambda: design.Isotropic(
        self._dim, self._sigma, bins=self._bins, objective=objective).solve())

  def _try(self, label: str, make: Callable[[], noise_lib.Noise]) -> float:
    """Records `make()`; returns its epsilon, inf on failure ('gaussian' raises)."""
    try:
      noise = make()
      guarantee = self._guarantee(noise)
      self._tried[label] = (guarantee.upper, noise, guarantee)
      self._progress(f'{label}: epsilon <= {_format.upper(guarantee.upper)}')
    except (design.SolverError, ValueError) as error:
      # Extreme orders or sizes have no certified design; others remain.
      if label == 'gaussian':
        raise
      self._tried[label] = (math.inf, None, None)
      self._progress(f'{label}: {error}')
    return self._tried[label][0]

  def _guarantee(self, noise: noise_lib.Noise) -> Guarantee:
    """Returns the guarantee of the requested steps with this noise."""
    return plan.PrivacyPlan(noise=noise, **self._settings).guarantee()

  def result(self) -> OptimalNoise:
    """Returns the tried noise of least epsilon, with the other candidates."""
    ranked = sorted(self._tried.items(), key=lambda item: item[1][0])
    label, (_, noise, guarantee) = ranked[0]
    info = getattr(noise, 'info', {})
    certified = (
        f'epsilon <= {_format.upper(guarantee.upper)} for this noise'
        + (f'; its density attains {_format.upper(info["objective"], 9)} in its '
           'objective, and nothing on its grid is below '
           f'{_format.lower(info["lower_bound"], 9)}'
           if info.get('objective') is not None else ''))
    return OptimalNoise(
        noise, label, guarantee,
        tuple(Candidate(name, tried[0]) for name, tried in ranked), certified,
        f'the objective: {len(ranked)} were tried, none other is excluded'
        + ('; and a descent of epsilon, which ends near some local optimum'
           if label.endswith('refined') else ''))
