"""Tests of models of KerasHub: LoRA from training to export, norms by Gram matrices."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import one_by_one, zoo
from tests.keras.tiny import MEAN, plan_of
from tests.keras.zoo import oracle
from tfcactus.keras import fine_tuning, PoissonBatches, privatize
from tfcactus.keras.compat import models
from tfcactus.keras.gradients import engine, forms, physical_batch

hub = pytest.importorskip('keras_hub')
_ROWS, _LENGTH, _WORDS = 40, 6, 20


def _adapted():
  tf.keras.utils.set_random_seed(1)
  backbone = hub.models.BertBackbone(
      vocabulary_size=_WORDS, num_layers=1, num_heads=2, hidden_dim=8,
      intermediate_dim=12, max_sequence_length=_LENGTH, dropout=0.0)
  model = hub.models.BertTextClassifier(
      backbone, num_classes=3, dropout=0.0, preprocessor=None)
  backbone.enable_lora(2)
  return model


def _texts():
  rng = np.random.default_rng(0)
  return {'token_ids': rng.integers(0, _WORDS, (_ROWS, _LENGTH)).astype(np.int32),
          'segment_ids': np.zeros((_ROWS, _LENGTH), np.int32),
          'padding_mask': np.ones((_ROWS, _LENGTH), np.int32)}, np.arange(_ROWS) % 3


@pytest.mark.filterwarnings('ignore:`compile')
def test_lora_of_keras_hub_is_batched_and_survives_its_file(tmp_path):
  x, y = _texts()
  private = privatize(one_by_one.shake(_adapted()), plan_of())
  few = ({name: part[:6] for name, part in x.items()}, y[:6])
  got = one_by_one.engine_sums(private.inner, MEAN, *few)
  assert not any(route.vectorized for route in got.routes.layers)
  one_by_one.assert_same(got, one_by_one.loop_sums(private.inner, MEAN, *few))

  private.compile('adam', MEAN)
  private.fit(PoissonBatches(x, y, 0.25), verbose=0)
  want = private.predict(x, verbose=0)
  private.save(tmp_path / 'm.keras')
  again = tf.keras.models.load_model(tmp_path / 'm.keras')
  assert [v.shape for v in again.inner.trainable_variables] == [
      v.shape for v in private.inner.trainable_variables]
  np.testing.assert_array_equal(again.predict(x, verbose=0), want)
  merged = fine_tuning.merged(again.inner)
  assert not models.lora_layers(merged)
  merged.export(tmp_path / 'export', verbose=False)
  served = tf.saved_model.load(tmp_path / 'export')
  for outputs in (merged.predict(x, verbose=0), served.serve(x)):
    np.testing.assert_allclose(outputs, want, rtol=1e-5, atol=1e-6)
  again.fit(PoissonBatches(x, y, 0.25), verbose=0)
  assert again.guarantee().steps == 8


_BACKBONES = ('BERT', 'DistilBERT', 'ALBERT', 'DeBERTa', 'GPT-2', 'Gemma', 'Llama',
              'BART', 'ViT', 'Mistral')
_VECTORISED = ('DeBERTa',)
"""Backbones of which a layer has no rule."""


def _mistral(size):
  backbone = hub.models.MistralBackbone(
      vocabulary_size=7, num_layers=1, num_query_heads=2, num_key_value_heads=1,
      hidden_dim=4, intermediate_dim=5)
  case = zoo.ZOO['Llama (KerasHub)'].make(size)
  return case._replace(model=hub.models.MistralCausalLM(backbone, preprocessor=None))


def _with_lora(case):
  case.model.backbone.enable_lora(2)
  return case


@pytest.mark.slow
@pytest.mark.parametrize('lora', [False, True])
@pytest.mark.parametrize('name', _BACKBONES)
def test_backbones_that_write_no_kernels_equal_a_loop(name, lora, monkeypatch):
  monkeypatch.setattr(physical_batch, 'is_lean', lambda *_: True)
  # With few numbers, Gram matrices are smaller than few kernels only.
  monkeypatch.setattr(forms, 'product', forms.Outer)
  routes, run = [], engine.Engine.run

  def kept(self, *args, **kwargs):
    found = run(self, *args, **kwargs)
    routes.append(self.routes)
    return found

  monkeypatch.setattr(engine.Engine, 'run', kept)
  entry = zoo.ZOO['Llama (KerasHub)' if name == 'Mistral' else f'{name} (KerasHub)']
  make = _mistral if name == 'Mistral' else entry.make
  entry = entry._replace(
      make=(lambda size: _with_lora(make(size))) if lora else make)
  assert oracle.error(entry) <= 1e-5
  assert lora or len(routes[-1].by_gram) >= (1 if name in _VECTORISED else 4)
  assert name in _VECTORISED or not routes[-1].vectorized()


@pytest.mark.slow
def test_experts_under_lora_equal_a_loop():
  entry = zoo.ZOO['Mixtral (KerasHub)']
  assert oracle.error(entry._replace(
      make=lambda size: _with_lora(entry.make(size)))) <= 1e-5
