"""Layer rules, listed in `RULES`: per-example gradients of each kind of layer.

gradients/layer_routes.py decides which layers of a model run by their rules.

To support another layer, write a `LayerRule` in a new file, list it in `RULES`, and
list its layer in tests/conformance/test_layer_rules.py.
"""

from __future__ import annotations

from tfcactus.keras.compat.versions import keras
from tfcactus.keras.gradients.layers.base import LayerRule
from tfcactus.keras.gradients.layers.conv import ConvRule, ConvTransposeRule
from tfcactus.keras.gradients.layers.dense import DenseRule
from tfcactus.keras.gradients.layers.depthwise import DepthwiseRule
from tfcactus.keras.gradients.layers.einsum_dense import EinsumDenseRule
from tfcactus.keras.gradients.layers.embedding import (
  EmbeddingRule,
  ReversibleEmbeddingRule,
)
from tfcactus.keras.gradients.layers.lora import (
  LoraConvRule,
  LoraDenseRule,
  LoraEinsumDenseRule,
  LoraEmbeddingRule,
)
from tfcactus.keras.gradients.layers.normalization import (
  GroupNormalizationRule,
  LayerNormalizationRule,
  RMSNormalizationRule,
)
from tfcactus.keras.gradients.layers.recurrent import RecurrentRule
from tfcactus.keras.gradients.layers.separable import SeparableConvRule
from tfcactus.keras.gradients.layers.wrappers import (
  BidirectionalRule,
  TimeDistributedRule,
)


def rule_for(layer: keras.layers.Layer) -> LayerRule | None:
  """Returns the rule for the layer's exact type, or None."""
  composed = bool(getattr(layer, 'lora_enabled', False))
  return next((rule for rule in RULES if type(layer) in rule.layer_types and
               rule.composed == composed), None)


RULES: tuple[LayerRule, ...] = (
    DenseRule(),
    EinsumDenseRule(),
    ConvRule(),
    ConvTransposeRule(),
    DepthwiseRule(),
    SeparableConvRule(),
    EmbeddingRule(),
    ReversibleEmbeddingRule(),
    LayerNormalizationRule(),
    GroupNormalizationRule(),
    RMSNormalizationRule(),
    LoraDenseRule(),
    LoraEinsumDenseRule(),
    LoraConvRule(),
    LoraEmbeddingRule(),
    RecurrentRule(),
    BidirectionalRule(),
    TimeDistributedRule(rule_for),
)
