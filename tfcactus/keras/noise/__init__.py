"""Random bits, seeds and noise inside TensorFlow graphs."""
