"""Metadata of the package, and imports beside other packages, in subprocesses."""

import email
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
HAS_TENSORFLOW = importlib.util.find_spec('tensorflow') is not None
HAS_TFP = importlib.util.find_spec('tensorflow_privacy') is not None


def run(script, **environment):
  """Runs Python code with this checkout; returns what it prints."""
  result = subprocess.run(
      [sys.executable, '-c', script], capture_output=True, text=True,
      check=False, cwd=ROOT, env={
          **os.environ, 'TF_CPP_MIN_LOG_LEVEL': '3', 'PYTHONPATH': str(ROOT),
          **environment})
  return result.stdout + result.stderr[-2000:]


IMPORT = '''
import sys
def user():
  try:
    import tensorflow_privacy
    tensorflow_privacy.DPKerasSGDOptimizer, tensorflow_privacy.GaussianSumQuery
    return 'whole'
  except Exception as error:
    return type(error).__name__
def ours():
  from tfcactus import keras
  from tfcactus.keras.tfp import stand_in
  return keras.TableNoiseQuery
'''


@pytest.mark.skipif(not (HAS_TENSORFLOW and HAS_TFP),
                    reason='needs TensorFlow Privacy')
@pytest.mark.slow
def test_users_imports_are_left_as_they_were_in_either_order():
  # Twice: where the first attempt fails, the next finds half-loaded modules.
  alone = run(IMPORT + 'print(user(), user())').split()[-2:]
  before = run(IMPORT + 'a = user(); ours(); print(a, user())').split()
  after = run(IMPORT + 'ours(); print(user(), user())').split()
  assert before[-2:] == after[-2:] == alone
  left = run(IMPORT + 'ours(); print(hasattr(sys, "skip_tf_privacy_import"))')
  assert left.split()[-1] == 'False'


@pytest.mark.skipif(not (HAS_TENSORFLOW and HAS_TFP),
                    reason='needs TensorFlow Privacy')
@pytest.mark.parametrize('first', [
    pytest.param('theirs', marks=pytest.mark.slow),
    pytest.param('ours', marks=pytest.mark.more)])
def test_the_query_is_one_of_theirs_in_either_order(first):
  theirs = '''
sys.skip_tf_privacy_import = None
from tensorflow_privacy.privacy.dp_query import dp_query, gaussian_query
'''
  steps = [theirs, 'query = ours()\n']
  out = run(IMPORT + ''.join(steps if first == 'theirs' else steps[::-1]) + '''
print(issubclass(query, dp_query.SumAggregationDPQuery),
      issubclass(gaussian_query.GaussianSumQuery, dp_query.DPQuery))''')
  assert out.split()[-2:] == ['True', 'True'], out


BROKEN = {
    'blocked': "sys.modules['tensorflow_privacy'] = None",
    'no package': "sys.modules['tensorflow_privacy'] = type(sys)('stub')",
    'lacks a neighbour': "sys.modules['tensorflow_probability'] = None",
    'too old for a neighbour': ''}
USER = '''
for _ in range(2):
  try:
    import tensorflow_privacy.privacy.dp_query.dp_query
    print('whole')
  except Exception as error:
    print(repr(error))
'''


@pytest.mark.skipif(not HAS_TENSORFLOW, reason='needs TensorFlow')
@pytest.mark.parametrize('how', BROKEN)
@pytest.mark.slow
def test_tensorflow_privacy_that_does_not_import_is_done_without(how, tmp_path):
  paths = str(ROOT)
  if how == 'too old for a neighbour':
    paths = f'{tmp_path}{os.pathsep}{ROOT}'
    home = tmp_path / 'tensorflow_privacy' / 'privacy' / 'dp_query'
    home.mkdir(parents=True)
    for part in (home, home.parent, home.parent.parent):
      (part / '__init__.py').touch()
    (home / 'dp_query.py').write_text(
        'from tensorflow_privacy.privacy import dp_query\nimport dp_accounting\n'
        'dp_accounting.NoSuchEvent\n')
  broken = f'import sys, warnings\n{BROKEN[how]}\n'
  out = run(broken + '''
with warnings.catch_warnings(record=True) as caught:
  warnings.simplefilter('always')
  from tfcactus.keras.tfp import stand_in
print('said', sum('tensorflow-privacy' in str(w.message) for w in caught))
print('reason', stand_in.MISSING)
print('left', [name for name in sys.modules if name.startswith(
    'tensorflow_privacy.')] if stand_in.MISSING else [])
''' + USER, PYTHONPATH=paths).splitlines()
  begin = next(i for i, line in enumerate(out) if line.startswith('said'))
  said, reason, left, *theirs = out[begin:begin + 5]
  assert left == 'left []', out
  assert said == f'said {int("raised" in reason)}', out
  assert theirs == run(broken + USER, PYTHONPATH=paths).splitlines()[-2:], out
  if how == 'blocked':
    assert 'blocked' in reason, out
  elif how != 'lacks a neighbour':  # Whose queries may import without it.
    assert 'raised' in reason, out


