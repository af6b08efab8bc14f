"""Convex solvers behind the designs."""
