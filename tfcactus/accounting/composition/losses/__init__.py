"""Privacy losses as the methods of composition ask for them."""
