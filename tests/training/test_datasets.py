"""Tests that a dataset that cannot be loaded is refused with the reason."""

import io
import socket
import ssl
import sys
import threading
import time
import types
import urllib.error

import pytest

from training import datasets


class _Blocked(types.ModuleType):
  """A module whose submodules did not import."""

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


def test_auto_without_its_library_takes_digits_and_says_why(broken):
  pytest.importorskip('sklearn')
  data = datasets.load('auto')
  assert data.name == 'digits'
  assert 'instead of MNIST' in data.description
  assert 'does not import' in data.description


@pytest.fixture
def library(monkeypatch, tmp_path):
  """tensorflow-datasets with nothing on disk, whose download fails."""
  builder = types.SimpleNamespace(data_path=tmp_path / 'none', tried=False)

  def download():
    builder.tried = True
    raise ConnectionError('after minutes')

  builder.download_and_prepare = download
  monkeypatch.setattr(datasets, '_tensorflow_datasets', lambda: types.SimpleNamespace(
      builder=lambda name, data_dir: builder))
  for name in ('https_proxy', 'all_proxy', 'no_proxy'):
    monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv(name.upper(), raising=False)
  return builder


def _opening(monkeypatch, function):
  monkeypatch.setattr(datasets.urllib.request, 'build_opener',
                      lambda: types.SimpleNamespace(open=function))


def _refuse(*args, **kwargs):
  raise urllib.error.URLError(ConnectionRefusedError())


def test_a_network_that_hangs_is_given_up_within_five_seconds(library, monkeypatch):
  over = threading.Event()
  _opening(monkeypatch, lambda *args, **kwargs: over.wait(60) and io.BytesIO())
  start = time.monotonic()
  with pytest.raises(datasets.DatasetError, match='no connection to storage'):
    datasets.load('mnist')
  # A busy machine may take longer than the patience; the network hangs for a minute.
  assert not library.tried and time.monotonic() - start < 40
  assert datasets._PATIENCE < 4.5
  over.set()


@pytest.mark.parametrize('answer', [None, b'HTTP/1.1 403 Forbidden\r\n\r\n'])
def test_a_proxy_without_connection_counts_as_no_network(library, monkeypatch, answer):
  with socket.create_server(('127.0.0.1', 0)) as server:

    def refuse():
      connection, _ = server.accept()
      with connection:
        asked.append(connection.recv(1000))
        connection.sendall(answer)

    asked, port = [], server.getsockname()[1]
    if answer is None:
      server.close()
    else:
      threading.Thread(target=refuse, daemon=True).start()
    monkeypatch.setenv('HTTPS_PROXY', f'http://127.0.0.1:{port}')
    start = time.monotonic()
    with pytest.raises(datasets.DatasetError, match='no connection to storage'):
      datasets.load('mnist')
    assert not library.tried and time.monotonic() - start < 40
  assert answer is None or asked[0].startswith(b'CONNECT storage.googleapis.com:443')


def _unknown_certificate(*args, **kwargs):
  raise urllib.error.URLError(ssl.SSLCertVerificationError())


def _forbidden(*args, **kwargs):
  raise urllib.error.HTTPError('https://there', 403, 'Forbidden', {}, None)


@pytest.mark.parametrize('answer', [
    lambda *args, **kwargs: io.BytesIO(), _forbidden, _unknown_certificate, 'socks',
    'disk'])
def test_a_download_that_may_succeed_is_tried(library, monkeypatch, answer, tmp_path):
  _opening(monkeypatch, answer if callable(answer) else _refuse)
  if answer == 'socks':
    monkeypatch.setenv('ALL_PROXY', 'socks5://localhost:1')
  elif answer == 'disk':
    library.data_path = tmp_path
  with pytest.raises(datasets.DatasetError, match='after minutes'):
    datasets.load('mnist')
  assert library.tried
