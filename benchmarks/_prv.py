"""Epsilon by prv_accountant, a peer of this library's accountant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

ERROR = 0.01
"""Error of epsilon that prv_accountant is asked for."""


def epsilon(random_variables: Callable[[Any], list], counts: Sequence[int],
            delta: float) -> float | None:
  """Returns prv_accountant's upper bound on epsilon.

  Args:
    random_variables: Maps the module `privacy_random_variables` to a list of
      mechanisms.
    counts: Number of compositions of each mechanism.
    delta: The delta at which epsilon is bounded.

  Returns:
    None if prv_accountant is not installed or fails; a failure is printed.
  """
  try:
    # pylint: disable=import-outside-toplevel
    import prv_accountant
    from prv_accountant import privacy_random_variables
  except ImportError:
    return None
  try:
    accountant = prv_accountant.PRVAccountant(
        prvs=random_variables(privacy_random_variables),
        max_self_compositions=list(counts), eps_error=ERROR, delta_error=1e-3 * delta)
    return float(accountant.compute_epsilon(delta, list(counts))[2])
  except (MemoryError, RuntimeError, ValueError, AssertionError) as error:
    print(f'prv_accountant: {type(error).__name__}: {error}')
    return None
