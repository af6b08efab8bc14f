"""Image datasets of the training scripts, loaded as arrays."""

from __future__ import annotations

import dataclasses
import importlib
import os
import ssl
import threading
from typing import Any
import urllib.error
import urllib.request
import warnings

import numpy as np

_HOST = 'storage.googleapis.com'
"""Host from which tensorflow-datasets downloads MNIST."""

_PATIENCE = 3
"""Seconds after which a network that does not answer counts as absent: short, since
imports and loading take time too."""


@dataclasses.dataclass(frozen=True)
class Dataset:
  """Images in [0, 1], float32 of shape (examples, 28, 28, 1), with int64 labels 0..9.

  Attributes:
    name: 'mnist' or 'digits'.
    description: Words that describe the data.
    train: (images, labels) to train on.
    test: (images, labels) to evaluate on.
  """

  name: str
  description: str
  train: tuple[np.ndarray, np.ndarray]
  test: tuple[np.ndarray, np.ndarray]


class DatasetError(RuntimeError):
  """Raised for a dataset that is neither on disk nor can be downloaded."""


def load(name: str, data_dir: str | None = None) -> Dataset:
  """Returns 'mnist', 'digits', or 'auto': MNIST if it is available, otherwise digits.

  `data_dir` is the folder of tensorflow-datasets, by default TFDS_DATA_DIR or its own
  default. Raises DatasetError if 'mnist' is not available, and ValueError for another
  name.
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
  """Returns data whose test images are `size` training images, the same in each call.

  Raises ValueError if no training image would be left, or none held out.
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


def mnist(data_dir: str | None = None) -> Dataset:
  """Returns MNIST through tensorflow-datasets, downloaded if it is not on disk.

  Raises DatasetError if that fails.
  """
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
  """Raises ConnectionError soon where a download would be tried for minutes."""
  proxies = urllib.request.getproxies()
  proxy = proxies.get('https', proxies.get('all', 'http'))
  if not proxy.startswith('http'):
    return  # A SOCKS proxy: urllib cannot use it for this check, the download can.
  reached = threading.Event()
  # In a thread, since a DNS lookup has no time limit.
  thread = threading.Thread(
      target=lambda: _answers() and reached.set(), daemon=True)
  thread.start()
  thread.join(_PATIENCE)
  if not reached.is_set():
    raise ConnectionError(f'no connection to {_HOST}')


def _answers() -> bool:
  """Returns whether the host answers with any status, also through a proxy."""
  try:
    urllib.request.build_opener().open(f'https://{_HOST}/', timeout=_PATIENCE).close()
  except urllib.error.HTTPError:
    return True  # The host answered: a refusing proxy raises another OSError.
  except OSError as error:
    # The host answered; tensorflow-datasets may accept its certificate.
    return isinstance(getattr(error, 'reason', None), ssl.SSLError)
  return True


def _tensorflow_datasets() -> Any:
  """Returns tensorflow-datasets; DatasetError if it does not import."""
  # Imported here, since that is slow and only MNIST needs it.
  try:
    import tensorflow_datasets as tfds
    if not hasattr(tfds, 'builder'):
      # The package imports even if its parts do not; importing them shows the reason.
      importlib.import_module('tensorflow_datasets.public_api')
      raise ImportError('it has no builder()')
  except Exception as error:  # Its dependencies may raise anything.
    raise DatasetError(
        'MNIST could not be loaded, because tensorflow-datasets does not import '
        f'({type(error).__name__}: {error}); install "tfcactus[datasets]", with '
        '"tensorflow-metadata<1.18" where protobuf is said to be older than '
        'generated code, as with TensorFlow before 2.20') from error
  return tfds


def digits() -> Dataset:
  """Returns scikit-learn's handwritten digits, 8x8 pixels resized to 28x28."""
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
