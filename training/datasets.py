"""The data the training scripts use, as arrays."""

from __future__ import annotations

import dataclasses
import importlib
import os
import ssl
import threading
from typing import Any
from typing import Optional
import urllib.error
import urllib.request
import warnings

import numpy as np

_HOST = 'storage.googleapis.com'
"""Where tensorflow-datasets has MNIST from."""

_PATIENCE = 3
"""Seconds until a network that does not answer is taken for none: what is imported
before and loaded after takes time too."""


@dataclasses.dataclass(frozen=True)
class Dataset:
  """Images in [0, 1] of shape (examples, 28, 28, 1) with labels 0..9.

  Attributes:
    name: 'mnist' or 'digits'.
    description: What it is, in words.
    train: (images, labels) to train on.
    test: (images, labels) to evaluate on.
  """

  name: str
  description: str
  train: tuple[np.ndarray, np.ndarray]
  test: tuple[np.ndarray, np.ndarray]


class DatasetError(RuntimeError):
  """A dataset that is neither on disk nor to be had."""


def load(name: str, data_dir: Optional[str] = None) -> Dataset:
  """Loads a dataset by name.

  Args:
    name: 'mnist'; 'digits', scikit-learn's 1,797 handwritten digits of 8x8
      pixels resized to 28x28; or 'auto': MNIST where it is on disk or can be
      downloaded, otherwise digits.
    data_dir: Where tensorflow-datasets keeps its data; default TFDS_DATA_DIR or
      its own default.

  Raises:
    DatasetError: if MNIST was asked for and cannot be had.
    ValueError: for another name.
  """
  if name == 'digits':
    return digits()
  if name == 'mnist':
    return mnist(data_dir)
  if name != 'auto':
    raise ValueError(
        f"Expected dataset 'auto', 'mnist' or 'digits', got {name!r}.")
  try:
    return mnist(data_dir)
  except DatasetError as error:
    fallback = digits()
    return dataclasses.replace(
        fallback, description=f'{fallback.description} (instead of MNIST: '
        f'{error})')


def hold_out(data: Dataset, size: int) -> Dataset:
  """Puts some training examples, always the same, in place of those to test on.

  Args:
    data: All of it.
    size: How many.

  Raises:
    ValueError: if none would be left.
  """
  total = data.train[1].size
  if not 0 < size < total:
    raise ValueError(
        f'Expected to hold out at least 1 of the {total} training images and not all, '
        f'got {size}.')
  order = np.random.default_rng(0).permutation(total)
  left, held = ((data.train[0][part], data.train[1][part])
                for part in (order[:-size], order[-size:]))
  return dataclasses.replace(
      data, train=left, test=held,
      description=f'{data.description}, {size:,} of the training images held out')


def mnist(data_dir: Optional[str] = None) -> Dataset:
  """MNIST through tensorflow-datasets, downloaded if it is not on disk."""
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  tfds = _tensorflow_datasets()
  where = data_dir or os.environ.get('TFDS_DATA_DIR') or 'the default directory'
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')
      builder = tfds.builder('mnist', data_dir=data_dir)
      if not builder.data_path.exists():
        _check_network()
      builder.download_and_prepare()
      parts = [builder.as_dataset(split=split, batch_size=-1,
                                  as_supervised=True)
               for split in ('train', 'test')]
      train, test = (
          (np.asarray(images, np.float32) / 255, np.asarray(labels, np.int64))
          for images, labels in parts)
  except Exception as error:  # tfds raises what its download libraries raise.
    reason = str(error).strip().splitlines()
    raise DatasetError(
        f'MNIST was not found in {where} and could not be downloaded '
        f'({type(error).__name__}: {reason[0] if reason else "no reason"})'
    ) from error
  return Dataset('mnist', 'MNIST, 60,000 training and 10,000 test images',
                 train, test)


def _check_network() -> None:
  """Fails at once where a download would be tried for minutes.

  Raises:
    ConnectionError: if there is no way to the images.
  """
  proxies = urllib.request.getproxies()
  way = proxies.get('https', proxies.get('all', 'http'))
  if not way.startswith('http'):
    return  # SOCKS, which this cannot ask.
  reached = threading.Event()
  # In a thread, since looking up a name knows no time limit.
  thread = threading.Thread(
      target=lambda: _answers() and reached.set(), daemon=True)
  thread.start()
  thread.join(_PATIENCE)
  if not reached.is_set():
    raise ConnectionError(f'no connection to {_HOST}')


def _answers() -> bool:
  """Whether the host answers, whatever it says, by way of a proxy if there is one."""
  try:
    urllib.request.build_opener().open(f'https://{_HOST}/', timeout=_PATIENCE).close()
  except urllib.error.HTTPError:
    return True  # From there: a proxy that does not let through is no HTTPError.
  except OSError as error:
    # A certificate that others than this may know, too.
    return isinstance(getattr(error, 'reason', None), ssl.SSLError)
  return True


def _tensorflow_datasets() -> Any:
  """Imports tensorflow-datasets, which is slow and needed for MNIST only."""
  try:
    import tensorflow_datasets as tfds
    if not hasattr(tfds, 'builder'):
      # It imports where its parts do not, and then lacks them without a reason.
      importlib.import_module('tensorflow_datasets.public_api')
      raise ImportError('it has no builder()')
  except Exception as error:  # As whatever it builds on raises.
    raise DatasetError(
        'MNIST could not be loaded, because tensorflow-datasets does not import '
        f'({type(error).__name__}: {error}); install "tfcactus[datasets]", with '
        '"tensorflow-metadata<1.18" where protobuf is said to be older than '
        'generated code, as with TensorFlow before 2.20') from error
  return tfds


def digits() -> Dataset:
  """scikit-learn's handwritten digits, 8x8 pixels resized to 28x28."""
  from scipy import ndimage
  from sklearn import datasets
  images, labels = datasets.load_digits(return_X_y=True)
  images = ndimage.zoom(images.reshape(-1, 8, 8), (1, 3.5, 3.5), order=1)
  images = np.clip(images / 16, 0, 1).astype(np.float32)[..., None]
  order = np.random.default_rng(0).permutation(labels.size)
  train, test = order[:1500], order[1500:]
  return Dataset(
      'digits', "scikit-learn's handwritten digits, 1,500 training and 297 "
      'test images of 8x8 pixels resized to 28x28: no accuracy is promised',
      (images[train], labels[train].astype(np.int64)),
      (images[test], labels[test].astype(np.int64)))
