"""One private step of a wrapped model."""
