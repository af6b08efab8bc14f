"""Differentially private training of Keras models, with DP-SGD and DP-FTRL."""

from __future__ import annotations

import importlib as _importlib
import importlib.util as _importlib_util
from typing import Any

if _importlib_util.find_spec('tensorflow') is None:
  raise ImportError(
      'Expected TensorFlow for tfcactus.keras, found none; install '
      '"tfcactus[training]", or any TensorFlow from 2.14 on.')

from tfcactus.dp_sgd_privacy import (
  compute_dp_sgd_privacy,
  compute_dp_sgd_privacy_statement,
)
from tfcactus.keras import fine_tuning, tuning
from tfcactus.keras.adapting import adapt
from tfcactus.keras.black_box import black_box_audit, BlackBoxAudit
from tfcactus.keras.callbacks import EpsilonCallback
from tfcactus.keras.data.batches import (
  AllocatedBatches,
  CyclicBatches,
  FixedSizeBatches,
  PoissonBatches,
  ShuffledBatches,
)
from tfcactus.keras.data.split import Split
from tfcactus.keras.data.stored_examples import store_examples, StoredExamples
from tfcactus.keras.data.tfrecord_examples import TFRecordExamples
from tfcactus.keras.data.units import UnitData
from tfcactus.keras.drop_in.dp_optimizers import (
  DPKerasAdagradOptimizer,
  DPKerasAdamOptimizer,
  DPKerasRMSpropOptimizer,
  DPKerasSGDOptimizer,
  DPModel,
  DPSequential,
  VectorizedDPKerasAdagradOptimizer,
  VectorizedDPKerasAdamOptimizer,
  VectorizedDPKerasSGDOptimizer,
)
from tfcactus.keras.ledger.journal import Journal
from tfcactus.keras.model import PrivateModel, privatize
from tfcactus.keras.noise.noise_addition import NoiseSampler
from tfcactus.keras.run_card import make_run_card
from tfcactus.keras.step.canaries import Audit
from tfcactus.keras.validation import PrivateEarlyStopping, PrivateValidation

__all__ = [
    'AllocatedBatches',
    'Audit',
    'BlackBoxAudit',
    'CyclicBatches',
    'DPKerasAdagradOptimizer',
    'DPKerasAdamOptimizer',
    'DPKerasRMSpropOptimizer',
    'DPKerasSGDOptimizer',
    'DPModel',
    'DPSequential',
    'EpsilonCallback',
    'FixedSizeBatches',
    'GaussianSumQuery',
    'Journal',
    'NoiseSampler',
    'PoissonBatches',
    'PrivateEarlyStopping',
    'PrivateModel',
    'PrivateValidation',
    'ShuffledBatches',
    'Split',
    'StoredExamples',
    'TFRecordExamples',
    'TableNoiseQuery',
    'UnitData',
    'VectorizedDPKerasAdagradOptimizer',
    'VectorizedDPKerasAdamOptimizer',
    'VectorizedDPKerasSGDOptimizer',
    'adapt',
    'black_box_audit',
    'compute_dp_sgd_privacy',
    'compute_dp_sgd_privacy_statement',
    'fine_tuning',
    'make_run_card',
    'privatize',
    'store_examples',
    'tuning',
]


def __getattr__(name: str) -> Any:
  """Imports the adapter to TensorFlow Privacy on first use; the import is slow."""
  if name in ('GaussianSumQuery', 'TableNoiseQuery'):
    return getattr(_importlib.import_module('tfcactus.keras.tfp.query'), name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
