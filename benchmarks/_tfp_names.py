"""The names that TensorFlow Privacy's optimizer tests import, from tfcactus."""

from tfcactus.keras import (
  DPKerasAdagradOptimizer,
  DPKerasAdamOptimizer,
  DPKerasRMSpropOptimizer,
  DPKerasSGDOptimizer,
  VectorizedDPKerasAdagradOptimizer,
  VectorizedDPKerasAdamOptimizer,
  VectorizedDPKerasSGDOptimizer,
)

__all__ = [
    'DPFTRLTreeAggregationOptimizer', 'DPKerasAdagradOptimizer',
    'DPKerasAdamOptimizer', 'DPKerasRMSpropOptimizer', 'DPKerasSGDOptimizer',
    'VectorizedDPKerasAdagradOptimizer', 'VectorizedDPKerasAdamOptimizer',
    'VectorizedDPKerasSGDOptimizer']


def DPFTRLTreeAggregationOptimizer(*args: object, **kwargs: object) -> None:  # noqa: N802
  """Raises NotImplementedError: tfcactus has no DP-FTRL optimizer."""
  raise NotImplementedError('DPFTRL: no optimizer here draws correlated noise.')
