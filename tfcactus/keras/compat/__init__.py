"""Differences between versions of Keras and TensorFlow."""
