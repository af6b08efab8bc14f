"""TensorFlow Privacy's own tests, run against tfcactus with only imports changed.

Run `python -m benchmarks.tfp_own_tests` where TensorFlow Privacy is installed, with its
tests (TensorFlow up to 2.15); or give the folder that holds them.
"""

from __future__ import annotations

import argparse
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
"""What is imported in place of each module of theirs."""

_TESTS = (
    'optimizers/dp_optimizer_keras_test.py',
    'dp_query/gaussian_query_test.py',
    'keras_models/dp_keras_model_test.py')

_DP_FTRL = 'DP-FTRL: no optimizer here draws correlated noise, `privatize` does'

_REASONS = (
    ('DPFTRL', _DP_FTRL), ('DPTreeAggregation', _DP_FTRL),
    ('get_gradients', 'Estimators, which TensorFlow 2.16 removed: get_gradients has '
     'no tape, and says so'),
    ('Expected gradients from minimize', 'the same refusal by ValueError, where theirs '
     'is an AssertionError'),
    ('UnconnectedGradientsAsNoneFails', 'an error is asked for where gradients are '
     'unconnected; they are zero here'),
    ('without regularizers and add_loss', 'drop-in optimizers take neither '
     'regularizers nor add_loss, in words; `privatize` does'),
    ('SparseSoftmaxCrossEntropyWithLogits', 'labels 0 and 1 for one logit: the error '
     'of TensorFlow, where theirs trains on NaN'),
)
"""What is found in a test's class, name or failure, and why it must not pass."""

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
  """The text of a test with its imports changed, and nothing else."""
  for module, ours in _OURS.items():
    text = re.sub(rf'^from tensorflow_privacy\S* import {module}$',
                  f'from {ours} as {module}', text, flags=re.M)
  return text


def run(path: pathlib.Path) -> list[tuple[str, str, str]]:
  """(name, 'pass' or 'fail' or 'skip', failure) of each test of a file."""
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
  """Why a test must not pass, or its last line where nobody knows."""
  for word, why in _REASONS:
    if word in name or word in failure:
      return why
  return 'not explained: ' + failure.strip().splitlines()[-1][:200]


def main() -> None:
  """Runs all, and writes the table."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--tests', help='folder tensorflow_privacy/privacy', default=None)
  folder = parser.parse_args().tests
  if folder is None:
    spec: Any = importlib.util.find_spec('tensorflow_privacy')
    folder = str(pathlib.Path(spec.origin).parent / 'privacy')
  rows, saved = [], {}
  for test in _TESTS:
    found = [each for each in run(pathlib.Path(folder) / test) if each[1] != 'skip']
    passed = sum(how == 'pass' for _, how, _ in found)
    why: dict[str, int] = collections.Counter(
        reason(name, failure) for name, how, failure in found if how == 'fail')
    rows.append([f'`{pathlib.Path(test).stem}`', str(len(found)), str(passed),
                 '; '.join(f'{count}: {words}' for words, count in why.items()) or '-'])
    saved[test] = {'tests': len(found), 'passed': passed, 'others': dict(why)}
  _results.save('tfp_own_tests', saved)
  _results.show('tfp_own_tests', _results.markdown(
      ['test', 'cases', 'pass', 'the others, and why'], rows))


if __name__ == '__main__':
  main()
