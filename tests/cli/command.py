"""Runs the command in this process."""

import json

from tfcactus.cli import main


def output(capsys, *arguments):
  """Returns what a command writes with --json; the command must succeed."""
  assert main.main([*arguments, '--json']) == 0
  return json.loads(capsys.readouterr().out)
