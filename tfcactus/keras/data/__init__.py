"""Batches: data sources, sampling, marks on batches, the arguments of `fit`."""
