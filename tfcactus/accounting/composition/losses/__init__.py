"""Privacy losses in the form that methods of composition need."""
