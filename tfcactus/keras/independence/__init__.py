"""Proofs that a traced graph treats each example alone: it is row-independent."""
