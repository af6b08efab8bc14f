"""Searches for noise, and units, of least cost, as an accountant bounds it."""

from __future__ import annotations

from tfcactus.search.optimal import Candidate, optimal_noise, OptimalNoise
from tfcactus.search.truncated import (
    least_utility,
    LeastUtility,
    truncated_noise,
    TruncatedNoise,
)
from tfcactus.search.unit_choice import choose_unit, UnitChoice, UnitCost

__all__ = [
    'Candidate', 'LeastUtility', 'OptimalNoise', 'TruncatedNoise', 'UnitChoice',
    'UnitCost', 'choose_unit', 'least_utility', 'optimal_noise', 'truncated_noise',
]
