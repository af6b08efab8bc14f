"""Versions are asked for in one place and refused in words."""

import pathlib
import re

import pytest
import tensorflow as tf

from tfcactus.keras import _compat

PACKAGE = pathlib.Path(_compat.__file__).parent.parent


@pytest.mark.parametrize('tensorflow, keras', [
    ('2.14.1', '2.14.0'), ('2.15.0', '2.15.0'), ('2.16.2', '3.5.0'),
    ('2.21.0', '3.15.1'), ('2.21.0', '2.21.0'), ('3.0.0', '4.0.0')])
def test_supported_versions(tensorflow, keras):
  _compat.check_versions(tensorflow, keras)


@pytest.mark.parametrize('versions, words, remedy', [
    (('2.13.0', '2.13.0'), 'too old', 'tensorflow>=2.14'),
    (('2.16.2', '3.0.5'), 'do not add up', 'keras>=3.5'),
    (('2.16.2', '3.4.1'), 'do not add up', 'keras>=3.5'),
    (('2.21.0', '3.15.0', 'jax'), "backend 'jax'", 'KERAS_BACKEND=tensorflow'),
    (('2.21.0', '3.15.0', 'torch'), "backend 'torch'", 'KERAS_BACKEND')])
def test_other_versions_are_refused_with_reason_and_remedy(
    versions, words, remedy):
  with pytest.raises(ImportError, match=words) as error:
    _compat.check_versions(*versions)
  assert remedy in str(error.value)


def test_the_keras_at_hand_is_the_one_that_users_have():
  assert _compat.keras.Model is tf.keras.Model
  assert _compat.KERAS_3 == hasattr(tf.keras, 'ops')
  assert _compat.KERAS_VERSION.startswith('3.' if _compat.KERAS_3 else '2.')


@pytest.mark.parametrize('file', sorted(PACKAGE.rglob('*.py')), ids=str)
def test_nothing_else_asks_for_versions(file):
  asked = re.findall(
      r'__version__|KERAS_3|KERAS_VERSION|version_info|metadata\.version',
      file.read_text(encoding='utf-8'))
  allowed = {
      '_compat.py': set(asked),
      'run_card.py': {'__version__', 'KERAS_VERSION'},  # Reports, asks not.
      '__init__.py': {'__version__'}}  # Its own.
  assert set(asked) <= allowed.get(file.name, set()), file
