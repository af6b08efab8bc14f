"""Scattering features of images: fixed wavelets without learned weights.

A feature depends on one image only, and so costs no privacy. Orders zero, one and two
of a scattering transform with two scales and eight angles give 81 channels. The
channels are averaged, sampled at every fourth pixel, and normalised over groups of
channels.

Source: Bruna and Mallat, "Invariant Scattering Convolution Networks" (2013); the
wavelets are those of Kymatio (Andreux et al., 2020); under differential privacy: Tramer
and Boneh, "Differentially Private Learning Needs Better Features" (2021).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
import functools
import itertools
import os

import numpy as np
from scipy import fft

SCALES, ANGLES, STEP = 2, 8, 4  # STEP: distance, in pixels, of sampled positions.
_MARGIN = STEP  # Pixels that images are padded by on each side.
_GROUPS = 27  # Of three channels.
_BLOCK = 500  # Images at a time, for memory.


def features(images: np.ndarray) -> np.ndarray:
  """Returns features, float32 of shape (examples, height / 4, width / 4, 81).

  Images, at least one, have shape (examples, height, width), with sides that are
  multiples of four. Each group of three channels of an example has mean zero, and
  variance close to one unless its values are nearly constant.
  """
  images = np.asarray(images, np.float32)
  if images.ndim != 3 or images.shape[1] % STEP or images.shape[2] % STEP:
    raise ValueError(
        'Expected images of shape (examples, height, width), sides multiples of '
        f'{STEP}, got shape {images.shape}.')
  blocks = [images[start:start + _BLOCK] for start in range(0, len(images), _BLOCK)]
  with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    parts = list(pool.map(lambda block: _normalized(_scattered(block)), blocks))
  return np.concatenate(parts)


def _normalized(channels: np.ndarray) -> np.ndarray:
  """Returns (examples, height, width, 81), group-normalized without weights."""
  parts = channels.reshape(*channels.shape[:3], _GROUPS, -1)
  mean = parts.mean((1, 2, 4), keepdims=True)
  spread = parts.std((1, 2, 4), keepdims=True)
  return ((parts - mean) / (spread + 1e-3)).reshape(channels.shape)


def _scattered(images: np.ndarray) -> np.ndarray:
  """Returns the 81 channels before normalization, shape (examples, h / 4, w / 4, 81).

  Images have shape (examples, h, w). The channels are local averages of the image
  (order zero), of the moduli of its wavelet transforms (order one), and of the moduli
  of the coarser wavelet transforms of the finer of those moduli (order two).
  """
  padded = np.pad(images, ((0, 0), (_MARGIN, _MARGIN), (_MARGIN, _MARGIN)), 'reflect')
  wavelets = [[_wavelet(padded.shape[1:], scale, angle) for angle in range(ANGLES)]
              for scale in range(SCALES)]
  across, down = (_averaging(size) for size in images.shape[1:])
  found = [padded]
  whole = fft.fft2(padded)
  first = [[np.abs(fft.ifft2(whole * wavelet)) for wavelet in row] for row in wavelets]
  found += itertools.chain(*first)
  for low, high in itertools.combinations(range(SCALES), 2):
    for modulus in first[low]:
      spectrum = fft.fft2(modulus)
      found += [np.abs(fft.ifft2(spectrum * wavelet)) for wavelet in wavelets[high]]
  return np.stack([across @ each @ down.T for each in found], -1).astype(np.float32)


def _averaging(size: int) -> np.ndarray:
  """Returns the matrix that averages an axis with Gaussian weights at every 4th pixel.

  The shape is (size / 4, size + 2 * _MARGIN), since the axis is padded by margins.
  """
  centres = _MARGIN + STEP * np.arange(size // STEP) + 0.5 * (STEP - 1)
  spread = 0.8 * 2**(SCALES - 1)
  weights = np.exp(-0.5 * ((np.arange(size + 2 * _MARGIN) - centres[:, None]) / spread
                          )**2)
  return (weights / weights.sum(1, keepdims=True)).astype(np.float32)


@functools.cache
def _wavelet(shape: tuple[int, int], scale: int, angle: int) -> np.ndarray:
  """Returns the discrete Fourier transform of a periodic Morlet wavelet of mean zero.

  `scale` is in 0..SCALES - 1, from fine to coarse, and `angle` in 0..ANGLES - 1.
  """
  spread, frequency = 0.8 * 2**scale, 0.75 * np.pi / 2**scale
  turn = (ANGLES // 2 - 1 - angle) * np.pi / ANGLES
  window, wave = np.zeros(shape), np.zeros(shape, complex)
  for y, x in _periods(shape):
    along = x * np.cos(turn) + y * np.sin(turn)
    aside = (y * np.cos(turn) - x * np.sin(turn)) * (4 / ANGLES)
    each = np.exp(-0.5 * (along**2 + aside**2) / spread**2)
    window += each
    wave += each * np.exp(1j * frequency * along)
  morlet = wave - wave.sum() / window.sum() * window
  return fft.fft2(morlet / (2 * np.pi * spread**2 / (4 / ANGLES))).astype(np.complex64)


def _periods(shape: tuple[int, int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yields coordinates (y, x) of all pixels, shifted by up to two image sizes.

  The sum of a function over these shifts has the period of the image.
  """
  y, x = np.mgrid[:shape[0], :shape[1]]
  for up, left in itertools.product((-2, -1, 0, 1, 2), repeat=2):
    yield y + up * shape[0], x + left * shape[1]
