"""Choice between drawing rows and drawing users, for users with several rows."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math
from typing import Any

import dp_accounting
import numpy as np

from tfcactus import _checks, accounting
from tfcactus.accounting import calibration
from tfcactus.pairs import groups

TOLERANCE = 1e-3
"""Relative tolerance of noise multipliers, which may be too large by it."""


@dataclasses.dataclass(frozen=True)
class UnitCost:
  """Noise that row and user sampling need for one epsilon per user, at one cap.

  Noise per row is the standard deviation of the noise in the mean gradient of a step,
  in clipping norms of one row.

  Attributes:
    cap: Row sampling keeps at most this many rows of each user; user sampling takes at
      most this many rows of a drawn user in a step.
    rows: Number of rows of all users that row sampling keeps.
    row_noise_multiplier: Noise multiplier of row sampling, with the account of groups
      of `cap` rows; infinite if `cap` is too large for an account.
    row_noise: Noise per row of row sampling.
    user_noise_multiplier: Noise multiplier of user sampling, relative to the clipping
      norm of a user's mean gradient.
    user_noise: Noise per row of user sampling.
  """

  cap: int
  rows: int
  row_noise_multiplier: float
  row_noise: float
  user_noise_multiplier: float
  user_noise: float


@dataclasses.dataclass(frozen=True)
class UnitChoice:
  """Costs of row sampling and of user sampling for several caps.

  Attributes:
    costs: A cost for each cap, ascending.
  """

  costs: tuple[UnitCost, ...]

  @property
  def by_user(self) -> UnitCost:
    """The costs at the cap where user sampling has the least noise per row."""
    return min(self.costs, key=lambda cost: cost.user_noise)

  @property
  def by_row(self) -> UnitCost:
    """The costs at the cap where row sampling has the least noise per row."""
    return min(self.costs, key=lambda cost: cost.row_noise)

  @property
  def unit(self) -> str:
    """'user' or 'example', whichever has less noise per row at its best cap."""
    users = self.by_user.user_noise <= self.by_row.row_noise
    return 'user' if users else 'example'


def choose_unit(rows_per_user: Any, *, batch_size: int, steps: int,
                target_epsilon: float, delta: float,
                caps: Sequence[int] | None = None, alike: float = 0.5) -> UnitChoice:
  """Compares drawing rows with drawing users, within one epsilon per user.

  Both draw Poisson samples with Gaussian noise, and compute about `batch_size` rows in
  a step. The numbers of rows are used without noise: a choice made from private numbers
  is not private. Give public or released numbers, and as `caps` the value of a
  `tfcactus.release.quantile` over users.

  Args:
    rows_per_user: Number of rows of each user, shape (users,).
    batch_size: Rows computed in a step, on average. User sampling draws batch_size /
      cap users; no more than there are.
    steps: Number of steps.
    target_epsilon: Epsilon for all rows of any one user, added or removed.
    delta: Delta of that epsilon.
    caps: Largest numbers of rows of a user to compare; by default the powers of two
      below the largest number of rows, and that number. Larger caps are lowered to it.
    alike: Share of a gradient's squared norm that all rows of a user have in common,
      from 0 to 1; a public guess. The less it is, the smaller is the norm of a user's
      mean gradient, to which user sampling clips.

  Returns:
    The costs, of which `by_user` and `by_row` are the best.

  Raises:
    ValueError: if an argument is out of range.
  """
  rows = _checks.vector('rows_per_user', rows_per_user)
  if np.any(rows < 0) or np.any(rows % 1) or not np.any(rows):
    raise ValueError('Expected rows_per_user to be a whole number of rows for each '
                     f'user, some of them positive, got {rows_per_user!r}.')
  batch_size = _checks.count('batch_size', batch_size)
  steps = _checks.count('steps', steps)
  alike = _checks.non_negative('alike', alike)
  if alike > 1:
    raise ValueError(f'Expected alike in [0, 1], got {alike!r}.')
  most = int(np.max(rows))
  if caps is None:
    caps = [2**i for i in range((most - 1).bit_length())] + [most]
  wanted = {min(_checks.integer('caps', cap, 1), most)
            for cap in _checks.items('caps', caps, 'numbers of rows')}
  if not wanted:
    raise ValueError('Expected caps of at least one number, got none.')
  return UnitChoice(tuple(
      _cost(rows, cap, batch_size, alike, (steps, target_epsilon, delta))
      for cap in sorted(wanted)))


def _cost(rows: np.ndarray, cap: int, batch_size: int, alike: float,
          terms: tuple[int, float, float]) -> UnitCost:
  """Returns the cost of one cap; `terms` are steps, target epsilon and delta."""
  kept = np.minimum(rows, cap)
  total, users = int(np.sum(kept)), min(batch_size / cap, rows.size)
  drawn = min(batch_size, total)
  by_row = _noise_multiplier(drawn / total, cap, *terms)
  by_user = _noise_multiplier(users / rows.size, 1, *terms)
  # Root mean square norm of a user's mean gradient, of rows of norm one.
  norm = math.sqrt(float(np.mean(alike + (1 - alike) / kept[kept > 0])))
  return UnitCost(cap, total, by_row, by_row / drawn, by_user, by_user * norm / users)


def _noise_multiplier(sampling_prob: float, rows_of_one: int, steps: int,
                      target_epsilon: float, delta: float) -> float:
  """Returns the least noise multiplier; inf for `rows_of_one` above `MOST_ROWS`."""
  if rows_of_one > groups.MOST_ROWS:
    return math.inf

  def cost(multiplier: float) -> float:
    """Returns epsilon of all rows of one person with this noise multiplier."""
    event = dp_accounting.PoissonSampledDpEvent(
        sampling_prob, dp_accounting.GaussianDpEvent(multiplier))
    return accounting.PhiAccountant(rows_of_one=rows_of_one).compose(
        event, steps).get_epsilon(delta)

  return calibration.calibrate_noise(
      target_epsilon, cost, low=1e-2, high=1e6, tolerance=TOLERANCE)
