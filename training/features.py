"""Features of images: each depends on one image only, and so costs no privacy."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from training import scattering

_BLOCK = 2_000  # Images at a time, for memory.


def pixels(images: np.ndarray) -> np.ndarray:
  """Returns the images as they are."""
  return images


def straightened(images: np.ndarray) -> np.ndarray:
  """Returns digits that are centred and have no slant, by the moments of each image.

  The centre of mass moves to the middle, and rows are shifted until x and y are
  uncorrelated. Images are non-negative, of shape (examples, height, width, 1). The
  result is float32, has this shape too, and lies between zero and the largest pixel.

  Source: the deslanted images of LeCun et al., "Gradient-Based Learning Applied to
  Document Recognition" (1998), here computed by moments.
  """
  images = np.asarray(images, np.float32)
  if images.ndim != 4 or images.shape[3] != 1:
    raise ValueError(
        'Expected images of shape (examples, height, width, 1), got shape '
        f'{images.shape}.')
  parts = [_straightened(images[start:start + _BLOCK, ..., 0])
           for start in range(0, len(images), _BLOCK)]
  return np.concatenate(parts or [images[..., 0]])[..., None]


def _straightened(images: np.ndarray) -> np.ndarray:
  """Returns images as `straightened` does, of shape (examples, height, width)."""
  height, width = images.shape[1:]
  y, x = np.arange(height), np.arange(width)
  mass = images.sum((1, 2), dtype=np.float64)
  mass[mass == 0] = 1  # A black image stays black.
  rows, columns = images.sum(2, dtype=np.float64), images.sum(1, dtype=np.float64)
  middle_y, middle_x = rows @ y / mass, columns @ x / mass
  off_y, off_x = y - middle_y[:, None], x - middle_x[:, None]
  spread = np.einsum('ny,ny->n', rows, off_y**2)
  slant = np.einsum('nyx,ny,nx->n', images, off_y, off_x) / np.where(
      spread > 0, spread, 1)
  # Each pixel of the result takes the value of the image at (source_y, source_x).
  from_middle = (y - (height - 1) / 2)[None, :, None]
  source_y = np.broadcast_to(from_middle + middle_y[:, None, None], images.shape)
  source_x = (x - (width - 1) / 2)[None, None] + middle_x[:, None, None] + (
      slant[:, None, None] * from_middle)
  which = np.broadcast_to(np.arange(len(images))[:, None, None], images.shape)
  return ndimage.map_coordinates(images, [which, source_y, source_x], order=1)


def scattered(images: np.ndarray) -> np.ndarray:
  """Returns scattering features of straightened images.

  The result is float32, of shape (examples, height / 4, width / 4, 81).
  """
  return scattering.features(straightened(images)[..., 0])


FEATURES = {'pixels': pixels, 'straightened': straightened, 'scattering': scattered}
"""Functions from images to features, by value of --features."""
