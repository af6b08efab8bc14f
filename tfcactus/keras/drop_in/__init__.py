"""Optimizers that go where TensorFlow Privacy's go."""
