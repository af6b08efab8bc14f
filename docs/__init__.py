"""Documents, and `python -m docs.website`, which makes a site of them."""
