"""Where a dataset is not to be had, the reason is said."""

import sys
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
