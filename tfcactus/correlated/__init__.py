"""Noise correlated over steps (banded matrix factorization, BandMF, DP-FTRL).

Each step releases its clipped sum plus noise that partly cancels the noise of earlier
steps: the run stays as private, and less noise adds up in the weights. A strategy is
the matrix that correlates noise; a request solves for one.
"""

from __future__ import annotations

from tfcactus.correlated.banded import (
    BandedStrategy,
    BandedToeplitz,
    min_separation_sensitivity_squared,
)
from tfcactus.correlated.base import Correlation, NoiseRows, Strategy
from tfcactus.correlated.blocked import BlockedBidiagonal, BlockedStrategy
from tfcactus.correlated.kinds import (
    AnyCorrelation,
    check,
    from_config,
    load,
    save,
    solved,
)
from tfcactus.correlated.workload import Workload

__all__ = [
    'BandedStrategy', 'BandedToeplitz', 'BlockedBidiagonal', 'BlockedStrategy',
    'Correlation', 'NoiseRows', 'Strategy', 'AnyCorrelation', 'Workload', 'check',
    'from_config', 'load', 'min_separation_sensitivity_squared', 'save', 'solved',
]
