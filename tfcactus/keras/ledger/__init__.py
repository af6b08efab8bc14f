"""What was released, counted before it is."""
