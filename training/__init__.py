"""Training scripts, run from a checkout: `python -m training.mnist`."""
