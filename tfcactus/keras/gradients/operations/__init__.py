"""Per-example gradients from the operations that use weights, in a traced graph.

`uses` finds each operation that meets a weight, or a tensor computed from weights
alone, with data. `rules` has a rule for each kind of operation. `gradients` applies
the rules. `pull_back` takes gradients back from such tensors to the weights, example by
example. `loops` finds uses inside loops.
"""
