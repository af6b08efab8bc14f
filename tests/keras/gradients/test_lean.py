"""Tests that kernels that are not written out leave the clipped sums as they are."""

import numpy as np
import pytest
import tensorflow as tf

from tests.keras import freivalds, one_by_one
from tests.keras.tiny import MEAN, plan_of
from tests.representatives import representatives
from tfcactus.keras import make_run_card, PoissonBatches, privatize
from tfcactus.keras.checks import example_losses
from tfcactus.keras.gradients import clipping, engine, layer_routes, physical_batch

layers = tf.keras.layers
_ROWS, _LENGTH, _WORDS, _WIDTH, _CLASSES = 8, 4, 40, 12, 3


class _Tied(layers.Layer):
  """Looks words up in a table, and tells the next from products with the table."""

  def build(self, shape):
    self.table = self.add_weight(
        name='table', shape=(_WORDS, _WIDTH), initializer='glorot_uniform')
    self.built = True

  def call(self, words):
    found = tf.gather(tf.convert_to_tensor(self.table), words)
    return tf.matmul(tf.tanh(found), self.table, transpose_b=True)


def _encoder():
  words = tf.keras.Input((_LENGTH,), dtype='int32')
  x = layers.Embedding(_WORDS, _WIDTH)(words)
  shared = layers.Dense(_WIDTH, 'tanh')
  x = shared(layers.MultiHeadAttention(2, 6)(x, x))
  x = layers.LayerNormalization()(layers.Add()([x, shared(x)]))
  x = layers.Conv1D(24, 2, activation='tanh')(x)
  return words, layers.Dense(_CLASSES)(layers.Flatten()(x))


def _language():
  words = tf.keras.Input((_LENGTH,), dtype='int32')
  return words, layers.GlobalAveragePooling1D()(_Tied()(words))


def _model(make):
  tf.keras.utils.set_random_seed(1)
  return one_by_one.shake(tf.keras.Model(*make()))


def _data(rows=_ROWS):
  rng = np.random.default_rng(0)
  return (rng.integers(0, _WORDS, (rows, _LENGTH)).astype(np.int32),
          rng.integers(0, _CLASSES, rows))


@representatives('make', [_language, _encoder])
def test_clipped_sums_by_gram_matrices_equal_a_loop(make):
  model, (x, y) = _model(make), _data()
  got = one_by_one.engine_sums(model, MEAN, x, y, lean=True)
  one_by_one.assert_same(got, one_by_one.loop_sums(model, MEAN, x, y))
  assert not got.routes.vectorized()
  kernels = [v for v in model.trainable_variables
             if len(v.shape) > 1 and np.prod(v.shape) > _WIDTH]
  # The embedding's rows, the outer product at the end, and Conv1D have other forms.
  want = kernels[1:-2] if make is _encoder else kernels
  assert {*got.routes.by_gram} >= {id(each) for each in want}
  assert got.routes.summary().count('norms by Gram matrices') == (
      5 if make is _encoder else 1)
  assert max(freivalds.errors(model, MEAN, x, y).values()) < 1e-5


def test_convolutions_of_few_positions_write_no_kernels():
  """Patches are fewer than channels in the last layers of a network for images."""
  tf.keras.utils.set_random_seed(1)
  model = one_by_one.shake(tf.keras.Sequential([
      layers.Input((5, 4, 60)), layers.Conv2D(128, 3, strides=2), layers.Flatten(),
      layers.Dense(_CLASSES)]))
  x = np.random.default_rng(0).normal(size=(_ROWS, 5, 4, 60)).astype(np.float32)
  y = np.arange(_ROWS) % _CLASSES
  got = one_by_one.engine_sums(model, MEAN, x, y)
  one_by_one.assert_same(got, one_by_one.loop_sums(model, MEAN, x, y))
  assert got.routes.by_gram == {id(model.trainable_variables[0]): 2}


def _sums(lean, each=1, views=1, clipping='flat'):
  model, (x, y) = _model(_encoder), _data(_ROWS * each)
  made = engine.Engine(
      model, example_losses.loss_per_example(MEAN), 4,
      layer_routes.routes(model)._replace(lean=lean), clipping, views=views, each=each)
  found = tf.function(lambda x, y: made.run(
      x, y, tf.ones([_ROWS * each]), tf.constant(0.1)), autograph=False)(x, y)
  assert bool(made.routes.by_gram) == lean
  return np.concatenate([np.ravel(part) for part in found.sums])


