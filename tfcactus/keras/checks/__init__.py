"""Proofs and refusals before a private step, and the losses that it accepts."""
