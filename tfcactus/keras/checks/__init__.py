"""Proofs and refusals before a private step, and the losses that it accepts.

`refused_models` refuses layers, dtypes and methods, `state_writes` operations that
keep, read or draw data, `variable_reads` weights used outside of their own layer.
`example_losses` has the loss of one output, `output_losses` losses, targets and weights
of several. `pass_proof` applies these, and `independence`, to a pass over a batch.
"""
