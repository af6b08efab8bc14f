"""A number with what is known of it."""

from __future__ import annotations

from typing import NamedTuple


class Bounds(NamedTuple):
  """lower <= truth <= upper; `estimate` is the best single number for it."""

  lower: float
  estimate: float
  upper: float


class IntractableError(Exception):
  """The method at hand has no bounds at a fair price; another has to answer."""
