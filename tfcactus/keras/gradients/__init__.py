"""Per-example gradients, clipped and summed."""
