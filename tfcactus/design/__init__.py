"""Design requests: each class describes a noise table, and its `solve()` makes it."""

from __future__ import annotations

from tfcactus.design.certificate import verify
from tfcactus.design.closed_forms import (
    DiscretizedGaussian,
    DiscretizedLaplace,
    DiscretizedSinhNormal,
    RadialGaussian,
    Staircase,
)
from tfcactus.design.isotropic import Isotropic
from tfcactus.design.scalar import Cactus, Monotone
from tfcactus.design.solvers.convex_program import SolverError
from tfcactus.design.truncated import Truncated, TruncatedGaussian, TruncatedLaplace

__all__ = [
    'Cactus', 'DiscretizedGaussian', 'DiscretizedLaplace', 'DiscretizedSinhNormal',
    'Isotropic', 'Monotone', 'RadialGaussian', 'SolverError', 'Staircase',
    'Truncated', 'TruncatedGaussian', 'TruncatedLaplace', 'verify',
]
