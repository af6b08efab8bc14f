"""How the batches of released steps are chosen, and what that is worth."""
