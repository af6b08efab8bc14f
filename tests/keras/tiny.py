"""Forty examples of three classes, and a model, a loss, a plan and batches for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import tfcactus
from tfcactus.keras import PoissonBatches, PrivateModel, privatize

X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
Y = np.arange(40) % 3
NONE = tf.keras.losses.SparseCategoricalCrossentropy(
    from_logits=True, reduction='none')
MEAN = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def inner(*extra: tf.keras.layers.Layer, seed: int | None = None) -> tf.keras.Model:
  """Returns a linear model, behind `extra` layers; equal seeds give equal weights."""
  if seed is not None:
    tf.keras.utils.set_random_seed(seed)
  return tf.keras.Sequential([tf.keras.layers.Input((6,)), *extra,
                              tf.keras.layers.Dense(3)])


def plan_of(**changes: Any) -> tfcactus.PrivacyPlan:
  """Returns a plan for `X`: noise multiplier 1, Poisson samples of 10 examples."""
  return tfcactus.PrivacyPlan(**{**dict(
      noise=tfcactus.Gaussian(1.0), l2_norm_clip=1.0, num_examples=40,
      sampling_prob=0.25, steps=100, delta=1e-5), **changes})


def privatized(plan: Any = None, model: tf.keras.Model | None = None,
               optimizer: Any = 'sgd', loss: Any = NONE, **options: Any
              ) -> PrivateModel:
  """Returns a compiled private model; `options` are those of `privatize`."""
  private = privatize(model or inner(), plan or plan_of(), **options)
  private.compile(optimizer, loss)
  return private


def poisson(**options: Any) -> PoissonBatches:
  """Returns batches of `X` and `Y` as a plan for them samples."""
  return PoissonBatches(X, Y, 0.25, **options)
