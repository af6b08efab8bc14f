"""Pictures, by matplotlib if it is installed."""

from __future__ import annotations

from typing import Any


def axes(rows: int, columns: int, **options: Any) -> Any:
  """Returns the axes of a new figure; ImportError if matplotlib is missing."""
  try:
    from matplotlib import figure  # pylint: disable=import-outside-toplevel
  except ImportError as error:
    raise ImportError(
        "A picture needs matplotlib: pip install 'tfcactus[plot]'.") from error
  return figure.Figure(layout='constrained', **options).subplots(rows, columns)


def save(axis: Any, path: str) -> None:
  """Writes the figure of an axis to a file."""
  axis.figure.savefig(path, dpi=120)
