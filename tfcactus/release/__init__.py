"""Differentially private statistics without training, each returned as a `Release`."""

from __future__ import annotations

from tfcactus.release.exponential import exponential_mechanism
from tfcactus.release.interior import interior_point
from tfcactus.release.planner import best_sinh_normal
from tfcactus.release.planner import count_threshold
from tfcactus.release.planner import noise_for_epsilon
from tfcactus.release.planner import noise_for_error
from tfcactus.release.planner import smallest_count
from tfcactus.release.quantiles import num_values
from tfcactus.release.quantiles import quantile
from tfcactus.release.query import histogram
from tfcactus.release.query import noisy_sum
from tfcactus.release.query import noisy_value
from tfcactus.release.query import noisy_vector
from tfcactus.release.result import Release
from tfcactus.release.selection import gap_max
from tfcactus.release.selection import most_frequent
from tfcactus.release.selection import smallest_gap
from tfcactus.release.selection import top_m
from tfcactus.release.threshold_queries import threshold_sketch
from tfcactus.release.threshold_queries import thresholds
from tfcactus.release.threshold_queries import ThresholdSketch

__all__ = [
    'Release', 'ThresholdSketch', 'best_sinh_normal', 'count_threshold',
    'exponential_mechanism', 'gap_max', 'histogram',
    'interior_point', 'most_frequent', 'noise_for_epsilon', 'noise_for_error',
    'noisy_sum', 'noisy_value', 'noisy_vector', 'num_values', 'quantile',
    'smallest_count', 'smallest_gap', 'threshold_sketch', 'thresholds', 'top_m',
]
