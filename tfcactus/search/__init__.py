"""Searches for noise of least privacy cost, as an accountant bounds it."""
