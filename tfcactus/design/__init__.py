"""Design requests: each class describes a noise table, and its `solve()` makes it."""

from __future__ import annotations

from tfcactus.design.certificate import verify
from tfcactus.design.discretized import (
    DiscretizedGaussian,
    DiscretizedLaplace,
    DiscretizedSinhNormal,
)
from tfcactus.design.isotropic import Isotropic
from tfcactus.design.radial_gaussian import RadialGaussian
from tfcactus.design.scalar import Cactus, Monotone
from tfcactus.design.solvers.convex_program import SolverError
from tfcactus.design.staircase import Staircase
from tfcactus.design.truncated import Truncated
from tfcactus.design.truncated_forms import TruncatedGaussian, TruncatedLaplace

__all__ = [
    'Cactus', 'DiscretizedGaussian', 'DiscretizedLaplace', 'DiscretizedSinhNormal',
    'Isotropic', 'Monotone', 'RadialGaussian', 'SolverError', 'Staircase',
    'Truncated', 'TruncatedGaussian', 'TruncatedLaplace', 'verify',
]
