"""Design requests: each class describes a noise table, and its `solve()` makes it."""

from __future__ import annotations

from tfcactus.design.cactus import Cactus
from tfcactus.design.certificate import verify
from tfcactus.design.gaussian import DiscretizedGaussian
from tfcactus.design.isotropic import Isotropic
from tfcactus.design.laplace import DiscretizedLaplace
from tfcactus.design.monotone import Monotone
from tfcactus.design.radial_gaussian import RadialGaussian
from tfcactus.design.sinh_normal import DiscretizedSinhNormal
from tfcactus.design.solvers.convex_program import SolverError
from tfcactus.design.staircase import Staircase
from tfcactus.design.truncated import Truncated
from tfcactus.design.truncated_gaussian import TruncatedGaussian
from tfcactus.design.truncated_laplace import TruncatedLaplace

__all__ = [
    'Cactus', 'DiscretizedGaussian', 'DiscretizedLaplace', 'DiscretizedSinhNormal',
    'Isotropic', 'Monotone', 'RadialGaussian', 'SolverError', 'Staircase',
    'Truncated', 'TruncatedGaussian', 'TruncatedLaplace', 'verify',
]
