"""Errors about arguments name the argument that was wrong."""

import pytest

from tfcactus.cli.steps import StepGroup


def test_a_misspelt_noise_is_what_is_named():
  with pytest.raises(ValueError, match="gaussian.*got 'gausian'"):
    StepGroup('gausian', noise_multiplier=1.3).event()
