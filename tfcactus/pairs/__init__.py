"""Dominating pairs: two distributions whose privacy profile bounds a mechanism's."""
