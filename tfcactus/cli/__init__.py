"""The `tfcactus` command."""
