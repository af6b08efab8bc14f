"""tfcactus."""
