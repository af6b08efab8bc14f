"""The run card says what ran, and nothing it cannot know."""

import json

import numpy as np
import pytest
import tensorflow as tf

from tfcactus.keras import DPKerasSGDOptimizer
from tfcactus.keras import EpsilonCallback
from tfcactus.keras import make_run_card
from tfcactus.keras import PoissonBatches
from tfcactus.keras import privatize

_LOSS = tf.keras.losses.SparseCategoricalCrossentropy(
    from_logits=True, reduction='none')


def _model():
  return tf.keras.Sequential([tf.keras.layers.Input((6,)),
                              tf.keras.layers.Dense(3)])


def _data():
  rng = np.random.default_rng(0)
  return rng.normal(size=(40, 6)).astype(np.float32), rng.integers(0, 3, 40)


def test_a_run_card_says_what_ran(make_plan, tmp_path):
  plan = make_plan()
  private = privatize(_model(), plan)
  private.compile('sgd', _LOSS)
  path = tmp_path / 'card.json'
  callback = EpsilonCallback(run_card=path)
  private.fit(PoissonBatches(*_data(), 0.25), verbose=0, callbacks=[callback])
  card = json.loads(path.read_text())
  assert card == json.loads(json.dumps(make_run_card(private)))
  assert card['epsilon']['upper'] == private.guarantee().upper == 0.04
  assert card['released_steps'] == 4 and card['sampling'] == 'poisson'
  assert card['table_digest'] == plan.noise.digest
  assert card['neighboring_relation'] == 'add-or-remove-one'
  assert 'AES-256' in card['randomness'] and len(card['not_covered']) >= 4
  assert card['releases_beside'] == []
  private.fit(PoissonBatches(*_data(), 0.25, seed=1), verbose=0)
  assert 'SEEDED (batches)' in make_run_card(private)['randomness']
  private.train_on_batch(*_data())
  card = make_run_card(private)
  assert card['epsilon'] is None and 'No epsilon' in card['reason']


def test_a_drop_in_optimizer_has_no_run_card(make_plan, tmp_path):
  model = _model()
  model.compile(DPKerasSGDOptimizer.from_plan(make_plan()), _LOSS)
  with pytest.raises(ValueError, match='PrivateModel with run_card'):
    model.fit(*_data(), verbose=0, callbacks=[
        EpsilonCallback(run_card=tmp_path / 'card.json')])
