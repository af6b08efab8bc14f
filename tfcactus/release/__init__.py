"""Private statistics outside of training: each returns a `Release`."""

from __future__ import annotations

from tfcactus.release.gap_max import gap_max
from tfcactus.release.gap_max import most_frequent
from tfcactus.release.gap_max import smallest_gap
from tfcactus.release.gap_max import top_m
from tfcactus.release.planner import best_sinh_normal
from tfcactus.release.planner import count_threshold
from tfcactus.release.planner import noise_for_epsilon
from tfcactus.release.planner import noise_for_error
from tfcactus.release.planner import smallest_count
from tfcactus.release.quantile import interior_point
from tfcactus.release.quantile import quantile
from tfcactus.release.query import histogram
from tfcactus.release.query import noisy_sum
from tfcactus.release.query import noisy_value
from tfcactus.release.query import noisy_vector
from tfcactus.release.result import Release
from tfcactus.release.thresholds import thresholds

__all__ = [
    'Release', 'best_sinh_normal', 'count_threshold', 'gap_max', 'histogram',
    'interior_point', 'most_frequent', 'noise_for_epsilon', 'noise_for_error',
    'noisy_sum', 'noisy_value', 'noisy_vector', 'quantile', 'smallest_count',
    'smallest_gap', 'thresholds', 'top_m',
]
