"""What is refused before a step is taken."""
