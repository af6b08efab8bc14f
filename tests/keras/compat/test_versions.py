"""Tests that versions are checked in one place and refused in words."""

import ast
import pathlib
import re

import pytest
import tensorflow as tf

from tests.keras import tiny
from tfcactus.keras import model as model_lib
from tfcactus.keras.compat import versions as versions_lib

PACKAGE = pathlib.Path(versions_lib.__file__).parent.parent


@pytest.mark.parametrize('tensorflow, keras', [
    ('2.14.1', '2.14.0'), ('2.15.0', '2.15.0'), ('2.16.2', '3.5.0'),
    ('2.21.0', '3.15.1'), ('2.21.0', '2.21.0'), ('3.0.0', '4.0.0')])
def test_supported_versions(tensorflow, keras):
  versions_lib.check_versions(tensorflow, keras)


@pytest.mark.parametrize('versions, words, remedy', [
    (('2.13.0', '2.13.0'), 'too old', 'tensorflow>=2.14'),
    (('2.16.2', '3.0.5'), 'do not add up', 'keras>=3.5'),
    (('2.16.2', '3.4.1'), 'do not add up', 'keras>=3.5'),
    (('2.21.0', '3.15.0', 'jax'), "backend 'jax'", 'KERAS_BACKEND=tensorflow'),
    (('2.21.0', '3.15.0', 'torch'), "backend 'torch'", 'KERAS_BACKEND')])
def test_other_versions_are_refused_with_reason_and_remedy(
    versions, words, remedy):
  with pytest.raises(ImportError, match=words) as error:
    versions_lib.check_versions(*versions)
  assert remedy in str(error.value)


def test_the_library_uses_the_keras_of_tensorflow():
  assert versions_lib.keras.Model is tf.keras.Model
  assert versions_lib.KERAS_3 == hasattr(tf.keras, 'ops')
  assert versions_lib.KERAS_VERSION.startswith('3.' if versions_lib.KERAS_3 else '2.')


def _of(module, name, base):
  return type(name, (base,), {'__module__': module})


OTHER = 'keras' if versions_lib.keras.__name__ == 'tf_keras' else 'tf_keras'


@pytest.mark.parametrize('module, package', [
    (f'{OTHER}.src.engine', OTHER),
    ('tensorflow.python.keras.engine', 'tensorflow.python.keras')])
def test_objects_of_another_keras_are_refused_by_name(
    module, package, make_plan):
  strange = _of(module, 'Strange', object)
  users = _of('__main__', 'Users', strange)
  private = model_lib.privatize(tiny.inner(), make_plan())
  for thing in (strange, users):
    for name, call in (
        ('model', lambda thing=thing: model_lib.privatize(thing(), make_plan())),
        ('optimizer', lambda thing=thing: private.compile(thing(), 'mse')),
        ('loss', lambda thing=thing: private.compile('sgd', thing())),
        ('loss', lambda thing=thing: private.compile('sgd', thing))):
      with pytest.raises(ValueError, match=f'Expected {name} of the ') as error:
        call()
      words = str(error.value)
      assert f'{thing.__name__} of the package {package}' in words
      assert f'{versions_lib.keras.__name__} {versions_lib.KERAS_VERSION}' in words
  assert 'TF_USE_LEGACY_KERAS' in words or package != OTHER


def test_a_model_of_the_other_keras_is_refused_where_it_is_installed(make_plan):
  other = pytest.importorskip(OTHER)
  if OTHER == 'keras' and other.__version__.startswith('2.'):
    pytest.skip('it is Keras 2 as well')
  for call in (
      lambda: model_lib.privatize(other.Sequential(), make_plan()),
      lambda: model_lib.privatize(tiny.inner(), make_plan()).compile(
          other.optimizers.SGD(), 'mse'),
      lambda: model_lib.privatize(tiny.inner(), make_plan()).compile(
          'sgd', other.losses.MeanSquaredError())):
    with pytest.raises(ValueError, match=f'of the package {OTHER}'):
      call()


def test_objects_of_this_keras_and_of_no_keras_pass():
  for thing in (tiny.inner(), tf.keras.optimizers.SGD(), tiny.NONE, 'mse', None,
                tf.keras.losses.MeanSquaredError, lambda y, p: y - p):
    versions_lib.check_same_keras('it', thing)


def _asked(source):
  """Returns the expressions by which a module asks for versions or features."""
  asked = re.findall(
      r'__version__|KERAS_3|KERAS_VERSION|version_info|metadata\.version', source)
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Call) and getattr(node.func, 'id', '') in (
        'hasattr', 'getattr') and len(node.args) > 1:
      owner, name = map(ast.unparse, node.args[:2])
      # Attributes of a library, or private attributes of any object.
      if re.match(r'(tf|tensorflow|keras)\b', owner) or re.match("'_[^_]", name):
        asked.append(ast.unparse(node))
    if isinstance(node, ast.Try) and any(
        handler.type and 'AttributeError' in ast.unparse(handler.type)
        for handler in node.handlers) and any(
            re.search(r'\b(tf|tensorflow|keras)\.', ast.unparse(part))
            for part in node.body):
      asked.append('except AttributeError')
  return set(asked)


@pytest.mark.parametrize('source, asked', [
    ('if hasattr(keras.layers, "Identity"): pass', True),
    ("x = getattr(tf, 'function')", True),
    ("x = getattr(tf.keras.optimizers, name, None)", True),
    ("x = hasattr(keras, 'ops')", True),
    ("x = getattr(layer, '_USE_V2_BEHAVIOR', True)", True),
    ('try:\n  x = keras.ops\nexcept (ValueError, AttributeError):\n  pass', True),
    ('x = KERAS_3', True), ('x = sys.version_info', True),
    ("x = getattr(layer, 'stateful', False)", False),
    ("x = hasattr(x, '__array__')", False),
    ("x = getattr(keras_free, 'a')", False),
    ('try:\n  x = self.made\nexcept AttributeError:\n  pass', False),
    ('try:\n  x = keras.ops\nexcept ValueError:\n  pass', False)])
def test_questions_for_versions_are_found(source, asked):
  assert bool(_asked(source)) == asked


def test_only_compat_asks_for_versions():
  allowed = {
      # Compares a method with that of Keras itself.
      'refused_models.py': {'getattr(keras.Model, name, None)'},
      'dependence.py': {'getattr(tf.raw_ops, op.type)'},  # Every version has it.
      # Datasets of one class have it.
      'datasets.py': {"getattr(dataset, '_selector_input', None)"},
      'run_card.py': {'__version__', 'KERAS_VERSION'},  # Reports versions.
      '__init__.py': {'__version__'}}  # The library's own version.
  files = [path for path in PACKAGE.rglob('*.py') if path.parent.name != 'compat']
  assert len(files) > 50
  for file in files:
    asked = _asked(file.read_text(encoding='utf-8'))
    assert asked <= allowed.get(file.name, set()), file
