"""Differentially private Keras training with designed noise and an exact accountant.

This package does not import TensorFlow. `tfcactus.keras`, imported on request, does.
"""

from __future__ import annotations

from tfcactus import _dp_accounting  # noqa: F401  Before other imports of it.
from tfcactus.accounting import NoiseTableDpEvent, PhiAccountant
from tfcactus.data_account import DataAccount
from tfcactus.dp_sgd_privacy import (
    compute_dp_sgd_privacy,
    compute_dp_sgd_privacy_statement,
)
from tfcactus.guarantee import Guarantee, search_guarantee
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
from tfcactus.search.optimal import optimal_noise
from tfcactus.step_counts import AdaptiveClipping, NoisyAccuracy

__all__ = [
    'AdaptiveClipping', 'DataAccount', 'Gaussian', 'Guarantee', 'Laplace',
    'NoiseTableDpEvent', 'NoisyAccuracy', 'PhiAccountant', 'PrivacyPlan',
    'RadialTable', 'ScalarTable', 'SinhNormal', 'calibrate_noise_multiplier',
    'compute_dp_sgd_privacy', 'compute_dp_sgd_privacy_statement', 'library', 'load',
    'optimal_noise', 'search_guarantee',
]
__version__ = '0.1.0'
