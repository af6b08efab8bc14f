"""Tests of the fine-tuning script on the small data set."""

import json

import pytest

from training import fine_tuning


@pytest.mark.slow
def test_features_learned_from_public_digits_help_at_equal_epsilon(tmp_path):
  path = tmp_path / 'result.json'
  fine_tuning.main([
      '--dataset', 'digits', '--private-examples', '500', '--batch-size', '100',
      '--steps', '30', '--public-epochs', '10', '--target-epsilon', '2', '--seed', '1',
      '--json', str(path)])
  found = json.loads(path.read_text())
  assert found['private_examples'] == 500
  for name in ('fine-tuned', 'from scratch'):
    assert 1.9 < found[name]['epsilon'] <= 2
  assert found['fine-tuned']['accuracy'] > found['from scratch']['accuracy']
