"""Tests that both sides of each port in docs/porting.md run."""

import io
import pathlib
import re
import textwrap

import numpy as np
import pytest

from tfcactus.keras.compat import versions
from tfcactus.keras.tfp import stand_in

PAGE = pathlib.Path(__file__).parents[2] / 'docs' / 'porting.md'
DIFFS = dict(re.findall(r'<!-- run by tests: (\w+) -->\n```diff\n(.*?)```',
                        PAGE.read_text('utf-8'), re.S))


def side(name, sign):
  """Returns one side of a diff, as a program."""
  lines = DIFFS[name].splitlines()
  assert all(line[:1] in (' ', '+', '-') for line in lines)
  return '\n'.join(line[1:] for line in lines if line[0] in (' ', sign))


def printed(program):
  """Runs a program on data of 256 rows; returns what it prints, and its variables."""
  rng = np.random.default_rng(0)
  out = io.StringIO()
  names = {'x': rng.normal(size=(256, 20)).astype(np.float32),
           'y': rng.integers(0, 10, 256),
           'print': lambda *args: print(*args, file=out)}
  exec(compile(program, str(PAGE), 'exec'), names)
  return out.getvalue(), names


def test_the_page_has_two_ports_of_about_ten_lines():
  assert set(DIFFS) == {'tensorflow_privacy', 'opacus'}
  for name in DIFFS:
    assert len(textwrap.dedent(side(name, '+')).split('\n')) <= 14


@pytest.mark.parametrize('name', ['tensorflow_privacy', 'opacus'])
def test_ported_programs_print_their_guarantee(name):
  out, names = printed(side(name, '+'))
  guarantee = names['model'].guarantee()
  assert str(guarantee) in out and guarantee.proven
  assert guarantee.steps == names['plan'].steps == 8
  assert (name == 'opacus') == (2.9 < guarantee.upper <= 3)


def test_the_program_of_tensorflow_privacy_runs_and_reports_more():
  if versions.KERAS_3 or not stand_in.AVAILABLE:
    pytest.skip('TensorFlow Privacy has no optimizers here')
  out, names = printed(side('tensorflow_privacy', '-'))
  theirs = float(re.search(r'Poisson sampling \(\*\):\s+([\d.]+)', out)[1])
  _, ours = printed(side('tensorflow_privacy', '+'))
  # TensorFlow Privacy accounts by Renyi divergences, whose epsilon is larger.
  assert 1 < theirs / ours['model'].guarantee().upper < 1.4


def test_the_program_of_opacus_runs():
  pytest.importorskip('opacus')
  out, _ = printed(side('opacus', '-'))
  assert 2.5 < float(out) <= 3.1
