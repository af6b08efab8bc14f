"""Replicas of a `tf.distribute` strategy, and devices."""
