"""Proofs that a traced graph computes each row from one example only.

`graph_proof` runs the analysis, and `dependence` has its abstract values. Rules for
operations are in `operations`, `rearrangements` and `lists`, those for random draws in
`draws`. `constants` derives from these rules along which axes constants are alike.
`shape_checks` has what TensorFlow does not check.
"""
