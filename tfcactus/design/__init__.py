"""How a noise table is made: each mechanism is a request with solve()."""

from __future__ import annotations

from tfcactus.design._program import SolverError
from tfcactus.design.cactus import Cactus
from tfcactus.design.certificate import verify
from tfcactus.design.gaussian import DiscretizedGaussian
from tfcactus.design.gaussian import RadialGaussian
from tfcactus.design.isotropic import Isotropic
from tfcactus.design.laplace import DiscretizedLaplace
from tfcactus.design.monotone import Monotone
from tfcactus.design.sinh_normal import DiscretizedSinhNormal

__all__ = [
    'Cactus', 'DiscretizedGaussian', 'DiscretizedLaplace',
    'DiscretizedSinhNormal', 'Isotropic', 'Monotone', 'RadialGaussian',
    'SolverError', 'verify',
]
