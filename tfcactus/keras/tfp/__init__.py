"""Adapter to TensorFlow Privacy."""
