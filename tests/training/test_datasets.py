"""Where a dataset is not to be had, the reason is said."""

import io
import sys
import threading
import time
import types

import pytest

from training import datasets


class _Blocked(types.ModuleType):
  """A module whose parts did not import, as tensorflow-datasets' log says."""

  __path__ = ()


@pytest.fixture(params=['not installed', 'half imported'])
def broken(request, monkeypatch):
  for name in [n for n in sys.modules if n.startswith('tensorflow_datasets')]:
    monkeypatch.delitem(sys.modules, name)
  half = request.param == 'half imported'
  monkeypatch.setitem(sys.modules, 'tensorflow_datasets',
                      _Blocked('tensorflow_datasets') if half else None)


def test_mnist_without_its_library_says_what_to_install(broken):
  with pytest.raises(datasets.DatasetError) as error:
    datasets.load('mnist')
  words = str(error.value)
  assert 'does not import' in words and 'tensorflow_datasets' in words
  assert 'tfcactus[datasets]' in words and 'tensorflow-metadata<1.18' in words
  assert "has no attribute 'builder'" not in words


def test_auto_without_it_takes_digits_and_says_why(broken):
  pytest.importorskip('sklearn')
  data = datasets.load('auto')
  assert data.name == 'digits'
  assert 'instead of MNIST' in data.description
  assert 'does not import' in data.description


@pytest.fixture
def library(monkeypatch, tmp_path):
  """tensorflow-datasets with nothing on disk, which tries what it is asked to."""
  builder = types.SimpleNamespace(data_path=tmp_path / 'none', tried=False)

  def download():
    builder.tried = True
    raise ConnectionError('after minutes')

  builder.download_and_prepare = download
  monkeypatch.setattr(datasets, '_tensorflow_datasets', lambda: types.SimpleNamespace(
      builder=lambda name, data_dir: builder))
  monkeypatch.setattr(datasets.urllib.request, 'getproxies', dict)
  monkeypatch.setattr(datasets, '_PATIENCE', 0.2)
  return builder


def _refuse(*args):
  raise ConnectionRefusedError


def _hang(*args):
  threading.Event().wait(5)
  raise TimeoutError


@pytest.mark.parametrize('connect', [_refuse, _hang])
def test_without_a_network_nothing_is_tried_for_minutes(library, monkeypatch, connect):
  monkeypatch.setattr(datasets.socket, 'create_connection', connect)
  start = time.monotonic()
  with pytest.raises(datasets.DatasetError, match='no connection to storage'):
    datasets.load('mnist')
  assert not library.tried and time.monotonic() - start < 3


@pytest.mark.parametrize('way', ['network', 'proxy', 'disk'])
def test_what_may_be_had_is_tried(library, monkeypatch, way, tmp_path):
  monkeypatch.setattr(datasets.socket, 'create_connection', _refuse)
  if way == 'network':
    monkeypatch.setattr(datasets.socket, 'create_connection',
                        lambda *args: io.BytesIO())
  elif way == 'proxy':
    monkeypatch.setattr(datasets.urllib.request, 'getproxies', lambda: {'https': 'p'})
  else:
    library.data_path = tmp_path
  with pytest.raises(datasets.DatasetError, match='after minutes'):
    datasets.load('mnist')
  assert library.tried
