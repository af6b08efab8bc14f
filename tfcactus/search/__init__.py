"""Noise designed for what an accountant says it costs."""
