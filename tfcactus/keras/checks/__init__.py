"""Proofs and refusals before a private step, and the losses that it accepts.

To refuse something, or to allow it, find its module:

- layer types, regularizers, dtypes, overridden training methods: `whole_model`;
- TensorFlow operations that mix examples: the transfer functions in
  `independence.operations` and `independence.rearrangements`. An operation without one
  is not trusted;
- the loss function of one output: `example_losses`;
- losses, targets and sample weights of several outputs: `output_losses`;
- operations that keep or read state, such as variables, or draw from a state that this
  library does not set: `state_writes`;
- weights that are used outside of their own layer: `variable_reads`.

`pass_proof` applies the checks of operations, state and weights to a pass over a whole
batch. It traces the pass and says what is not proved about each example's gradient.
"""
