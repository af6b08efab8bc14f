"""Layer rules, listed in `RULES`: per-example gradients of kinds of layers.

Rules of operations (`gradients.operations`) serve all other layers.
gradients/layer_routes.py decides which layers of a model are vectorised.
"""

from __future__ import annotations

from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients.layers.base import LayerRule
from tfcactus.keras.gradients.layers.recurrent import RecurrentRule


def rule_for(layer: keras.layers.Layer) -> LayerRule | None:
  """Returns the rule for the layer's exact type, or None."""
  return next((rule for rule in RULES if type(layer) in rule.layer_types), None)


RULES: tuple[LayerRule, ...] = (RecurrentRule(),)
