"""Versions are asked for in one place and refused in words."""

import pytest

from tfcactus.keras import _compat


@pytest.mark.parametrize('version', ['2.14.1', '2.15.0', '2.15.1'])
def test_supported_versions(version):
  _compat.check_version(version)


@pytest.mark.parametrize('version, words', [
    ('2.13.0', 'too old'), ('2.16.2', 'Keras 3'), ('2.21.0', 'Keras 3')])
def test_other_versions_are_refused_with_the_remedy(version, words):
  with pytest.raises(ImportError, match=words) as error:
    _compat.check_version(version)
  assert 'tensorflow>=2.14,<2.16' in str(error.value)
