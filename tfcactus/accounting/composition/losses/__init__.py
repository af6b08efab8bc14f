"""Privacy losses in the form that methods of composition need.

A new law of noise needs no file here: its `dominating_pair` is enough. A file here
makes the account of a law faster or tighter.
"""
