"""Models of KerasHub, tiny and of random weights.

Those without a variant in float64 compute in float32 there: Keras makes the kernels of
LoRA, and KerasHub the rotary angles and the shares of experts, in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.keras.zoo.base import Case, classified, entry, layers, logits_loss, Size


def _models() -> Any:
  """Returns `keras_hub.models`."""
  import keras_hub  # pylint: disable=import-outside-toplevel
  return keras_hub.models


def _sizes(s: Size, **names: str) -> dict[str, int]:
  """Returns the usual arguments of a backbone; `names` are other names of some."""
  sizes = {'vocabulary_size': s(7, 2000), 'num_layers': s(1, 2), 'num_heads': 2,
           'hidden_dim': s(4, 64), 'intermediate_dim': s(5, 128)}
  return {names.get(name, name): size for name, size in sizes.items()}


def _text(s: Size, segments: bool = False) -> dict[str, np.ndarray]:
  """Returns padded texts as KerasHub's preprocessors write them."""
  tokens = s.tokens(s(4, 64), s(7, 2000))
  found = {'token_ids': tokens, 'padding_mask': tokens > 0}
  if segments:
    found['segment_ids'] = (np.cumsum(tokens > 0, 1) > 2).astype(np.int32)
  return found


def _classifier(s: Size, task: Any, backbone: Any, segments: bool = False) -> Case:
  """Returns the case of a classifier without a preprocessor."""
  model = task(backbone, num_classes=3, preprocessor=None, dropout=s(0.0, 0.1))
  return Case(model, _text(s, segments), s.labels(3), logits_loss())


def _language(s: Size, model: Any) -> Case:
  """Returns the case of a model that tells the next token."""
  return Case(model, _text(s), s.labels(s(7, 2000), s(4, 64)), logits_loss())


def _bert(s: Size) -> Any:
  return _models().BertBackbone(**_sizes(s), dropout=s(0.0, 0.1),
                                max_sequence_length=s(4, 64))


def _gpt2(s: Size) -> Any:
  return _models().GPT2Backbone(**_sizes(s), dropout=s(0.0, 0.1),
                                max_sequence_length=s(4, 64))


@entry('BERT (KerasHub)', hub=True)
def bert(s: Size) -> Case:
  return _classifier(s, _models().BertTextClassifier, _bert(s), segments=True)


@entry('BERT, LoRA (KerasHub)', hub=True, float64=False)
def bert_lora(s: Size) -> Case:
  backbone = _bert(s)
  backbone.enable_lora(2)
  return _classifier(s, _models().BertTextClassifier, backbone, segments=True)


@entry('BERT, frozen, and a head (KerasHub)', hub=True)
def bert_frozen(s: Size) -> Case:
  backbone = _bert(s)
  backbone.trainable = False
  return _classifier(s, _models().BertTextClassifier, backbone, segments=True)


@entry('BERT, masked words (KerasHub)', hub=True)
def bert_masked(s: Size) -> Case:
  model = _models().BertMaskedLM(_bert(s), preprocessor=None)
  places = np.sort(s.labels(s(4, 64), s(2, 9)), -1)
  return Case(model, {**_text(s, segments=True), 'mask_positions': places},
              s.labels(s(7, 2000), s(2, 9)), logits_loss())


@entry('RoBERTa (KerasHub)', hub=True)
def roberta(s: Size) -> Case:
  backbone = _models().RobertaBackbone(**_sizes(s), dropout=s(0.0, 0.1),
                                       max_sequence_length=s(4, 64))
  return _classifier(s, _models().RobertaTextClassifier, backbone)


@entry('DistilBERT (KerasHub)', hub=True)
def distilbert(s: Size) -> Case:
  backbone = _models().DistilBertBackbone(**_sizes(s), dropout=s(0.0, 0.1),
                                          max_sequence_length=s(4, 64))
  return _classifier(s, _models().DistilBertTextClassifier, backbone)


@entry('ALBERT (KerasHub)', hub=True)
def albert(s: Size) -> Case:
  backbone = _models().AlbertBackbone(
      **_sizes(s), embedding_dim=s(3, 32), num_inner_repetitions=2,
      dropout=s(0.0, 0.1), max_sequence_length=s(4, 64))
  return _classifier(s, _models().AlbertTextClassifier, backbone, segments=True)


@entry('DeBERTa (KerasHub)', hub=True)
def deberta(s: Size) -> Case:
  backbone = _models().DebertaV3Backbone(
      **_sizes(s), dropout=s(0.0, 0.1), max_sequence_length=s(4, 64),
      bucket_size=s(2, 32))
  return _classifier(s, _models().DebertaV3TextClassifier, backbone)


@entry('GPT-2 (KerasHub)', hub=True)
def gpt2(s: Size) -> Case:
  return _language(s, _models().GPT2CausalLM(_gpt2(s), preprocessor=None))


@entry('GPT-2, LoRA (KerasHub)', hub=True, float64=False, fast=True)
def gpt2_lora(s: Size) -> Case:
  backbone = _gpt2(s)
  backbone.enable_lora(2)
  return _language(s, _models().GPT2CausalLM(backbone, preprocessor=None))


