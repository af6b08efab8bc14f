"""Benchmarks: one script per claim, which writes results/*.json and prints a table."""
