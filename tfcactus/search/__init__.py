"""Searches for noise of least privacy cost, as an accountant bounds it."""

from __future__ import annotations

from tfcactus.search.optimal import Candidate, optimal_noise, OptimalNoise
from tfcactus.search.truncated import (
    least_utility,
    LeastUtility,
    truncated_noise,
    TruncatedNoise,
)

__all__ = [
    'Candidate', 'LeastUtility', 'OptimalNoise', 'TruncatedNoise', 'least_utility',
    'optimal_noise', 'truncated_noise',
]
