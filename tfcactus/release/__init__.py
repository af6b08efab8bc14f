"""Differentially private statistics without training, each returned as a `Release`.

A new statistic is a function that returns a `Release`; there is no base class.
"""

from __future__ import annotations

from tfcactus.release.additive_noise import (
    histogram,
    noisy_sum,
    noisy_value,
    noisy_vector,
)
from tfcactus.release.interior import interior_point, num_values, quantile
from tfcactus.release.planner import (
    best_sinh_normal,
    count_threshold,
    noise_for_epsilon,
    noise_for_error,
    smallest_count,
)
from tfcactus.release.result import Release
from tfcactus.release.selection import (
    exponential_mechanism,
    gap_max,
    most_frequent,
    smallest_gap,
    top_m,
)
from tfcactus.release.threshold_queries import (
    threshold_sketch,
    thresholds,
    ThresholdSketch,
)
from tfcactus.release.words import vocabulary

__all__ = [
    'Release', 'ThresholdSketch', 'best_sinh_normal', 'count_threshold',
    'exponential_mechanism', 'gap_max', 'histogram',
    'interior_point', 'most_frequent', 'noise_for_epsilon', 'noise_for_error',
    'noisy_sum', 'noisy_value', 'noisy_vector', 'num_values', 'quantile',
    'smallest_count', 'smallest_gap', 'threshold_sketch', 'thresholds', 'top_m',
    'vocabulary',
]
