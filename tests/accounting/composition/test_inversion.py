"""What an inversion cannot answer is left to other methods."""

import pytest

from tfcactus.accounting.bounds import IntractableError
from tfcactus.accounting.composition import inversion


def test_a_profile_of_which_every_measure_is_left_out_is_not_solved():
  # All were below what counts at a guess; no node is left to solve by.
  profile = inversion.Profile([], lambda epsilon: 1e-120)
  with pytest.raises(IntractableError):
    inversion.solved(lambda guess: profile, 1e-100, 1.0)