@pytest.mark.skipif(not HAS_TENSORFLOW, reason='needs TensorFlow')
def test_the_query_works_without_tensorflow_privacy():
  out = run('''
import sys
class Hide:
  def find_spec(self, name, path=None, target=None):
    if name.startswith('tensorflow_privacy'):
      raise ModuleNotFoundError(name)
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: (
    None if name == 'tensorflow_privacy' else find(name, *rest))
sys.meta_path.insert(0, Hide())
import tensorflow as tf
from tfcactus import keras, noise
query = keras.TableNoiseQuery(noise.Gaussian(1e-9), l2_norm_clip=1.0)
state = query.initial_global_state()
params = query.derive_sample_params(state)
sums = query.initial_sample_state(tf.zeros([2]))
for record in ([3.0, 4.0], [0.0, 0.5]):
  sums = query.accumulate_record(params, sums, tf.constant(record))
sums = query.merge_sample_states(sums, tf.zeros([2]))
print([round(float(v), 3) for v in query.get_noised_result(sums, state)[0]])
''')
  assert '[0.6, 1.3]' in out.splitlines(), out


@pytest.mark.skipif(not HAS_TENSORFLOW, reason='needs TensorFlow')
@pytest.mark.slow
def test_importing_leaves_the_names_of_users_layers_alone():
  script = '''
from tensorflow import keras
inputs = keras.Input((1,))
model = keras.Model(inputs, keras.layers.Activation('linear')(inputs))
print(*[model.name, *[layer.name for layer in model.layers]])
'''
  alone = run(script).split()[-3:]
  assert alone == run('import tfcactus.keras\n' + script).split()[-3:]


IMPORT_KERAS = '''
try:
  from tfcactus.keras.compat import versions
  print('answer: imported', versions.keras.__name__, versions.KERAS_VERSION)
except ImportError as error:
  print('answer:', error)
'''


def answer(out):
  """Returns what IMPORT_KERAS printed."""
  found = re.search('^answer: (.*)', out, re.M)
  assert found, out
  return found.group(1)


@pytest.mark.skipif(not HAS_TENSORFLOW, reason='needs TensorFlow')
@pytest.mark.parametrize('backend', ['numpy', 'jax', 'torch'])
@pytest.mark.slow
def test_other_backends_are_refused_with_the_reason(backend):
  out = answer(run(IMPORT_KERAS, KERAS_BACKEND=backend))
  # Keras 2 knows no backends. Keras 3 says which it is, unless that misses a
  # package and does not import.
  assert out.startswith(('imported keras 2.', 'imported tf_keras 2.')) or (
      (f'backend {backend!r}' in out or f'KERAS_BACKEND={backend!r}' in out) and
      'Set KERAS_BACKEND=tensorflow' in out), out


@pytest.mark.skipif(not HAS_TENSORFLOW, reason='needs TensorFlow')
@pytest.mark.more
@pytest.mark.parametrize('variable, value, package, missing', [
    ('KERAS_BACKEND', 'jax', 'keras', 'jax'),
    ('TF_USE_LEGACY_KERAS', '1', 'tf_keras', 'tf_keras')])
def test_a_keras_that_does_not_import_is_refused_with_the_reason(
    variable, value, package, missing):
  # Whichever Keras the tests themselves run on.
  chosen = {'TF_USE_LEGACY_KERAS': '0', variable: value}
  out = answer(run(f'import sys\nsys.modules[{missing!r}] = None\n' +
                   IMPORT_KERAS, **chosen))
  if out.startswith('imported keras 2.'):
    pytest.skip('Keras 2 comes with this TensorFlow, and reads no variable')
  assert f'importing {package} raised' in out, out
  assert f"{variable}='{value}'" in out and missing in out, out
  assert 'tf-keras' in out and 'KERAS_BACKEND=tensorflow' in out, out


