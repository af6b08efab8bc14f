"""Names of TensorFlow Privacy's modules of optimizers, for its own tests."""

from tfcactus.keras import DPKerasAdagradOptimizer
from tfcactus.keras import DPKerasAdamOptimizer
from tfcactus.keras import DPKerasRMSpropOptimizer
from tfcactus.keras import DPKerasSGDOptimizer
from tfcactus.keras import VectorizedDPKerasAdagradOptimizer
from tfcactus.keras import VectorizedDPKerasAdamOptimizer
from tfcactus.keras import VectorizedDPKerasSGDOptimizer

__all__ = [
    'DPFTRLTreeAggregationOptimizer', 'DPKerasAdagradOptimizer',
    'DPKerasAdamOptimizer', 'DPKerasRMSpropOptimizer', 'DPKerasSGDOptimizer',
    'VectorizedDPKerasAdagradOptimizer', 'VectorizedDPKerasAdamOptimizer',
    'VectorizedDPKerasSGDOptimizer']


def DPFTRLTreeAggregationOptimizer(*args: object, **kwargs: object) -> None:  # noqa: N802
  """Refused: not offered."""
  raise NotImplementedError('DPFTRL: no optimizer here draws correlated noise.')
