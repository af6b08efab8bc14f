"""Dominating pairs: two laws whose privacy profile bounds a release."""
