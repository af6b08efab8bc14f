"""Tests of features of images by their invariances."""

import numpy as np
import pytest
from scipy import ndimage

from training import datasets, features


@pytest.fixture(scope='module')
def digits():
  """Returns digits with a margin, so that shifts stay in the image."""
  small = ndimage.zoom(
      datasets.digits().train[0][:40], (1, 16 / 28, 16 / 28, 1), order=1)
  return np.pad(small, ((0, 0), (6, 6), (6, 6), (0, 0)))


def moments(images):
  """Returns centers, and the covariance of x and y over the variance of y."""
  y, x = np.mgrid[:28, :28]
  found = []
  for image in images[..., 0].astype(float):
    mass = image.sum()
    up, left = (image * y).sum() / mass, (image * x).sum() / mass
    found.append((up, left, (image * (y - up) * (x - left)).sum() /
                  (image * (y - up)**2).sum()))
  return np.transpose(found)


def test_straightened_digits_stand_upright_in_the_middle(digits):
  assert np.abs(moments(digits)[2]).max() > 0.2
  up, left, slant = moments(features.straightened(digits))
  np.testing.assert_allclose(up, 13.5, atol=0.3)
  np.testing.assert_allclose(left, 13.5, atol=0.3)
  np.testing.assert_allclose(slant, 0, atol=0.08)


def test_shifts_and_slants_are_undone():
  y, x = np.mgrid[:28, :28]
  blob = np.exp(-0.5 * (((y - 13.5) / 5)**2 + ((x - 13.5) / 2)**2)).astype(np.float32)
  slanted = ndimage.affine_transform(blob, [[1, 0], [0.4, 1]], [0, -0.4 * 13.5])
  moved = np.stack([blob, np.roll(slanted, (1, -2), (0, 1))])[..., None]
  straight = features.straightened(moved)
  assert np.abs(moved[1] - moved[0]).max() > 0.3
  np.testing.assert_allclose(straight[0], moved[0], atol=1e-5)
  np.testing.assert_allclose(straight[1], straight[0], atol=0.05)


def test_images_are_independent_and_black_ones_stay_black(digits):
  both = features.straightened(np.concatenate([digits[:3], 0 * digits[:1]]))
  np.testing.assert_array_equal(both[1:2], features.straightened(digits[1:2]))
  assert not both[3].any() and both.dtype == np.float32
  assert both.min() >= 0 and both.max() <= digits.max()
  assert features.straightened(digits[:0]).shape == (0, 28, 28, 1)


def test_images_of_another_shape_are_refused():
  with pytest.raises(ValueError, match=r'height, width, 1\), got shape \(2, 28, 28\)'):
    features.straightened(np.zeros((2, 28, 28)))
