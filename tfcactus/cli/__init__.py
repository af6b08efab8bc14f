"""The `tfcactus` command line: one file per command, listed in `main`."""
