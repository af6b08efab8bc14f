"""Proofs that a traced graph computes each row from one example only.

`graph_proof` runs the analysis and `dependence` has its abstract values. The rules for
operations are in `operations`, `rearrangements` and `constants`, those for random draws
in `draws`.
"""
