"""Tests of the models of the training scripts."""

import pytest

from training import features, networks


def test_cnn_is_the_tutorials():
  assert networks.cnn().count_params() == 26_010


@pytest.mark.parametrize('name', features.FEATURES)
def test_each_model_takes_its_features(name):
  model = networks.build(name, 'tanh')
  assert model.output_shape == (None, 10)
  assert (model.input_shape == (None, 7, 7, 81)) == (name == 'scattering')
