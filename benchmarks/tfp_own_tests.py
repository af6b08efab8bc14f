"""Counts how many of TensorFlow Privacy's own tests tfcactus passes.

    python -m benchmarks.tfp_own_tests [--tests FOLDER]

Only the imports of the tests are changed. Needs an environment with TensorFlow Privacy
and its tests (TensorFlow up to 2.15), or the folder that holds the tests.
"""

from __future__ import annotations

import collections
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks import _results

_OURS = {
    'dp_optimizer_keras': 'benchmarks import _tfp_names',
    'dp_optimizer_keras_vectorized': 'benchmarks import _tfp_names',
    'dp_keras_model': 'tfcactus import keras',
    'gaussian_query': 'tfcactus import keras',
}
"""Import that replaces each imported module of TensorFlow Privacy."""

_TESTS = (
    'optimizers/dp_optimizer_keras_test.py',
    'dp_query/gaussian_query_test.py',
    'keras_models/dp_keras_model_test.py')

_DP_FTRL = ('DP-FTRL: optimizers of tfcactus draw no correlated noise; `privatize` '
            'does')

_REASONS = (
    ('DPFTRL', _DP_FTRL), ('DPTreeAggregation', _DP_FTRL),
    ('get_gradients', 'Estimators, which TensorFlow 2.16 removed: `get_gradients` '
     'raises an error, since it has no tape'),
    ('Expected gradients from minimize', 'tfcactus raises ValueError where TensorFlow '
     'Privacy raises AssertionError'),
    ('UnconnectedGradientsAsNoneFails', 'the test expects an error for unconnected '
     'gradients; tfcactus takes them as zero'),
    ('without regularizers and add_loss', 'drop-in optimizers refuse regularizers and '
     '`add_loss` with a message; `privatize` accepts them'),
    ('SparseSoftmaxCrossEntropyWithLogits', 'labels 0 and 1 for one logit: tfcactus '
     'passes on the error of TensorFlow, where TensorFlow Privacy trains on NaN'),
)
"""Text in a test's class, name or failure, and the reason why the test fails."""

_REPORT = '''
import json, sys, unittest
from absl import app

class Result(unittest.TestResult):
  found = []
  def note(self, test, how, error=None):
    text = '' if error is None else self._exc_info_to_string(error, test)
    self.found.append((test.id(), how, text))
  def addSuccess(self, test): self.note(test, 'pass')
  def addFailure(self, test, error): self.note(test, 'fail', error)
  def addError(self, test, error): self.note(test, 'fail', error)
  def addSkip(self, test, reason): self.note(test, 'skip')
  def addSubTest(self, test, subtest, error): pass

def main(argv):
  import ported_test
  suite = unittest.defaultTestLoader.loadTestsFromModule(ported_test)
  suite.run(Result())
  json.dump(Result.found, open('found.json', 'w'))

app.run(main)
'''


def ported(text: str) -> str:
  """Returns the source of a test with only its imports changed."""
  for module, ours in _OURS.items():
    text = re.sub(rf'^from tensorflow_privacy\S* import {module}$',
                  f'from {ours} as {module}', text, flags=re.M)
  return text


def run(path: pathlib.Path) -> list[tuple[str, str, str]]:
  """Runs a test file; returns (name, 'pass', 'fail' or 'skip', failure) per test."""
  with tempfile.TemporaryDirectory() as folder:
    (pathlib.Path(folder) / 'ported_test.py').write_text(
        ported(path.read_text(encoding='utf-8')), encoding='utf-8')
    (pathlib.Path(folder) / 'report.py').write_text(_REPORT, encoding='utf-8')
    root = str(pathlib.Path(__file__).parent.parent)
    subprocess.run(
        [sys.executable, 'report.py'], cwd=folder, check=True,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join([folder, root])},
        stdout=subprocess.DEVNULL)
    found = (pathlib.Path(folder) / 'found.json').read_text(encoding='utf-8')
  return [tuple(each) for each in json.loads(found)
          if not each[0].endswith('test_session')]


def reason(name: str, failure: str) -> str:
  """Returns why a test fails, or the last line of an unknown failure."""
  for word, why in _REASONS:
    if word in name or word in failure:
      return why
  return 'not explained: ' + failure.strip().splitlines()[-1][:200]


def main() -> None:
  """Runs all tests; writes the results and the table."""
  parser = _results.parser('tfp_own_tests', __doc__)
  parser.add_argument('--tests', default=None, metavar='FOLDER',
                      help='the folder tensorflow_privacy/privacy; default that of the '
                      'installed package')
  folder = parser.parse_args().tests
  if folder is None:
    spec: Any = importlib.util.find_spec('tensorflow_privacy')
    folder = str(pathlib.Path(spec.origin).parent / 'privacy')
  saved = {}
  for test in _TESTS:
    found = [each for each in run(pathlib.Path(folder) / test) if each[1] != 'skip']
    why: dict[str, int] = collections.Counter(
        reason(name, failure) for name, how, failure in found if how == 'fail')
    saved[test] = {'tests': len(found), 'others': dict(why),
                   'passed': sum(how == 'pass' for _, how, _ in found)}
  _results.save('tfp_own_tests', saved)
  show(saved)


def show(found: dict) -> None:
  """Writes the table from the results."""
  _results.show('tfp_own_tests', _results.markdown(
      ['test file', 'tests', 'passed', 'failed, and why'],
      [[f'`{pathlib.Path(test).stem}`', str(each['tests']), str(each['passed']),
        '; '.join(f'{count}: {words}' for words, count in each['others'].items()) or
        '-'] for test, each in found.items()]))


if __name__ == '__main__':
  main()
