"""Statements of README.md's five papers that training and accounting do not need."""
