"""Noise learned by gradient descent (paper 001), in TensorFlow without Keras."""

from tfcactus.learned.learned_noise import LearnedNoise

__all__ = ['LearnedNoise']
