"""Tests of models of KerasHub: sums against a loop, LoRA from training to export."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import one_by_one, zoo
from tests.keras.tiny import MEAN, plan_of
from tests.keras.zoo import oracle
from tfcactus.keras import fine_tuning, PoissonBatches, privatize
from tfcactus.keras.compat import models, precision
from tfcactus.keras.compat.versions import keras
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


_BACKBONES = ('BERT', 'RoBERTa', 'DistilBERT', 'GPT-2', 'Gemma', 'Gemma 3', 'Llama',
              'Mistral', 'ViT', 'Whisper')
_FLOAT32 = {'Gemma': 'models/gemma/rms_normalization.py',
            'Gemma 3': 'models/gemma3/gemma3_layers.py',
            'Llama': 'models/llama/llama_layernorm.py',
            'Mistral': 'models/mistral/mistral_layer_norm.py'}
"""Backbones that compute in float32 whatever their dtype, and a file of KerasHub that
says so. Under LoRA all do: Keras makes the factors in float32."""


def _entry(name, lora):
  entry = zoo.ZOO[f'{name} (KerasHub)']
  return entry._replace(make=lambda size: _with_lora(entry.make(size))) if lora else (
      entry)


def _with_lora(case):
  parts = [case.model, *case.model.layers]
  backbone = next(each.backbone if hasattr(each, 'backbone') else each
                  for each in parts if hasattr(each, 'backbone') or isinstance(
                      each, hub.models.Backbone))
  backbone.enable_lora(2)
  return case


@pytest.fixture
def routes(monkeypatch):
  """The routes of each engine that has run."""
  found, run = [], engine.Engine.run

  def kept(self, *args, **kwargs):
    result = run(self, *args, **kwargs)
    found.append(self.routes)
    return result

  monkeypatch.setattr(engine.Engine, 'run', kept)
  return found


def _widen(monkeypatch):
  """Makes float64 of 'float32' in KerasHub, and in weights and policies of layers."""
  def wide(function):
    def called(*args, **kwargs):
      return function(*map(widened, args), **{
          key: widened(each) for key, each in kwargs.items()})
    return called

  def widened(value):
    return 'float64' if isinstance(value, str) and value == 'float32' else value

  for owner, name in ((keras.ops, 'cast'), (keras.ops, 'arange'),
                      (keras.layers.Layer, 'add_weight'),
                      (keras.src.dtype_policies, 'get')):
    monkeypatch.setattr(owner, name, wide(getattr(owner, name)))


@pytest.mark.slow
@pytest.mark.parametrize('lora', [False, True])
@pytest.mark.parametrize('name', _BACKBONES)
def test_backbones_equal_a_loop_and_none_is_vectorised(
    name, lora, routes, monkeypatch):
  # The oracle would forgive what rounding to the grid of released sums may change.
  monkeypatch.setattr(precision, 'grid', lambda _: tf.zeros([], tf.float64))
  monkeypatch.setattr(oracle, 'unrounded', lambda difference, _: difference)
  entry = _entry(name, lora)
  found = [oracle.error(entry), oracle.error(entry, 'float64')]
  _widen(monkeypatch)
  found.append(oracle.error(entry, 'float64'))
  print(f'{name}{", LoRA" * lora}: relative errors in float32 {found[0]:.1e}, in '
        f'float64 {found[1]:.1e}, and without float32 inside {found[2]:.1e}')
  assert not any(each.vectorized() or each.whole for each in routes)
  assert found[0] <= 1e-5
  assert found[1] <= (1e-6 if lora or name in _FLOAT32 else 1e-9)
  assert found[2] <= 1e-9


def test_files_that_compute_in_float32_are_those_named():
  folder = pathlib.Path(hub.__file__).parent / 'src'
  for file in _FLOAT32.values():
    assert 'ops.cast(x, "float32")' in (folder / file).read_text('utf-8')


_VECTORISED = ('DeBERTa',)
"""Backbones of which a layer has no rule."""


@pytest.mark.slow
@pytest.mark.parametrize('lora', [False, True])
@pytest.mark.parametrize('name', [*_BACKBONES, 'ALBERT', 'DeBERTa', 'BART'])
def test_backbones_that_write_no_kernels_equal_a_loop(name, lora, routes, monkeypatch):
  monkeypatch.setattr(physical_batch, 'is_lean', lambda *_: True)
  # With few numbers, Gram matrices are smaller than few kernels only.
  monkeypatch.setattr(forms, 'product', forms.Outer)
  assert oracle.error(_entry(name, lora)) <= 1e-5
  assert lora or len(routes[-1].by_gram) >= (1 if name in _VECTORISED else 4)
  assert name in _VECTORISED or not routes[-1].vectorized()


@pytest.mark.slow
def test_experts_under_lora_equal_a_loop():
  entry = zoo.ZOO['Mixtral (KerasHub)']
  assert oracle.error(entry._replace(
      make=lambda size: _with_lora(entry.make(size)))) <= 1e-5
