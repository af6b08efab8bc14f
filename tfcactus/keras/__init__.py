"""Private training in Keras: the only part that imports TensorFlow."""

from __future__ import annotations

from tfcactus.keras.batches import PoissonBatches
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
    'Journal',
    'LearnedNoise',
    'NoiseSampler',
    'PoissonBatches',
    'PrivateModel',
    'TableNoiseQuery',
    'make_run_card',
    'privatize',
]
