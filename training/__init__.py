"""Training scripts that are run from a checkout, such as `python -m training.mnist`."""
