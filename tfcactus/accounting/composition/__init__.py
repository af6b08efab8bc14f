"""Bounds on delta and epsilon of compositions: one method per file."""
