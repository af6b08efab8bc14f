"""Statements of the five papers that training and accounting do not need."""