def test_without_tensorflow_the_reason_is_said():
  out = run('''
import sys
sys.modules['tensorflow'] = None
import tfcactus
assert tfcactus.library.names()
try:
  import tfcactus.keras
except ImportError as error:
  print(error)
''')
  assert 'tfcactus[training]' in out, out


def test_the_files_parse_on_the_oldest_python():
  import ast
  for file in [*(ROOT / 'tfcactus').rglob('*.py'), *(ROOT / 'training').glob('*.py')]:
    ast.parse(file.read_text(encoding='utf-8'), feature_version=(3, 9))


def check_metadata(metadata, extras):
  """Checks the core metadata of a distribution, however it was built."""
  from tests import matrix
  named = [line.rsplit(' ', 1)[1] for line in metadata.get_all('Classifier')
           if re.search(r':: Python :: 3[.]', line)]
  # What is promised is what the matrix tries.
  assert sorted(named) == sorted(matrix.PYTHONS)
  assert metadata['Requires-Python'] == f'>={matrix.PYTHONS[-1]}'
  required = metadata.get_all('Requires-Dist')
  core = [line for line in required if 'extra ==' not in line]
  assert any(line.startswith('numpy') for line in core)
  assert not [line for line in core if re.match('tensorflow|keras|tf-', line)]
  for extra in extras:
    assert extra in metadata.get_all('Provides-Extra')
    assert [line for line in required if re.search(
        f'extra == .{extra}.', line)], extra


def extras_of_the_matrix():
  from tests import matrix
  return {extra for environment in (*matrix.ENVIRONMENTS, matrix.NEWEST)
          for extra in environment.extras.split(',') if extra}


def test_what_is_installed_names_every_version_of_python():
  # A checkout keeps the metadata of the day that it was installed on.
  found = [
      found for found in importlib.metadata.distributions(name='tfcactus')
      if found.locate_file('tfcactus').resolve() != ROOT / 'tfcactus' and
      not json.loads(found.read_text('direct_url.json') or '{}').get(
          'dir_info', {}).get('editable')]
  if not found:
    pytest.skip('no wheel of tfcactus is installed here')
  for one in found:
    check_metadata(one.metadata, extras_of_the_matrix())


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
  """Yields the wheel of this checkout, opened."""
  # Not in this process, whose distutils setuptools would replace.
  if 'yes' not in run(
      'import setuptools, importlib.util\n'
      'if not importlib.util.find_spec("wheel"):\n'
      '  import setuptools.command.bdist_wheel\n'
      'import pip\n'
      'print("yes")').splitlines():
    pytest.skip('no wheel can be built without pip, setuptools and wheel')
  home = tmp_path_factory.mktemp('wheel')
  # As it is checked out: no build/ that would go in, stale.
  shutil.copytree(ROOT, home / 'copy', ignore=shutil.ignore_patterns(
      '.*', 'build', 'dist', '*.egg-info', '__pycache__', 'results'))
  built = subprocess.run(
      [sys.executable, '-m', 'pip', 'wheel', '--quiet', '--no-deps', '--no-index',
       '--no-build-isolation', '--disable-pip-version-check', '--wheel-dir',
       str(home), str(home / 'copy')], capture_output=True, text=True, check=False)
  assert built.returncode == 0, built.stderr
  with zipfile.ZipFile(next(home.glob('*.whl'))) as file:
    yield file


def test_the_wheel_holds_all_modules_and_tables_and_no_tests(wheel):
  held = {name for name in wheel.namelist() if '.dist-info/' not in name}
  wanted = {file.relative_to(ROOT).as_posix()
            for ending in ('*.py', '*.npz', 'py.typed')
            for file in (ROOT / 'tfcactus').rglob(ending)}
  assert held == wanted
  assert sum(name.endswith('.npz') for name in held) > 3


def test_the_wheel_promises_what_the_matrix_tries(wheel):
  name = next(n for n in wheel.namelist() if n.endswith('.dist-info/METADATA'))
  metadata = email.message_from_bytes(wheel.read(name))
  import tfcactus
  assert metadata['Version'] == tfcactus.__version__
  check_metadata(metadata, extras_of_the_matrix())
  scripts = wheel.read(name.replace('METADATA', 'entry_points.txt')).decode()
  assert 'tfcactus = tfcactus.cli.main:main' in scripts
