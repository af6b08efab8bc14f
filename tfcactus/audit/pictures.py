"""Pictures, by matplotlib if it is installed."""

from __future__ import annotations

from typing import Any


def axes(columns: int, width: float, height: float = 5) -> Any:
  """Returns the axes of a new figure, `width` by `height` inches.

  They are an array if `columns` is above one.

  Raises ImportError if matplotlib is missing.
  """
  try:
    from matplotlib import figure  # pylint: disable=import-outside-toplevel
  except ImportError as error:
    raise ImportError(
        "A picture needs matplotlib: pip install 'tfcactus[plot]'.") from error
  return figure.Figure(layout='constrained', figsize=(width, height)).subplots(
      1, columns)
