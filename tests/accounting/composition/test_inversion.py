"""Inversion of a profile refuses what it cannot solve."""

import pytest

from tfcactus.accounting.bounds import IntractableError
from tfcactus.accounting.composition import inversion


def test_a_profile_of_which_every_measure_is_left_out_is_not_solved():
  # At some guess every measure was below the cut-off, and no node was left.
  profile = inversion.Profile([], lambda epsilon: 1e-120)
  with pytest.raises(IntractableError):
    inversion.solved(lambda guess: profile, 1e-100, 1.0)
