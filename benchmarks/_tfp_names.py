"""Names of TensorFlow Privacy's modules of optimizers, for its own tests."""

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
  """Refused: not offered."""
  raise NotImplementedError('DPFTRL: no optimizer here draws correlated noise.')
