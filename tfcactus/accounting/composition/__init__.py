"""Bounds on delta and epsilon of compositions; `composition` chooses the method."""
