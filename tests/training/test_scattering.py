"""Tests of scattering features by symmetries and by convolution in space."""

import numpy as np
import pytest
from scipy import signal

from training import datasets, scattering


@pytest.fixture(scope='module')
def digits():
  return datasets.digits().train[0][:6, ..., 0]


def channels(images):
  return scattering._scattered(np.asarray(images, np.float32))


def test_groups_of_channels_are_normalized(digits):
  found = scattering.features(digits)
  assert found.shape == (6, 7, 7, 81) and found.dtype == np.float32
  parts = found.reshape(6, 7, 7, 27, 3)
  np.testing.assert_allclose(parts.mean((1, 2, 4)), 0, atol=1e-5)
  spread = parts.std((1, 2, 4))
  assert spread.max() < 1.0001 and spread[:, 0].min() > 0.99


def test_a_quarter_turn_turns_the_angles(digits):
  turned, found = channels(np.rot90(digits, axes=(1, 2))), channels(digits)
  angles = (np.arange(8) + 4) % 8
  order = np.concatenate([[0], 1 + angles, 9 + angles,
                          17 + (8 * angles[:, None] + angles).ravel()])
  np.testing.assert_allclose(
      turned, np.rot90(found, axes=(1, 2))[..., order], atol=1e-5)
  assert np.abs(turned - np.rot90(found, axes=(1, 2))).max() > 0.01


def test_first_order_is_a_convolution_in_space(digits):
  scale, angle = 1, 3  # Angle 3 is along x.
  y, x = np.mgrid[-16:17, -16:17]
  spread, frequency = 1.6, 3 * np.pi / 8
  window = np.exp(-0.5 * (x**2 + (y / 2)**2) / spread**2)
  wave = window * np.exp(1j * frequency * x)
  wave = (wave - wave.sum() / window.sum() * window) / (4 * np.pi * spread**2)
  padded = np.pad(digits[0], 4, 'reflect')
  modulus = np.abs(signal.convolve(np.tile(padded, (3, 3)), wave, 'same'))[36:72, 36:72]
  across = scattering._averaging(28)
  np.testing.assert_allclose(channels(digits[:1])[0, ..., 1 + 8 * scale + angle],
                             across @ modulus @ across.T, atol=1e-5)


def test_constant_images_have_no_waves():
  found = channels(np.full((1, 28, 28), 0.7))
  np.testing.assert_allclose(found[..., 0], 0.7, rtol=1e-5)
  np.testing.assert_allclose(found[..., 1:], 0, atol=1e-6)


def test_shapes_that_do_not_fit_are_refused():
  with pytest.raises(ValueError, match='multiples of 4'):
    scattering.features(np.zeros((2, 27, 28)))
