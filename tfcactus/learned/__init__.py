"""Learned noise (Sommer et al., 2021): gradient descent in TensorFlow without Keras."""

from tfcactus.learned.learned_noise import LearnedNoise

__all__ = ['LearnedNoise']