@pytest.mark.parametrize('kind', [
    {'each': 2}, pytest.param({'views': 2}, marks=pytest.mark.more),
    pytest.param({'clipping': 'per_layer'}, marks=pytest.mark.more),
    pytest.param({'clipping': 'automatic'}, marks=pytest.mark.more)])
def test_sums_of_units_views_and_layers_do_not_depend_on_the_form(kind):
  written, lean = _sums(False, **kind), _sums(True, **kind)
  assert np.linalg.norm(written - lean) <= 1e-6 * np.linalg.norm(written)


@representatives('arithmetic, by_gram', [('float', 2), ('integer', 0)])
def test_models_whose_kernels_do_not_fit_are_lean(arithmetic, by_gram, monkeypatch):
  """A model of wide layers trains by Gram matrices where memory is short.

  In whole numbers it does not: the proof has no room for roundings of Gram norms.
  """
  model = tf.keras.Sequential([
      layers.Input((8, 64)), layers.Dense(256), layers.Dense(64),
      layers.GlobalAveragePooling1D(), layers.Dense(3)])
  plan = plan_of(arithmetic=arithmetic)
  assert not privatize(model, plan).privacy_summary().count('Gram')
  kernels = physical_batch.numbers_per_example(model, layer_routes.routes(model))
  monkeypatch.setattr(physical_batch, 'memory_for_steps', lambda: 6 * kernels)
  monkeypatch.setattr(physical_batch, '_memory_of_large', lambda weights: 0)
  private = privatize(model, plan)
  assert (private.physical_batch_size > 1) == bool(by_gram)
  private.compile('sgd', MEAN)
  x = np.random.default_rng(0).normal(size=(40, 8, 64)).astype(np.float32)
  private.fit(PoissonBatches(x, np.arange(40) % 3, 0.25), epochs=1, verbose=0)
  assert private.privacy_summary().count(
      'batched, norms by Gram matrices') == by_gram


def _card(clip_rounding, monkeypatch):
  """Returns what the card of a lean model does not cover, and its number of rows."""
  monkeypatch.setattr(physical_batch, 'is_lean', lambda *_: True)
  monkeypatch.setattr(clipping, 'MOST_ROUNDINGS', clip_rounding)
  model = tf.keras.Sequential([
      layers.Input((8, 64)), layers.Dense(32), layers.GlobalAveragePooling1D(),
      layers.Dense(3)])
  private = privatize(model, plan_of(), physical_batch_size=4)
  private.compile('sgd', MEAN)
  x = np.random.default_rng(0).normal(size=(40, 8, 64)).astype(np.float32)
  private.fit(PoissonBatches(x, np.arange(40) % 3, 0.25), verbose=0)
  assert private.privacy_summary().count('norms by Gram matrices') == 1
  return make_run_card(private)['not_covered']


@pytest.mark.more
def test_the_run_card_names_rounding_beyond_the_margin(monkeypatch):
  """Lean models use Gram norms beyond the limit, which other models do not."""
  drawn = 10 + 8 * 7.5**0.5
  roundings = 256 * drawn * (8 * 4 + drawn / 4 + 3)
  line = 'rounding of sums beyond the margin'
  assert not any(line in each for each in _card(1.01 * roundings, monkeypatch))
  (found,) = [each for each in _card(0.99 * roundings, monkeypatch) if line in each]
  stated = float(found.partition('by up to ')[2].split()[0])
  assert 1 <= stated / (2.02 * roundings * 2.0**-53) < 1.1


def test_large_batches_round_more_without_gram_norms_too():
  assert clipping.excess(1.7e5, 170_000, 0) == 0.0
  assert clipping.excess(2e5, 200_000, 0) == pytest.approx(
      2.02 * 2e5 * (2e5 + 4) * 2.0**-53)
  assert clipping.excess(2000, 2000, 32) == 0.0
  assert clipping.excess(2100, 2100, 32) > 7.8e-6
