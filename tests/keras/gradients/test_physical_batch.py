"""How many rows a physical batch has by default."""

import pytest
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


def test_outputs_stay_and_what_rules_need_goes_again():
  few, many = _numbers(_convolutions(8)), _numbers(_convolutions(16))
  # Eight layers more: their outputs and gradients, and not eight times im2col.
  assert many - few == 8 * (16 * 16 * 16 + 9 * 16 * 16 + 16)


def test_frozen_layers_below_hold_one_of_them():
  frozen = [_numbers(_convolutions(depth, depth)) for depth in (4, 12)]
  assert frozen[0] == frozen[1] < _numbers(_convolutions(4)) / 2


def test_a_frozen_model_inside_holds_no_more():
  backbone = _convolutions(12)
  backbone.trainable = False
  inputs = _LAYERS.Input((16, 16, 3))
  model = tf.keras.Model(inputs, _LAYERS.Dense(3)(backbone(inputs)))
  assert _numbers(model) < _numbers(_convolutions(12)) / 4


@pytest.mark.parametrize('usual, limit, rows', [
    (100.0, 10**6, 104), (100.0, 90, 56), (100.0, 3, 3), (1.5, 1e9, 8), (0.1, 0, 1)])
def test_rows_fill_the_physical_batches_of_a_draw(monkeypatch, usual, limit, rows):
  model = _convolutions(2)
  taken = 4 * physical_batch._HELD * _numbers(model)
  monkeypatch.setattr(
      physical_batch, 'memory_for_steps', lambda: int((limit + 0.5) * taken))
  found = physical_batch.physical_rows(usual, model, layer_routes.routes(model))
  assert found == rows
