"""Tests of the default number of rows of a physical batch."""

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf

from tfcactus.keras.gradients import layer_routes, physical_batch

_LAYERS = tf.keras.layers


def _convolutions(depth, frozen=0, width=16, size=16):
  layers = [_LAYERS.Conv2D(width, 3, padding='same') for _ in range(depth)]
  model = tf.keras.Sequential([
      _LAYERS.Input((size, size, 3)), *layers, _LAYERS.Flatten(), _LAYERS.Dense(2)])
  for layer in layers[:frozen]:
    layer.trainable = False
  return model


def _numbers(model):
  return physical_batch.numbers_per_example(model, layer_routes.routes(model))


def test_only_outputs_are_held_for_the_whole_pass():
  few, many = _numbers(_convolutions(8)), _numbers(_convolutions(16))
  # Eight layers more: their outputs and gradients, and not eight times im2col.
  assert many - few == 8 * (16 * 16 * 16 + 9 * 16 * 16 + 16)


def test_frozen_layers_hold_the_outputs_of_one_layer():
  frozen = [_numbers(_convolutions(depth, depth)) for depth in (4, 12)]
  assert frozen[0] == frozen[1] < _numbers(_convolutions(4)) / 2


def test_a_frozen_inner_model_holds_the_outputs_of_one_layer():
  backbone = _convolutions(12)
  backbone.trainable = False
  inputs = _LAYERS.Input((16, 16, 3))
  model = tf.keras.Model(inputs, _LAYERS.Dense(3)(backbone(inputs)))
  assert _numbers(model) < _numbers(_convolutions(12)) / 4


def _rows(monkeypatch, mean, limit, overhead=4.0):
  """Rows for draws of a Poisson number, if memory takes `limit` examples."""
  model = _convolutions(2)
  taken = 4 * physical_batch._HELD * _numbers(model)
  monkeypatch.setattr(
      physical_batch, 'memory_for_steps', lambda: int((limit + 0.5) * taken))
  monkeypatch.setattr(physical_batch, '_overhead', lambda *_: overhead)
  return physical_batch.physical_rows(
      mean, mean**0.5, model, layer_routes.routes(model))


@pytest.mark.parametrize('mean, limit, rows', [
    (81, 10**6, 96), (81, 60, 48), (100, 3, 3), (1, 10**9, 8), (0.1, 0, 1)])
def test_rows_fill_the_physical_batches_of_a_draw(monkeypatch, mean, limit, rows):
  assert _rows(monkeypatch, mean, limit) == rows


def test_draws_of_one_size_are_one_physical_batch():
  model = _convolutions(2)
  assert physical_batch.physical_rows(
      32, 0, model, layer_routes.routes(model)) == 32


@pytest.mark.parametrize('overhead', [4, 16, 100])
@pytest.mark.parametrize('mean', [8, 16, 32, 64, 200])
def test_rows_cost_little_more_than_the_best_rows(monkeypatch, mean, overhead):
  """The oracle adds up costs over the law of the number of examples drawn."""
  drawn = np.arange(600)
  share = stats.poisson.pmf(drawn, mean)

  def cost(rows):
    batches = np.maximum(1, np.ceil(drawn / rows))
    return np.sum(share * batches * (rows + overhead))

  found = _rows(monkeypatch, mean, 10**6, overhead)
  assert cost(found) <= 1.02 * min(map(cost, range(8, 400, 8)))


def test_small_batches_of_large_layers_are_hardly_padded(monkeypatch):
  assert _rows(monkeypatch, 8, 10**6) == 8
  assert _rows(monkeypatch, 8, 10**6, overhead=50) == 16


def test_a_physical_batch_costs_more_rows_where_layers_are_small():
  small, large = (_convolutions(4, size=size) for size in (4, 64))
  more = [physical_batch._overhead(_numbers(model), layer_routes.routes(model))
          for model in (small, large)]
  assert more[0] > 3 * more[1] >= 3 * physical_batch._LEAST_OVERHEAD