@entry('Gemma (KerasHub)', hub=True, float64=False)
def gemma(s: Size) -> Case:
  backbone = _models().GemmaBackbone(
      **_sizes(s, num_heads='num_query_heads'), num_key_value_heads=1,
      head_dim=s(2, 32))
  return _language(s, _models().GemmaCausalLM(backbone, preprocessor=None))


@entry('Gemma, LoRA (KerasHub)', hub=True, float64=False)
def gemma_lora(s: Size) -> Case:
  backbone = _models().GemmaBackbone(
      **_sizes(s, num_heads='num_query_heads'), num_key_value_heads=1,
      head_dim=s(2, 32))
  backbone.enable_lora(2)
  return _language(s, _models().GemmaCausalLM(backbone, preprocessor=None))


@entry('Gemma 3 (KerasHub)', hub=True, float64=False)
def gemma3(s: Size) -> Case:
  backbone = _models().Gemma3Backbone(
      **_sizes(s, num_heads='num_query_heads'), num_key_value_heads=1,
      head_dim=s(2, 32), image_size=None, use_sliding_window_attention=True,
      sliding_window_size=s(2, 16), use_post_ffw_norm=True,
      use_post_attention_norm=True)
  return _language(s, _models().Gemma3CausalLM(
      backbone=backbone, preprocessor=None))


@entry('Llama (KerasHub)', hub=True, float64=False)
def llama(s: Size) -> Case:
  backbone = _models().LlamaBackbone(
      **_sizes(s, num_heads='num_query_heads'), num_key_value_heads=1)
  return _language(s, _models().LlamaCausalLM(backbone, preprocessor=None))


@entry('Mistral (KerasHub)', hub=True, float64=False)
def mistral(s: Size) -> Case:
  backbone = _models().MistralBackbone(
      **_sizes(s, num_heads='num_query_heads'), num_key_value_heads=1,
      sliding_window=s(2, 16))
  return _language(s, _models().MistralCausalLM(backbone, preprocessor=None))


def _pairs(s: Size) -> dict[str, np.ndarray]:
  """Returns texts of an encoder and of a decoder."""
  return {f'{part}_{name}': value for part in ('encoder', 'decoder')
          for name, value in _text(s).items()}


@entry('BART (KerasHub)', hub=True)
def bart(s: Size) -> Case:
  backbone = _models().BartBackbone(**_sizes(s), dropout=s(0.0, 0.1),
                                    max_sequence_length=s(4, 64))
  model = _models().BartSeq2SeqLM(backbone, preprocessor=None)
  return Case(model, _pairs(s), s.labels(s(7, 2000), s(4, 64)), logits_loss())


@entry('T5 (KerasHub)', hub=True)
def t5(s: Size) -> Case:
  backbone = _models().T5Backbone(**_sizes(s), dropout=s(0.0, 0.1))
  outputs = backbone.token_embedding(
      backbone.output['decoder_sequence_output'], reverse=True)
  model = tf.keras.Model(backbone.input, outputs)
  return Case(model, _pairs(s), s.labels(s(7, 2000), s(4, 64)), logits_loss())


@entry('ViT (KerasHub)', hub=True)
def vit(s: Size) -> Case:
  side = s(4, 32)
  backbone = _models().ViTBackbone(
      image_shape=(side, side, 3), patch_size=s(2, 4), num_layers=s(1, 2),
      num_heads=2, hidden_dim=s(4, 64), mlp_dim=s(5, 128), dropout_rate=s(0.0, 0.1))
  model = _models().ViTImageClassifier(backbone, num_classes=10, preprocessor=None)
  return Case(model, s.floats(side, side, 3), s.labels(10), logits_loss())


@entry('Whisper (KerasHub)', hub=True)
def whisper(s: Size) -> Case:
  backbone = _models().WhisperBackbone(
      **_sizes(s), num_mels=s(3, 80), dropout=s(0.0, 0.1),
      max_encoder_sequence_length=s(6, 128), max_decoder_sequence_length=s(4, 64))
  found = backbone(backbone.input)['decoder_sequence_output']
  model = tf.keras.Model(
      backbone.input, backbone.token_embedding(found, reverse=True))
  text = {f'decoder_{name}': value for name, value in _text(s).items()}
  return Case(model, {'encoder_features': s.floats(s(6, 128), s(3, 80)), **text},
              s.labels(s(7, 2000), s(4, 64)), logits_loss())


@entry('Swin (KerasHub)', hub=True)
def swin(s: Size) -> Case:
  side = s(8, 32)
  backbone = _models().SwinTransformerBackbone(
      image_shape=(side, side, 3), embed_dim=s(4, 32), depths=s([2], [2, 2]),
      num_heads=s([2], [2, 4]), window_size=s(2, 4), patch_size=2,
      drop_path=s(0.0, 0.1))
  x = backbone.output
  x = layers.GlobalAveragePooling2D()(x) if len(x.shape) == 4 else (
      layers.GlobalAveragePooling1D()(x))
  return classified(s, backbone.input, layers.Dense(10)(x), s.floats(side, side, 3),
                    10)


@entry('Mixtral (KerasHub)', hub=True, float64=False)
def mixtral(s: Size) -> Case:
  backbone = _models().MixtralBackbone(
      **_sizes(s, num_heads='num_query_heads'), num_key_value_heads=1,
      num_experts=4, top_k=2)
  return _language(s, _models().MixtralCausalLM(backbone, preprocessor=None))
