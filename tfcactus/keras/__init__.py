"""Private training in Keras: the only part that imports TensorFlow."""

from __future__ import annotations

import importlib.util as _importlib_util

if _importlib_util.find_spec('tensorflow') is None:
  raise ImportError(
      'Expected TensorFlow for tfcactus.keras, found none; install '
      '"tfcactus[training]", or any TensorFlow from 2.14 on.')

from tfcactus.keras.batches import FixedSizeBatches
from tfcactus.keras.batches import PoissonBatches
from tfcactus.keras.batches import ShuffledBatches
from tfcactus.keras.callbacks import EpsilonCallback
from tfcactus.keras.journal import Journal
from tfcactus.keras.learned import LearnedNoise
from tfcactus.keras.model import PrivateModel
from tfcactus.keras.model import privatize
from tfcactus.keras.optimizer import DPKerasAdagradOptimizer
from tfcactus.keras.optimizer import DPKerasAdamOptimizer
from tfcactus.keras.optimizer import DPKerasRMSpropOptimizer
from tfcactus.keras.optimizer import DPKerasSGDOptimizer
from tfcactus.keras.query import TableNoiseQuery
from tfcactus.keras.run_card import make_run_card
from tfcactus.keras.sampler import NoiseSampler

__all__ = [
    'DPKerasAdagradOptimizer',
    'DPKerasAdamOptimizer',
    'DPKerasRMSpropOptimizer',
    'DPKerasSGDOptimizer',
    'EpsilonCallback',
    'FixedSizeBatches',
    'Journal',
    'LearnedNoise',
    'NoiseSampler',
    'PoissonBatches',
    'PrivateModel',
    'ShuffledBatches',
    'TableNoiseQuery',
    'make_run_card',
    'privatize',
]
