"""The `tfcactus` command: one file a command, listed in `main`."""
