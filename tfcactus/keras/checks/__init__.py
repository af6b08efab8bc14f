"""What is proved or refused before a step is taken, and what a loss must be."""
