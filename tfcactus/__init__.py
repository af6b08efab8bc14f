"""Differentially private Keras training with designed noise and an exact accountant.

This package does not import TensorFlow. `tfcactus.keras`, imported on request, does.
"""

from __future__ import annotations

from tfcactus import _dp_accounting  # noqa: F401  Before other imports of it.
from tfcactus.accounting import NoiseTableDpEvent, PhiAccountant, TCDP, TCDPAccountant
from tfcactus.adaptive_clipping import AdaptiveClipping
from tfcactus.guarantee import Guarantee
from tfcactus.noise import (
    Gaussian,
    Laplace,
    library,
    load,
    RadialTable,
    ScalarTable,
    SinhNormal,
)
from tfcactus.plan import calibrate_noise_multiplier, PrivacyPlan
from tfcactus.search.least_utility import least_utility, LeastUtility
from tfcactus.search.optimal import optimal_noise
from tfcactus.search.truncated import truncated_noise, TruncatedNoise

__all__ = [
    'AdaptiveClipping', 'Gaussian', 'Guarantee', 'Laplace', 'LeastUtility',
    'NoiseTableDpEvent', 'PhiAccountant', 'PrivacyPlan', 'RadialTable', 'ScalarTable',
    'SinhNormal', 'TCDP', 'TCDPAccountant', 'TruncatedNoise',
    'calibrate_noise_multiplier', 'least_utility', 'library', 'load', 'optimal_noise',
    'truncated_noise',
]
__version__ = '0.1.0'
