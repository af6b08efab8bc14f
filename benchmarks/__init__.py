"""One script per claim; each writes results/*.json and prints a table."""
